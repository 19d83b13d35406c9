# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small kernels that tell apart the readings of what the documentation of NKI leaves open.

What a device gives is looked up among the expected values of every reading, which numpy makes: the simulator is one of
those who are asked. Results that no reading explains are an answer too, and are shown.
"""
