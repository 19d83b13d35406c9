# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.memory.written_blocks``: blocks of a matrix of 6 rows of 8 float32."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.simulator.memory.written_blocks import WrittenBlocks
from nkilib.simulator.terms.layout import Layout, dense

ROWS, COLUMNS = 6, 8


def blocks() -> WrittenBlocks:
    return WrittenBlocks(ROWS * COLUMNS * 4, COLUMNS * 4, 4)


def block(first: int, rows: int, step: int, start: int, end: int) -> Layout:
    """Rows ``first``, ``first + step``, ... and columns ``start`` to ``end`` (exclusive)."""
    return Layout((rows, end - start), (step * COLUMNS, 1), first * COLUMNS + start)


def test_a_matrix_is_complete_when_ranges_of_columns_make_it_up() -> None:
    """Two cores write every other row, in chunks of five columns and three."""
    written = blocks()
    parts = [block(first, 3, 2, *columns) for columns in ((0, 5), (5, 8)) for first in (0, 1)]
    for part in parts:
        assert not written.is_complete()
        assert not written.covers(part, 4)
        assert written.mark(part, 4)
        assert written.covers(part, 4)
    assert written.is_complete()


def test_a_gap_between_ranges_of_columns_is_not_written() -> None:
    written = blocks()
    for columns in ((0, 3), (4, 8)):
        written.mark(block(0, ROWS, 1, *columns), 4)
    assert not written.is_complete()
    mask = written.mask(4).reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(mask, [[True] * 3 + [False] + [True] * 4] * ROWS)
    written.mark(block(0, ROWS, 1, 2, 5), 4)  # overlaps both
    assert written.is_complete()


def test_ranges_that_leave_out_the_last_column_are_not_all() -> None:
    written = blocks()
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
    written = blocks()
    assert not written.mark(layout, 4)
    assert written.is_empty


def test_the_mask_counts_the_narrowest_elements() -> None:
    written = blocks()
    assert written.mark(Layout((1, 1), (16, 1), 3), 2)  # the second half of element 1
    assert written.unit == 2
    assert np.flatnonzero(written.mask(2)).tolist() == [3]


def test_single_elements_of_rows_are_found_in_blocks() -> None:
    """The backward scatters the gradient so, at the targets over blocks that it has stored before."""
    written = blocks()
    written.mark(block(1, 2, 2, 0, 5), 4)  # rows 1 and 3
    elements = Layout((ROWS * COLUMNS, 1), (1, 1), 0)
    assert written.covers_each(elements, 4, np.array([1 * COLUMNS, 3 * COLUMNS + 4]))
    assert not written.covers_each(elements, 4, np.array([1 * COLUMNS, 3 * COLUMNS + 5]))
    assert not written.covers_each(elements, 4, np.array([2 * COLUMNS]))
    assert written.covers_each(dense((ROWS, COLUMNS))._replace(shape=(ROWS, 5)), 4, np.array([1, 3]))
    assert not written.covers_each(Layout((ROWS, 2), (COLUMNS, 2), 0), 4, np.array([1]))
