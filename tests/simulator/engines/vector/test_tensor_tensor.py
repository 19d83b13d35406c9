# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_tensor`: every binary operator, integers on GpSimd, bit patterns, engines and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Tile, engine_of, run, tile
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import must, not_both_in_psum, out_of_reach, same_elements, same_partitions

ENGINE = nisa.engine
PSUM = nl.psum


LEFT = [-2.0, 3.0, 0.0, 1.5, -0.0, 7.0, 0.25, -4.0]
RIGHT = [3.0, -3.0, 0.0, 1.5, 2.0, 0.0, 0.5, -4.5]


def _logical(left: float, right: float) -> tuple[bool, bool]:
    return left != 0, right != 0


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": lambda x, y: x if x > y else y,
    "minimum": lambda x, y: x if x < y else y,
    "max": lambda x, y: x if x > y else y,
    "min": lambda x, y: x if x < y else y,
    "equal": lambda x, y: 1.0 if x == y else 0.0,
    "not_equal": lambda x, y: 0.0 if x == y else 1.0,
    "greater_equal": lambda x, y: 1.0 if x >= y else 0.0,
    "greater": lambda x, y: 1.0 if x > y else 0.0,
    "less_equal": lambda x, y: 1.0 if x <= y else 0.0,
    "less": lambda x, y: 1.0 if x < y else 0.0,
    "logical_and": lambda x, y: float(all(_logical(x, y))),
    "logical_or": lambda x, y: float(any(_logical(x, y))),
    "logical_xor": lambda x, y: float(sum(_logical(x, y)) == 1),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_tensor_tensor_arithmetic(name: str) -> None:
    left, right = np.array([LEFT], np.float32), np.array([RIGHT], np.float32)
    result = run(
        lambda dst, x, y: nisa.tensor_tensor(dst, x, y, getattr(nl, name)), [left, right], Result((1, len(LEFT)))
    )
    assert result.tolist() == [[ARITHMETIC[name](x, y) for x, y in zip(LEFT, RIGHT, strict=True)]]


def test_tensor_tensor_power_runs_on_gpsimd() -> None:
    base, exponent = np.array([[2.0, 9.0, 0.5, -3.0]], np.float32), np.array([[10.0, 0.5, -2.0, 3.0]], np.float32)
    result = run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.power), [base, exponent], Result((1, 4)))
    assert result.tolist() == [[1024.0, 3.0, 4.0, -27.0]]
    assert engine_of(lambda: nisa.tensor_tensor(tile(2, 2), tile(2, 2), tile(2, 2), nl.power)) == "gpsimd"


@pytest.mark.parametrize(("name", "expected"), [("abs_max", [-5, -1, 2, 4]), ("abs_min", [3, -1, 0, -3])])
def test_tensor_tensor_by_magnitude_keeps_the_sign_and_takes_the_right_one_of_a_tie(
    name: str, expected: list[float]
) -> None:
    left, right = np.array([[-5, 1, 2, -3]], np.float32), np.array([[3, -1, 0, 4]], np.float32)
    result = run(
        lambda dst, x, y: nisa.tensor_tensor(dst, x, y, getattr(nl, name)),
        [left, right],
        Result((1, 4)),
        target="trn3",
    )
    assert result.tolist() == [expected]


def test_tensor_tensor_casts_to_float32_and_from_it() -> None:
    """bfloat16 256 + int32 2 is 258, which bfloat16 and float16 hold and int8 saturates."""
    left, right = np.array([[256, 1]], ml_dtypes.bfloat16), np.array([[2, 1]], np.int32)
    for dtype, expected in ((nl.bfloat16, [258, 2]), (nl.int8, [127, 2]), (nl.float16, [258, 2])):
        result = run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.add), [left, right], Result((1, 2), dtype))
        assert result.tolist() == [expected]


