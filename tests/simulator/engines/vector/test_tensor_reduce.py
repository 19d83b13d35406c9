# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_reduce`: operators, axes, shapes, negation, bit patterns and refusals."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, normal, run, tile
from ...made import Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import must, same_partitions

BLOCK = np.array([[[1, -2, 3], [4, 5, -6]], [[0, 7, 0], [2, 2, 2]]], np.float32)

REDUCTIONS: dict[str, list[list[float]]] = {
    # over the last axis of BLOCK, by hand
    "add": [[2, 3], [7, 6]],
    "subtract": [[1 + 2 - 3, 4 - 5 + 6], [0 - 7 - 0, 2 - 2 - 2]],
    "multiply": [[-6, -120], [0, 8]],
    "maximum": [[3, 5], [7, 2]],
    "minimum": [[-2, -6], [0, 2]],
    "max": [[3, 5], [7, 2]],
    "min": [[-2, -6], [0, 2]],
    "logical_and": [[1, 1], [0, 1]],
    "logical_or": [[1, 1], [1, 1]],
    "logical_xor": [[1, 1], [1, 1]],  # three, three, one and three true values: odd
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [2, -1, (2,), [2], np.int64(2)], ids=repr)
def test_tensor_reduce_operators(name: str, axis: Any) -> None:
    result = run(lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, name), data, axis), [BLOCK], Result((2, 2)))
    assert result.tolist() == REDUCTIONS[name]


@pytest.mark.parametrize(
    ("axis", "shape", "kept"),
    [
        ((3,), (2, 3, 4), (2, 3, 4, 1)),
        ((2, 3), (2, 3), (2, 3, 1, 1)),
        ((1, 2, 3), (2, 1), (2, 1, 1, 1)),
        ((3, 2), (2, 3), (2, 3, 1, 1)),
        ((-1, -2), (2, 3), (2, 3, 1, 1)),
    ],
)
def test_tensor_reduce_axes(axis: Any, shape: Any, kept: Any) -> None:
    """Integers small enough that every order of summation gives the very same float32."""
    values = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.float32)
    expected = values.astype(np.float64).sum(axis=axis).reshape(shape)
    for keepdims, result_shape in ((False, shape), (True, kept)):
        result = run(
            lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, axis, keepdims=keepdims),  # noqa: B023
            [values],
            Result(result_shape),
        )
        assert result.tolist() == expected.reshape(result_shape).tolist()


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_tensor_reduce_negates(name: str) -> None:
    result = run(
        lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, name), data, 2, negate=True), [BLOCK], Result((2, 2))
    )
    assert result.tolist() == [[-x for x in row] for row in REDUCTIONS[name]]


def test_tensor_reduce_computes_in_float32_and_casts_the_result() -> None:
    """The sum of 300 bfloat16 ones is 300; bfloat16 addition would stay at 256. int8 saturates."""
    ones = np.ones((1, 300), ml_dtypes.bfloat16)
    for dtype, expected in ((nl.float32, 300), (nl.bfloat16, 300), (nl.int8, 127)):
        assert (
            run(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, 1), [ones], Result((1, 1), dtype)) == expected
        )


def test_tensor_reduce_error_of_a_long_sum() -> None:
    """32 Ki elements: against exact summation, well inside what a plain float32 loop would lose."""
    values = normal(3, 32768, seed=1)
    result = run(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, 1), [values], Result((3, 1)))
    for row, got in zip(values, result[:, 0], strict=True):
        assert abs(float(got) - math.fsum(row)) <= 32 * 2**-24 * math.fsum(abs(row))


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_tensor_reduce_in_both_on_chip_memories(buffer: Any) -> None:
    result = run(
        lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, (1, 2)),
        [Tile(BLOCK, buffer=buffer)],
        Result((2, 1), nl.float32, buffer),
    )
    assert result.tolist() == [[5], [13]]


def test_tensor_reduce_of_a_strided_view() -> None:
    result = run(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data[:, :, ::2], 2), [BLOCK], Result((2, 2)))
    assert result.tolist() == [[4, -2], [0, 4]]


def test_tensor_reduce_into_the_tile_that_it_reads() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_reduce(data[:, 0:1], nl.add, data, 1)
        nisa.tensor_copy(dst, data)

    data = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    assert run(body, [data], Result((2, 3))).tolist() == [[2, -2, 3], [3, 5, -6]]


@pytest.mark.parametrize(
    ("name", "expected"), [("bitwise_and", [2, 1]), ("bitwise_or", [7, 15]), ("bitwise_xor", [2, 11])]
)
def test_tensor_reduce_bits(name: str, expected: list[int]) -> None:
    data = np.array([[6, 3, 7], [1, 5, 15]], np.int16)
    for dtype in (nl.int16, nl.uint16):
        result = run(
            lambda dst, x: nisa.tensor_reduce(dst, getattr(nl, name), x, 1),
            [data],
            Result((2, 1), dtype),
        )
        assert result[:, 0].tolist() == expected


