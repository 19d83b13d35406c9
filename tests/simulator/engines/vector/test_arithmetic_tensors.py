# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_tensor`, `tensor_scalar`, `scalar_tensor_tensor`: operators, integers, bit patterns, engines and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Tile, engine_of, run, tile
from ...made import Psum, Sbuf
from ...rules import LEFT_OUT, Rule, broken, check_rule, legal, rules
from ...sentences import must, not_both_in_psum, one_each, out_of_reach, same_elements, same_partitions

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


# `tensor_scalar` and `scalar_tensor_tensor`; their operators one by one are in `test_arithmetic.py`.

DATA = [[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]
COLUMN = [[10.0], [20.0]]
AS_DATA = np.array(DATA, np.float32)
AS_COLUMN = np.array(COLUMN, np.float32)


def _by_rows(function: Callable[[float, float], float]) -> list[list[float]]:
    """`function(element, the element of COLUMN in its row)` for all of DATA."""
    return [[function(x, column) for x in row] for row, (column,) in zip(DATA, COLUMN, strict=True)]


def test_tensor_scalar_broadcasts_constants() -> None:
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.subtract, 2, op1=nl.multiply, operand1=0.5),
        [AS_DATA],
        Result((2, 3)),
    )
    assert result.tolist() == _by_rows(lambda x, _: (x - 2) * 0.5)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_tensor_scalar_broadcasts_vectors(buffer: Any) -> None:
    result = run(
        lambda dst, data, column: nisa.tensor_scalar(dst, data, nl.multiply, column, op1=nl.add, operand1=column),
        [Tile(AS_DATA, buffer=buffer), Tile(AS_COLUMN, buffer=buffer)],
        Result((2, 3), nl.float32, buffer),
    )
    assert result.tolist() == _by_rows(lambda x, column: x * column + column)


@pytest.mark.parametrize(
    ("reverse0", "reverse1", "function"),
    [
        (False, False, lambda x, column: (x - 100) - column),
        (True, False, lambda x, column: (100 - x) - column),
        (False, True, lambda x, column: column - (x - 100)),
        (True, True, lambda x, column: column - (100 - x)),
    ],
)
def test_tensor_scalar_reverses_each_operator_on_its_own(reverse0: bool, reverse1: bool, function: Any) -> None:
    result = run(
        lambda dst, data, column: nisa.tensor_scalar(
            dst, data, nl.subtract, 100, reverse0, nl.subtract, column, reverse1
        ),
        [AS_DATA, AS_COLUMN],
        Result((2, 3)),
    )
    assert result.tolist() == _by_rows(function)


def test_tensor_scalar_rounds_each_step_to_float32() -> None:
    """2^24 + 1 is no float32, so that adding 1 and taking 2^24 away leaves 0."""
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.add, 1, op1=nl.subtract, operand1=2**24),
        [np.array([[2**24]], np.int32)],
        Result((1, 1)),
    )
    assert result == 0


def test_tensor_scalar_casts_data_and_result() -> None:
    data = np.array([[100, -100, 3]], np.int8)
    result = run(lambda dst, x: nisa.tensor_scalar(dst, x, nl.multiply, 1.5), [data], Result((1, 3), nl.int8))
    assert result.tolist() == [[127, -128, 4]]  # 150 and -150 saturate, 4.5 goes to even


def test_tensor_scalar_operand_in_the_tile_that_is_written() -> None:
    """`dst` may hold the operands: they are read before it is written."""

    def body(dst: Any, data: Any) -> None:
        nisa.tensor_copy(dst, data)
        nisa.tensor_scalar(dst, dst, nl.add, dst[:, 0:1], op1=nl.multiply, operand1=dst[:, 1:2])

    assert run(body, [AS_DATA], Result((2, 3))).tolist() == [[-4, 2, -8], [40, 45, -10]]


