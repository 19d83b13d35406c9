# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Copies of arrays in another order of their dimensions: :func:`copy_in_order`, and :func:`transposed` for a matrix.

Reading memory out of order takes several times as long as in order; both functions read in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Elements from which on a matrix is copied before it is transposed; the copy takes less than a microsecond.
_SMALLEST_COPIED = 1 << 10


def transposed(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``matrix.T``, for reading only. If there are gaps between the rows in memory, it is a view of a dense
    copy.

    Rows whose distance is a power of two share a few lines of a cache, and reading their columns takes six times as
    long as reading the columns of a copy.
    """
    is_apart = matrix.size >= _SMALLEST_COPIED and matrix.strides[0] != matrix.shape[1] * matrix.itemsize
    return (matrix.copy() if is_apart else matrix).T


def _as_bits(elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Numpy copies unsigned integers faster than the types of ml_dtypes.
    return elements.view(f"u{elements.itemsize}")


# Rows of the source that are copied at a time: their part that is copied stays in a core's first cache.
_ROWS_AT_A_TIME = 64
# Smaller destinations stay in a cache, in whatever order they are written.
SMALLEST_TRANSPOSED_BYTES = 1 << 17


def copy_in_order(destination: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Assign ``destination[...] = values`` for arrays of one shape and type.

    If the last dimension of ``values`` is not dense, as after a transpose, numpy would read every cache line once for
    each element of the line. Therefore a few rows of the source at a time are copied in their own order and then
    transposed, which takes a quarter of the time.
    """
    is_in_order = values.ndim < 2 or abs(values.strides[-1]) <= values.itemsize
    if is_in_order or destination.nbytes < SMALLEST_TRANSPOSED_BYTES or np.may_share_memory(destination, values):
        np.copyto(destination, values)
        return
    into, bits = _as_bits(destination), _as_bits(values)
    for start in range(0, bits.shape[-1], _ROWS_AT_A_TIME):
        into[..., start : start + _ROWS_AT_A_TIME] = bits[..., start : start + _ROWS_AT_A_TIME].copy(order="K")
