# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Which work goes through its rows in blocks, and which blocks these are."""

from __future__ import annotations

from ..engines.blocks import blocks_of_rows
from .work import Elementwise, Reduced, Ref, Work


def needs_all_rows(work: Elementwise) -> bool:
    """Whether what some rows need would be overwritten by the results of others, if blocks of rows took turns."""
    for written in work.writes:
        for read in work.reads:
            if read.storage is written.storage and read.place.meets(written.place) and not _in_step(read, written):
                return True
    return False


def _in_step(read: Ref, written: Ref) -> bool:
    """Whether row r of the one meets row r of the other only."""
    return read.place.top == written.place.top and read.rows == written.rows and read.is_block and written.is_block


def rows_of(work: Work) -> int:
    """The partitions of work that goes a row at a time."""
    return work.tile.rows if isinstance(work, Reduced) else work.writes[0].rows


def width_of(work: Work) -> int:
    """The most elements that such work has in a partition."""
    return max(ref.width for ref in (*work.reads, *work.writes))


def is_large(work: Work) -> bool:
    """Whether such work is done in several blocks of rows."""
    return len(blocks_for(rows_of(work), width_of(work))) > 1


def blocks_for(rows: int, width: int) -> list[slice]:
    """Slices of rows that are worked on one after the other, as equal as they can be."""
    count = len(blocks_of_rows(rows, width))
    step = -(-rows // count)
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]
