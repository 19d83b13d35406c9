# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Classes of floating-point values, and how far two arrays are apart in units in the last place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from nkilib.verify.observation import Array

CLASSES: Final = ("NaN", "+inf", "-inf", "+normal", "-normal", "+subnormal", "-subnormal", "+0", "-0")
_SMALLEST_NORMAL: Final = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


def is_float(array: Array) -> bool:
    """Whether the elements are of one of the floating-point types of the kernels."""
    return array.dtype.name in _SMALLEST_NORMAL


def classes_of(array: Array) -> npt.NDArray[np.int8]:
    """For each element of an array of such a type, the place of its class in ``CLASSES``."""
    values = array.astype(np.float32)  # exact
    size, negative = np.abs(values), np.signbit(values)
    found = np.select(
        [np.isnan(values), np.isinf(values), size >= _SMALLEST_NORMAL[array.dtype.name], size > 0],
        [np.int8(0), np.int8(1) + negative, np.int8(3) + negative, np.int8(5) + negative],
        default=np.int8(7) + negative,
    )
    return found.astype(np.int8)


@dataclass(frozen=True)
class ClassDifference:
    """Elements whose class differs.

    Attributes:
        count: of them.
        rows: where they are, along the first dimension.
        index: of the first.
        came: its class.
        expected: the class that was expected.
    """

    count: int
    rows: tuple[int, ...]
    index: tuple[int, ...]
    came: str
    expected: str

    def __str__(self) -> str:
        place, rows = (", ".join(map(str, numbers)) for numbers in (self.index, self.rows))
        return (
            f"{self.count} of another class, in rows {rows}; the first [{place}]: {self.came} came, "
            f"{self.expected} was expected"
        )


def class_difference(came: Array, expected: Array) -> ClassDifference | None:
    """Where classes differ; None where they nowhere do, and of integers."""
    if not is_float(came) or not is_float(expected):
        return None
    one, other = classes_of(came), classes_of(expected)
    places = np.argwhere(one != other)
    if len(places) == 0:
        return None
    index = tuple(int(number) for number in places[0])
    rows = tuple(sorted({int(place[0]) for place in places}))
    return ClassDifference(len(places), rows, index, CLASSES[one[index]], CLASSES[other[index]])


@dataclass(frozen=True)
class Distance:
    """How far an array is from the simulator's.

    Attributes:
        same_bits: share of elements with the same bits.
        most_ulp: largest distance of finite elements in units in the last place; 0 for integers.
    """

    same_bits: float
    most_ulp: int

    def __str__(self) -> str:
        if self.same_bits == 1.0:
            return "the simulator's bits"
        return f"{self.same_bits:.1%} have the simulator's bits, the others are at most {self.most_ulp} ulp from it"


def distance(came: Array, other: Array) -> Distance:
    """How far two arrays of one shape and type are apart."""
    if not is_float(came):
        return Distance(float((came == other).mean()), 0)
    bits = np.dtype(f"int{8 * came.dtype.itemsize}")
    one, two = (_in_order(np.ascontiguousarray(array).view(bits).astype(np.int64), bits) for array in (came, other))
    finite = np.isfinite(came.astype(np.float32)) & np.isfinite(other.astype(np.float32))
    steps = np.abs(one - two)[finite]
    return Distance(float((one == two).mean()), int(steps.max(initial=0)))


def _in_order(bits: npt.NDArray[np.int64], dtype: np.dtype[np.generic]) -> npt.NDArray[np.int64]:
    """Bits as integers that are ordered as the values are: neighbours differ by 1."""
    lowest = int(np.iinfo(dtype).min)  # type: ignore[type-var]
    return np.where(bits < 0, lowest - bits, bits)
