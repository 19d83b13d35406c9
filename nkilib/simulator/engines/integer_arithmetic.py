"""Exact arithmetic of 32-bit integers, as GpSimd has it."""

from __future__ import annotations

import numpy as np

from ..numerics.casts import store_integer
from ..numerics.operators import ARITHMETIC
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import int32, uint32

_INTEGERS = frozenset({int32, uint32})
# Operators that give in 32 bits what they give in more, wrapped. Not so a magnitude: that of the lowest int32 needs 33.
_CLOSED = frozenset(ARITHMETIC) - {"power", "abs_max", "abs_min"}


def are_integers(*tiles: NkiTensor) -> bool:
    """Whether all tiles are of the types with which GpSimd computes exactly."""
    return _INTEGERS.issuperset([tile.dtype for tile in tiles])


def compute_integers(key: str, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor) -> None:
    """``data1 <key> data2`` into ``dst``, all int32 or uint32: exact, and wrapped to 32 bits."""
    left, right = data1.array.reshape(dst.shape), data2.array.reshape(dst.shape)
    if dst.dtype == data1.dtype == data2.dtype and key in _CLOSED:
        ARITHMETIC[key](left, right, dst.array)
        return
    exact = np.empty(dst.shape, np.int64)
    ARITHMETIC[key](left.astype(np.int64), right.astype(np.int64), exact)
    store_integer(dst.array, exact, dst.dtype)
