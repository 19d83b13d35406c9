# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators: the documentation's table, reductions, bit patterns, and what is no operator.

Sums of rows are checked against float64, `row_maxima` against numpy over all bit patterns of bfloat16.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import using
from nkilib.simulator.engines.rowwise import BLOCK_ELEMENTS
from nkilib.simulator.isa.operators import OPERATORS, Operator, operator_key
from nkilib.simulator.numerics.operators import (
    ARITHMETIC,
    ARITHMETIC_REDUCTIONS,
    ARITHMETIC_UNARY,
    BITWISE,
    BITWISE_REDUCTIONS,
    BITWISE_UNARY,
    is_bitwise,
    is_unary,
    row_maxima,
    row_sums,
)

from ..kernels import Result, Tile, run

# "Supported Math Operators by NKI ISA": category, name, whether it is a legal reduction operator.
DOCUMENTED = [
    ("bitvec unary", "invert", False),
    ("bitvec", "bitwise_and", True),
    ("bitvec", "bitwise_or", True),
    ("bitvec", "bitwise_xor", True),
    ("bitvec", "left_shift", False),
    ("bitvec", "right_shift", False),
    ("arithmetic", "add", True),
    ("arithmetic", "subtract", True),
    ("arithmetic", "multiply", True),
    ("arithmetic", "maximum", True),
    ("arithmetic", "minimum", True),
    ("arithmetic", "equal", False),
    ("arithmetic", "not_equal", False),
    ("arithmetic", "greater_equal", False),
    ("arithmetic", "greater", False),
    ("arithmetic", "less_equal", False),
    ("arithmetic", "less", False),
    ("arithmetic", "logical_and", True),
    ("arithmetic", "logical_or", True),
    ("arithmetic", "logical_xor", True),
    ("arithmetic", "power", False),
    ("arithmetic", "abs_max", False),
    ("arithmetic", "abs_min", False),
    ("arithmetic unary", "abs", False),
    ("arithmetic unary", "square", False),
    ("arithmetic unary", "relu", False),
    ("arithmetic unary", "rsqrt", False),
    ("arithmetic unary", "reciprocal", False),
]
TABLES: dict[str, Collection[str]] = {"bitvec": BITWISE, "bitvec unary": BITWISE_UNARY, "arithmetic": ARITHMETIC}
TABLES["arithmetic unary"] = ARITHMETIC_UNARY


@pytest.mark.parametrize(("category", "name", "reduces"), DOCUMENTED, ids=[name for _, name, _ in DOCUMENTED])
def test_every_documented_operator(category: str, name: str, reduces: bool) -> None:
    assert [key for key, table in TABLES.items() if name in table] == [category]
    assert (name in BITWISE_REDUCTIONS or name in ARITHMETIC_REDUCTIONS) == reduces
    assert is_bitwise(name) == category.startswith("bitvec")
    assert is_unary(name) == category.endswith("unary")
    assert getattr(nl, name).key == name


def test_there_is_no_other_operator() -> None:
    assert {name for table in TABLES.values() for name in table} == {name for _, name, _ in DOCUMENTED}


@pytest.mark.parametrize(("alias", "key"), [("max", "maximum"), ("min", "minimum"), ("sum", "add")])
def test_functions_of_the_language_that_stand_for_operators(alias: str, key: str) -> None:
    assert operator_key("op", getattr(nl, alias)) == key
    assert repr(getattr(nl, alias)) == f"nl.{alias}"


def test_an_operator_is_named_after_its_function() -> None:
    for name, operator in OPERATORS.items():
        assert operator.__name__ == name and repr(operator) == f"nl.{name}"
        assert getattr(nl, name) is operator


def test_an_operator_without_a_function_says_so() -> None:
    with pytest.raises(NotImplementedError) as caught:
        Operator("prelu")(1, 2)
    assert str(caught.value) == (
        "nki.language.prelu is an operator only, not implemented in the simulator yet as a function on tiles; pass it "
        "as op= to a nisa instruction"
    )


def test_an_operator_calls_the_function_that_is_bound_to_it() -> None:
    def function(x: int, y: int = 3) -> int:
        """Return x - y."""
        return x - y

    operator = Operator("minus")
    operator.bind(function)
    assert operator(7) == 4 and operator(y=1, x=2) == 1
    assert inspect.signature(operator) == inspect.signature(function) and operator.__doc__ == "Return x - y."


@pytest.mark.parametrize(
    "op", [None, "add", np.add, max, nisa.reciprocal, Operator], ids=lambda op: getattr(op, "__name__", repr(op))
)
def test_what_is_no_operator(op: Any) -> None:
    with pytest.raises(nisa.NkiValidationError) as caught:
        operator_key("op0", op)
    assert str(caught.value) == f"op0 must be an operator such as nl.add, got {op!r}"


