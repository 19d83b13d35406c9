# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Element-wise functions: values, broadcasting, types of results, engines, and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nki, nl
from nkilib.simulator.language.operands import promoted

from ..kernels import Result, Tile, normal, refusal, run, tile
from ..made import Hbm, Psum, Sbuf, lazily
from ..rules import Rule, broken, legal, rules
from .calls import EPSILON, call, check_call, outcome, wide

F32, I32 = np.float32, np.int32

# Reference in float64.
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "divide": np.divide,
    "mod": np.mod,
    "fmod": np.fmod,
}
BITWISE = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}

# No order of operands gives the same results, and there are ties and zeros.
X = np.array([[1.5, -2.0, 3.0, 0.0], [0.25, 7.0, -7.5, 4.0]], F32)
Y = np.array([[2.0, -3.0, 3.0, 0.5], [-1.0, 2.0, 2.0, -0.75]], F32)


def close(result: Any, expected: Any, ulps: float) -> bool:
    """Whether a float32 result is within so many units in the last place of the largest expected magnitude nearby."""
    return bool(np.all(np.abs(wide(result) - wide(expected)) <= 2 * ulps * EPSILON * np.maximum(1, np.abs(expected))))


# -- values of the functions of two operands ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BINARY)
def test_two_tiles(name: str) -> None:
    """Values of few bits: each result is exact, but for the quotient, which goes by way of a reciprocal."""
    expected = BINARY[name](wide(X), wide(Y))
    result = call(lambda x, y: getattr(nl, name)(x, y), X, Y)
    assert close(result, expected, 2 if name == "divide" else 0)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("number", [3.0, -0.5, 2])
def test_a_number_on_either_side(name: str, number: float) -> None:
    function, reference = getattr(nl, name), BINARY[name]
    budget = 2 if name == "divide" else 0
    assert close(call(lambda x: function(x, number), X), reference(wide(X), number), budget)
    assert close(call(lambda y: function(number, y), Y), reference(number, wide(Y)), budget)


@pytest.mark.parametrize("name", BINARY)
def test_one_element_a_partition_on_either_side(name: str) -> None:
    function, reference, budget = getattr(nl, name), BINARY[name], 2 if name == "divide" else 0
    column = np.array([[2.0], [-0.75]], F32)
    assert close(call(lambda x, y: function(x, y), X, column), reference(wide(X), column), budget)
    assert close(call(lambda x, y: function(x, y), column, Y), reference(wide(column), wide(Y)), budget)


@pytest.mark.parametrize("name", BITWISE)
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int16], ids=lambda dtype: dtype.__name__)
def test_bits(name: str, dtype: Any) -> None:
    x, y = np.array([[12, 7, 100], [1, 0, 85]], dtype), np.array([[1, 3, 2], [0, 5, 1]], dtype)
    function, reference = getattr(nl, name), BITWISE[name]
    for got, expected in (
        (outcome(lambda x, y: function(x, y), x, y), reference(x, y)),
        (outcome(lambda x: function(x, 3), x), reference(x, dtype(3))),
        (outcome(lambda y: function(96, y), y), reference(dtype(96), y)),
    ):
        assert got.values.tolist() == expected.astype(dtype).tolist()
        assert got.dtype == np.dtype(dtype).name and got.engines == {"vector": 1}


def test_bits_of_a_column_and_of_a_row() -> None:
    x, column, row = np.array([[1, 2], [4, 8]], I32), np.array([[3], [12]], I32), np.array([[5, 6]], I32)
    assert call(nl.bitwise_and, x, column).tolist() == [[1, 2], [4, 8]]
    assert call(nl.bitwise_or, x, row).tolist() == [[5, 6], [5, 14]]
    assert call(nl.left_shift, column, row).tolist() == [[96, 192], [384, 768]]


