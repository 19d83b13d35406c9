# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Casts between the types of tensors and the float32 in which engines compute, and copies in another order.

The MX formats are here too: blocks of 32 elements of 8 or 4 bits that share a scale, a power of two.

Floats round to nearest even. A float becomes an integer by rounding to nearest even and saturating; NaN becomes 0,
which the documentation leaves open. Source: ``nki/guides/architecture/trainium_inferentia2_arch.rst`` (engines
compute in float32 and cast on the way in and out) and the rules of this project for what it leaves open; for MX, "OCP
Microscaling Formats (MX) Specification" 1.0 and the docstring of ``quantize_mx`` (the choice of the scale).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..terms.dtypes import ALL_DTYPES, DType, float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4, tfloat32

# As instances: numpy takes longer to compare a type with a class.
FLOAT32 = np.dtype(np.float32)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_TF32_DROPPED_BITS = 13

# Rows of the source that are copied at a time: their part that is copied stays in a core's first cache.
_ROWS_AT_A_TIME = 64
# Smaller ones stay in a cache anyway.
SMALLEST_TRANSPOSED_BYTES = 1 << 17

# Elements from which on a matrix is copied before it is transposed; the copy takes less than a microsecond.
_SMALLEST_COPIED = 1 << 10

# A block of an MX format is a piece of a matrix with so many rows and columns; the elements of one of its rows form one
# word of a packed type, with the first element in the lowest bits.
BLOCK_ROWS = 8
BLOCK_COLUMNS = 4

_SCALE_BIAS = 127
_NAN_SCALE = 255
_FP4_BITS = 4

# The element types into which quantize_mx can write, and the exponents of their largest numbers.
_FP8_TYPES = {float8_e5m2_x4: (ml_dtypes.float8_e5m2, 15), float8_e4m3fn_x4: (ml_dtypes.float8_e4m3fn, 8)}


def _values_of_bits(count: int, numpy_type: Any) -> npt.NDArray[np.float64]:
    return np.arange(count, dtype=np.uint8).view(numpy_type).astype(np.float64)


# The value of every bit pattern.
_FLOAT8_VALUES = {
    dtype.numpy: _values_of_bits(256, dtype.numpy).astype(np.float32)
    for dtype in ALL_DTYPES
    if dtype.is_float and dtype.itemsize == 1
}
_MX_VALUES = {
    float8_e5m2_x4: _values_of_bits(256, ml_dtypes.float8_e5m2),
    float8_e4m3fn_x4: _values_of_bits(256, ml_dtypes.float8_e4m3fn),
    float4_e2m1fn_x4: _values_of_bits(16, ml_dtypes.float4_e2m1fn),
}
_MX_SCALES = _values_of_bits(256, ml_dtypes.float8_e8m0fnu)


