# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The type of a result for which the caller gives none.

The documentation of NKI defines the type of a result of one tile (the tile's type), and leaves two tiles of different
types open. Here they give the narrowest type that holds the values of both, as in PyTorch and in the rules of earlier
NKI.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..terms import dtypes as dt
from ..terms.dtypes import DType
from ..terms.errors import NkiValidationError

_SIGNED = {1: dt.int8, 2: dt.int16, 4: dt.int32}


def promoted(first: DType, second: DType) -> DType:
    """Return the narrowest type for values of both types.

    A float wins over an integer. Two floats give the wider one, or the next wider type if neither holds the values of
    the other: float32 for bfloat16 with float16, bfloat16 for two 8-bit floats. Signed with unsigned integers give
    the next wider signed type.

    Raises:
        NkiValidationError: for int32 with uint32, which no type holds.
    """
    if first == second:
        return first
    if first.is_float != second.is_float:
        return first if first.is_float else second
    if first.is_float:
        return _wider_float(first, second)
    return _wider_integer(first, second)


def _wider_float(first: DType, second: DType) -> DType:
    narrow, wide = sorted((first, second), key=lambda dtype: dtype.itemsize)
    if wide.itemsize == dt.float32.itemsize:
        return dt.float32
    if narrow.itemsize < wide.itemsize:
        return wide
    return dt.float32 if wide.itemsize > 1 else dt.bfloat16


def _wider_integer(first: DType, second: DType) -> DType:
    narrow, wide = sorted((first, second), key=lambda dtype: dtype.itemsize)
    is_signed = {dtype.kind == "int" for dtype in (narrow, wide)}
    if len(is_signed) == 1:
        return wide
    if narrow.itemsize < wide.itemsize and wide.kind == "int":
        return wide
    size = 2 * wide.itemsize
    if size not in _SIGNED:
        raise NkiValidationError(f"no type holds the values of both {first} and {second}: say which one with dtype=")
    return _SIGNED[size]


def with_number(dtype: DType, number: Any) -> DType:
    """Return the type for a tile of ``dtype`` with a number: ``dtype``, but float32 for integers with a float."""
    is_float = isinstance(number, float | np.floating) or getattr(number, "dtype", np.dtype(int)).kind == "f"
    return dt.float32 if is_float and not dtype.is_float else dtype