def test_bits_cast_to_another_type_afterwards() -> None:
    x = np.array([[300, -1]], I32)
    got = outcome(lambda x: nl.bitwise_and(x, 0x1FF, dtype=nl.float32), x)
    assert (got.dtype, got.values.tolist()) == (nl.float32, [[300.0, 511.0]])
    got = outcome(lambda x, y: nl.bitwise_or(x, y, dtype=nl.int16), x, np.array([[1, 0]], I32))
    assert (got.dtype, got.values.tolist()) == (nl.int16, [[301, -1]])


def test_powers() -> None:
    """The engine's power is rounded once: half a unit, and one for the library's function."""
    x, y = np.array([[3.0, 2.0, 9.0]], F32), np.array([[2.0, -1.0, 0.5]], F32)
    assert close(call(nl.power, x, y), [[9, 0.5, 3]], 1)
    assert close(call(lambda x: nl.power(x, 3), x), [[27, 8, 729]], 1)
    assert close(call(lambda y: nl.power(2.0, y), y), [[4, 0.5, math.sqrt(2)]], 1)


def test_magnitudes_keep_their_sign_and_a_tie_gives_y() -> None:
    x, y = np.array([[-5.0, 1.0, 2.0]], F32), np.array([[3.0, -1.0, -4.0]], F32)
    assert call(nl.abs_max, x, y, target="trn3").tolist() == [[-5, -1, -4]]
    assert call(nl.abs_min, x, y, target="trn3").tolist() == [[3, -1, 2]]
    assert call(lambda x: nl.abs_max(x, -1.0), x, target="trn3").tolist() == [[-5, -1, 2]]
    assert call(lambda x: nl.abs_max(-1.0, x), x, target="trn3").tolist() == [[-5, 1, 2]]


def test_remainders_have_the_sign_of_one_operand() -> None:
    """Signs are those of Python's % and of C's fmod; exact multiples leave 0, although the quotient is not exact."""
    x = np.array([[7.0, -7.0, 49.0, 5.5, -0.25, 1e6]], F32)
    assert call(lambda x: nl.mod(x, 3.0), x).tolist() == [[1, 2, 1, 2.5, 2.75, 1]]
    assert call(lambda x: nl.mod(x, -3.0), x).tolist() == [[-2, -1, -2, -0.5, -0.25, -2]]
    assert call(lambda x: nl.fmod(x, -3.0), x).tolist() == [[1, -1, 1, 2.5, -0.25, 1]]
    # 41 * (1 / 41) is less than 1 in float32: the quotient is one too small.
    multiples = np.array([[41, 82, 164, -41, -82, 40, 42]], F32)
    assert call(lambda x: nl.mod(x, 41.0), multiples).tolist() == [[0, 0, 0, 0, 0, 40, 1]]
    assert call(lambda x: nl.fmod(x, 41.0), multiples).tolist() == [[0, 0, 0, 0, 0, 40, 1]]
    assert np.isnan(call(lambda x: nl.mod(x, 0.0), x)).all()


@given(st.integers(-(2**23), 2**23), st.integers(1, 5000), st.booleans())
def test_remainders_of_integers_are_exact(x: int, y: int, is_negative: bool) -> None:
    y = -y if is_negative else y
    tiles = np.full((1, 2), x, I32), np.full((1, 2), y, I32)
    assert call(nl.mod, *tiles).tolist() == [[x % y] * 2]
    assert call(nl.fmod, *tiles).tolist() == [[math.fmod(x, y)] * 2]


def test_integers_divide_into_floats() -> None:
    got = outcome(nl.divide, np.array([[7, -1]], I32), np.array([[2, 4]], I32))
    assert got.dtype == nl.float32 and close(got.values, [[3.5, -0.25]], 2)


