# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The maximum of rows of bfloat16, found by the order of their bits: numpy compares integers, and casts nothing.

The bits of a bfloat16 are a sign and a magnitude. Read as int16, non-negative numbers are in their own order and above
all negative ones, which are in the opposite order. A NaN has a larger magnitude than infinity: a positive NaN is above
every number, and a negative NaN shows as the largest unsigned value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_NEGATIVE_INFINITY_BITS = 0xFF80
# 2 MiB: the second pass finds the rows in a server core's second-level cache.
_BLOCK_ELEMENTS = 1 << 20


def row_maxima(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the maximum of each row of a bfloat16 array (rows, one or more elements); NaN where a row contains one."""
    signed, unsigned = values.view(np.int16), values.view(np.uint16)
    maxima = np.empty(values.shape[0], np.int16)
    has_nan = np.empty(values.shape[0], np.bool_)
    step = max(1, _BLOCK_ELEMENTS // values.shape[1])
    for start in range(0, values.shape[0], step):
        rows = slice(start, start + step)
        np.maximum.reduce(signed[rows], axis=1, out=maxima[rows])
        has_nan[rows] = np.maximum.reduce(unsigned[rows], axis=1) > _NEGATIVE_INFINITY_BITS
    negative = np.flatnonzero(maxima < 0)
    if negative.size:
        maxima[negative] = np.minimum.reduce(signed[negative], axis=1)
    results = maxima.view(values.dtype).astype(np.float32)
    results[has_nan] = np.nan
    return results