def test_tensor_scalar_bits() -> None:
    data, column = np.array([[0b0110, -1], [0b1001, 5]], np.int32), np.array([[0b0010], [0b1000]], np.int32)
    result = run(
        lambda dst, x, bits: nisa.tensor_scalar(dst, x, nl.bitwise_and, bits, op1=nl.left_shift, operand1=4),
        [data, column],
        Result((2, 2), nl.int32),
    )
    assert result.tolist() == [[0b0010 << 4, 0b0010 << 4], [0b1000 << 4, 0]]


def test_tensor_scalar_bits_reversed() -> None:
    """1 << data, then its complement: a unary operator takes None or 0."""
    data = np.array([[0, 3, 7]], np.uint8)
    for unused in (None, 0):
        result = run(
            lambda dst, x: nisa.tensor_scalar(dst, x, nl.left_shift, 1, True, nl.invert, unused),  # noqa: B023
            [data],
            Result((1, 3), nl.uint8),
        )
        assert result.tolist() == [[0xFE, 0xF7, 0x7F]]


@pytest.mark.parametrize(("operand", "bits"), [(-128, 0x80), (-1, 0xFF), (255, 0xFF)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_tensor_scalar_bits_of_a_number_are_those_of_a_signed_or_unsigned_one(
    dtype: Any, operand: int, bits: int
) -> None:
    result = run(
        lambda dst, x: nisa.tensor_scalar(dst, x, nl.bitwise_xor, operand),
        [np.array([[0, 0x55]], dtype)],
        Result((1, 2), nl.uint8),
    )
    assert result.tolist() == [[bits, bits ^ 0x55]]


def test_tensor_scalar_engines() -> None:
    def call(op0: Any, operand0: Any, op1: Any = None, operand1: Any = None, **options: Any) -> Body:
        return lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), op0, operand0, op1=op1, operand1=operand1, **options)

    assert engine_of(call(nl.add, 1)) == "vector"
    assert engine_of(call(nl.power, 2)) == "vector"
    assert engine_of(call(nl.rsqrt, 0.0)) == "gpsimd"
    assert engine_of(call(nl.add, 1, nl.rsqrt, None)) == "gpsimd"
    for arguments in ((nl.multiply, 2, nl.add, 1), (nl.multiply, 2), (nl.add, 1)):
        assert engine_of(call(*arguments, engine=ENGINE.scalar)) == "scalar"


INTS, SHORTS, BYTES = (Sbuf(2, 2, dtype=dtype) for dtype in (nl.int32, nl.int16, nl.uint8))