def test_the_error_of_a_quotient() -> None:
    """A reciprocal and a product are rounded, each by 2^-24 of the value at most."""
    x, y = normal(64, 300, seed=15), normal(64, 300, seed=16)
    for result, reference in (
        (call(nl.divide, x, y), wide(x) / wide(y)),
        (call(lambda x: nl.divide(x, 0.7), x), wide(x) / 0.7),
        (call(lambda y: nl.divide(0.7, y), y), 0.7 / wide(y)),
    ):
        assert np.all(np.abs(wide(result) - reference) <= 2.01 * EPSILON * np.abs(reference) + 2.0**-149)


@pytest.mark.parametrize("name", ["mod", "fmod"])
def test_the_error_of_a_remainder(name: str) -> None:
    """|x| * 2^-23, on the circle that 0 and y close: next to a multiple of y, it may be on the other side."""
    x, y = normal(32, 300, seed=17, scale=1e4), normal(32, 300, seed=18) + F32(0.5)
    y[np.abs(y) < 0.01] = 1
    result = wide(call(lambda x, y: getattr(nl, name)(x, y), x, y))
    away = np.abs(result - getattr(np, name)(wide(x), wide(y)))
    assert np.all(np.minimum(away, np.abs(np.abs(y) - away)) <= np.abs(x) * 2 * EPSILON)
    assert np.all(np.abs(result) <= np.abs(y)) and np.all(result * (y if name == "mod" else x) >= 0)


def test_division_by_zero_is_infinite() -> None:
    x = np.array([[1.0, -2.0]], F32)
    assert call(lambda x: nl.divide(x, 0.0), x).tolist() == [[math.inf, -math.inf]]
    assert call(lambda x: nl.divide(x, -0.0), x).tolist() == [[-math.inf, math.inf]]
    assert call(lambda x: nl.divide(3.0, x), np.zeros((1, 2), F32)).tolist() == [[math.inf, math.inf]]


def test_nan_and_infinities() -> None:
    x = np.array([[math.nan, math.inf, -math.inf, 1.0]], F32)
    result = call(lambda x: nl.maximum(x, 0.0), x)
    assert math.isnan(result[0, 0]) and result[0, 1:].tolist() == [math.inf, 0, 1]
    assert call(lambda x: nl.equal(x, x), x).tolist() == [[0, 1, 1, 1]]
    assert call(lambda x: nl.greater(x, 0.5), x).tolist() == [[0, 1, 0, 1]]


# -- shapes and places of operands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x_shape", "y_shape"),
    [
        ((128, 96), (128, 96)),
        ((128, 96), (128, 1)),
        ((128, 96), (1, 96)),
        ((128, 96), (1, 1)),
        ((128, 1), (1, 96)),
        ((1, 5), (1, 5)),
        ((1, 96), (64, 1)),
        ((3, 4, 1, 6), (3, 1, 5, 6)),
        ((3, 4, 5), (1, 1, 5)),
        ((3, 4, 5), (3, 1, 1)),
    ],
    ids=repr,
)
def test_dimensions_of_size_one_are_broadcast(x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> None:
    """The partition dimension too. Differences of float32 values are rounded once."""
    x, y = normal(*x_shape, seed=1), normal(*y_shape, seed=2)
    for first, second in ((x, y), (y, x)):
        result = call(nl.subtract, first, second)
        assert result.tolist() == (first - second).tolist()


@pytest.mark.parametrize("places", [(nl.psum, nl.sbuf), (nl.sbuf, nl.psum), (nl.psum, nl.psum)], ids=repr)
@pytest.mark.parametrize("name", ["subtract", "power", "divide"])
def test_operands_in_psum(places: tuple[Any, Any], name: str) -> None:
    """Wherever the instruction itself could not read them, too: both in PSUM, or GpSimd."""
    x, y = np.array([[4.0, 9.0]], F32), np.array([[0.5, 2.0]], F32)
    got = outcome(lambda x, y: getattr(nl, name)(x, y), Tile(x, buffer=places[0]), Tile(y, buffer=places[1]))
    assert got.buffer == nl.sbuf
    assert close(got.values, {"subtract": x - y, "power": x**y, "divide": x / y}[name], 2)


def test_views_and_operands_that_stay_as_they_are() -> None:
    def body(dst: Any, data: Any) -> None:
        before = nl.copy(data)
        half = nl.add(data[:, ::2], data[:, 1::2])
        nisa.tensor_copy(dst[:, 0:2], half)
        nisa.tensor_copy(dst[:, 2:4], nl.subtract(before, data)[:, 0:2])

    assert run(body, [X], Result((2, 4))).tolist() == [[-0.5, 3, 0, 0], [7.25, -3.5, 0, 0]]


def test_an_indirect_view() -> None:
    def body(dst: Any, data: Any, index: Any) -> None:
        row = data.reshape((2, 2, 2)).select(1, index)
        nisa.tensor_copy(dst, nl.add(row, 1.0))

    assert run(body, [X, np.array([[1]], I32)], Result((2, 2))).tolist() == [[4, 1], [-6.5, 5]]


def test_an_indirect_view_is_broadcast() -> None:
    """int32 columns are repeated by a view of a tile at a static address."""

    def body(dst: Any, data: Any, index: Any) -> None:
        column = data.reshape((2, 4, 1)).select(1, index)
        nisa.tensor_copy(dst, nl.add(data, column))

    data = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], I32)
    assert run(body, [data, np.array([[2]], I32)], Result((2, 4), nl.int32)).tolist() == [
        [4, 5, 6, 7],
        [12, 13, 14, 15],
    ]


