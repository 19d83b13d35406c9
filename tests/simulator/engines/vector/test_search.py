# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`max8`, `nc_find_index8`, `nc_match_replace8`: against lists that Python sorts and searches one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ...kernels import WIDE, Result, Tile, engine_of, normal, run, tile
from ...made import Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import must, one_type, same_elements, same_partitions

UINT16, UINT32, INT32 = nl.uint16, nl.uint32, nl.int32
ABSENT = 2**32 - 1
INF = math.inf

DATA = np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5], [-3, -1, -4, -1, -5, -9, -2, -6, -5]], np.float32)
LARGEST = [[9, 6, 5, 5, 4, 3, 2, 1], [-1, -1, -2, -3, -4, -5, -5, -6]]


def find(row: Sequence[float], wanted: Sequence[float], order: Sequence[int]) -> list[int | None]:
    """Return for each wanted value, served in the given order, its first position that is not taken yet."""
    positions: list[int | None] = [None] * len(wanted)
    for slot in order:
        for position, value in enumerate(row):
            if value == wanted[slot] and position not in positions:
                positions[slot] = position
                break
    return positions


def found(row: Sequence[float], wanted: Sequence[float]) -> list[int]:
    """Return what `nc_find_index8` gives: the first of equal values is served first."""
    return [ABSENT if position is None else position for position in find(row, wanted, range(8))]


def replaced(row: Sequence[float], wanted: Sequence[float], imm: float) -> tuple[list[float], list[int]]:
    """Return what `nc_match_replace8` gives: the last of equal values is served first."""
    positions = find(row, wanted, range(7, -1, -1))
    return (
        [imm if position in positions else value for position, value in enumerate(row)],
        [ABSENT if position is None else position for position in positions],
    )


# -- max8 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_max8_gives_the_largest_first_and_repeats_equal_ones(buffer: Any, target: str) -> None:
    result = run(nisa.max8, [Tile(DATA, buffer=buffer)], Result((2, 8), nl.float32, buffer), target=target)
    assert result.tolist() == LARGEST


@given(st.lists(st.integers(-5, 5), min_size=8, max_size=40))
def test_max8_of_any_row(row: list[int]) -> None:
    expected = sorted(row, reverse=True)[:8]
    result = run(nisa.max8, [np.array([row, [-x for x in row]], np.float32)], Result((2, 8)))
    assert result.tolist() == [expected, sorted((-x for x in row), reverse=True)[:8]]


def test_max8_takes_two_free_dimensions_as_one() -> None:
    values = np.random.default_rng(1).permutation(24).reshape(1, 4, 6).astype(np.float32)
    assert run(nisa.max8, [values], Result((1, 8))).tolist() == [[23, 22, 21, 20, 19, 18, 17, 16]]


def test_max8_of_strided_columns_into_a_part_of_a_tile() -> None:
    values = np.arange(40, dtype=np.float32).reshape(2, 20)

    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, -1)
        nisa.max8(dst[:, 1:17:2], src[:, 0:18:2])

    result = run(body, [values], Result((2, 18)))
    assert result[:, 1:17:2].tolist() == [[16, 14, 12, 10, 8, 6, 4, 2], [36, 34, 32, 30, 28, 26, 24, 22]]
    assert (result[:, 0::2] == -1).all() and (result[:, 17] == -1).all()


def test_max8_of_infinities() -> None:
    row = np.array([[-INF, 1, INF, -INF, -INF, INF, -INF, 0, -INF]], np.float32)
    assert run(nisa.max8, [row], Result((1, 8))).tolist() == [[INF, INF, 1, 0, -INF, -INF, -INF, -INF]]


def test_max8_puts_nan_first() -> None:
    row = np.array([[1, 2, np.nan, 4, 5, 6, INF, 8, 9]], np.float32)
    result = run(nisa.max8, [row], Result((1, 8)))
    assert np.isnan(result[0, 0]) and result[0, 1:].tolist() == [INF, 9, 8, 6, 5, 4, 2]


