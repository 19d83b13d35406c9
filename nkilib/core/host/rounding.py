# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What rounding to a type costs: the units that bounds on errors are stated in. Never traced.

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
        relative: of a normal number.
        absolute: where numbers are subnormal, or flushed to zero.
    """

    relative: float
    absolute: float


HALF_ULP: Final = {
    "float32": HalfUlp(2.0**-24, SMALLEST_NORMAL),
    "bfloat16": HalfUlp(2.0**-8, SMALLEST_NORMAL),
    "float16": HalfUlp(2.0**-11, 2.0**-25),
}


def rounding(exact: npt.NDArray[Any], dtype: Any) -> npt.NDArray[np.float64]:
    """What rounding to a type may change, of each number."""
    half = HALF_ULP[np.dtype(dtype).name]
    with np.errstate(all="ignore"):
        found: npt.NDArray[np.float64] = half.relative * np.abs(exact) + half.absolute
    return found
