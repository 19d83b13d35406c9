# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Classes of values, and distances in units in the last place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nkilib.verify.kernels.case import CLASSES, ClassDifference, class_difference, classes_of, distance

EXAMPLES = [np.nan, np.inf, -np.inf, 1.0, -(2.0**-126), 2.0**-127, -1e-40, 0.0, -0.0]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_every_class_is_named(dtype: type) -> None:
    results = classes_of(np.array(EXAMPLES, np.float32).astype(dtype))
    assert [CLASSES[place] for place in results] == list(CLASSES)


def test_float16_has_subnormal_numbers_of_its_own() -> None:
    results = classes_of(np.array([np.nan, np.inf, -np.inf, 1.0, -(2.0**-14), 2.0**-15, -1e-6, 0.0, -0.0], np.float16))
    assert [CLASSES[place] for place in results] == list(CLASSES)


def test_the_first_element_of_another_class_is_named() -> None:
    expected = np.array([[1, 2], [3, np.nan], [0, 1]], np.float32)
    came = np.array([[5, -2], [3, np.inf], [-0.0, 1]], np.float32)
    assert class_difference(expected, expected) is None
    assert class_difference(np.abs(expected) * 7 + 1 - 1, expected) is None
    result = class_difference(came, expected)
    assert result == ClassDifference(3, (0, 1, 2), (0, 1), "-normal", "+normal")
    assert str(result) == "3 of another class, in rows 0, 1, 2; the first [0, 1]: -normal came, +normal was expected"


def test_integers_have_no_classes() -> None:
    assert class_difference(np.zeros(2, np.int32), np.ones(2, np.int32)) is None


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_distances_count_neighbours_across_zero(dtype: type) -> None:
    one = np.array([1, -1, 0, np.nan, np.inf], np.float32).astype(dtype)
    next_up = np.nextafter(one, np.array(np.inf, dtype))
    assert str(distance(one, one)) == "the simulator's bits"
    result = distance(one[:3], next_up[:3])
    assert (result.same_bits, result.most_ulp) == (0.0, 1)
    assert distance(np.array([-0.0], dtype), np.array([0.0], dtype)).most_ulp == 0
    assert distance(np.array([1.0, np.nan], dtype), np.array([1.0, 3.0], dtype)).most_ulp == 0


def test_integers_are_equal_or_not() -> None:
    result = distance(np.array([1, 2], np.int32), np.array([1, 5], np.int32))
    assert (result.same_bits, result.most_ulp) == (0.5, 0)