def test_max8_compares_in_float32_and_casts_to_the_type_of_dst() -> None:
    """16777217 is read as 16777216; int8 holds 127 of it, bfloat16 rounds 257 to 256."""
    row = np.array([[0, 1, 2, 3, 4, 5, 257, 16777217]], np.int32)
    expected = {
        INT32: [16777216, 257, 5],
        nl.float32: [16777216, 257, 5],
        nl.bfloat16: [16777216, 256, 5],
        nl.int8: [127, 127, 5],
    }
    for dtype, first in expected.items():
        result = run(nisa.max8, [row], Result((1, 8), dtype))
        assert result.astype(np.float64)[0].tolist() == [*first, 4, 3, 2, 1, 0]


def test_max8_of_a_bfloat16_tile() -> None:
    values = normal(3, 50).astype(ml_dtypes.bfloat16)
    result = run(nisa.max8, [values], Result((3, 8), nl.bfloat16))
    assert result.tolist() == [sorted(row, reverse=True)[:8] for row in values.tolist()]


def test_max8_in_place() -> None:
    def body(result: Any, data: Any) -> None:
        nisa.max8(data[:, 1:9], data)
        nisa.tensor_copy(result, data)

    assert run(body, [DATA], Result((2, 9))).tolist() == [[3, *LARGEST[0]], [-3, *LARGEST[1]]]


def test_max8_of_the_most_elements() -> None:
    """Every partition is searched to its ends, in more than one block of rows."""
    values = normal(128, 16384, seed=2)
    values[:, 0], values[:, -1] = 10 + np.arange(128), 1000 - np.arange(128)
    result = run(nisa.max8, [values], Result((128, 8)))
    assert result[:, 0].tolist() == [1000 - k for k in range(128)]
    assert result[:, 1].tolist() == [10 + k for k in range(128)]
    assert result.tolist() == np.sort(values, axis=1)[:, :-9:-1].tolist()


@rules(
    legal(nisa.max8, dst=Sbuf(2, 8), src=Sbuf(2, 8)),
    broken("fewest elements", src=Sbuf(2, 7)).says(must("src", "have 8 to 16384 elements per partition")),
    legal(nisa.max8, dst=Sbuf(1, 8), src=Sbuf(1, 16384)),
    broken("most elements", src=Sbuf(1, 16385)).says(must("src", "have 8 to 16384 elements per partition")),
    legal(nisa.max8, dst=Sbuf(2, 8), src=Sbuf(2, 4, 2)),
    broken("dimensions", src=Sbuf(2, 2, 2, 2)).says(must("src", "have at most 3 dimensions, the partitions included")),
    legal(nisa.max8, dst=Sbuf(2, 2, 4).reshape((2, 8)), src=Sbuf(2, 9)),
    broken("size of dst", dst=Sbuf(2, 9)).says(must("dst", "have shape (partitions, 8)")).fixed(dst=Sbuf(2, 8)),
    broken("dimensions of dst", dst=Sbuf(2, 2, 4)).says(must("dst", "have shape (partitions, 8)")),
    broken("partitions", dst=Sbuf(3, 8)).says(same_partitions("src", "dst")).fixed(src=Sbuf(3, 9)),
)
def test_max8_rules(rule: Rule) -> None:
    check_rule(rule)


# -- nc_find_index8 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_find_index8_gives_equal_values_their_occurrences_in_turn(buffer: Any, target: str) -> None:
    result = run(
        nisa.nc_find_index8,
        [Tile(DATA, buffer=buffer), Tile(np.array(LARGEST, np.float32), buffer=buffer)],
        Result((2, 8), UINT32, buffer),
        target=target,
    )
    assert result.tolist() == [[5, 7, 4, 8, 2, 0, 6, 1], [1, 3, 6, 0, 2, 4, 8, 7]]


def test_find_index8_takes_each_partition_s_own_values() -> None:
    values = np.array([[5, 5, 5, 1, 9, 7, 1, 1], [-9, 5, -1, -1, -1, -3, -3, -2]], np.float32)
    result = run(nisa.nc_find_index8, [DATA, values], Result((2, 8), UINT32))
    assert result.tolist() == [
        [4, 8, ABSENT, 1, 5, ABSENT, 3, ABSENT],
        [5, ABSENT, 1, 3, ABSENT, 0, ABSENT, 6],
    ]


@pytest.mark.parametrize(("dtype", "sentinel"), [(UINT16, 0xFFFF), (UINT32, 0xFFFFFFFF)])
def test_find_index8_gives_all_ones_for_a_value_that_is_not_there(dtype: Any, sentinel: int) -> None:
    values = np.array([[3, 0, 0, 0, 0, 0, 0, 7]], np.float32)
    result = run(nisa.nc_find_index8, [DATA[:1], values], Result((1, 8), dtype))
    assert result.tolist() == [[0, *[sentinel] * 7]]


