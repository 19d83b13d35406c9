# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small kernels that tell apart the readings of questions that the documentation of NKI leaves open.

The result of a device is looked up among the expected values of every reading, which numpy computes: the simulator is
only one of the devices that are asked. A result that no reading explains is an answer, too, and is shown.
"""
