# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code around the kernels, in numpy and arithmetic.

``tiling``: the choice of a tiling, and bytes of HBM; ``guarantees``; ``work``: the work of a launch, for profiles;
``profiling``: launches to profile; ``reference``: float64 results and bounds; ``token_scores``: the same for several
ids. The kernels use only the tiling, while they are traced.
"""
