# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The skeleton of row-wise losses: one loss per row, computed from sums and maxima of the row.

The skeleton loads tensors [N, D] in chunks of rows. The forward computes losses from statistics of the rows, such as
sums, and returns coefficients of each row, from which the backward computes gradients. A loss definition has the
computation on a piece, which is a part of a chunk. The modules, from a kernel down:

- ``run``: the checks of the kernels' arguments, results and gradients, and the losses of a core;
- ``definition``: the interface of a loss definition, and arithmetic that loss definitions share;
- ``backward``: the gradients of a core, as sums of terms;
- ``stream``: chunks of rows, loaded ahead, and their pieces; ``tiling``: the choice of their sizes;
- ``host``: the registry entry of a row-wise loss, its work, and its float64 results with accepted errors.
"""
