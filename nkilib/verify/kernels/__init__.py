# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every kernel of the library on fixed inputs, beside float64 and the simulator.

:mod:`.registry` lists them: a kernel that is missing there fails a test.
"""
