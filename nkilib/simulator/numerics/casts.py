# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Casts between the types of tensors and the float32 in which engines compute.

- To float32: :func:`to_float32`, :func:`copy_as_float32`.
- From float32: :func:`store_float`, with :func:`round_to_tfloat32` and :func:`saturate_to_integer`.
- From the exact integers in which GpSimd computes: :func:`store_integer`.

Floats round to nearest even. A float becomes an integer by rounding to nearest even and saturating; NaN becomes 0,
which the documentation leaves open. Source: ``nki/guides/architecture/trainium_inferentia2_arch.rst`` (engines compute
in float32 and cast on the way in and out), and this project's readings where that page leaves a question open.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..terms.dtypes import ALL_DTYPES, DType, tfloat32

# As instances: numpy takes longer to compare a type with a class.
FLOAT32 = np.dtype(np.float32)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def values_of_bits(count: int, numpy_type: Any) -> npt.NDArray[np.float64]:
    """Return the float64 values of the bit patterns 0 to ``count`` - 1 of a numpy type of 8 bits or fewer."""
    return np.arange(count, dtype=np.uint8).view(numpy_type).astype(np.float64)


# The value of every bit pattern.
_FLOAT8_VALUES = {
    dtype.numpy: values_of_bits(256, dtype.numpy).astype(np.float32)
    for dtype in ALL_DTYPES
    if dtype.is_float and dtype.itemsize == 1
}


def _quick_to_cast(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # The cast of a dense copy is four times as fast.
    is_apart = values.ndim > 0 and values.strides[-1] != values.itemsize
    return values.copy() if is_apart and values.dtype == _BFLOAT16 else values


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return ``values.astype(np.float32)``, a new array; fast for ``ml_dtypes`` types too."""
    table = _FLOAT8_VALUES.get(values.dtype)
    if table is not None:
        return np.take(table, values.view(np.uint8))
    return _quick_to_cast(values).astype(np.float32)


def copy_as_float32(destination: npt.NDArray[np.float32], values: npt.NDArray[Any]) -> None:
    """Assign ``destination[...] = values``; fast for ``ml_dtypes`` types too."""
    table = _FLOAT8_VALUES.get(values.dtype)
    if table is not None:
        np.take(table, values.view(np.uint8), out=destination, mode="clip")
    else:
        np.copyto(destination, _quick_to_cast(values), casting="unsafe")


_TF32_DROPPED_BITS = 13


def round_to_tfloat32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return ``values`` with 10 mantissa bits, rounded to nearest even; NaN and infinities are returned unchanged."""
    bits = values.view(np.uint32)
    half = np.uint32((1 << (_TF32_DROPPED_BITS - 1)) - 1)
    is_odd = (bits >> np.uint32(_TF32_DROPPED_BITS)) & np.uint32(1)
    mask = np.uint32(0xFFFFFFFF << _TF32_DROPPED_BITS & 0xFFFFFFFF)
    rounded = ((bits + half + is_odd) & mask).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def saturate_to_integer(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return float values as integers of ``dtype``: rounded to nearest even, clipped to the range of ``dtype``, NaN as
    0.
    """
    limits = np.iinfo(dtype.numpy)
    wide = np.rint(values.astype(np.float64))
    return np.nan_to_num(np.clip(wide, limits.min, limits.max), nan=0.0).astype(dtype.numpy)


def store_float(destination: npt.NDArray[Any], values: npt.NDArray[np.float32], dtype: DType) -> None:
    """Write float32 values into an array, with the cast of the engines.

    Args:
        destination: the array to write.
        values: an array with the elements of ``destination`` in row-major order.
        dtype: the NKI type of ``destination``.
    """
    shaped = values if values.shape == destination.shape else values.reshape(destination.shape)
    if dtype.is_integer:
        destination[...] = saturate_to_integer(shaped, dtype)
    elif dtype == tfloat32:
        destination[...] = round_to_tfloat32(np.ascontiguousarray(shaped))
    else:
        np.copyto(destination, shaped, casting="unsafe")


def store_integer(destination: npt.NDArray[Any], values: npt.NDArray[Any], dtype: DType) -> None:
    """Write exact integers into an array, wrapped to 32 bits as GpSimd arithmetic leaves them.

    Args:
        destination: the array to write.
        values: an int64 array with the elements of ``destination`` in row-major order.
        dtype: the NKI type of ``destination``. An integer type keeps the low bits; for a float type the values are
            cast.
    """
    shaped = values.reshape(destination.shape)
    if dtype.is_integer:
        np.copyto(destination, shaped, casting="unsafe")
    else:
        store_float(destination, shaped.astype(np.float32), dtype)