@pytest.mark.parametrize("name", ["abs_max", "abs_min"])
def test_operators_that_came_with_trn3(name: str) -> None:
    for target in ("trn1", "trn2"):
        with nkilib.simulator.using(target=target), pytest.raises(nisa.NkiValidationError) as caught:
            operator_key("op", getattr(nl, name))
        assert str(caught.value) == f"op=nl.{name} needs trn3; the target is {target}"
    with nkilib.simulator.using(target="trn3"):
        assert operator_key("op", getattr(nl, name)) == name


# -- values ----------------------------------------------------------------------------------------------------------


def binary(name: str, x: Any, y: Any, dtype: Any = np.float32) -> Any:
    out = np.full(np.broadcast(x, y).shape, 77, dtype)
    with np.errstate(all="ignore"):
        {**ARITHMETIC, **BITWISE}[name](np.asarray(x, dtype), np.asarray(y, dtype), out)
    return out.tolist()


@pytest.mark.parametrize("name", sorted({*ARITHMETIC, *BITWISE}))
def test_the_result_may_overwrite_either_operand(name: str) -> None:
    dtype = np.int32 if name in BITWISE else np.float32
    x, y = np.array([5, 1, -3, 0, 7], dtype), np.array([2, 1, 3, 4, 0], dtype)
    expected = binary(name, x, y, dtype)
    for number in range(2):
        operands = [x.copy(), y.copy()]
        with np.errstate(all="ignore"):
            {**ARITHMETIC, **BITWISE}[name](*operands, operands[number])
        assert np.array_equal(operands[number], np.array(expected, dtype), equal_nan=dtype is np.float32)


def test_magnitudes() -> None:
    """The sign stays; the right operand wins a tie; NaN is neither greater nor less."""
    x, y = [-5, 1, 2, -0.0, math.nan, 3], [3, -1, -2, 0.0, 7, math.nan]
    assert binary("abs_max", x, y)[:5] == [-5, -1, -2, 0, 7]
    assert binary("abs_min", x, y)[:5] == [3, -1, -2, 0, 7]
    assert math.isnan(binary("abs_max", x, y)[5])


def test_comparisons_and_logic_give_one_and_zero() -> None:
    """NaN equals nothing and counts as true."""
    assert binary("equal", [1, math.nan, 0.0], [1, math.nan, -0.0]) == [1, 0, 1]
    assert binary("not_equal", [1, math.nan, 0.0], [1, math.nan, -0.0]) == [0, 1, 0]
    assert binary("logical_and", [1, math.nan, 0.0, 2], [3, 1, 1, 0]) == [1, 1, 0, 0]
    assert binary("logical_xor", [1, math.nan, 0.0, 0], [3, 0, 1, 0]) == [0, 1, 1, 0]


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_nan_are_nan(name: str) -> None:
    assert all(math.isnan(value) for value in binary(name, [math.nan, 1], [1, math.nan]))


def test_integer_power_is_exact_modulo_the_word() -> None:
    """And cut towards zero where the exponent is negative."""
    x = [3, 7, -2, 10, 0, 1, -1, -1, 2, -5]
    y = [39, 22, 63, 18, 0, -9, -9, -8, -1, -2]
    exact = [3**39, 7**22, (-2) ** 63, 10**18, 1, 1, -1, 1, 0, 0]
    assert binary("power", x, y, np.int64) == exact


def test_powers_of_floats() -> None:
    assert binary("power", [2, 4, 0, -8, 2], [0.5, -0.5, 0, 2, 200])[1:] == [0.5, 1, 64, math.inf]
    assert binary("power", 2, 0.5) == pytest.approx(math.sqrt(2), rel=2**-23)
    assert math.isnan(binary("power", -8, 1 / 3))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_shifts(dtype: Any) -> None:
    """Shifts work on the bit pattern, in the width of the type: zeros are shifted in, bits shifted out are lost."""
    width = 8 * np.dtype(dtype).itemsize
    pattern = 0b1011 << (width - 4) | 0b101
    signed = pattern - (2**width if np.issubdtype(dtype, np.signedinteger) else 0)
    for distance in (0, 1, 3, width - 1):
        left = np.array(binary("left_shift", signed, distance, dtype), dtype)
        right = np.array(binary("right_shift", signed, distance, dtype), dtype)
        assert int(left) % 2**width == (pattern << distance) % 2**width
        assert int(right) % 2**width == pattern >> distance


def test_shifts_by_the_width_or_more_leave_nothing() -> None:
    assert binary("left_shift", [-1, -1, -1], [7, 8, 100], np.int8) == [-128, 0, 0]
    assert binary("right_shift", [-1, -1, -1], [7, 8, 100], np.int8) == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", 0.0),
        ("subtract", 0.0),
        ("multiply", 1.0),
        ("maximum", -math.inf),
        ("minimum", math.inf),
        ("logical_and", 1.0),
        ("logical_or", 0.0),
        ("logical_xor", 0.0),
    ],
)
def test_identities_of_reductions(name: str, expected: float) -> None:
    """Identity <op> x is x; for subtraction it is x <op> identity."""
    reduction = ARITHMETIC_REDUCTIONS[name]
    assert reduction.identity == expected
    x = np.array([0.0, 1.0])
    pair = (x, reduction.identity) if name == "subtract" else (reduction.identity, x)
    assert (reduction.ufunc(*pair) == x).all()


