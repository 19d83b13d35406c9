# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code around the kernels, in numpy and arithmetic.

``tiling`` chooses a tiling and counts bytes of HBM, ``profiling`` models the times of launches, ``reference`` has
float64 results, ``bounds`` bounds on the errors of the kernels, and ``token_scores`` results and bounds for several
ids. The kernels use only the tiling, while they are traced.
"""
