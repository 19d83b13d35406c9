# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every operator of the documentation's table with a scalar operand, as `tensor_scalar` applies it, both ways round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Result, run, tile
from ...made import Sbuf
from ...rules import Rule, broken, check_rule, legal, rules

VALUES = [-3.0, -1.0, 0.0, 0.5, 2.0, 7.0]
OPERANDS = [2.0, -1.0, 0.0, 3.0]


def _reference(value: bool) -> float:
    return 1.0 if value else 0.0


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
    "max": max,
    "min": min,
    "equal": lambda x, y: _reference(x == y),
    "not_equal": lambda x, y: _reference(x != y),
    "greater_equal": lambda x, y: _reference(x >= y),
    "greater": lambda x, y: _reference(x > y),
    "less_equal": lambda x, y: _reference(x <= y),
    "less": lambda x, y: _reference(x < y),
    "logical_and": lambda x, y: _reference(x != 0 and y != 0),
    "logical_or": lambda x, y: _reference(x != 0 or y != 0),
    "logical_xor": lambda x, y: _reference((x != 0) != (y != 0)),
    "abs_max": lambda x, y: x if abs(x) > abs(y) else y,
    "abs_min": lambda x, y: x if abs(x) < abs(y) else y,
}


@pytest.mark.parametrize("is_reversed", [False, True], ids=["data-operand", "operand-data"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_with_a_constant(name: str, is_reversed: bool) -> None:
    for operand in OPERANDS:
        result = run(
            lambda dst, data: nisa.tensor_scalar(dst, data, getattr(nl, name), operand, is_reversed),  # noqa: B023
            [np.array([VALUES], np.float32)],
            Result((1, len(VALUES))),
            target="trn3",
        )
        expected = [BINARY[name](operand, x) if is_reversed else BINARY[name](x, operand) for x in VALUES]
        assert result[0].tolist() == expected


@pytest.mark.parametrize("is_reversed", [False, True], ids=["data-operand", "operand-data"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_with_a_vector(name: str, is_reversed: bool) -> None:
    result = run(
        lambda dst, data, column: nisa.tensor_scalar(dst, data, getattr(nl, name), column, is_reversed),
        [np.array([VALUES] * len(OPERANDS), np.float32), np.array(OPERANDS, np.float32).reshape(-1, 1)],
        Result((len(OPERANDS), len(VALUES))),
        target="trn3",
    )
    for operand, row in zip(OPERANDS, result.tolist(), strict=True):
        assert row == [BINARY[name](operand, x) if is_reversed else BINARY[name](x, operand) for x in VALUES]


@pytest.mark.parametrize(
    ("values", "operand", "is_reversed", "expected"),
    [
        ([0.0, 1.0, 3.0, -2.0], 3, False, [0, 1, 27, -8]),
        ([0.0, 1.0, 3.0, -2.0], 2, True, [1, 2, 8, 0.25]),
        ([4.0, 0.25, 9.0, 1.0], -0.5, False, [0.5, 2, 1 / 3, 1]),
        ([-8.0, 4.0, 0.0, 1.0], 0.5, False, [math.nan, 2, 0, 1]),
    ],
)
def test_power(values: list[float], operand: float, is_reversed: bool, expected: list[float]) -> None:
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.power, operand, is_reversed),
        [np.array([values], np.float32)],
        Result((1, 4)),
    )
    assert result[0].tolist() == pytest.approx(expected, rel=2**-22, nan_ok=True)


UNARY: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "square": lambda x: x * x,
    "relu": lambda x: max(x, 0.0),
    "reciprocal": lambda x: 1.0 / x if x else math.inf,
    "rsqrt": lambda x: 1.0 / math.sqrt(x) if x > 0 else (math.inf if x == 0 else math.nan),
}


@pytest.mark.parametrize("unused", [None, 0, 0.0], ids=repr)
@pytest.mark.parametrize("name", UNARY)
def test_unary_operators(name: str, unused: Any) -> None:
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, getattr(nl, name), unused),
        [np.array([VALUES], np.float32)],
        Result((1, len(VALUES))),
    )
    assert result[0].tolist() == pytest.approx([UNARY[name](x) for x in VALUES], rel=2**-22, nan_ok=True)


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_as_the_second_step(name: str) -> None:
    values = [x + 4 for x in VALUES]  # all positive
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.add, 4.0, op1=getattr(nl, name), operand1=None),
        [np.array([VALUES], np.float32)],
        Result((1, len(VALUES))),
    )
    assert result[0].tolist() == pytest.approx([UNARY[name](x) for x in values], rel=2**-22)


