"""`tensor_scalar` and `scalar_tensor_tensor`; their operators one by one are in `test_elementwise.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Rule, Tile, check_rule, engine_of, rules, run, tile

ENGINE = nisa.engine
PSUM = nl.psum


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


@rules(
    Rule(
        "operator kinds",
        lambda: nisa.tensor_scalar(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, 1, op1=nl.add, operand1=1
        ),
        "nisa.tensor_scalar: op0=nl.bitwise_and and op1=nl.add must both be bit-wise or both be arithmetic",
        lambda: nisa.tensor_scalar(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, 1, op1=nl.bitwise_or, operand1=1
        ),
    ),
    Rule(
        "bits on another engine",
        lambda: nisa.tensor_scalar(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, 1, engine=ENGINE.scalar
        ),
        "nisa.tensor_scalar: bit-wise operators run on the Vector engine, got engine=nki.isa.engine.scalar",
        lambda: nisa.tensor_scalar(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, 1, engine=ENGINE.vector
        ),
    ),
    Rule(
        "bits of floats",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2, dtype=nl.int32), nl.bitwise_and, 1),
        "nisa.tensor_scalar: operand 'dst' must be an integer tensor with a bit-wise operator, got tensor [2, 2] "
        "float32 in sbuf",
        lambda: nisa.tensor_scalar(tile(2, 2, dtype=nl.uint32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, 1),
    ),
    Rule(
        "more bits than an element",
        lambda: nisa.tensor_scalar(tile(2, 2, dtype=nl.uint8), tile(2, 2, dtype=nl.uint8), nl.left_shift, 256),
        "nisa.tensor_scalar: nl.left_shift on elements of 8 bits needs an operand in [-128, 255], got 256",
        lambda: nisa.tensor_scalar(tile(2, 2, dtype=nl.uint8), tile(2, 2, dtype=nl.uint8), nl.left_shift, 255),
    ),
    Rule(
        "more bits than an element, negative",
        lambda: nisa.tensor_scalar(tile(2, 2, dtype=nl.int16), tile(2, 2, dtype=nl.int16), nl.bitwise_or, -32769),
        "nisa.tensor_scalar: nl.bitwise_or on elements of 16 bits needs an operand in [-32768, 65535], got -32769",
        lambda: nisa.tensor_scalar(tile(2, 2, dtype=nl.int16), tile(2, 2, dtype=nl.int16), nl.bitwise_or, -32768),
    ),
    Rule(
        "bits of unlike widths",
        lambda: nisa.tensor_scalar(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, tile(2, 1, dtype=nl.int8)
        ),
        "nisa.tensor_scalar: bit-wise operators cast nothing: the operands must have one width, got tensor [2, 2] "
        "int32 in sbuf, tensor [2, 2] int32 in sbuf, tensor [2, 1] int8 in sbuf",
        lambda: nisa.tensor_scalar(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.bitwise_and, tile(2, 1, dtype=nl.int32)
        ),
    ),
    Rule(
        "Scalar engine, operator",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.subtract, 1, engine=ENGINE.scalar),
        "nisa.tensor_scalar: the Scalar engine runs multiply then add, multiply alone or add alone, got "
        "op0=nl.subtract",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, -1, engine=ENGINE.scalar),
    ),
    Rule(
        "Scalar engine, order",
        lambda: nisa.tensor_scalar(
            tile(2, 2), tile(2, 2), nl.add, 1, op1=nl.multiply, operand1=2, engine=ENGINE.scalar
        ),
        "nisa.tensor_scalar: the Scalar engine runs multiply then add, multiply alone or add alone, got op0=nl.add, "
        "op1=nl.multiply",
        lambda: nisa.tensor_scalar(
            tile(2, 2), tile(2, 2), nl.multiply, 2, op1=nl.add, operand1=2, engine=ENGINE.scalar
        ),
    ),
    Rule(
        "GpSimd",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, engine=ENGINE.gpsimd),
        "nisa.tensor_scalar: engine=nki.isa.engine.gpsimd is for op nl.rsqrt only",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.rsqrt, 0.0, engine=ENGINE.gpsimd),
    ),
    Rule(
        "rsqrt on Vector",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.rsqrt, None, engine=ENGINE.vector),
        "nisa.tensor_scalar: nl.rsqrt runs on the GpSimd engine, got engine=nki.isa.engine.vector",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.rsqrt, None),
    ),
    Rule(
        "rsqrt in PSUM",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2, buffer=PSUM), nl.rsqrt, None),
        "nisa.tensor_scalar: operand 'data': the GpSimd engine cannot access psum, got tensor [2, 2] float32 in psum",
        lambda: nisa.activation(tile(2, 2), nl.rsqrt, tile(2, 2, buffer=PSUM)),
    ),
    Rule(
        "operand type",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, tile(2, 1, dtype=nl.bfloat16)),
        "nisa.tensor_scalar: operand 'operand0' must be float32 with arithmetic operators, got tensor [2, 1] bfloat16 "
        "in sbuf",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2, dtype=nl.bfloat16), nl.add, tile(2, 1)),
    ),
    Rule(
        "second operand's type",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, op1=nl.add, operand1=tile(2, 1, dtype=nl.int32)),
        "nisa.tensor_scalar: operand 'operand1' must be float32 with arithmetic operators, got tensor [2, 1] int32 in "
        "sbuf",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, op1=nl.add, operand1=tile(2, 1)),
    ),
    Rule(
        "operand shape",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, tile(2, 2)),
        "nisa.tensor_scalar: operand 'operand0' must have shape (2, 1), one element for each partition of 'data', got "
        "tensor [2, 2] float32 in sbuf",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, tile(2, 2)[:, 0:1]),
    ),
    Rule(
        "operand partitions",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 0, op1=nl.add, operand1=tile(4, 1)),
        "nisa.tensor_scalar: operand 'operand1' must have shape (2, 1), one element for each partition of 'data', got "
        "tensor [4, 1] float32 in sbuf",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 0, op1=nl.add, operand1=tile(4, 1)[0:2]),
    ),
    Rule(
        "operand1 without op1",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, operand1=2),
        "nisa.tensor_scalar: operand1 and reverse1 need op1",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, op1=nl.add, operand1=2),
    ),
    Rule(
        "reverse1 without op1",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, reverse1=True),
        "nisa.tensor_scalar: operand1 and reverse1 need op1",
        lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.add, 1, reverse0=True),
    ),
    Rule(
        "size",
        lambda: nisa.tensor_scalar(tile(2, 3), tile(2, 2), nl.add, 1),
        "nisa.tensor_scalar: operands 'dst' and 'data' must have the same number of elements per partition, got "
        "tensor [2, 3] float32 in sbuf and tensor [2, 2] float32 in sbuf",
        lambda: nisa.tensor_scalar(tile(2, 3), tile(2, 3), nl.add, 1),
    ),
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
    Rule(
        "both in PSUM",
        lambda: nisa.scalar_tensor_tensor(
            tile(2, 2), tile(2, 2, buffer=PSUM), nl.add, 1, nl.add, tile(2, 2, buffer=PSUM)
        ),
        "nisa.scalar_tensor_tensor: operands 'data' and 'operand1' must not both be in psum",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2, buffer=PSUM), tile(2, 2), nl.add, 1, nl.add, tile(2, 2)),
    ),
    Rule(
        "bit-wise op0",
        lambda: nisa.scalar_tensor_tensor(
            tile(2, 2, dtype=nl.int32),
            tile(2, 2, dtype=nl.int32),
            nl.bitwise_and,
            1,
            nl.add,
            tile(2, 2, dtype=nl.int32),
        ),
        "nisa.scalar_tensor_tensor: nl.bitwise_and is a bit-wise operator; only arithmetic operators are supported",
        lambda: nisa.scalar_tensor_tensor(
            tile(2, 2, dtype=nl.int32), tile(2, 2, dtype=nl.int32), nl.add, 1, nl.add, tile(2, 2, dtype=nl.int32)
        ),
    ),
    Rule(
        "bit-wise op1",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, 1, nl.bitwise_or, tile(2, 2)),
        "nisa.scalar_tensor_tensor: op1=nl.bitwise_or must be a binary arithmetic operator",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, 1, nl.logical_or, tile(2, 2)),
    ),
    Rule(
        "operand1 is a tile",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, 1, nl.add, 2.0),
        "nisa.scalar_tensor_tensor: operand 'operand1' must be a tensor, got 2.0",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, 1, nl.add, tile(2, 2, value=2.0)),
    ),
    Rule(
        "operand1's size",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, 1, nl.add, tile(2, 1)),
        "nisa.scalar_tensor_tensor: operands 'dst' and 'operand1' must have the same number of elements per partition, "
        "got tensor [2, 2] float32 in sbuf and tensor [2, 1] float32 in sbuf",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, tile(2, 1), nl.add, tile(2, 2)),
    ),
    Rule(
        "operand0's shape",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, tile(1, 1), nl.add, tile(2, 2)),
        "nisa.scalar_tensor_tensor: operand 'operand0' must have shape (2, 1), one element for each partition of "
        "'data', got tensor [1, 1] float32 in sbuf",
        lambda: nisa.scalar_tensor_tensor(tile(2, 2), tile(2, 2), nl.add, tile(2, 1), nl.add, tile(2, 2)),
    ),
)
def test_scalar_tensor_tensor_rules(rule: Rule) -> None:
    check_rule(rule)