@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=30),
    st.lists(st.integers(0, 6), min_size=8, max_size=8),
)
def test_find_index8_of_any_row(row: list[int], wanted: list[int]) -> None:
    result = run(
        nisa.nc_find_index8,
        [np.array([row, row[::-1]], np.float32), np.array([wanted, wanted], np.float32)],
        Result((2, 8), UINT32),
    )
    assert result.tolist() == [found(row, wanted), found(row[::-1], wanted)]


def test_find_index8_counts_through_all_free_dimensions() -> None:
    values = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    wanted = np.array([[[23, 0], [7, 12], [5, 6], [1, 22]]], np.float32)
    result = run(nisa.nc_find_index8, [values, wanted], Result((1, 8), UINT32))
    assert result.tolist() == [[23, 0, 7, 12, 5, 6, 1, 22]]


def test_find_index8_of_one_value_repeated_by_a_stride_of_zero() -> None:
    """One maximum, broadcast to the eight values, finds all its occurrences: how kernels compute an argmax."""

    def body(dst: Any, data: Any, largest: Any) -> None:
        nisa.nc_find_index8(dst, data, largest.ap([[1, 2], [0, 8]]))

    result = run(body, [DATA, np.array([[5], [-1]], np.float32)], Result((2, 8), UINT32))
    assert result.tolist() == [[4, 8, *[ABSENT] * 6], [1, 3, *[ABSENT] * 6]]


def test_find_index8_compares_in_float32_whatever_the_types() -> None:
    """uint32 data against int16 values; beyond 2^24 neighbours are equal."""
    row = np.array([[10, 20, 30, 16777216, 16777217, 40, 50, 60]], np.uint32)
    result = run(
        nisa.nc_find_index8,
        [row, np.array([[60, 50, 40, 30, 20, 10, 0, -1]], np.int16)],
        Result((1, 8), UINT32),
    )
    assert result.tolist() == [[7, 6, 5, 2, 1, 0, ABSENT, ABSENT]]
    result = run(nisa.nc_find_index8, [row, np.full((1, 8), 16777217, np.uint32)], Result((1, 8), UINT32))
    assert result.tolist() == [[3, 4, *[ABSENT] * 6]]


def test_find_index8_misses_values_that_were_rounded() -> None:
    """bfloat16 has no 257: a maximum that max8 rounded to it is not found in the float32 data."""
    row = np.array([[257, 1, 2, 3, 4, 5, 6, 7]], np.float32)

    def body(dst: Any, data: Any) -> None:
        largest = nl.ndarray((1, 8), nl.bfloat16)
        nisa.max8(largest, data)
        nisa.nc_find_index8(dst, data, largest)

    assert run(body, [row], Result((1, 8), UINT32)).tolist() == [[ABSENT, 7, 6, 5, 4, 3, 2, 1]]


def test_find_index8_of_special_values() -> None:
    """NaN equals nothing, the zeros each other, infinities themselves."""
    row = np.array([[np.nan, -0.0, 0.0, INF, -INF, 1, 2, 3]], np.float32)
    wanted = np.array([[np.nan, 0.0, 0.0, -INF, INF, 1, 1, np.nan]], np.float32)
    result = run(nisa.nc_find_index8, [row, wanted], Result((1, 8), UINT32))
    assert result.tolist() == [[ABSENT, 1, 2, 4, 3, 5, ABSENT, ABSENT]]


def test_find_index8_of_strided_views_counts_the_elements_of_the_view() -> None:
    data = np.arange(40, dtype=np.float32).reshape(2, 20)
    wanted = np.array([[3, 5, 2, 19, 17, 1, 7, 9], [23, 25, 22, 39, 37, 21, 27, 29]], np.float32)

    def body(dst: Any, data: Any, wanted: Any) -> None:
        nisa.memset(dst, 7)
        nisa.nc_find_index8(dst[:, 0:16:2], data[:, 1::2], wanted)

    result = run(body, [data, wanted], Result((2, 16), UINT32))
    assert result[:, 0::2].tolist() == [[1, 2, ABSENT, 9, 8, 0, 3, 4]] * 2
    assert (result[:, 1::2] == 7).all()


