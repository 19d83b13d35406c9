# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The MX formats: blocks of 32 elements of 8 or 4 bits that share a scale, a power of two.

A block is a piece of 8 rows x 4 columns of a matrix; the 4 elements of one of its rows form one word of a packed type,
with the first element in the lowest bits. Sources: "OCP Microscaling Formats (MX) Specification" 1.0 for the elements
and the scale (E8M0); docstring of ``quantize_mx`` for the choice of the scale.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..terms.dtypes import DType, float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4

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
_ELEMENTS = {
    float8_e5m2_x4: _values_of_bits(256, ml_dtypes.float8_e5m2),
    float8_e4m3fn_x4: _values_of_bits(256, ml_dtypes.float8_e4m3fn),
    float4_e2m1fn_x4: _values_of_bits(16, ml_dtypes.float4_e2m1fn),
}
_SCALES = _values_of_bits(256, ml_dtypes.float8_e8m0fnu)


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
    blocks = _ELEMENTS[dtype][bits].reshape(rows // BLOCK_ROWS, BLOCK_ROWS, columns, BLOCK_COLUMNS)
    return (blocks * _SCALES[scales][:, None, :, None]).reshape(rows, columns, BLOCK_COLUMNS)