# Roundings of a partial sum of at most 16 terms, of the partial sums, of a dozen levels of pairs, and of the tail: a
# bound for positive terms, each rounding by half a unit in the last place.
RELATIVE_ERROR = 48 * 2.0**-25


@pytest.mark.parametrize("width", [1, 7, 2047, 2048, 2049, 3071, 3072, 32128, 65535])
@pytest.mark.parametrize("step", [1, 2])
def test_sums_of_long_and_short_rows(width: int, step: int) -> None:
    """Rows that are next to each other, and rows that are apart."""
    values = np.random.default_rng(width).lognormal(0.0, 3.0, (6, width)).astype(np.float32)[::step]
    exact = values.astype(np.float64).sum(axis=1)
    sums = row_sums(values)
    assert sums.dtype == np.float32
    np.testing.assert_allclose(sums, exact, rtol=RELATIVE_ERROR)


def test_every_element_counts() -> None:
    """A one at the ends of pieces, and at both ends of the tail."""
    width = 5000
    for at in (0, 255, 256, 4863, 4864, 4999):
        values = np.zeros((2, width), np.float32)
        values[1, at] = 1.0
        assert row_sums(values).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("at", [3, 4999])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays(at: int, special: float) -> None:
    values = np.ones((1, 5000), np.float32)
    values[0, at] = special
    np.testing.assert_array_equal(row_sums(values), [special])


def test_a_sum_of_equal_terms_does_not_drift() -> None:
    """65,535 terms one after the other would be off by 1e-4."""
    values = np.full((1, 65535), 0.1, np.float32)
    exact = 65535 * float(np.float32(0.1))
    np.testing.assert_allclose(row_sums(values), exact, rtol=3 * 2.0**-24)


BF16 = ml_dtypes.bfloat16


def bits(*patterns: int) -> Any:
    """One row of bfloat16 with these bits."""
    return np.array([patterns], np.uint16).view(BF16)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (bits(0x3F80, 0x4000, 0xC040), 2.0),
        (bits(0xBF80, 0xC000), -1.0),
        (bits(0xFF80, 0xFF7F), -3.3895314e38),
        (bits(0xFF80), -np.inf),
        (bits(0xFF80, 0x7F80), np.inf),
        (bits(0x8000, 0xBF80), -0.0),
        (bits(0x0001, 0x8001), 2.0**-133),
        (bits(0x3F80, 0x7FC0), np.nan),
        (bits(0x3F80, 0xFFC0), np.nan),
        (bits(0xBF80, 0xFF81), np.nan),
        (bits(0x7F80, 0xFFFF), np.nan),
    ],
)
def test_hard_rows(row: Any, expected: float) -> None:
    (result,) = row_maxima(row)
    assert np.array_equal(result, np.float32(expected), equal_nan=True)
    assert np.signbit(result) == np.signbit(np.float32(expected)) or np.isnan(expected)


@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(0, 0xFFFF)))
def test_any_bits(patterns: Any) -> None:
    values = patterns.view(BF16)
    np.testing.assert_array_equal(row_maxima(values), values.astype(np.float64).max(axis=1))


def test_rows_of_several_blocks() -> None:
    values = np.random.default_rng(0).standard_normal((7, BLOCK_ELEMENTS // 2 + 1)).astype(BF16)
    values[3] = -np.abs(values[3])
    np.testing.assert_array_equal(row_maxima(values), values.astype(np.float64).max(axis=1))


@pytest.mark.parametrize("precise_fp", [True, False])
def test_tensor_reduce_takes_it_for_dense_tiles_and_agrees_for_others(precise_fp: bool) -> None:
    values = -np.abs(np.random.default_rng(1).standard_normal((5, 24)).astype(BF16))
    values[2, 7] = 3.0
    exact = values.astype(np.float64)
    with using(precise_fp=precise_fp):
        dense, strided, apart = run(
            lambda dense, strided, apart, data: (
                nisa.tensor_reduce(dense, nl.max, data, 1, negate=True),
                nisa.tensor_reduce(strided, nl.max, data[:, 1::2], 1),
                nisa.tensor_reduce(apart, nl.max, data.reshape((5, 4, 6)), 2),
            ),
            [Tile(values)],
            Result((5, 1)),
            Result((5, 1)),
            Result((5, 4)),
        )
    assert dense[:, 0].tolist() == (-exact.max(axis=1)).tolist()
    assert strided[:, 0].tolist() == exact[:, 1::2].max(axis=1).tolist()
    assert apart.tolist() == exact.reshape(5, 4, 6).max(axis=2).tolist()
