# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code around the kernels, in numpy and arithmetic.

``tiling``: the choice of a tiling, and bytes of HBM; ``profiling``: modelled times of launches; ``reference``: float64
results; ``bounds``: bounds on the errors of the kernels; ``token_scores``: results and bounds for several ids. The
kernels use only the tiling, while they are traced.
"""
