# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.numerics.casts``: from the float32 of the engines to the types of tensors, and `copy_in_order`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nl
from nkilib.simulator.numerics.casts import (
    copy_as_float32,
    round_to_tfloat32,
    saturate_to_integer,
    store_float,
    store_integer,
    to_float32,
)
from nkilib.simulator.numerics.copies import copy_in_order
from nkilib.simulator.terms.dtypes import DType

INTEGERS = [nl.int8, nl.int16, nl.int32, nl.uint8, nl.uint16, nl.uint32]
FLOATS = st.floats(width=32, allow_nan=False)


def stored(values: Any, dtype: DType) -> Any:
    """`values`, float32, as elements of `dtype`."""
    values = np.asarray(values, np.float32)
    destination = np.zeros(values.shape, dtype.numpy)
    store_float(destination, values, dtype)
    return destination


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(FLOATS)
def test_floats_become_the_nearest_integer_ties_to_even_within_the_range(dtype: DType, value: float) -> None:
    limits = np.iinfo(dtype.numpy)
    bounded = min(max(value, limits.min), limits.max)
    # Python's round is exact and takes ties to the even integer.
    assert stored([value], dtype)[0] == round(Fraction(bounded))


def test_casts_to_integers_by_hand() -> None:
    assert stored([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998], nl.int32).tolist() == [0, 2, 2, 0, -2, 2]
    assert stored([127.4, 127.5, 1e30, -128.6, -np.inf], nl.int8).tolist() == [127, 127, 127, -128, -128]
    assert stored([-0.4, -1, 255.6, np.inf], nl.uint8).tolist() == [0, 0, 255, 255]
    assert stored([2147483520, 2147483648, -2147483648], nl.int32).tolist() == [2147483520, 2147483647, -2147483648]
    assert stored([4294967040, 4294967296], nl.uint32).tolist() == [4294967040, 4294967295]


@pytest.mark.parametrize("dtype", [*INTEGERS, nl.bool_], ids=str)
def test_nan_becomes_zero(dtype: DType) -> None:
    assert stored([np.nan, 1], dtype).tolist() == [0, 1]


def test_a_float64_is_cast_without_a_detour() -> None:
    assert saturate_to_integer(np.array([2147483646.5]), nl.int32).tolist() == [2147483646]


def nearest(value: float, mantissa_bits: int) -> float:
    """`value` rounded to a significand of `mantissa_bits` + 1 bits, ties to even, by exact arithmetic."""
    exact = Fraction(value)
    exponent = max(np.frexp(np.float64(value))[1] - 1, -126)
    unit = Fraction(2) ** int(exponent - mantissa_bits)
    return float(round(exact / unit) * unit)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_tfloat32_keeps_ten_bits_of_the_mantissa(value: float) -> None:
    expected = nearest(value, 10)
    (rounded,) = stored([value], nl.tfloat32)
    assert rounded == (expected if abs(expected) < 2.0**128 else np.copysign(np.inf, value))
    assert np.signbit(rounded) == np.signbit(value)


def test_tfloat32_by_hand() -> None:
    ulp = 2.0**-10
    values = [1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2.0**-23, -(1 + ulp / 2), 3.4028235e38, np.inf, -np.inf]
    expected = [1, 1 + 2 * ulp, 1 + ulp, -1, np.inf, np.inf, -np.inf]
    assert round_to_tfloat32(np.array(values, np.float32)).tolist() == expected


def test_tfloat32_keeps_nan() -> None:
    assert np.isnan(round_to_tfloat32(np.array([np.nan, -np.nan], np.float32))).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_keeps_seven_bits_of_the_mantissa(value: float) -> None:
    expected = nearest(value, 7)
    (rounded,) = stored([value], nl.bfloat16).astype(np.float32)
    assert rounded == (expected if abs(expected) < 2.0**128 else np.copysign(np.inf, value))


@pytest.mark.parametrize("dtype", [nl.float16, nl.bfloat16, nl.float8_e5m2, nl.float8_e4m3, nl.float8_e4m3fn], ids=str)
def test_floats_keep_nan_and_what_they_can_hold(dtype: DType) -> None:
    values = np.array([0, -0.0, 1, -1.5, 8, 0.25, np.nan], np.float32)
    np.testing.assert_array_equal(stored(values, dtype).astype(np.float32), values)


