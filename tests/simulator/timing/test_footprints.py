# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether two parts of a storage share a byte, and whether one holds the other, against sets of bytes."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nkilib.simulator.terms.layout import Layout
from nkilib.simulator.timing.footprints import OccupiedBytes, Reach, _part, part_of


def bytes_of(layout: Layout, width: int) -> set[int]:
    result: set[int] = set()
    for index in itertools.product(*map(range, layout.shape)):
        element = layout.offset + sum(i * stride for i, stride in zip(index, layout.strides, strict=True))
        result.update(range(element * width, (element + 1) * width))
    return result


def part(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, width: int = 1) -> OccupiedBytes:
    result = _part(Layout(shape, strides, offset), width)
    assert result is not None
    return result


@st.composite
def layouts(draw: Any) -> tuple[Layout, int]:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    strides = tuple(draw(st.sampled_from([-7, -1, 0, 1, 2, 3, 4, 6, 8, 12])) for _ in range(rank))
    lowest = sum(stride * (size - 1) for size, stride in zip(shape, strides, strict=True) if stride < 0)
    return Layout(shape, strides, draw(st.integers(0, 30)) - lowest), draw(st.sampled_from([1, 2, 4]))


@given(layouts(), layouts())
def test_parts_agree_with_sets_of_bytes(one: tuple[Layout, int], other: tuple[Layout, int]) -> None:
    first, second = _part(*one), _part(*other)
    assert first is not None and second is not None
    one_bytes, other_bytes = bytes_of(*one), bytes_of(*other)
    assert first.meets(second) == second.meets(first) == bool(one_bytes & other_bytes)
    if first.covers(second):  # not covering is always a safe answer
        assert one_bytes >= other_bytes


@given(st.integers(1, 8), st.integers(0, 12), st.integers(1, 8), st.integers(0, 12), st.sampled_from([8, 12]))
def test_runs_in_other_columns_share_no_byte(width: int, first: int, other: int, other_first: int, step: int) -> None:
    one, two = part((4, width), (step, 1), first), part((3, other), (step, 1), other_first)
    if one.step == two.step and (one.column_end <= two.column or two.column_end <= one.column):
        assert not bytes_of(one.layout, 1) & bytes_of(two.layout, 1)
        assert not one.meets(two)


def test_columns_are_those_of_the_runs() -> None:
    among_rows, over_the_edge = part((4, 3), (12, 1), 2), part((4, 6), (12, 1), 10)
    assert (among_rows.column, among_rows.column_end) == (2, 5)
    assert (over_the_edge.column, over_the_edge.column_end) == (0, 12)


def test_columns_of_rows_are_a_comb() -> None:
    columns = part((4, 3), (10, 1), offset=2, width=2)
    assert (columns.first, columns.last, columns.length, columns.step, columns.count) == (4, 69, 6, 20, 4)
    assert part((4, 10), (10, 1)).count == 1  # whole rows are one run
    assert part((4, 3, 2), (30, 7, 1)).count == 0  # runs at unlike distances


def test_a_comb_covers_narrower_ones_of_the_same_rows() -> None:
    wide = part((4, 6), (10, 1), offset=1)
    assert wide.covers(part((4, 3), (10, 1), offset=2))
    assert wide.covers(part((2, 6), (10, 1), offset=11))
    assert wide.covers(part((1, 6), (10, 1), offset=31))
    assert not wide.covers(part((4, 6), (10, 1), offset=2))
    assert not wide.covers(part((5, 6), (10, 1), offset=1))


def test_an_empty_view_is_no_part() -> None:
    assert _part(Layout((0, 3), (3, 1), 0), 4) is None


def test_a_vector_offset_may_reach_every_row() -> None:
    reach = part_of(Layout((4, 2), (8, 1), 3), 4, Reach("vector", 8, 10), 80)
    assert reach is not None and reach.layout == Layout((10, 2), (8, 1), 3)


def test_a_scalar_offset_may_reach_everything() -> None:
    reach = part_of(Layout((2, 8), (8, 1), 0), 4, Reach("scalar", 8, 10), 80)
    assert reach is not None and (reach.first, reach.last) == (0, 319)


def test_what_is_gathered_is_a_tensor_of_its_own() -> None:
    layout = Layout((2, 8), (8, 1), 0)
    assert part_of(layout, 4, Reach("tensor", 1, 10), 80) is part_of(layout, 4, None, 80)
