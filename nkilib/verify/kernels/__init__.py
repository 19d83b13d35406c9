# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every kernel of the library on fixed inputs, compared with float64 and the simulator.

:mod:`.registry` lists the kernels: a kernel that is missing there fails a test.
"""