def test_tensor_tensor_does_not_round_between_the_cast_in_and_the_result() -> None:
    """256 + 1 - in bfloat16 it would stay 256 - is 257 in a float32 result."""
    left, right = np.array([[256]], ml_dtypes.bfloat16), np.array([[1]], ml_dtypes.bfloat16)
    assert run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.add), [left, right], Result((1, 1))) == 257


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (nl.less, [0, 1, 0, 1]),
        (nl.greater_equal, [1, 0, 1, 0]),
        (nl.equal, [0, 0, 0, 0]),
        (nl.maximum, [2**31, 2**31, 2**32 - 1, 2**32 - 1]),
        (nl.minimum, [1, 1, 0, 2**32 - 2]),
    ],
)
def test_unsigned_integers_compare_without_a_sign(op: Any, expected: Any) -> None:
    left = np.array([[2**31, 1, 2**32 - 1, 2**32 - 2]], np.uint32)
    right = np.array([[1, 2**31, 0, 2**32 - 1]], np.uint32)
    result = run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, op), [left, right], Result((1, 4), nl.uint32))
    assert result.tolist() == [expected]


@pytest.mark.parametrize(("op", "expected"), [(nl.equal, 0), (nl.less, 1), (nl.maximum, 2**32 - 1)])
def test_integers_with_and_without_a_sign_compare_as_numbers(op: Any, expected: int) -> None:
    """-1 and 2^32 - 1, whose bits are the same."""
    left, right = np.array([[-1]], np.int32), np.array([[2**32 - 1]], np.uint32)
    result = run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, op), [left, right], Result((1, 1), nl.uint32))
    assert result == expected


@pytest.mark.parametrize("dtypes", [(nl.int32,) * 3, (nl.uint32,) * 3, (nl.int32, nl.uint32, nl.int32)])
def test_tensor_tensor_of_32_bit_integers_is_exact_on_gpsimd(dtypes: Any) -> None:
    left, right = [16777217, 65537, 2147483646], [16777218, 3, 1]
    arrays = [np.array([values], np.dtype(str(dtype))) for values, dtype in zip((left, right), dtypes, strict=False)]
    for op, expected in (
        (nl.add, [33554435, 65540, 2147483647]),
        (nl.multiply, [16777217 * 16777218 % 2**32, 196611, 2147483646]),
        (nl.maximum, [16777218, 65537, 2147483646]),
        (nl.less, [1, 0, 0]),
        (nl.equal, [0, 0, 0]),
    ):
        result = run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, op), arrays, Result((1, 3), dtypes[2]))  # noqa: B023
        assert result.tolist() == [expected]


def test_tensor_tensor_power_of_integers_is_exact() -> None:
    base, exponent = np.array([[7, -3, 2, -1, 5]], np.int32), np.array([[11, 19, 30, -3, -1]], np.int32)
    result = run(lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.power), [base, exponent], Result((1, 5), nl.int32))
    assert result.tolist() == [[1977326743, -1162261467, 1073741824, -1, 0]]


def test_tensor_tensor_of_32_bit_integers_is_float32_on_vector() -> None:
    left, right = np.array([[16777217]], np.int32), np.array([[0]], np.int32)
    result = run(
        lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.add, engine=ENGINE.vector),
        [left, right],
        Result((1, 1), nl.int32),
    )
    assert result == 16777216


def test_tensor_tensor_of_32_bit_integers_falls_back_to_vector_with_psum() -> None:
    left, right = np.array([[16777217]], np.int32), np.array([[0]], np.int32)
    for first, second, result in ((PSUM, nl.sbuf, nl.sbuf), (nl.sbuf, PSUM, nl.sbuf), (nl.sbuf, nl.sbuf, PSUM)):
        summed = run(
            lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.add),
            [Tile(left, buffer=first), Tile(right, buffer=second)],
            Result((1, 1), nl.int32, result),
        )
        assert summed == 16777216


def test_tensor_tensor_engines() -> None:
    def integers(dst: Any, left: Any, right: Any, op: Any = nl.add) -> Body:
        return lambda: nisa.tensor_tensor(tile(2, 2, dtype=dst), tile(2, 2, dtype=left), tile(2, 2, dtype=right), op)

    assert engine_of(integers(nl.int32, nl.int32, nl.int32)) == "gpsimd"
    assert engine_of(integers(nl.uint32, nl.int32, nl.uint32)) == "gpsimd"
    assert engine_of(integers(nl.int32, nl.int32, nl.int32, nl.bitwise_and)) == "vector"
    assert engine_of(integers(nl.int32, nl.int32, nl.int16)) == "vector"
    assert engine_of(integers(nl.float32, nl.int32, nl.int32)) == "vector"
    assert engine_of(integers(nl.float32, nl.float32, nl.float32)) == "vector"


