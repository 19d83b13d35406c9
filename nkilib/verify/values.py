# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Classes of floating-point values, such as NaN, and the distance of two arrays in units in the last place.

:func:`class_difference` compares two arrays by the classes of their elements, and :func:`distance` by their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from nkilib.verify.step import Array

CLASSES: Final = ("NaN", "+inf", "-inf", "+normal", "-normal", "+subnormal", "-subnormal", "+0", "-0")
_SMALLEST_NORMAL: Final = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


def is_float(array: Array) -> bool:
    """Tell whether the elements have one of the floating-point types of the kernels."""
    return array.dtype.name in _SMALLEST_NORMAL


def classes_of(array: Array) -> npt.NDArray[np.int8]:
    """Return the index in ``CLASSES`` of the class of each element, for an array for which :func:`is_float` is True."""
    values = array.astype(np.float32)  # exact
    size, negative = np.abs(values), np.signbit(values)
    classes = np.select(
        [np.isnan(values), np.isinf(values), size >= _SMALLEST_NORMAL[array.dtype.name], size > 0],
        [np.int8(0), np.int8(1) + negative, np.int8(3) + negative, np.int8(5) + negative],
        default=np.int8(7) + negative,
    )
    return classes.astype(np.int8)


@dataclass(frozen=True)
class ClassDifference:
    """Elements whose class differs.

    Attributes:
        count: the number of these elements.
        rows: the indices of these elements along the first dimension.
        index: the index of the first of these elements.
        came: the class of this first element.
        expected: the class that was expected of it.
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
    """Return the elements whose classes differ; None if there are none, and for integers."""
    if not is_float(came) or not is_float(expected):
        return None
    came_classes, expected_classes = classes_of(came), classes_of(expected)
    places = np.argwhere(came_classes != expected_classes)
    if len(places) == 0:
        return None
    index = tuple(int(number) for number in places[0])
    rows = tuple(sorted({int(place[0]) for place in places}))
    return ClassDifference(len(places), rows, index, CLASSES[came_classes[index]], CLASSES[expected_classes[index]])


@dataclass(frozen=True)
class Distance:
    """The distance of an array from the simulator's array.

    Attributes:
        same_bits: the share of bitwise identical elements.
        most_ulp: the largest distance of finite elements in units in the last place; 0 for integers.
    """

    same_bits: float
    most_ulp: int

    def __str__(self) -> str:
        if self.same_bits == 1.0:
            return "the simulator's bits"
        return f"{self.same_bits:.1%} have the simulator's bits, the others are at most {self.most_ulp} ulp from it"


def _in_order(bits: npt.NDArray[np.int64], dtype: np.dtype[np.generic]) -> npt.NDArray[np.int64]:
    """Return the bits of floats as integers in the order of the floats: neighbouring floats differ by 1."""
    lowest = int(np.iinfo(dtype).min)  # type: ignore[type-var]
    return np.where(bits < 0, lowest - bits, bits)


def distance(came: Array, expected: Array) -> Distance:
    """Return the distance of two arrays of one shape and type."""
    if not is_float(came):
        return Distance(float((came == expected).mean()), 0)
    bits = np.dtype(f"int{8 * came.dtype.itemsize}")
    first, second = (
        _in_order(np.ascontiguousarray(array).view(bits).astype(np.int64), bits) for array in (came, expected)
    )
    finite = np.isfinite(came.astype(np.float32)) & np.isfinite(expected.astype(np.float32))
    steps = np.abs(first - second)[finite]
    return Distance(float((first == second).mean()), int(steps.max(initial=0)))