@rules(
    legal(
        nisa.tensor_scalar,
        dst=INTS,
        data=INTS,
        op0=nl.bitwise_and,
        operand0=1,
    ),
    broken("operator kinds", op1=nl.add, operand1=1)
    .says("op0=nl.bitwise_and and op1=nl.add must both be bit-wise or both be arithmetic")
    .fixed(op1=nl.bitwise_or),
    broken("bits on another engine", engine=ENGINE.scalar)
    .says("bit-wise operators run on the Vector engine, got engine=nki.isa.engine.scalar")
    .fixed(engine=ENGINE.vector),
    broken("bits of floats", dst=Sbuf(2, 2))
    .says(must("dst", "be an integer tensor with a bit-wise operator"))
    .fixed(dst=Sbuf(2, 2, dtype=nl.uint32)),
    broken("more bits than an element", dst=BYTES, data=BYTES, op0=nl.left_shift, operand0=256)
    .says("nl.left_shift on elements of 8 bits needs an operand in [-128, 255], got 256")
    .fixed(operand0=255),
    broken("more bits than an element, negative", dst=SHORTS, data=SHORTS, op0=nl.bitwise_or, operand0=-32769)
    .says("nl.bitwise_or on elements of 16 bits needs an operand in [-32768, 65535], got -32769")
    .fixed(operand0=-32768),
    broken("bits of unlike widths", operand0=Sbuf(2, 1, dtype=nl.int8))
    .says("bit-wise operators cast nothing: the operands must have one width, got {data}, {dst}, {operand0}")
    .fixed(operand0=Sbuf(2, 1, dtype=nl.int32)),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.rsqrt, operand0=0.0, engine=ENGINE.gpsimd),
    broken("Scalar engine, operator", op0=nl.subtract, operand0=1, engine=ENGINE.scalar)
    .says("the Scalar engine runs multiply then add, multiply alone or add alone, got op0=nl.subtract")
    .fixed(op0=nl.add, operand0=-1),
    broken("Scalar engine, order", op0=nl.add, operand0=1, op1=nl.multiply, operand1=2, engine=ENGINE.scalar)
    .says("the Scalar engine runs multiply then add, multiply alone or add alone, got op0=nl.add, op1=nl.multiply")
    .fixed(op0=nl.multiply, operand0=2, op1=nl.add),
    broken("GpSimd", op0=nl.add, operand0=1).says("engine=nki.isa.engine.gpsimd is for op nl.rsqrt only"),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.rsqrt, operand0=None),
    broken("rsqrt on Vector", engine=ENGINE.vector).says(
        "nl.rsqrt runs on the GpSimd engine, got engine=nki.isa.engine.vector"
    ),
    broken("rsqrt in PSUM", data=Psum(2, 2))
    .says(out_of_reach("data"))
    .instead(lambda: nisa.activation(tile(2, 2), nl.rsqrt, tile(2, 2, buffer=PSUM))),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.add, operand0=1),
    broken("operand type", operand0=Sbuf(2, 1, dtype=nl.bfloat16))
    .says(must("operand0", "be float32 with arithmetic operators"))
    .fixed(data=Sbuf(2, 2, dtype=nl.bfloat16), operand0=Sbuf(2, 1)),
    broken("second operand's type", op1=nl.add, operand1=Sbuf(2, 1, dtype=nl.int32))
    .says(must("operand1", "be float32 with arithmetic operators"))
    .fixed(operand1=Sbuf(2, 1)),
    broken("operand shape", operand0=Sbuf(2, 2)).says(one_each("operand0", "data")).fixed(operand0=Sbuf(2, 2)[:, 0:1]),
    broken("operand partitions", operand0=0, op1=nl.add, operand1=Sbuf(4, 1))
    .says(one_each("operand1", "data"))
    .fixed(operand1=Sbuf(4, 1)[0:2]),
    broken("operand1 without op1", operand1=2).says("operand1 and reverse1 need op1").fixed(op1=nl.add),
    broken("reverse1 without op1", reverse1=True)
    .says("operand1 and reverse1 need op1")
    .fixed(reverse0=True, reverse1=LEFT_OUT),
    broken("size", dst=Sbuf(2, 3)).says(same_elements("dst", "data")).fixed(data=Sbuf(2, 3)),
)
def test_tensor_scalar_rules(rule: Rule) -> None:
    check_rule(rule)


OTHER = [[2.0, 0.5, -1.0], [8.0, -3.0, 0.25]]


def _with_other(function: Callable[[float, float, float], float]) -> list[list[float]]:
    """`function(element of DATA, of COLUMN, of OTHER)`."""
    return [
        [function(x, column, y) for x, y in zip(row, other, strict=True)]
        for row, (column,), other in zip(DATA, COLUMN, OTHER, strict=True)
    ]


@pytest.mark.parametrize(
    ("reverse0", "reverse1", "function"),
    [
        (False, False, lambda x, column, y: (x - column) - y),
        (True, False, lambda x, column, y: (column - x) - y),
        (False, True, lambda x, column, y: y - (x - column)),
        (True, True, lambda x, column, y: y - (column - x)),
    ],
)
@pytest.mark.parametrize("places", [(nl.sbuf, nl.sbuf), (nl.psum, nl.sbuf), (nl.sbuf, nl.psum)], ids=str)
def test_scalar_tensor_tensor(reverse0: bool, reverse1: bool, function: Any, places: Any) -> None:
    data_place, other_place = places
    result = run(
        lambda dst, data, column, other: nisa.scalar_tensor_tensor(
            dst, data, nl.subtract, column, nl.subtract, other, reverse0, reverse1
        ),
        [Tile(AS_DATA, buffer=data_place), AS_COLUMN, Tile(np.array(OTHER, np.float32), buffer=other_place)],
        Result((2, 3), nl.float32, other_place),
    )
    assert result.tolist() == _with_other(function)