BITS: dict[str, Callable[[int, int], int]] = {
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
}
INTEGERS = [0, 1, 3, 0b1010_0101, 0x7FFF, 0x8000, 0xFFFF]


@pytest.mark.parametrize("as_vector", [False, True], ids=["constant", "vector"])
@pytest.mark.parametrize("name", BITS)
def test_bitwise_operators_on_16_bits(name: str, as_vector: bool) -> None:
    """Python integers have no width: the result is cut to 16 bits. Results of signed types are bitwise identical."""
    operands = [5] if "shift" in name else [0, 0x0FF0, 0xFFFF]
    for operand in operands:
        expected = [BITS[name](x, operand) & 0xFFFF for x in INTEGERS]
        for dtype in (nl.uint16, nl.int16):
            numpy_type = np.dtype(str(dtype))
            data = np.array([INTEGERS], np.uint16).view(numpy_type)
            column = np.array([[operand]], np.uint16).view(numpy_type)
            result = run(
                lambda dst, data, column: nisa.tensor_scalar(
                    dst,
                    data,
                    getattr(nl, name),
                    column if as_vector else operand,  # noqa: B023
                ),
                [data, column],
                Result((1, len(INTEGERS)), dtype),
            )
            assert result.view(np.uint16)[0].tolist() == expected


def test_shifts_reversed() -> None:
    """`operand << data` and `operand >> data`."""
    data = np.array([[0, 1, 7]], np.uint8)
    for op, expected in ((nl.left_shift, [0x81, 0x02, 0x80]), (nl.right_shift, [0x81, 0x40, 0x01])):
        result = run(
            lambda dst, x: nisa.tensor_scalar(dst, x, op, 0x81, True),  # noqa: B023
            [data],
            Result((1, 3), nl.uint8),
        )
        assert result[0].tolist() == expected


@pytest.mark.parametrize("dtype", [nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32])
def test_invert(dtype: Any) -> None:
    data = np.array([[0, 1, 100]], np.dtype(str(dtype)))
    result = run(lambda dst, x: nisa.tensor_scalar(dst, x, nl.invert, None), [data], Result((1, 3), dtype))
    width = 8 * data.itemsize
    assert [int(x) % 2**width for x in result[0]] == [2**width - 1, 2**width - 2, 2**width - 101]


INT32_TILE = Sbuf(2, 2, dtype=nl.int32)


@rules(
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.add, operand0=0),
    broken("activation function", op0=nl.exp)
    .says("op0=nl.exp is no operator of the Vector engine (see nl.add and the like)")
    .instead(lambda: nisa.activation(tile(2, 2), nl.exp, tile(2, 2))),
    broken("no operator", op0=np.add).says("op0 must be an operator such as nl.add, got <ufunc 'add'>"),
    broken("unary with an operand", op0=nl.abs, operand0=1.0)
    .says("op0=nl.abs takes one input: operand0 must be None or 0 and reverse0 False")
    .fixed(operand0=None),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.add, operand0=1, op1=nl.square),
    broken("unary with a vector", operand1=Sbuf(2, 1)).says(
        "op1=nl.square takes one input: operand1 must be None or 0 and reverse1 False"
    ),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.relu, operand0=0),
    broken("unary reversed", reverse0=True).says(
        "op0=nl.relu takes one input: operand0 must be None or 0 and reverse0 False"
    ),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.abs, operand0=None),
    broken("binary without an operand", op0=nl.add).says("op0=nl.add needs operand0").fixed(operand0=0),
    broken("second binary without an operand", op1=nl.power).says("op1=nl.power needs operand1").fixed(operand1=2),
    broken("bits of a float constant", dst=INT32_TILE, data=INT32_TILE, op0=nl.bitwise_and, operand0=2.5)
    .says("op0=nl.bitwise_and is bit-wise: operand0 must be an integer, got 2.5")
    .fixed(operand0=2),
    broken("abs_min before trn3", on="trn1", op0=nl.add, operand0=0, op1=nl.abs_min, operand1=1)
    .says("op1=nl.abs_min needs trn3; the target is trn1")
    .fixed(on="trn3"),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)