@pytest.mark.parametrize(("axis", "expected"), [(2, [[4, 0], [1, 5]]), ((1, 2), [[0], [1]])])
def test_tensor_reduce_bits_of_some_axes(axis: Any, expected: Any) -> None:
    data = np.array([[[6, 5, 4], [3, 4, 0]], [[1, 3, 9], [7, 5, 13]]], np.uint8)
    for keepdims in (False, True):
        shape = (*np.shape(expected), *[1] * (3 - np.ndim(expected))) if keepdims else np.shape(expected)
        result = run(
            lambda dst, x: nisa.tensor_reduce(dst, nl.bitwise_and, x, axis, keepdims=keepdims),  # noqa: B023
            [data],
            Result(shape, nl.uint8),
        )
        assert result.reshape(np.shape(expected)).tolist() == expected


@pytest.mark.parametrize(("op", "identity"), [(nl.bitwise_or, 0), (nl.bitwise_xor, 0), (nl.bitwise_and, -1)])
def test_bits_of_nothing(op: Any, identity: int) -> None:
    """Slices of size 0 are accepted: no partition, or no element in one."""

    def body(dst: Any, data: Any) -> None:
        nisa.tensor_reduce(dst, op, data[:, 0:0], 1)
        nisa.tensor_reduce(dst[0:0], op, data[0:0], 1)

    assert run(body, [np.ones((2, 3), np.int32)], Result((2, 1), nl.int32)).tolist() == [[identity]] * 2


@rules(
    legal(nisa.tensor_reduce, dst=Sbuf(2, 1), op=nl.add, data=Sbuf(2, 3), axis=np.int64(1)),
    broken("partition axis", axis=0)
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got 0")
    .fixed(axis=1),
    broken("all axes", axis=(0, 1))
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got (0, 1)")
    .fixed(axis=(1,)),
    broken("not the last axis", dst=Sbuf(2, 4), data=Sbuf(2, 3, 4), axis=1)
    .says("axis must name the last free dimensions of {data}, ending with 2, and not 0; got 1")
    .fixed(data=Sbuf(2, 3, 4).permute((0, 2, 1)), axis=2),
    broken("gap between axes", dst=Sbuf(2, 3), data=Sbuf(2, 2, 3, 4), axis=(1, 3))
    .says("axis must name the last free dimensions of {data}, ending with 3, and not 0; got (1, 3)")
    .fixed(dst=Sbuf(2, 2), axis=(2, 3)),
    broken("no axis", dst=Sbuf(2, 3), axis=())
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got ()")
    .instead(lambda: nisa.tensor_copy(tile(2, 3), tile(2, 3))),
    *(
        broken(f"axis of {kind}", axis=axis).says(f"axis must be an integer or a tuple of integers, got {axis!r}")
        for kind, axis in (("nothing", None), ("floats", (1.0,)), ("text", "1"))
    ),
    broken("axis out of range", axis=2)
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got 2")
    .fixed(axis=-1),
    broken("operator", op=nl.power, axis=1).says("op=nl.power is no legal reduction operator").fixed(op=nl.multiply),
    legal(nisa.tensor_reduce, Sbuf(2, 1, dtype=nl.int32), nl.bitwise_or, Sbuf(2, 3, dtype=nl.int32), 1),
    broken("negated bits", dst=Sbuf(2, 1, dtype=nl.int8), data=Sbuf(2, 3, dtype=nl.int8), negate=True)
    .says("negate needs an arithmetic operator")
    .fixed(op=nl.add),
    broken("bits of floats", dst=Sbuf(2, 1)).says(must("dst", "be an integer tensor with a bit-wise operator")),
    legal(nisa.tensor_reduce, dst=Sbuf(2, 2), op=nl.add, data=Sbuf(2, 2, 3), axis=2),
    broken("size of dst", data=Sbuf(2, 3), axis=1).says(must("dst", "have 1 elements per partition")),
    legal(nisa.tensor_reduce, dst=Sbuf(2, 2, 1), op=nl.add, data=Sbuf(2, 2, 3), axis=2, keepdims=True),
    broken("shape of dst with keepdims", dst=Sbuf(2, 2)).says("keepdims=True needs dst of shape [2, 2, 1], got {dst}"),
    legal(nisa.tensor_reduce, dst=Sbuf(1, 1), op=nl.add, data=Sbuf(2, 3)[0:1], axis=1),
    broken("partitions", data=Sbuf(2, 3)).says(same_partitions("dst", "data")),
)
def test_tensor_reduce_rules(rule: Rule) -> None:
    check_rule(rule)