def test_scalar_tensor_tensor_with_a_constant_and_other_types() -> None:
    """All inputs may have any type, the operand of one element a partition too."""
    result = run(
        lambda dst, data, other: nisa.scalar_tensor_tensor(dst, data, nl.multiply, 0.5, nl.maximum, other),
        [Tile(AS_DATA, nl.bfloat16), Tile(np.array(OTHER, np.float32), nl.float16)],
        Result((2, 3), nl.int8),
    )
    assert result.tolist() == [[2, 0, 2], [8, 2, 0]]  # 0.5, 1.5, 2.5 and 0.25 round to nearest even
    column = run(
        lambda dst, data, column, other: nisa.scalar_tensor_tensor(dst, data, nl.add, column, nl.add, other),
        [AS_DATA, AS_COLUMN.astype(np.int32), np.array(OTHER, np.float32)],
        Result((2, 3)),
    )
    assert column.tolist() == _with_other(lambda x, column, y: x + column + y)


def test_scalar_tensor_tensor_into_its_own_operand() -> None:
    def body(dst: Any, data: Any, column: Any, other: Any) -> None:
        nisa.tensor_copy(dst, other)
        nisa.scalar_tensor_tensor(dst, data, nl.subtract, column, nl.subtract, dst)

    inputs = [AS_DATA, AS_COLUMN, np.array(OTHER, np.float32)]
    assert run(body, inputs, Result((2, 3))).tolist() == _with_other(lambda x, column, y: x - column - y)


def test_scalar_tensor_tensor_with_a_unary_first_operator() -> None:
    result = run(
        lambda dst, data, other: nisa.scalar_tensor_tensor(dst, data, nl.square, None, nl.add, other),
        [AS_DATA, np.array(OTHER, np.float32)],
        Result((2, 3)),
    )
    assert result.tolist() == _with_other(lambda x, _, y: x * x + y)


@rules(
    legal(nisa.scalar_tensor_tensor, Sbuf(2, 2), Sbuf(2, 2), nl.add, Sbuf(2, 1), nl.add, Sbuf(2, 2)),
    broken("both in PSUM", data=Psum(2, 2), operand0=1, operand1=Psum(2, 2))
    .says(not_both_in_psum("data", "operand1"))
    .fixed(dst=Psum(2, 2), data=Sbuf(2, 2), operand1=Sbuf(2, 2)),
    broken(
        "bit-wise op0",
        dst=INTS,
        data=INTS,
        op0=nl.bitwise_and,
        operand0=1,
        operand1=INTS,
    )
    .says("nl.bitwise_and is a bit-wise operator; only arithmetic operators are supported")
    .fixed(op0=nl.add),
    broken("bit-wise op1", operand0=1, op1=nl.bitwise_or)
    .says("op1=nl.bitwise_or must be a binary arithmetic operator")
    .fixed(op1=nl.logical_or),
    broken("operand1 is a tile", operand0=1, operand1=2.0)
    .says("operand 'operand1' must be a tensor, got 2.0")
    .fixed(operand1=Sbuf(2, 2, value=2.0)),
    broken("operand1's size", operand0=1, operand1=Sbuf(2, 1)).says(same_elements("dst", "operand1")),
    broken("operand0's shape", operand0=Sbuf(1, 1)).says(one_each("operand0", "data")),
)
def test_scalar_tensor_tensor_rules(rule: Rule) -> None:
    check_rule(rule)