def test_find_index8_onto_its_own_values() -> None:
    def body(result: Any, data: Any, wanted: Any) -> None:
        nisa.nc_find_index8(wanted, data, wanted)
        nisa.tensor_copy(result, wanted)

    wanted = np.array([[9, 6, 5, 5, 4, 3, 2, 1]] * 2, np.uint32)
    result = run(body, [DATA, wanted], Result((2, 8), UINT32))
    assert result.tolist() == [[5, 7, 4, 8, 2, 0, 6, 1], [ABSENT] * 8]


def test_find_index8_of_the_most_elements() -> None:
    """The rows are searched in more than one block; 16383 is an index that uint16 holds."""
    data = np.random.default_rng(3).permuted(np.tile(np.arange(16384, dtype=np.float32), (128, 1)), axis=1)
    rows = np.arange(128)
    wanted = np.stack([data[rows, (rows * 97 + 2340 * slot) % 16384] for slot in range(7)] + [data[:, -1]], axis=1)
    result = run(nisa.nc_find_index8, [data, wanted], Result((128, 8), UINT16))
    assert result.tolist() == [[(row * 97 + 2340 * slot) % 16384 for slot in range(7)] + [16383] for row in range(128)]


@rules(
    legal(nisa.nc_find_index8, dst=Sbuf(2, 8, dtype=UINT16), data=Sbuf(2, 9), vals=Sbuf(2, 8)),
    broken("type of dst", dst=Sbuf(2, 8, dtype=INT32)).says(one_type("dst", "uint16, uint32")),
    legal(nisa.nc_find_index8, dst=Sbuf(2, 8, dtype=UINT32), data=Sbuf(2, 8), vals=Sbuf(2, 8)),
    broken("fewest elements", data=Sbuf(2, 7)).says(must("data", "have 8 to 16384 elements per partition")),
    legal(nisa.nc_find_index8, dst=Sbuf(1, 8, dtype=UINT32), data=Sbuf(1, 2, 8192), vals=Sbuf(1, 8)),
    broken("most elements", data=Sbuf(1, 16385)).says(must("data", "have 8 to 16384 elements per partition")),
    legal(nisa.nc_find_index8, dst=Sbuf(2, 8, dtype=UINT32), data=Sbuf(2, 9), vals=Sbuf(2, 1).broadcast(1, 8)),
    broken("dimensions of data", data=Sbuf(2, 2, 2, 2), vals=Sbuf(2, 8))
    .says(must("data", "have at most 3 dimensions, the partitions included"))
    .fixed(data=Sbuf(2, 2, 4)),
    broken("dimensions of vals", vals=Sbuf(2, 2, 2, 2))
    .says(must("vals", "have at most 3 dimensions, the partitions included"))
    .fixed(vals=Sbuf(2, 2, 4)),
    broken("number of vals", vals=Sbuf(2, 1)).says(must("vals", "have 8 elements per partition")),
    broken("shape of dst", dst=Sbuf(2, 4, 2, dtype=UINT32), vals=Sbuf(2, 8))
    .says(must("dst", "have shape (partitions, 8)"))
    .fixed(dst=Sbuf(2, 8, dtype=UINT32), vals=Sbuf(2, 4, 2)),
    broken("partitions of vals", vals=Sbuf(1, 8)).says(same_partitions("data", "vals")).fixed(vals=Sbuf(2, 8)),
    legal(nisa.nc_find_index8, dst=Sbuf(3, 8, dtype=UINT32), data=Sbuf(3, 9), vals=Sbuf(3, 8)),
    broken("partitions of dst", data=Sbuf(2, 9), vals=Sbuf(2, 8)).says(same_partitions("data", "dst")),
)
def test_find_index8_rules(rule: Rule) -> None:
    check_rule(rule)


# -- nc_match_replace8 -----------------------------------------------------------------------------------------------


def match_replace(imm: float) -> Any:
    """The instruction with an immediate, in the order in which `run` passes tiles."""
    return lambda dst, dst_idx, data, vals: nisa.nc_match_replace8(dst, data, vals, imm, dst_idx)


