# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The error of rounding to a type: the unit of error bounds. Never traced.

u = :data:`UNIT` = 2^-23, the spacing of float32 above 1: rounding to float32 once changes a number by at most u / 2 of
it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

UNIT: Final = 2.0**-23
# The least float32, and bfloat16, that is not flushed to zero.
SMALLEST_NORMAL: Final = 2.0**-126


class HalfUlp(NamedTuple):
    """Half a unit of the last place.

    Attributes:
        relative: the relative error of a normal number.
        absolute: the absolute error where numbers are subnormal, or flushed to zero.
    """

    relative: float
    absolute: float


HALF_ULP: Final = {
    "float32": HalfUlp(2.0**-24, SMALLEST_NORMAL),
    "bfloat16": HalfUlp(2.0**-8, SMALLEST_NORMAL),
    "float16": HalfUlp(2.0**-11, 2.0**-25),
}


def rounding(exact: npt.NDArray[Any], dtype: Any) -> npt.NDArray[np.float64]:
    """Return the largest change of each number by rounding it to a type."""
    half = HALF_ULP[np.dtype(dtype).name]
    with np.errstate(all="ignore"):
        error: npt.NDArray[np.float64] = half.relative * np.abs(exact) + half.absolute
    return error