def _quick_to_cast(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a dense copy of a bfloat16 array whose last dimension is not dense in memory, else ``values`` itself.

    The cast of the dense copy is four times as fast.
    """
    is_apart = values.ndim > 0 and values.strides[-1] != values.itemsize
    return values.copy() if is_apart and values.dtype == _BFLOAT16 else values


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return ``values.astype(np.float32)``, a new array, by a method that is fast for ``ml_dtypes`` types too."""
    table = _FLOAT8_VALUES.get(values.dtype)
    if table is not None:
        return np.take(table, values.view(np.uint8))
    return _quick_to_cast(values).astype(np.float32)


def copy_as_float32(destination: npt.NDArray[np.float32], values: npt.NDArray[Any]) -> None:
    """Assign ``destination[...] = values`` by a method that is fast for ``ml_dtypes`` types too."""
    table = _FLOAT8_VALUES.get(values.dtype)
    if table is not None:
        np.take(table, values.view(np.uint8), out=destination, mode="clip")
    else:
        np.copyto(destination, _quick_to_cast(values), casting="unsafe")


def round_to_tfloat32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return ``values`` with 10 mantissa bits, rounded to nearest even; NaN and infinities stay."""
    bits = values.view(np.uint32)
    half = np.uint32((1 << (_TF32_DROPPED_BITS - 1)) - 1)
    is_odd = (bits >> np.uint32(_TF32_DROPPED_BITS)) & np.uint32(1)
    mask = np.uint32(0xFFFFFFFF << _TF32_DROPPED_BITS & 0xFFFFFFFF)
    rounded = ((bits + half + is_odd) & mask).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def saturate_to_integer(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return float values as integers of ``dtype``: rounded to nearest even, clipped to its range, NaN as 0."""
    limits = np.iinfo(dtype.numpy)
    wide = np.rint(values.astype(np.float64))
    return np.nan_to_num(np.clip(wide, limits.min, limits.max), nan=0.0).astype(dtype.numpy)


def store_float(destination: npt.NDArray[Any], values: npt.NDArray[np.float32], dtype: DType) -> None:
    """Write float32 ``values`` into ``destination``, whose NKI type is ``dtype``, with the engines' cast.

    ``values`` is reshaped to the destination: both hold the same elements in row-major order.
    """
    shaped = values if values.shape == destination.shape else values.reshape(destination.shape)
    if dtype.is_integer:
        destination[...] = saturate_to_integer(shaped, dtype)
    elif dtype == tfloat32:
        destination[...] = round_to_tfloat32(np.ascontiguousarray(shaped))
    else:
        np.copyto(destination, shaped, casting="unsafe")


def store_integer(destination: npt.NDArray[Any], values: npt.NDArray[Any], dtype: DType) -> None:
    """Write exact integers (int64) into ``destination``, wrapped to 32 bits as the GpSimd arithmetic leaves them.

    Integer destination types keep the bits; float types get a cast.
    """
    shaped = values.reshape(destination.shape)
    if dtype.is_integer:
        np.copyto(destination, shaped, casting="unsafe")
    else:
        store_float(destination, shaped.astype(np.float32), dtype)


def transposed(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``matrix.T`` for reading, made from a dense copy if the rows are apart in memory.

    Rows whose distance is a power of two share a few lines of a cache, and reading their columns takes six times as
    long as reading the columns of a copy.
    """
    is_apart = matrix.size >= _SMALLEST_COPIED and matrix.strides[0] != matrix.shape[1] * matrix.itemsize
    return (matrix.copy() if is_apart else matrix).T


def _as_bits(elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view as unsigned integers, which numpy moves faster than the types of ``ml_dtypes``."""
    return elements.view(f"u{elements.itemsize}")


def copy_in_order(destination: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Assign ``destination[...] = values`` for arrays of one shape and type.

    Where the last dimension of ``values`` is not the dense one, as after a transpose, numpy would read every line of
    memory once for each element in it. A few rows of the source at a time are therefore copied in their own order
    first, and transposed from that copy, which takes a quarter of the time.
    """
    is_in_order = values.ndim < 2 or abs(values.strides[-1]) <= values.itemsize
    if is_in_order or destination.nbytes < SMALLEST_TRANSPOSED_BYTES or np.may_share_memory(destination, values):
        np.copyto(destination, values)
        return
    into, bits = _as_bits(destination), _as_bits(values)
    for start in range(0, bits.shape[-1], _ROWS_AT_A_TIME):
        into[..., start : start + _ROWS_AT_A_TIME] = bits[..., start : start + _ROWS_AT_A_TIME].copy(order="K")


def quantize(values: npt.NDArray[np.float32], dtype: DType) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return the words (K, N) of type ``dtype`` and the scales (K / 8, N), as E8M0 bits, of ``values`` (K, 4 N).

    The scale is ``2**(floor(log2(largest magnitude)) - (largest exponent of the element type - 1))``, and at least
    ``2**-127``: all elements are then in the range of their type, so that none saturates. Elements round to nearest
    even. A block that contains a NaN or an infinity has no such scale; its scale and its elements become NaN.
    """
    element_type, largest_exponent = _FP8_TYPES[dtype]
    rows, columns = values.shape
    blocks = values.reshape(rows // BLOCK_ROWS, BLOCK_ROWS, columns // BLOCK_COLUMNS, BLOCK_COLUMNS)
    largest = np.abs(blocks).max(axis=(1, 3))
    # frexp gives a mantissa in [0.5, 1): one more than floor(log2), exactly, for subnormal numbers too.
    exponent = np.frexp(largest)[1] - 1 - (largest_exponent - 1)
    exponent = np.where(largest == 0, -_SCALE_BIAS, np.maximum(exponent, -_SCALE_BIAS))
    is_finite = np.isfinite(largest)
    inverse = np.where(is_finite, np.ldexp(np.float32(1), -exponent), np.float32(np.nan))
    elements = (blocks * inverse[:, None, :, None]).astype(element_type)
    scales = np.where(is_finite, exponent + _SCALE_BIAS, _NAN_SCALE).astype(np.uint8)
    return elements.reshape(rows, columns).view(dtype.numpy), scales


def dequantize(words: npt.NDArray[Any], dtype: DType, scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the exact values (K, N, 4) of words (K, N) of type ``dtype`` and scales (K / 8, N) as E8M0 bits."""
    rows, columns = words.shape
    if dtype == float4_e2m1fn_x4:
        shifts = np.arange(BLOCK_COLUMNS, dtype=words.dtype) * _FP4_BITS
        bits = words[:, :, None] >> shifts & 0xF
    else:
        bits = np.ascontiguousarray(words).view(np.uint8)
    blocks = _MX_VALUES[dtype][bits].reshape(rows // BLOCK_ROWS, BLOCK_ROWS, columns, BLOCK_COLUMNS)
    return (blocks * _MX_SCALES[scales][:, None, :, None]).reshape(rows, columns, BLOCK_COLUMNS)