def test_match_replace8_serves_the_last_of_equal_values_first() -> None:
    """The documentation's example: seven 8 get the positions 4 to 10, in descending order."""
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    wanted = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    result, positions = run(match_replace(-5), [data, wanted], Result((1, 11)), Result((1, 8), UINT32))
    assert positions.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert result.tolist() == [[1, 2, -5, 4, *[-5] * 7]]


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_match_replace8_strikes_out_the_largest(buffer: Any, target: str) -> None:
    result, positions = run(
        match_replace(-INF),
        [Tile(DATA, buffer=buffer), Tile(np.array(LARGEST, np.float32), buffer=buffer)],
        Result((2, 9), nl.float32, buffer),
        Result((2, 8), UINT32, buffer),
        target=target,
    )
    assert result.tolist() == [[-INF] * 3 + [1] + [-INF] * 5, [-INF] * 5 + [-9] + [-INF] * 3]
    assert positions.tolist() == [[5, 7, 8, 4, 2, 0, 6, 1], [3, 1, 6, 0, 2, 8, 4, 7]]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_match_replace8_without_indices(target: str) -> None:
    def body(dst: Any, data: Any, wanted: Any) -> None:
        nisa.nc_match_replace8(dst, data, wanted, 0.5)

    wanted = np.array([[5, 5, 9, 9, 9, 9, 9, 1], [-9, 7, 7, 7, 7, 7, 7, -1]], np.float32)
    result = run(body, [DATA, wanted], Result((2, 9)), target=target)
    assert result.tolist() == [[3, 0.5, 4, 1, 0.5, 0.5, 2, 6, 0.5], [-3, 0.5, -4, -1, -5, 0.5, -2, -6, -5]]


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.lists(st.integers(0, 6), min_size=8, max_size=8),
    st.integers(0, 9),
)
def test_match_replace8_of_any_row(row: list[int], wanted: list[int], imm: int) -> None:
    """The immediate may be one of the values; what it replaced is not matched again."""
    result, positions = run(
        match_replace(imm),
        [np.array([row, row[::-1]], np.float32), np.array([wanted, wanted], np.float32)],
        Result((2, len(row))),
        Result((2, 8), UINT32),
    )
    for given_row, got, got_positions in zip((row, row[::-1]), result.tolist(), positions.tolist(), strict=True):
        assert (got, got_positions) == replaced(given_row, wanted, imm)


@pytest.mark.parametrize(("dtype", "sentinel"), [(UINT16, 0xFFFF), (UINT32, 0xFFFFFFFF)])
def test_match_replace8_gives_all_ones_for_a_value_that_is_not_there(dtype: Any, sentinel: int) -> None:
    result, positions = run(
        match_replace(100),
        [DATA[:1], np.array([[np.nan, 5, 5, 5, 7, 9, 0, 3]], np.float32)],
        Result((1, 9)),
        Result((1, 8), dtype),
    )
    assert positions.tolist() == [[sentinel, sentinel, 8, 4, sentinel, 5, sentinel, 0]]
    assert result.tolist() == [[100, 1, 4, 1, 100, 100, 2, 6, 100]]


def test_match_replace8_keeps_the_shape_and_counts_through_it() -> None:
    data = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    wanted = np.array([[[23, 0], [7, 12], [5, 6], [1, 22]]], np.float32)
    result, positions = run(match_replace(-1), [data, wanted], Result((1, 2, 3, 4)), Result((1, 2, 4), UINT32))
    assert positions.tolist() == [[[23, 0, 7, 12], [5, 6, 1, 22]]]
    expected = [-1 if k in (23, 0, 7, 12, 5, 6, 1, 22) else k for k in range(24)]
    assert result.reshape(-1).tolist() == expected


def test_match_replace8_copies_the_other_elements_bit_by_bit() -> None:
    """16777217 has no float32; int32 holds the least integer for -inf."""
    data = np.array([[16777217, 5, -16777219, 2**31 - 1, 7, 7, 1, 0, 3]], np.int32)
    wanted = np.array([[7, 5, 0, 7, 100, 100, 100, 100]], np.int32)
    result = run(
        lambda dst, data, vals: nisa.nc_match_replace8(dst, data, vals, -INF), [data, wanted], Result((1, 9), INT32)
    )
    least = -(2**31)
    assert result.tolist() == [[16777217, least, -16777219, 2**31 - 1, least, least, 1, least, 3]]


