# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The MX formats on the host, bit by bit after the "OCP Microscaling Formats (MX) Specification" 1.0.

Independent of the simulator and of ml_dtypes: the reference of the tests of `quantize_mx` and `nc_matmul_mx`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nkilib.nki import nisa, nl

from ...kernels import load

MXFP8 = [nl.float8_e4m3fn_x4, nl.float8_e5m2_x4]
MX = [*MXFP8, nl.float4_e2m1fn_x4]
SCALES = [nl.uint8, nl.float8_e8m0fnu]
# Bits of an element: exponent, mantissa. The exponent of the largest number.
FIELDS = {"float8_e4m3fn_x4": (4, 3), "float8_e5m2_x4": (5, 2), "float4_e2m1fn_x4": (2, 1)}
LARGEST_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}


def element(bits: int, dtype: Any) -> float:
    """The value of an element: sign, exponent and mantissa of the OCP specification."""
    exponent_bits, mantissa_bits = FIELDS[str(dtype)]
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = bits >> mantissa_bits & (1 << exponent_bits) - 1, bits & (1 << mantissa_bits) - 1
    if dtype == nl.float8_e4m3fn_x4 and (exponent, mantissa) == (15, 7):
        return math.nan
    if dtype == nl.float8_e5m2_x4 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    bias = (1 << exponent_bits - 1) - 1
    fraction = mantissa / (1 << mantissa_bits)
    return sign * (math.ldexp(fraction, 1 - bias) if exponent == 0 else math.ldexp(1 + fraction, exponent - bias))


TABLES = {
    str(dtype): np.array([element(bits, dtype) for bits in range(1 << 1 + sum(FIELDS[str(dtype)]))]) for dtype in MX
}


def elements(words: Any, dtype: Any) -> Any:
    """The values (K, N, 4) of the elements in words (K, N); the first element is in the lowest bits."""
    width = 1 + sum(FIELDS[str(dtype)])
    bits = [words.astype(np.int64) >> width * place & (1 << width) - 1 for place in range(4)]
    return TABLES[str(dtype)][np.stack(bits, axis=-1)]


def values(words: Any, dtype: Any, scales: Any) -> Any:
    """The exact values (K, N, 4) of words (K, N) with scales (K / 8, N), 2**(scale - 127)."""
    power = np.ldexp(1.0, scales.astype(np.int64) - 127)
    return elements(words, dtype) * np.repeat(power, 8, axis=0)[:, :, None]


class Matrix:
    """An MX matrix on the host: words (K, N), and scales (K / 8, N) as E8M0 bits."""

    def __init__(self, words: Any, dtype: Any, scales: Any) -> None:
        self.words = words.astype(np.uint16 if dtype == nl.float4_e2m1fn_x4 else np.uint32)
        self.dtype = dtype
        self.scales = scales.astype(np.uint8)

    @property
    def values(self) -> Any:
        return values(self.words, self.dtype, self.scales)

    def loaded(self, words: Any, scales: Any, scale_dtype: Any = nl.uint8, start: int = 0) -> tuple[Any, Any]:
        """Load, in a kernel, the words as a packed tile, and the scales from partition `start` of each quadrant."""
        partitions, columns = words.shape
        tile_of_scales = nl.ndarray((partitions if partitions > 32 else start + 4, columns), scale_dtype)
        for quadrant in range(partitions // 32):
            nisa.dma_copy(
                tile_of_scales[32 * quadrant + start : 32 * quadrant + start + 4].view(nl.uint8),
                scales[4 * quadrant : 4 * quadrant + 4],
            )
        return load(words.view(self.dtype)), tile_of_scales[start:]


def check_product(result: Any, left: Matrix, right: Matrix) -> None:
    """Within float32 rounding of the exact sum, plus float64 rounding of 512 products in any order."""
    reference = np.einsum("kiq,kjq->ij", left.values, right.values)
    magnitude = np.einsum("kiq,kjq->ij", np.abs(left.values), np.abs(right.values))
    assert np.abs(reference).max() > 0
    assert (np.abs(result - reference) <= 2.0**-24 * np.abs(reference) + 512 * 2.0**-52 * magnitude).all()
