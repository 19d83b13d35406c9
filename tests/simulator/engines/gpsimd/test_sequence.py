# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`sequence_bounds`: against a walk in Python from each element to the two ends of its segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ...kernels import Result, engine_of, run, tile
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, must, one_type

INT32 = nl.int32


def bounds(ids: list[int]) -> list[list[int]]:
    """Where the run of equal ids around each element starts and where the next one starts; n and -1 for id 0."""
    starts, ends = [], []
    for position, number in enumerate(ids):
        start = end = position
        while start > 0 and ids[start - 1] == number:
            start -= 1
        while end < len(ids) and ids[end] == number:
            end += 1
        starts.append(start if number else len(ids))
        ends.append(end if number else -1)
    return [starts, ends]


def run_bounds(ids: Any, dtype: Any = INT32, target: str = "trn2") -> Any:
    return run(nisa.sequence_bounds, [ids], Result((1, 2, ids.shape[1]), dtype), target=target)[0].tolist()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("given_type", [np.float32, np.int32])
@pytest.mark.parametrize("dtype", [nl.float32, INT32])
def test_starts_and_ends_of_segments_between_padding(given_type: Any, dtype: Any, target: str) -> None:
    result = run_bounds(np.array([[0, 7, 7, 2, 2, 2, 0, 3, 3]], given_type), dtype, target)
    assert result == [[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5], [[0], [1]]),
        ([0], [[1], [-1]]),
        ([0, 0, 0], [[3, 3, 3], [-1, -1, -1]]),
        ([4, 4, 4], [[0, 0, 0], [3, 3, 3]]),
        ([1, 2, 3], [[0, 1, 2], [1, 2, 3]]),
        ([3, 3, 1], [[0, 0, 2], [2, 2, 3]]),
        ([0, 0, 1], [[3, 3, 2], [-1, -1, 3]]),
    ],
)
def test_small_sequences(ids: list[int], expected: Any) -> None:
    assert run_bounds(np.array([ids], np.int32)) == expected


def test_an_id_that_comes_again_is_another_segment() -> None:
    assert run_bounds(np.array([[1, 1, 0, 1, 2, 1]], np.int32)) == [[0, 0, 6, 3, 4, 5], [2, 2, -1, 4, 5, 6]]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_any_sequence(ids: list[int]) -> None:
    assert run_bounds(np.array([ids], np.float32)) == bounds(ids)


def test_a_long_sequence() -> None:
    ids = np.sort(np.random.default_rng(0).integers(0, 300, 4096)).tolist()
    assert run_bounds(np.array([ids], np.int32), nl.float32) == bounds(ids)


def test_int32_ids_are_compared_exactly() -> None:
    """2^24 and 2^24 + 1 are one float32 and two segments."""
    ids = [2**24, 2**24 + 1, 2**31 - 1, 2**31 - 2]
    assert run_bounds(np.array([ids], np.int32)) == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_strided_views_of_another_partition() -> None:
    def body(result: Any, inputs: Any) -> None:
        nisa.memset(result, 99)
        ids = tile(64, 8, value=-1)
        nisa.dma_copy(ids[32:33, 0:8:2], inputs)
        nisa.sequence_bounds(result[32:33, :, 1:8:2], ids[32:33, 0:8:2])

    result = run(body, [np.array([[6, 6, 0, 6]], np.float32)], Result((64, 2, 8), INT32))
    assert result[32, :, 1::2].tolist() == [[0, 0, 4, 3], [2, 2, -1, 4]]
    assert (result[32, :, 0::2] == 99).all() and (np.delete(result, 32, axis=0) == 99).all()


def test_dst_may_overlap_the_ids() -> None:
    def body(result: Any, inputs: Any) -> None:
        ids = inputs[:, 0, 0:4].reshape((1, 4))
        nisa.sequence_bounds(inputs, ids)
        nisa.tensor_copy(result, inputs)

    array = np.array([[[1, 1, 2, 0], [0, 0, 0, 0]]], np.float32)
    assert run(body, [array], Result((1, 2, 4))).tolist() == [bounds([1, 1, 2, 0])]


def refused_ids(*ids: float, dtype: Any = nl.float32) -> Any:
    """A kernel with these ids."""

    def kernel() -> None:
        argument = tile(1, len(ids), dtype=dtype)
        for position, number in enumerate(ids):
            nisa.memset(argument[:, position : position + 1], number)
        nisa.sequence_bounds(tile(1, 2, len(ids), dtype=INT32), argument)

    return kernel


@rules(
    legal_kernel("nisa.sequence_bounds", refused_ids, 1, 2),
    broken("negative id", 0, 3, -1, -2)
    .says("operand 'segment_ids' must hold non-negative integers, got -1.0 at index 2")
    .fixed(0, 3, 1, 2),
    broken("negative int32 id", -4, 3, dtype=INT32)
    .says("operand 'segment_ids' must hold non-negative integers, got -4 at index 0")
    .fixed(4, 3),
    broken("fractional id", 1, 1.5).says("operand 'segment_ids' must hold non-negative integers, got 1.5 at index 1"),
    legal_kernel("nisa.sequence_bounds", refused_ids, -0.0, 2),
    broken("infinite id", 1, 2, float("inf"))
    .says("operand 'segment_ids' must hold non-negative integers, got inf at index 2")
    .fixed(1, 2, 3e38),
    broken("NaN", float("nan"), 2).says("operand 'segment_ids' must hold non-negative integers, got nan at index 0"),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 4)),
    broken("partitions", dst=Sbuf(2, 2, 4), segment_ids=Sbuf(2, 4)).says(must("segment_ids", "have shape (1, n)")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 2, 2).reshape((1, 4))),
    broken("dimensions of segment_ids", segment_ids=Sbuf(1, 2, 2)).says(must("segment_ids", "have shape (1, n)")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 4, 2).permute((0, 2, 1)), segment_ids=Sbuf(1, 4)),
    broken("shape of dst", dst=Sbuf(1, 4, 2)).says(must("dst", "have shape (1, 2, 4)")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4, dtype=INT32), segment_ids=Sbuf(1, 4)),
    broken("length of dst", dst=Sbuf(1, 2, 5)).says(must("dst", "have shape (1, 2, 4)")).fixed(segment_ids=Sbuf(1, 5)),
    broken("type of segment_ids", dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 4, dtype=nl.bfloat16))
    .says(one_type("segment_ids", "float32, int32"))
    .fixed(segment_ids=Sbuf(1, 4, dtype=INT32)),
    broken("type of dst", dst=Sbuf(1, 2, 4, dtype=nl.uint32)).says(one_type("dst", "float32, int32")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 4)),
    broken("PSUM", segment_ids=Psum(1, 4)).says(must("segment_ids", "be in sbuf", COPY_FIRST)),
    broken("dst in PSUM", dst=Psum(1, 2, 4)).says(must("dst", "be in sbuf")),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def test_it_runs_on_gpsimd() -> None:
    assert engine_of(lambda: nisa.sequence_bounds(tile(1, 2, 4), tile(1, 4))) == "gpsimd"