def test_match_replace8_casts_to_another_type_through_float32() -> None:
    """1.25 becomes 1, 300 becomes 127 and 2.5 becomes 2 in int8; 257 has no bfloat16."""
    data = np.array([[1.25, 300, 4, -300, 257, 6, 8, 9]], np.float32)
    wanted = np.array([[4, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    for dtype, expected in (
        (nl.int8, [1, 127, 2, -128, 127, 6, 8, 9]),
        (nl.bfloat16, [1.25, 300, 2.5, -300, 256, 6, 8, 9]),
    ):
        result = run(
            lambda dst, data, vals: nisa.nc_match_replace8(dst, data, vals, 2.5), [data, wanted], Result((1, 8), dtype)
        )
        assert result.astype(np.float32).tolist() == [expected]


@pytest.mark.parametrize(
    ("dtype", "imm", "expected"),
    [
        (nl.bfloat16, 257, 256),
        (nl.tfloat32, 1 + 2**-11 + 2**-12, 1 + 2**-10),
        (nl.int16, 99999, 32767),
        (nl.uint8, -1, 0),
        (nl.float32, np.float32(0.1), np.float32(0.1)),
        (nl.float32, 0.1, np.float32(0.1)),
        (nl.float32, np.int64(7), 7),
    ],
)
def test_match_replace8_rounds_the_immediate_to_the_type_of_dst(dtype: Any, imm: Any, expected: float) -> None:
    result = run(
        lambda dst, data, vals: nisa.nc_match_replace8(dst, data, vals, imm),
        [Tile(np.array([[1, 2, 3, 4]], np.float32), dtype), np.array([[3, 0, 0, 0, 0, 0, 0, 0]], np.float32)],
        Result((1, 4), dtype),
    )
    assert result.astype(np.float64).tolist() == [[1, 2, expected, 4]]


def test_match_replace8_in_place_in_rounds_sorts_a_row() -> None:
    """Rounds of max8 and match_replace8, as top-k kernels have them; the indices go into columns from right to left."""
    data = np.array([[2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]], np.float32)

    def body(values: Any, indices: Any, data: Any) -> None:
        for columns, start in ((slice(0, 8), 15), (slice(8, 16), 7)):
            nisa.max8(values[:, columns], data)
            reverse = indices.ap([[16, 1], [-1, 8]], offset=start)
            nisa.nc_match_replace8(data, data, values[:, columns], -INF, reverse)

    values, indices = run(body, [data], Result((1, 16)), Result((1, 16), UINT32))
    assert values.tolist() == [sorted(data[0].tolist(), reverse=True)]
    assert [data[0, k] for k in indices[0]] == sorted(data[0].tolist())
    assert sorted(indices[0].tolist()) == list(range(16))


def test_match_replace8_onto_a_view_that_overlaps_its_data_and_values() -> None:
    """All is read before anything is written: dst is the data moved on by one column, and begins with vals."""
    buffer = np.array([[3, 3, 3, 3, 3, 3, 3, 4, 3, 4, 5, 4]], np.float32)

    def body(result: Any, buffer: Any) -> None:
        nisa.nc_match_replace8(buffer[:, 1:5], buffer[:, 7:11], buffer[:, 0:8], 0)
        nisa.nc_match_replace8(buffer[:, 8:12], buffer[:, 7:11], buffer[:, 0:8], 9)
        nisa.tensor_copy(result, buffer)

    # First vals are seven 3 and a 4, of which data 4, 3, 4, 5 has one each: 0, 0, 4, 5. Then vals are 3, 0, 0, 4, 5, 3,
    # 3, 4, and data 4, 3, 4, 5 has both 4, a 3 and the 5.
    assert run(body, [buffer], Result((1, 12))).tolist() == [[3, 0, 0, 4, 5, 3, 3, 4, 9, 9, 9, 9]]


def test_match_replace8_of_strided_views() -> None:
    data = np.array([[1, -1, 2, -1, 3, -1, 4, -1], [5, -1, 6, -1, 7, -1, 8, -1]], np.float32)
    wanted = np.array([[3] * 8, [5] * 8], np.float32)

    def body(dst: Any, positions: Any, data: Any, wanted: Any) -> None:
        nisa.memset(dst, 0)
        nisa.memset(positions, 77)
        nisa.nc_match_replace8(dst[:, 1:8:2], data[:, 0:8:2], wanted, 9, positions[:, 0:16:2])

    result, positions = run(body, [data, wanted], Result((2, 8)), Result((2, 16), UINT32))
    assert result.tolist() == [[0, 1, 0, 2, 0, 9, 0, 4], [0, 9, 0, 6, 0, 7, 0, 8]]
    assert positions[:, 0::2].tolist() == [[*[ABSENT] * 7, 2], [*[ABSENT] * 7, 0]]
    assert (positions[:, 1::2] == 77).all()


def test_match_replace8_of_tiles_larger_than_a_block_of_rows() -> None:
    data = np.random.default_rng(4).permuted(np.tile(np.arange(WIDE, dtype=np.float32), (128, 1)), axis=1)
    wanted = data[:, 5 : 5 + 64 * 8 : 64]
    result, positions = run(match_replace(-2), [data, wanted], Result((128, WIDE)), Result((128, 8), UINT32))
    assert positions.tolist() == [list(range(5, 5 + 64 * 8, 64))] * 128
    expected = data.copy()
    expected[:, 5 : 5 + 64 * 8 : 64] = -2
    assert (result == expected).all()


@rules(
    legal(nisa.nc_match_replace8, dst=Sbuf(2, 9), data=Sbuf(2, 9), vals=Sbuf(2, 8), imm=0.0),
    broken("most elements", dst=Sbuf(1, 16385), data=Sbuf(1, 16385), vals=Sbuf(1, 8))
    .says(must("data", "have 1 to 16384 elements per partition"))
    .fixed(dst=Sbuf(1, 16384), data=Sbuf(1, 16384)),
    broken("number of vals", vals=Sbuf(2, 7)).says(must("vals", "have 8 elements per partition")),
    broken("elements of dst", dst=Sbuf(2, 8)).says(same_elements("data", "dst")).fixed(dst=Sbuf(2, 3, 3)),
    legal(nisa.nc_match_replace8, dst=Sbuf(3, 9), data=Sbuf(3, 9), vals=Sbuf(3, 8), imm=0.0),
    broken("partitions of dst", data=Sbuf(2, 9), vals=Sbuf(2, 8)).says(same_partitions("data", "dst")),
    legal(nisa.nc_match_replace8, dst=Sbuf(1, 9), data=Sbuf(1, 9), vals=Sbuf(1, 8), imm=0.0),
    broken("partitions of vals", dst=Sbuf(2, 9), data=Sbuf(2, 9)).says(same_partitions("data", "vals")),
    legal(nisa.nc_match_replace8, dst=Sbuf(2, 9), data=Sbuf(2, 9), vals=Sbuf(2, 8), imm=0.0),
    broken("partitions of dst_idx", dst_idx=Sbuf(1, 8, dtype=UINT32))
    .says(same_partitions("data", "dst_idx"))
    .fixed(dst_idx=Sbuf(2, 8, dtype=UINT32)),
    broken("size of dst_idx", dst_idx=Sbuf(2, 9, dtype=UINT32))
    .says(must("dst_idx", "have 8 elements per partition"))
    .fixed(dst_idx=Sbuf(2, 2, 4, dtype=UINT32)),
    broken("type of dst_idx", dst_idx=Sbuf(2, 8))
    .says(one_type("dst_idx", "uint16, uint32"))
    .fixed(dst_idx=Sbuf(2, 8, dtype=UINT16)),
    broken("dst_idx on trn1", on="trn1", dst_idx=Sbuf(2, 8, dtype=UINT32))
    .says("dst_idx needs trn2 or newer; the target is trn1: find the indices with nc_find_index8")
    .fixed(on="trn2"),
    broken("immediate", imm=Sbuf(2, 1)).says("imm must be a number, got {imm}").fixed(imm=1),
)
def test_match_replace8_rules(rule: Rule) -> None:
    check_rule(rule)


def test_they_run_on_the_vector_engine() -> None:
    assert engine_of(lambda: nisa.max8(tile(2, 8), tile(2, 9))) == "vector"
    assert engine_of(lambda: nisa.nc_find_index8(tile(2, 8, dtype=UINT32), tile(2, 9), tile(2, 8))) == "vector"
    assert engine_of(lambda: nisa.nc_match_replace8(tile(2, 9), tile(2, 9), tile(2, 8), 0.0)) == "vector"