BITS = {
    "bitwise_and": [0b1000, 0, -8],
    "bitwise_or": [0b1110, -1, -1],
    "bitwise_xor": [0b0110, -1, 7],
}


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("dtype", [nl.int8, nl.int16, nl.int32])
def test_tensor_tensor_bits(name: str, dtype: Any) -> None:
    left, right = np.array([[0b1100, -1, -8]], str(dtype)), np.array([[0b1010, 0, -1]], str(dtype))
    result = run(
        lambda dst, x, y: nisa.tensor_tensor(dst, x, y, getattr(nl, name)), [left, right], Result((1, 3), dtype)
    )
    assert result.tolist() == [BITS[name]]


def test_tensor_tensor_shifts_are_logical() -> None:
    values, distances = np.array([[1, -8, 3, -1]], np.int32), np.array([[31, 1, 4, 31]], np.int32)
    left = run(
        lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.left_shift), [values, distances], Result((1, 4), nl.int32)
    )
    right = run(
        lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.right_shift), [values, distances], Result((1, 4), nl.int32)
    )
    assert left.tolist() == [[-(2**31), -16, 48, -(2**31)]]
    assert right.tolist() == [[0, 0x7FFFFFFC, 0, 1]]


def test_tensor_tensor_bits_are_patterns_whatever_the_sign_of_the_types() -> None:
    left, right = np.array([[-1, -2]], np.int16), np.array([[0xFF00, 0x00FF]], np.uint16)
    for dtype, expected in ((nl.uint16, [0xFF00, 0x00FE]), (nl.int16, [-256, 0x00FE])):
        result = run(
            lambda dst, x, y: nisa.tensor_tensor(dst, x, y, nl.bitwise_and), [left, right], Result((1, 2), dtype)
        )
        assert result.tolist() == [expected]


INTEGERS = Sbuf(4, 2, dtype=nl.int32)


@rules(
    legal(nisa.tensor_tensor, dst=Psum(4, 2), data1=Sbuf(4, 2), data2=Psum(4, 2), op=nl.add),
    broken("both in PSUM", dst=Sbuf(4, 2), data1=Psum(4, 2)).says(not_both_in_psum("data1", "data2")),
    legal(nisa.tensor_tensor, dst=Sbuf(4, 2), data1=Sbuf(4, 2), data2=Sbuf(4, 2), op=nl.add),
    broken("partitions", data2=Sbuf(2, 4)).says(same_partitions("dst", "data2")),
    broken("elements", data1=Sbuf(4, 1)).says(same_elements("dst", "data1")).fixed(data1=Sbuf(4, 1).broadcast(1, 2)),
    broken("power on Vector", op=nl.power, engine=ENGINE.vector)
    .says("op=nl.power runs on the GpSimd engine, got engine=nki.isa.engine.vector")
    .fixed(engine=ENGINE.gpsimd),
    broken("power in PSUM", data2=Psum(4, 2), op=nl.power).says(out_of_reach("data2")).fixed(data2=Sbuf(4, 2)),
    broken("engine", engine=ENGINE.scalar)
    .says("engine must be one of nki.isa.engine.vector, nki.isa.engine.gpsimd, got nki.isa.engine.scalar")
    .fixed(engine=ENGINE.gpsimd),
    legal(nisa.tensor_tensor, dst=Sbuf(4, 2), data1=Sbuf(4, 2), data2=Sbuf(4, 2), op=nl.multiply),
    broken("unary operator", op=nl.square).says("op=nl.square is no binary operator of tensor_tensor"),
    broken("no operator", op="add").says("op must be an operator such as nl.add, got 'add'").fixed(op=nl.add),
    broken("bits of floats", dst=INTEGERS, data2=INTEGERS, op=nl.bitwise_or)
    .says(must("data1", "be an integer tensor with a bit-wise operator"))
    .fixed(data1=Sbuf(4, 2).view(nl.int32)),
    broken("bits of unlike widths", dst=INTEGERS, data1=INTEGERS, data2=Sbuf(4, 2, dtype=nl.int8), op=nl.bitwise_or)
    .says("bit-wise operators cast nothing: the operands must have one width, got {data1}, {dst}, {data2}")
    .fixed(data2=Sbuf(4, 2, dtype=nl.uint32)),
    broken("abs_max before trn3", op=nl.abs_max).says("op=nl.abs_max needs trn3; the target is trn2").fixed(on="trn3"),
)
def test_tensor_tensor_rules(rule: Rule) -> None:
    check_rule(rule)
