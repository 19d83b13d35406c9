# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The blocks of rows in which row-wise work runs, so that the elements of a block stay in a cache."""

from __future__ import annotations

from ..engines.blocks import blocks_of_rows
from .work import Elementwise, Reduced, Ref, Work


def needs_all_rows(work: Elementwise) -> bool:
    """Tell whether work must not run in blocks of rows: a block would overwrite elements that later blocks read."""
    for written in work.writes:
        for read in work.reads:
            if read.storage is written.storage and read.place.meets(written.place) and not _in_step(read, written):
                return True
    return False


def _in_step(read: Ref, written: Ref) -> bool:
    """Tell whether row r of one operand shares elements only with row r of the other."""
    return read.place.top == written.place.top and read.rows == written.rows and read.is_block and written.is_block


def rows_of(work: Work) -> int:
    """Return the number of rows of row-wise work, one for each partition."""
    return work.tile.rows if isinstance(work, Reduced) else work.writes[0].rows


def width_of(work: Work) -> int:
    """Return the largest number of elements in a row of any operand or result of row-wise work."""
    return max(ref.width for ref in (*work.reads, *work.writes))


def is_large(work: Work) -> bool:
    """Tell whether row-wise work runs in several blocks of rows."""
    return len(blocks_for(rows_of(work), width_of(work))) > 1


def blocks_for(rows: int, width: int) -> list[slice]:
    """Return slices of ``rows`` rows, as equal as possible, each small enough for ``width`` elements a row."""
    count = len(blocks_of_rows(rows, width))
    step = -(-rows // count)
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]
