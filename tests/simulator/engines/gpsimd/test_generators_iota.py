# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`iota`: the documented loops, written out in Python, against what the instruction leaves."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Result, engine_of, run, tile
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import must, pairs

INT32 = nl.int32


def generated(partitions: int, pattern: Any, offset: int, channel_multiplier: int) -> list[list[int]]:
    """The stream of every partition, as the documentation's pseudo-code produces it."""
    (step_w, num_w), (step_z, num_z), (step_y, num_y), (step_x, num_x) = [[0, 1]] * (4 - len(pattern)) + list(pattern)
    streams = []
    for channel in range(partitions):
        stream = []
        for w in range(num_w):
            for z in range(num_z):
                for y in range(num_y):
                    for x in range(num_x):
                        value = offset + channel * channel_multiplier
                        stream.append(value + w * step_w + z * step_z + y * step_y + x * step_x)
        streams.append(stream)
    return streams


@pytest.mark.parametrize(
    ("pattern", "offset", "channel_multiplier"),
    [
        ([[1, 6]], 0, 0),
        ([[1, 6]], 10, 100),
        ([[-3, 6]], 7, -1),
        ([[10, 2], [1, 3]], 0, 1000),
        ([[0, 3], [5, 2]], -1, 1),
        ([[100, 1], [10, 3], [1, 2]], 0, 0),
        ([[1000, 2], [100, 2], [-10, 2], [1, 3]], 5, 10000),
        ([(2, 4)], 0, 0),
    ],
)
def test_patterns(pattern: Any, offset: int, channel_multiplier: int) -> None:
    expected = generated(5, pattern, offset, channel_multiplier)
    result = run(
        lambda dst: nisa.iota(dst, pattern, offset, channel_multiplier), [], Result((5, len(expected[0])), INT32)
    )
    assert result.tolist() == expected


def test_offset_and_multiplier_default_to_zero() -> None:
    assert run(lambda dst: nisa.iota(dst, [[1, 3]]), [], Result((2, 3), INT32)).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_dst_may_have_another_shape_than_the_pattern() -> None:
    result = run(lambda dst: nisa.iota(dst, [[10, 2], [1, 6]], 0, 100), [], Result((2, 3, 4), INT32))
    assert result.reshape(2, 12).tolist() == generated(2, [[10, 2], [1, 6]], 0, 100)


def test_a_strided_part_of_a_tile() -> None:
    def body(dst: Any) -> None:
        nisa.memset(dst, -1)
        nisa.iota(dst[:, 1::2], [[1, 2]], 5, 10)

    assert run(body, [], Result((2, 4), INT32)).tolist() == [[-1, 5, -1, 6], [-1, 15, -1, 16]]


def test_partitions_count_from_the_first_one_of_dst() -> None:
    def body(dst: Any) -> None:
        nisa.memset(dst, 0)
        nisa.iota(dst[32:34], [[1, 1]], 7, 1)

    assert run(body, [], Result((64, 1), INT32))[32:35, 0].tolist() == [7, 8, 0]


def test_values_that_float32_cannot_hold_are_exact() -> None:
    result = run(lambda dst: nisa.iota(dst, [[1, 3]], 16777216, 2**30), [], Result((2, 3), INT32))
    assert result.tolist() == [[16777216, 16777217, 16777218], [16777216 + 2**30 + k for k in range(3)]]


