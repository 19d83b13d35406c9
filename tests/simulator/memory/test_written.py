# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.memory.written``: the map of written elements, against a model that remembers every byte.

The blocks are those of a matrix of 6 rows of 8 float32.
"""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.simulator.memory.written import WrittenBlocks, WrittenMap
from nkilib.simulator.terms.layout import Layout, dense

BYTES = 48


def bytes_of(layout: Layout, itemsize: int) -> set[int]:
    """The bytes of a storage that a layout of elements of `itemsize` bytes touches."""
    positions = layout.offset + sum(
        np.arange(size).reshape(-1, *[1] * (len(layout.shape) - 1 - dim)) * stride
        for dim, (size, stride) in enumerate(zip(layout.shape, layout.strides, strict=True))
    )
    return {int(at) * itemsize + part for at in np.asarray(positions).ravel() for part in range(itemsize)}


@st.composite
def accesses(draw: st.DrawFn) -> tuple[Layout, int]:
    """A layout of two dimensions inside the storage, and the width of its elements."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    elements = BYTES // itemsize
    outer, inner = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    inner_stride = draw(st.integers(0, (elements - 1) // max(1, inner - 1) if inner > 1 else 3))
    room = elements - 1 - inner_stride * (inner - 1)
    outer_stride = draw(st.integers(0, room // (outer - 1) if outer > 1 else 3))
    room -= outer_stride * (outer - 1)
    return Layout((outer, inner), (outer_stride, inner_stride), draw(st.integers(0, max(0, room)))), itemsize


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Layout, int]:
    """Float32 elements next to each other in some of the rows of six, of two elements each."""
    first, width = draw(st.integers(0, 5)), draw(st.integers(1, 2))
    step = draw(st.integers(1, 3))
    count = draw(st.integers(1, (5 - first) // step + 1))
    return Layout((count, width), (2 * step, 1), 2 * first + draw(st.integers(0, 2 - width))), 4


# Blocks of rows of so many bytes, or of 0 no blocks.
ROW_BYTES = st.sampled_from([0, 4, 8, 12, 24, 48])
WHOLE = (dense((BYTES // 4,)), 4)


STEPS = st.tuples(st.sampled_from(["mark", "mark", "mark", "clear"]), accesses() | blocks() | st.just(WHOLE))


@settings(max_examples=500)  # few steps of many meet in a block
@given(st.booleans(), st.booleans(), ROW_BYTES, st.lists(STEPS, max_size=8))
def test_the_map_agrees_with_a_model_of_bytes(
    starts_written: bool, is_asked_at_every_step: bool, row_bytes: int, steps: list[Any]
) -> None:
    """A map that is asked may from then on remember elements rather than blocks."""
    written = WrittenMap(BYTES, 4, starts_written, row_bytes)
    model = set(range(BYTES)) if starts_written else set()
    for action, (layout, itemsize) in steps:
        getattr(written, action)(layout, itemsize)
        touched = bytes_of(layout, itemsize)
        model = model | touched if action == "mark" else model - touched
        if is_asked_at_every_step:
            check_map(written, model)
    check_map(written, model)


def check_map(written: WrittenMap, model: set[int]) -> None:
    assert written.is_untouched <= (not model)
    for start in range(0, BYTES, 4):
        element = Layout((4,), (1,), start)
        assert written.is_written(element, 1) == (set(range(start, start + 4)) <= model)
        assert written.is_written(Layout((1,), (1,), start // 4), 4) == (set(range(start, start + 4)) <= model)
    assert written.is_written(dense((BYTES,)), 1) == (len(model) == BYTES)


@given(
    st.booleans(),
    ROW_BYTES,
    st.lists(st.tuples(st.sampled_from(["mark", "clear"]), accesses() | st.just(WHOLE), st.integers(0, 9)), max_size=6),
)
def test_chosen_elements_agree_with_a_model_of_bytes(starts_written: bool, row_bytes: int, steps: list[Any]) -> None:
    """Seed 0 chooses every element, 1 none, the others some of them."""
    written = WrittenMap(BYTES, 4, starts_written, row_bytes)
    model = set(range(BYTES)) if starts_written else set()
    for action, (layout, itemsize), seed in steps:
        chosen = np.random.default_rng(seed).random(layout.shape) < {0: 1.0, 1: 0.0}.get(seed, 0.5)
        getattr(written, f"{action}_where")(layout, itemsize, chosen)
        touched = {
            byte
            for index in np.argwhere(chosen).tolist()
            for byte in bytes_of(
                Layout((1,), (1,), layout.offset + sum(map(operator.mul, index, layout.strides))), itemsize
            )
        }
        model = model | touched if action == "mark" else model - touched
        for start in range(BYTES):
            assert written.is_written(Layout((1,), (1,), start), 1) == (start in model)


def test_all_or_nothing_needs_no_mask() -> None:
    written = WrittenMap(BYTES, 4, False)
    assert not written.is_full and not written.is_written(*WHOLE)
    written.mark(*WHOLE)
    assert written.is_full and written.is_written(*WHOLE)


def test_an_empty_layout_is_always_written() -> None:
    written = WrittenMap(BYTES, 4, False)
    assert written.is_written(Layout((0, 3), (3, 1), 0), 4)
    written.mark(Layout((2,), (1,), 0), 4)
    assert written.is_written(Layout((0, 3), (3, 1), 0), 4)


def test_the_mask_counts_the_units_of_an_element() -> None:
    written = WrittenMap(BYTES, 4, False)
    written.mark(Layout((1,), (1,), 1), 2)  # the second half of the first float32
    np.testing.assert_array_equal(written.mask_of(Layout((2,), (1,), 0), 4), [[False, True], [False, False]])
    np.testing.assert_array_equal(written.mask_of(Layout((3,), (1,), 0), 2), [[False], [True], [False]])


class RefinedMeanwhile(WrittenMap):
    """A map that another core makes finer between the moment this one looks it up and the moment it marks."""

    __slots__ = ("is_refined",)

    def _elements(self, mask: npt.NDArray[np.bool_], layout: Layout, itemsize: int) -> npt.NDArray[np.bool_]:
        if not getattr(self, "is_refined", False):
            self.is_refined = True
            self.mark(Layout((1,), (1,), BYTES - 1), 1)
        return super()._elements(mask, layout, itemsize)


def test_a_mark_survives_that_the_other_core_makes_the_map_finer() -> None:
    written = RefinedMeanwhile(BYTES, 4, False)
    written.mark(Layout((3,), (1,), 1), 4)
    assert written.is_written(Layout((3,), (1,), 1), 4)
    assert written.is_written(Layout((1,), (1,), BYTES - 1), 1)
    assert not written.is_written(Layout((4,), (1,), 0), 4)


def test_rows_are_marked_in_whatever_order_and_nothing_else() -> None:
    """Rows 3 and 1 of four of two elements, also while the other core makes the map finer."""
    for written in (WrittenMap(BYTES, 4, False), WrittenMap(BYTES, 4, False, 8), RefinedMeanwhile(BYTES, 4, False)):
        written.mark(Layout((4, 2), (2, 1), 1), 4, np.array([3, 1, 3]))
        marked = [written.is_written(Layout((1,), (1,), element), 4) for element in range(10)]
        assert marked == [False, False, False, True, True, False, False, True, True, False]
    written = WrittenMap(BYTES, 4, True)
    written.mark(Layout((2, 1), (1, 1), 0), 4, np.array([0]))
    assert written.is_full


@pytest.mark.parametrize("row_bytes", [0, 64])
def test_two_cores_mark_what_they_write(row_bytes: int) -> None:
    rows, columns = 400, 16
    written = WrittenMap(rows * columns * 4, 4, False, row_bytes)

    def mark_rows(first: int, itemsize: int) -> None:
        width = columns * 4 // itemsize
        for row in range(first, rows, 2):
            written.mark(Layout((1, width), (width, 1), row * width), itemsize)

    other = threading.Thread(target=mark_rows, args=(1, 1))
    other.start()
    mark_rows(0, 4)
    other.join()
    assert written.is_written(dense((rows, columns)), 4)


def test_what_is_cleared_of_a_block_is_not_written() -> None:
    written = WrittenMap(BYTES, 4, False, 8)
    written.mark(Layout((3, 2), (2, 1), 0), 4)
    written.clear(Layout((1,), (1,), 3), 4)
    assert [written.is_written(Layout((1,), (1,), element), 4) for element in range(7)] == [True] * 3 + [False] + [
        True
    ] * 2 + [False]


ROWS, COLUMNS = 6, 8


def unwritten_blocks() -> WrittenBlocks:
    return WrittenBlocks(ROWS * COLUMNS * 4, COLUMNS * 4, 4)


def block(first: int, rows: int, step: int, start: int, end: int) -> Layout:
    """Rows ``first``, ``first + step``, ... and columns ``start`` to ``end`` (exclusive)."""
    return Layout((rows, end - start), (step * COLUMNS, 1), first * COLUMNS + start)


def test_a_matrix_is_complete_when_ranges_of_columns_make_it_up() -> None:
    """Two cores write every other row, in chunks of five columns and three."""
    written = unwritten_blocks()
    parts = [block(first, 3, 2, *columns) for columns in ((0, 5), (5, 8)) for first in (0, 1)]
    for part in parts:
        assert not written.is_complete()
        assert not written.covers(part, 4)
        assert written.mark(part, 4)
        assert written.covers(part, 4)
    assert written.is_complete()


def test_a_gap_between_ranges_of_columns_is_not_written() -> None:
    written = unwritten_blocks()
    for columns in ((0, 3), (4, 8)):
        written.mark(block(0, ROWS, 1, *columns), 4)
    assert not written.is_complete()
    mask = written.mask(4).reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(mask, [[True] * 3 + [False] + [True] * 4] * ROWS)
    written.mark(block(0, ROWS, 1, 2, 5), 4)  # overlaps both
    assert written.is_complete()


def test_ranges_that_leave_out_the_last_column_are_not_all() -> None:
    written = unwritten_blocks()
    written.mark(block(0, ROWS, 1, 0, 7), 4)
    assert not written.is_complete()


@pytest.mark.parametrize(
    "layout",
    [
        Layout((2, 2), (COLUMNS, 2), 0),  # every other column
        Layout((2, 2), (3, 1), 0),  # steps that are no rows
        Layout((2, 3), (COLUMNS, 1), 6),  # over the end of a row
        Layout((2, 2), (0, 1), 0),  # the same elements again
        Layout((0, 2), (COLUMNS, 1), 0),
    ],
)
def test_what_is_no_block_is_not_marked(layout: Layout) -> None:
    written = unwritten_blocks()
    assert not written.mark(layout, 4)
    assert written.is_empty


def test_the_mask_counts_the_narrowest_elements() -> None:
    written = unwritten_blocks()
    assert written.mark(Layout((1, 1), (16, 1), 3), 2)  # the second half of element 1
    assert written.unit == 2
    assert np.flatnonzero(written.mask(2)).tolist() == [3]


def test_single_elements_of_rows_are_found_in_blocks() -> None:
    """The backward scatters the gradient so, at the targets over blocks that it has stored before."""
    written = unwritten_blocks()
    written.mark(block(1, 2, 2, 0, 5), 4)  # rows 1 and 3
    elements = Layout((ROWS * COLUMNS, 1), (1, 1), 0)
    assert written.covers_each(elements, 4, np.array([1 * COLUMNS, 3 * COLUMNS + 4]))
    assert not written.covers_each(elements, 4, np.array([1 * COLUMNS, 3 * COLUMNS + 5]))
    assert not written.covers_each(elements, 4, np.array([2 * COLUMNS]))
    assert written.covers_each(dense((ROWS, COLUMNS))._replace(shape=(ROWS, 5)), 4, np.array([1, 3]))
    assert not written.covers_each(Layout((ROWS, 2), (COLUMNS, 2), 0), 4, np.array([1]))