def test_a_float_type_stored_as_float32_is_not_rounded() -> None:
    destination = np.zeros(1, np.float32)
    store_float(destination, np.array([1.0000001], np.float32), nl.bfloat16)
    assert destination[0] == np.float32(1.0000001)


@pytest.mark.parametrize("dtype", [nl.float32, nl.tfloat32, nl.bfloat16, nl.int32], ids=str)
def test_values_are_reshaped_and_the_destination_may_be_strided(dtype: DType) -> None:
    storage = np.zeros((4, 6), dtype.numpy)
    values = np.arange(6, dtype=np.float32)
    store_float(storage[::2, 1::2], values, dtype)
    np.testing.assert_array_equal(storage[::2, 1::2].astype(np.float32), values.reshape(2, 3))
    assert (storage != 0).sum() == 5


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (nl.int32, [5, -1, -(2**31), 0]),
        (nl.uint32, [5, 2**32 - 1, 2**31, 0]),
        (nl.int16, [5, -1, 0, 0]),
        (nl.uint8, [5, 255, 0, 0]),
    ],
)
def test_exact_integers_are_kept_as_bits(dtype: DType, expected: list[int]) -> None:
    destination = np.zeros((2, 2), dtype.numpy)
    store_integer(destination, np.array([5, -1, 2**31, 2**32], np.int64), dtype)
    assert destination.ravel().tolist() == expected


def test_exact_integers_become_floats_by_value() -> None:
    destination = np.zeros(2, ml_dtypes.bfloat16)
    store_integer(destination, np.array([5, -259], np.int64), nl.bfloat16)
    assert np.array_equal(destination.astype(np.float32), [5, -260])


@pytest.mark.parametrize("dtype", [nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2, nl.float8_e8m0fnu], ids=str)
def test_every_float8_becomes_the_float32_of_its_value(dtype: DType) -> None:
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy).reshape(16, 16)
    for part in (values, values.T, values[1::2, ::-3], values[3, 5]):
        result = to_float32(np.asarray(part))
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, np.asarray(part).astype(np.float64))
        landed = np.empty(result.shape, np.float32)
        copy_as_float32(landed, np.asarray(part))
        np.testing.assert_array_equal(landed, result)


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float32, nl.int32], ids=str)
def test_other_types_become_float32_from_any_strides(dtype: DType) -> None:
    values = (np.arange(-60, 60) * 1.5).astype(dtype.numpy).reshape(10, 12)
    for part in (values, values.T, values[1::2, ::-3], np.asarray(values[3, 5])):
        result = to_float32(part)
        assert result.dtype == np.float32 and not np.shares_memory(result, values)
        assert result.tolist() == part.astype(np.float64).tolist()
        landed = np.empty(result.shape, np.float32)
        copy_as_float32(landed, part)
        assert landed.tolist() == result.tolist()


BF16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=str)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 300])
def test_a_large_transpose(rows: int, dtype: Any) -> None:
    """More and fewer rows than are copied at a time, into rows that lie apart."""
    source = numbers(rows, 4, 128, dtype=dtype)
    kept = np.zeros((128, 4, 512), dtype)
    copy_in_order(kept[:, :, 5 : 5 + rows], source.transpose(2, 1, 0))
    assert (kept[:, :, 5 : 5 + rows] == source.transpose(2, 1, 0)).all()
    assert not kept[:, :, :5].any()
    assert not kept[:, :, 5 + rows :].any()


def test_a_small_one_and_one_in_order() -> None:
    small, large = numbers(3, 5), numbers(300, 400)
    for source in (small.T, large, large[::-1], np.broadcast_to(large[:1], large.shape)):
        destination = np.zeros(source.shape, np.float32)
        copy_in_order(destination, source)
        assert (destination == source).all()


def test_source_and_destination_may_overlap() -> None:
    """They do where a DMA transposes a matrix in HBM onto itself."""
    matrix = numbers(512, 512)
    expected = matrix.T.copy()
    copy_in_order(matrix, matrix.T)
    assert (matrix == expected).all()