def test_arithmetic_is_of_32_bits() -> None:
    """Values beyond 2^31 wrap; an unsigned tile shows the same bit patterns."""
    signed = run(lambda dst: nisa.iota(dst, [[1, 3]], 2**31 - 2), [], Result((1, 3), INT32))
    assert signed.tolist() == [[2**31 - 2, 2**31 - 1, -(2**31)]]
    unsigned = run(lambda dst: nisa.iota(dst, [[1, 3]], 2**31 - 2), [], Result((1, 3), nl.uint32))
    assert unsigned.tolist() == [[2**31 - 2, 2**31 - 1, 2**31]]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (nl.float32, [256, 257, 258, -2]),
        (nl.bfloat16, [256, 256, 258, -2]),
        (nl.float16, [256, 257, 258, -2]),
        (nl.tfloat32, [256, 257, 258, -2]),
        (nl.float8_e5m2, [256, 256, 256, -2]),
        (nl.int16, [256, 257, 258, -2]),
        (nl.int8, [127, 127, 127, -2]),
        (nl.uint8, [255, 255, 255, 0]),
        (nl.uint16, [256, 257, 258, 0]),
        (nl.int32, [256, 257, 258, -2]),
    ],
)
def test_the_result_is_cast_to_the_type_of_dst(dtype: Any, expected: list[int]) -> None:
    def body(dst: Any) -> None:
        nisa.iota(dst[:, 0:3], [[1, 3]], 256)
        nisa.iota(dst[:, 3:4], [[1, 1]], -2)

    assert run(body, [], Result((1, 4), dtype)).astype(np.float32)[0].tolist() == expected


def test_a_bfloat16_tile_comes_back_as_bfloat16() -> None:
    assert run(lambda dst: nisa.iota(dst, [[1, 2]]), [], Result((1, 2), nl.bfloat16)).dtype == ml_dtypes.bfloat16


def test_it_runs_on_gpsimd() -> None:
    assert engine_of(lambda: nisa.iota(tile(2, 2, dtype=INT32), [[1, 2]])) == "gpsimd"


@rules(
    legal(nisa.iota, dst=Sbuf(2, 4, dtype=INT32), pattern=[[1, 4]]),
    broken("PSUM", dst=Psum(2, 4, dtype=INT32)).says(must("dst", "be in sbuf")),
    broken("number of elements", pattern=[[1, 3]]).says(pairs(4, "dst")).fixed(pattern=[[3, 2], [1, 2]]),
    broken("dimensions", pattern=[[1, 1], [1, 1], [1, 1], [1, 1], [1, 4]])
    .says(pairs(4, "dst"))
    .fixed(pattern=[[1, 1], [1, 1], [1, 1], [1, 4]]),
    broken("no dimension", dst=Sbuf(2, 1, dtype=INT32), pattern=[]).says(pairs(1, "dst")).fixed(pattern=[[0, 1]]),
    broken("negative numbers", pattern=[[1, -2], [1, -2]]).says(pairs(4, "dst")).fixed(pattern=[[-1, 2], [-1, 2]]),
    broken("form", pattern=[1, 4]).says("pattern must be [[step, num], ...] of integers, got [1, 4]"),
    broken("triples", pattern=[[1, 4, 0]]).says("pattern must be [[step, num], ...] of integers, got [[1, 4, 0]]"),
    legal(nisa.iota, dst=Sbuf(2, 4, dtype=INT32), pattern=[[0, 2], [1, 2]]),
    broken("fractions", pattern=[[0.5, 4]]).says("pattern must be [[step, num], ...] of integers, got [[0.5, 4]]"),
    legal(nisa.iota, dst=Sbuf(2, 4, dtype=INT32), pattern=[[1, 4]], offset=-(2**31)),
    broken("offset", offset=2**31).says("offset must be an int32, a register or a scalar, got 2147483648"),
    legal(nisa.iota, dst=Sbuf(2, 4, dtype=INT32), pattern=[[0, 2], [2**31 - 1, 2]]),
    broken("channel_multiplier", pattern=[[1, 4]], channel_multiplier=-(2**31) - 1)
    .says("channel_multiplier must be an int32, got -2147483649")
    .fixed(channel_multiplier=2**31 - 1),
    broken("step", pattern=[[0, 2], [2**63, 2]]).says("a step must be an int32, got 9223372036854775808"),
    legal(nisa.iota, dst=Sbuf(2, 4, dtype=INT32), pattern=[[1, 4]], offset=1),
    broken("fractional offset", offset=0.5).says("offset must be an int32, a register or a scalar, got 0.5"),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)
