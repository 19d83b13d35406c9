# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code around the kernels, in numpy and arithmetic: tilings, guarantees, work, memory and references of a launch.

The kernels use only the tiling of it, while they are traced.
"""
