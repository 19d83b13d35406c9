"""Copies whose source has its elements in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Rows of the source that are copied at a time: as many as share the lines of a cache that a column of them reads.
_ROWS = 16
# Smaller ones stay in a cache anyway.
_SMALLEST_BYTES = 1 << 17

# Elements from which on a matrix is copied before it is transposed; the copy takes less than a microsecond.
_SMALLEST_COPIED = 1 << 10


def transposed(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``matrix.T``, to be read: where the rows are apart, of a dense copy.

    Rows whose distance is a power of two share a few lines of a cache, and reading the columns takes six times as long
    as from a copy.
    """
    is_apart = matrix.size >= _SMALLEST_COPIED and matrix.strides[0] != matrix.shape[1] * matrix.itemsize
    return (matrix.copy() if is_apart else matrix).T


def copy_in_order(destination: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """``destination[...] = values``, arrays of one shape and type.

    Where the last dimension is not the dense one of ``values``, as after a transpose, numpy would read every line of
    memory once for each element in it: a few rows of the source at a time are three times as fast.
    """
    is_in_order = values.ndim < 2 or abs(values.strides[-1]) <= values.itemsize
    if is_in_order or destination.nbytes < _SMALLEST_BYTES or np.may_share_memory(destination, values):
        np.copyto(destination, values)
        return
    for start in range(0, values.shape[-1], _ROWS):
        destination[..., start : start + _ROWS] = values[..., start : start + _ROWS]
