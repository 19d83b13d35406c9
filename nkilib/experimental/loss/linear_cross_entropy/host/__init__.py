# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Around the kernels, in numpy and arithmetic: what a launch does, takes and should give, and how it is cut up.

Of this the kernels use the tiling alone, while they are traced.
"""