# -- types of results --------------------------------------------------------------------------------------------------

# By hand: the narrowest type with the values of both.
PROMOTIONS = [
    ("float32", "float32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "float16", "float32"),
    ("tfloat32", "bfloat16", "float32"),
    ("tfloat32", "float32", "float32"),
    ("float8_e4m3", "bfloat16", "bfloat16"),
    ("float8_e4m3", "float8_e5m2", "bfloat16"),
    ("float8_e4m3", "float16", "float16"),
    ("int32", "bfloat16", "bfloat16"),
    ("uint8", "float32", "float32"),
    ("int8", "int32", "int32"),
    ("uint8", "uint16", "uint16"),
    ("uint8", "int8", "int16"),
    ("uint8", "int16", "int16"),
    ("int8", "uint16", "int32"),
    ("uint16", "int16", "int32"),
    ("bool", "int32", "int32"),
    ("bool", "bool", "bool"),
    ("uint32", "uint8", "uint32"),
]


def named(name: str) -> Any:
    return getattr(nl, {"bool": "bool_"}.get(name, name))


@pytest.mark.parametrize(("first", "second", "expected"), PROMOTIONS)
def test_unlike_types_are_promoted(first: str, second: str, expected: str) -> None:
    assert promoted(named(first), named(second)) == promoted(named(second), named(first)) == expected


def test_the_type_of_the_result() -> None:
    """The type is that of the tile with a number, but a float makes floats of integers; ``dtype`` overrides."""
    half, whole = np.ones((2, 3), ml_dtypes.bfloat16), np.ones((2, 3), I32)
    cases: list[tuple[Any, list[Any], Any]] = [
        (lambda x: nl.add(x, 1.5), [half], nl.bfloat16),
        (lambda x: nl.add(1, x), [half], nl.bfloat16),
        (lambda x: nl.add(x, 1), [whole], nl.int32),
        (lambda x: nl.add(x, 0.5), [whole], nl.float32),
        (lambda x: nl.add(np.float32(0.5), x), [whole], nl.float32),
        (lambda x, y: nl.add(x, y), [half, whole], nl.bfloat16),
        (lambda x, y: nl.add(x, y, dtype=nl.float32), [half, whole], nl.float32),
        (lambda x: nl.multiply(x, 2.0, dtype=nl.float16), [half], nl.float16),
        (lambda x: nl.less(x, 2.5), [whole], nl.int32),
        (lambda x: nl.less(x, 2.5, dtype=nl.uint8), [half], nl.uint8),
        (lambda x: nl.logical_and(x, 1.0), [whole], nl.int32),
        (lambda x: nl.exp(x), [half], nl.bfloat16),
        (lambda x: nl.exp(x, dtype=nl.float32), [half], nl.float32),
        (lambda x: nl.floor(x), [half], nl.bfloat16),
        (lambda x: nl.divide(x, 3), [half], nl.bfloat16),
        (lambda x: nl.mod(x, 3), [whole], nl.int32),
    ]
    for number, (function, inputs, expected) in enumerate(cases):
        got = outcome(function, *inputs)
        assert (number, got.dtype) == (number, expected) and got.buffer == nl.sbuf


def test_results_are_computed_in_float32_and_cast_once() -> None:
    """256 + 1 + ... in bfloat16 would stay at 256."""
    x = np.full((1, 2), 256.0, ml_dtypes.bfloat16)
    assert call(lambda x: nl.add(x, 1.0, dtype=nl.float32), x).tolist() == [[257, 257]]
    assert call(lambda x: nl.add(x, 1.0), x).astype(F32).tolist() == [[256, 256]]
    assert call(lambda x: nl.multiply(x, 200, dtype=nl.int16), x).tolist() == [[32767, 32767]]


def test_two_tiles_of_32_bit_integers_are_exact_and_a_number_is_not() -> None:
    """GpSimd computes with integers, the Vector engine in float32 (docstrings of tensor_tensor and tensor_scalar)."""
    x = np.array([[2**30 + 1, 2**24 + 1]], I32)
    got = outcome(nl.add, x, np.array([[2, 2]], I32))
    assert got.values.tolist() == [[2**30 + 3, 2**24 + 3]] and got.engines == {"gpsimd": 1}
    assert call(nl.add, x, np.array([[2]], I32)).tolist() == [[2**30 + 3, 2**24 + 3]]
    assert call(lambda x: nl.add(x, 2), x).tolist() == [[2**30, 2**24 + 2]]


# -- which instructions ------------------------------------------------------------------------------------------------

COLUMN = np.ones((2, 1), F32)

INSTRUCTIONS: list[tuple[str, Any, list[Any], dict[str, int], dict[str, int]]] = [
    ("two tiles", lambda x, y: nl.add(x, y), [X, Y], {"tensor_tensor": 1}, {"vector": 1}),
    ("a number", lambda x: nl.add(x, 2), [X], {"tensor_scalar": 1}, {"vector": 1}),
    ("a column", lambda x, y: nl.add(x, y), [X, COLUMN], {"tensor_scalar": 1}, {"vector": 1}),
    (
        "a bfloat16 column",
        lambda x, y: nl.add(x, y),
        [X, COLUMN.astype(ml_dtypes.bfloat16)],
        {"tensor_tensor": 1},
        {"vector": 1},
    ),
    ("power", lambda x, y: nl.power(x, y), [abs(X), Y], {"tensor_tensor": 1}, {"gpsimd": 1}),
    ("exp", lambda x: nl.exp(x), [X], {"activation": 1}, {"scalar": 1}),
    ("relu", lambda x: nl.relu(x), [X], {"activation": 1}, {"scalar": 1}),
    ("reciprocal", lambda x: nl.reciprocal(x), [X], {"reciprocal": 1}, {"vector": 1}),
    ("rsqrt", lambda x: nl.rsqrt(x), [abs(X)], {"tensor_scalar": 1}, {"gpsimd": 1}),
    ("divide", lambda x, y: nl.divide(x, y), [X, Y], {"reciprocal": 1, "tensor_tensor": 1}, {"vector": 2}),
    ("divide by a number", lambda x: nl.divide(x, 3), [X], {"tensor_scalar": 1}, {"vector": 1}),
    ("negative", lambda x: nl.negative(x), [X], {"tensor_scalar": 1}, {"vector": 1}),
]


@pytest.mark.parametrize(
    ("function", "inputs", "instructions", "engines"),
    [case[1:] for case in INSTRUCTIONS],
    ids=[case[0] for case in INSTRUCTIONS],
)
def test_instructions(function: Any, inputs: list[Any], instructions: Any, engines: Any) -> None:
    got = outcome(function, *inputs)
    assert (got.instructions, got.engines) == (instructions, engines)


def test_a_row_reaches_the_partitions_through_the_tensor_engine() -> None:
    got = outcome(nl.add, X, Y[:1])
    assert got.engines["tensor"] == 1 and got.instructions["tensor_tensor"] == 1


# -- examples of the documentation -------------------------------------------------------------------------------------

EXAMPLES: dict[str, tuple[Any, float]] = {
    "add tiles": (lambda full: nl.add(full(3.0), full(2.0)), 5.0),
    "add a number": (lambda full: nl.add(full(3.0), 2.0), 5.0),
    "subtract tiles": (lambda full: nl.subtract(full(10.0), full(3.0)), 7.0),
    "subtract a number": (lambda full: nl.subtract(full(10.0), 3.0), 7.0),
    "multiply tiles": (lambda full: nl.multiply(full(3.0), full(4.0)), 12.0),
    "multiply by a number": (lambda full: nl.multiply(full(3.0), 4.0), 12.0),
    "maximum of tiles": (lambda full: nl.maximum(full(3.0), full(5.0)), 5.0),
    "maximum with a number": (lambda full: nl.maximum(full(3.0), 5.0), 5.0),
    "minimum of tiles": (lambda full: nl.minimum(full(3.0), full(5.0)), 3.0),
    "minimum with a number": (lambda full: nl.minimum(full(3.0), 5.0), 3.0),
    "abs_max": (lambda full: nl.abs_max(full(-5.0), full(3.0, 1)), -5.0),
    "abs_max of a tie": (lambda full: nl.abs_max(full(1.0), full(-1.0, 1)), -1.0),
    "abs_min": (lambda full: nl.abs_min(full(5.0), full(-3.0, 1)), -3.0),
    "abs_min of a tie": (lambda full: nl.abs_min(full(1.0), full(-1.0, 1)), -1.0),
    "abs": (lambda full: nl.abs(full(-1.0)), 1.0),
    "abs in float16": (lambda full: nl.abs(full(-1.0), dtype=nl.float16), 1.0),
    "square": (lambda full: nl.square(full(3.0)), 9.0),
    "power": (lambda full: nl.power(full(3.0), full(2.0)), 9.0),
    "exp": (lambda full: nl.exp(full(0.0)), 1.0),
    "log": (lambda full: nl.log(full(1.0)), 0.0),
    "sqrt": (lambda full: nl.sqrt(full(4.0)), 2.0),
    "rsqrt": (lambda full: nl.rsqrt(full(4.0)), 0.5),
    "reciprocal": (lambda full: nl.reciprocal(full(4.0)), 0.25),
    "sin": (lambda full: nl.sin(full(0.0)), 0.0),
    "cos": (lambda full: nl.cos(full(0.0)), 1.0),
    "tan": (lambda full: nl.tan(full(0.0)), 0.0),
    "arctan": (lambda full: nl.arctan(full(0.0)), 0.0),
    "ceil": (lambda full: nl.ceil(full(3.2)), 4.0),
    "ceil of a negative number": (lambda full: nl.ceil(full(-3.7)), -3.0),
    "floor": (lambda full: nl.floor(full(3.7)), 3.0),
    "floor of a negative number": (lambda full: nl.floor(full(-3.2)), -4.0),
    "trunc": (lambda full: nl.trunc(full(3.7)), 3.0),
    "trunc of a negative number": (lambda full: nl.trunc(full(-3.7)), -3.0),
    "negative": (lambda full: nl.negative(full(5.0)), -5.0),
    "negative of a negative number": (lambda full: nl.negative(full(-3.0)), 3.0),
    "sign": (lambda full: nl.sign(full(-5.0)), -1.0),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_documentation(name: str) -> None:
    """All values that the docstrings show, on tiles of 128 x 512; compared with nl.equal, as they do."""
    example, expected = EXAMPLES[name]

    def body(dst: Any) -> None:
        result = example(lambda value, size=512: nl.full((128, size), value, dtype=nl.float32, buffer=nl.sbuf))
        nisa.tensor_copy(dst, nl.equal(result, nl.full((128, 512), expected, dtype=nl.float32)))

    assert run(body, [], Result((128, 512)), target="trn3").all()


# -- operators that are functions --------------------------------------------------------------------------------------


def test_a_function_is_an_operator_and_has_the_signature_of_the_documentation() -> None:
    assert repr(nl.add) == "nl.add" and nl.add.__name__ == "add" and nl.max.__name__ == "max"
    assert list(inspect.signature(nl.add).parameters) == ["x", "y", "dtype"]
    assert list(inspect.signature(nl.max).parameters) == ["x", "axis", "dtype", "keepdims"]
    assert "torch.add" in nl.add.__doc__ and "torch.amax" in nl.max.__doc__


@pytest.mark.parametrize(
    "name", ["add", "equal", "left_shift", "exp", "sin", "sum", "copy", "mean", "where", "floor", "matmul", "rms_norm"]
)
def test_functions_are_documented_and_annotated(name: str) -> None:
    function = getattr(nl, name)
    parameters = inspect.signature(function).parameters.values()
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters)
    assert "``" in function.__doc__ and function.__name__ == name


def test_an_operator_is_both_op_and_function() -> None:
    def body(dst: Any, x: Any, y: Any) -> None:
        nisa.tensor_tensor(dst, nl.add(x, y), y, op=nl.add)

    assert run(body, [X, Y], Result((2, 4))).tolist() == (X + 2 * Y).tolist()


@pytest.mark.parametrize("name", ["prelu", "bypass", "average"])
def test_operators_without_a_function_say_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^nki.language.{name} is an operator only.*pass it as op="):
        getattr(nl, name)(1)


COMPARED = np.array([[1, 2, 3]], F32)
ASSERTED: dict[str, tuple[list[int], list[int], int]] = {
    "equal": ([1, 2, 3], [1, 5, 0], 2),
    "not_equal": ([0, 0, 0], [1, 5, 0], 1),
    "less": ([2, 3, 4], [2, 2, 3], 2),
    "less_equal": ([1, 2, 4], [2, 2, 2], 1),
    "greater": ([0, 1, 2], [0, 2, 3], 2),
    "greater_equal": ([1, 2, 2], [1, 3, 3], 1),
}


@pytest.mark.parametrize("name", ASSERTED)
def test_a_comparison_can_be_asserted(name: str) -> None:
    """The examples of nki.language do so. A kernel cannot go on where it fails: tensors of a device are all true."""

    def kernel(x: Any, y: Any) -> None:
        assert getattr(nl, name)(nl.load(x), nl.load(y))

    holds, fails, count = ASSERTED[name]
    nki.jit(kernel)(COMPARED, np.array([holds], F32))
    with pytest.raises(nisa.NkiValidationError) as caught:
        nki.jit(kernel)(COMPARED, np.array([fails], F32))
    assert str(caught.value).partition(": ")[2] == (
        f"tensor [1, 3] float32 in sbuf: the comparison does not hold for {count} of 3 elements, and a kernel cannot "
        f"branch on that: the values of a tensor are not known while it is being built"
    )


def test_what_is_computed_of_a_comparison_has_no_reference_value() -> None:
    for body in (lambda: bool(nl.copy(nl.equal(tile(2, 4), 0))), lambda: bool(nl.add(nl.equal(tile(2, 4), 0), 1))):
        assert "the values of a tensor are not known while the kernel is being built" in refusal(body)


# -- refusals ----------------------------------------------------------------------------------------------------------


@rules(
    legal(nl.add, x=Sbuf(2, 4), y=lazily(nl.load, lazily(nl.shared_constant, np.ones((2, 4), F32)))),
    broken("one operand is a tile", x=1, y=2.0).says("x or y must be a tile, got 1 and 2.0").fixed(x=Sbuf(2, 4)),
    broken("an operand is on chip", x=Hbm(2, 4, buffer=nl.shared_hbm), y=1.0)
    .says("x must be a tile in sbuf or psum, got {x}: load it first, with nl.load")
    .fixed(x=Sbuf(2, 4)),
    broken("shapes broadcast", y=Sbuf(2, 3))
    .says("tiles must have equal numbers of dimensions, each of the same size or of size 1, got {x} and {y}")
    .fixed(y=Sbuf(2, 1)),
    broken("ranks are equal", y=Sbuf(2, 1, 4))
    .says("tiles must have equal numbers of dimensions, each of the same size or of size 1, got {x} and {y}")
    .fixed(x=Sbuf(2, 1, 4), y=Sbuf(2, 3, 4)),
    broken("a type holds both", x=Sbuf(2, 4, dtype=nl.int32), y=Sbuf(2, 4, dtype=nl.uint32))
    .says("no type holds the values of both int32 and uint32: say which one with dtype=")
    .fixed(dtype=nl.int32),
    broken("an array of the host is no tile", y=np.ones((2, 4), F32)).says(
        "y must be a tile, got a numpy ndarray [2, 4] float32: pass it to the kernel as an argument and load it, "
        "or use nl.shared_constant"
    ),
    legal(nl.divide, x=1, y=Sbuf(2, 4, value=1)),
    broken("one operand of a quotient is a tile", y=2).says("x or y must be a tile, got 1 and 2"),
    legal(nl.exp, x=Sbuf(2, 4)),
    broken("an operand is a tile", x="x").says("x must be a tile, got 'x'"),
    legal(nl.bitwise_and, x=Sbuf(2, 4, dtype=nl.int32), y=1),
    broken("bits are of integers", x=Sbuf(2, 4)).says("bit-wise operators take integers, got {x}"),
    legal(nl.left_shift, x=Sbuf(2, 4, dtype=nl.int32), y=Sbuf(2, 4, dtype=nl.int32)),
    broken("bits of two tiles are of integers", y=Sbuf(2, 4)).says("bit-wise operators take integers, got {y}"),
    legal(nl.invert, x=Sbuf(2, 4, dtype=nl.uint8)),
    broken("bits are not inverted in floats", x=Sbuf(2, 4)).says("bit-wise operators take integers, got {x}"),
    legal(nl.bitwise_or, x=1, y=Sbuf(2, 4, dtype=nl.int32)),
    broken("bits of a number are of an integer", x=1.5).says("bit-wise operators take integers, got 1.5"),
    legal(nl.rsqrt, x=lazily(nl.copy, Psum(2, 4))),
    broken("rsqrt in SBUF", x=Psum(2, 4)).says(
        "x must be in sbuf, which the GpSimd engine can access, got {x}: copy it there first, with nl.copy, or "
        "use nisa.activation"
    ),
    legal(nl.abs_max, on="trn3", x=Sbuf(2, 4), y=1.0),
    broken("magnitudes are compared on trn3", on="trn2").says(
        "nisa.tensor_scalar: op0=nl.abs_max needs trn3; the target is trn2"
    ),
)
def test_refusals(rule: Rule) -> None:
    check_call(rule)


def test_there_are_no_masks() -> None:
    with pytest.raises(TypeError, match="mask"):
        nl.add(1, 2, mask=None)
