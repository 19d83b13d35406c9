# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of long rows of float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]

# Elements that einsum adds in one go. It keeps 16 or more partial sums, some for each place of its vectors, so that a
# partial sum has at most 16 terms, as in numpy's pairwise sum.
_PIECE = 256
_SHORTEST = 2048


def row_sums(values: Float32s) -> Float32s:
    """Return the sum of each row of an array (rows, elements), in float32.

    A long row is added in pieces and the sums of the pieces pairwise: as exact as ``np.add.reduce``, and in half the
    time, because numpy's pairwise sum of float32 is not vectorised.
    """
    rows, width = values.shape
    if width < _SHORTEST:
        return np.add.reduce(values, axis=1)
    in_pieces = width // _PIECE * _PIECE
    pieces = values[:, :in_pieces].reshape(rows, -1, _PIECE)
    total = np.add.reduce(np.einsum("ijk->ij", pieces), axis=1)
    if in_pieces < width:
        total += np.add.reduce(values[:, in_pieces:], axis=1)
    return total
