# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Grouping of row-wise work: all work of a group runs on a few rows, which stay in a cache, before the next rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tensors.view import View
from ..rows import is_large, needs_all_rows
from ..work import Elementwise, Reduced, Ref, Work

# Longer groups are rare, and each work that is added is compared with all before it.
_MOST = 64


def grouped(works: Sequence[Work]) -> list[list[Work]]:
    """Return the work of a core in its order, in groups that can run a few rows at a time."""
    groups: list[list[Work]] = []
    for work in works:
        rows = _Rows.of(work)
        last = groups[-1] if groups else []
        if rows is not None and last and len(last) < _MOST and _Rows.of(last[0]) == rows and _may_follow(work, last):
            last.append(work)
        else:
            groups.append([work])
    return [part for group in groups for part in _trimmed(group)]


def _trimmed(group: list[Work]) -> list[list[Work]]:
    """Split off the work at both ends of a group that is small enough to run on all of its rows at once."""
    if len(group) == 1:
        return [group]
    large = [place for place, work in enumerate(group) if is_large(work)]
    if not large:
        return [[work] for work in group]
    first, last = large[0], large[-1] + 1
    return [*[[work] for work in group[:first]], group[first:last], *[[work] for work in group[last:]]]


class _Rows(tuple[int, int]):
    """The partitions whose rows some work reads and writes, row by row: the first partition, and their number."""

    __slots__ = ()

    @classmethod
    def of(cls, work: Work) -> _Rows | None:
        """Return the partitions of some work; None if a row of its results may depend on another row."""
        if isinstance(work, Elementwise):
            if needs_all_rows(work) or (work.reduction is not None and isinstance(work.reduction.initial, View)):
                return None
        elif not isinstance(work, Reduced):
            return None
        refs = [*work.reads, *work.writes]
        on_chip = [ref for ref in refs if ref.is_on_chip]
        if not on_chip or not all(_has_a_row_a_partition(ref) for ref in on_chip):
            return None
        starts = {(ref.place.top, ref.rows) for ref in on_chip}
        if len(starts) > 1 or len({ref.rows for ref in refs}) > 1:
            return None
        return cls(starts.pop())


def _has_a_row_a_partition(ref: Ref) -> bool:
    """Tell whether the rows of a tile are in successive partitions, one in each."""
    return ref.rows == 1 or ref.layout.strides[0] * ref.numpy_type.itemsize == ref.storage.partition_bytes


def _may_follow(work: Work, group: Sequence[Any]) -> bool:
    """Tell whether rows of ``work`` and different rows of the group share no elements in HBM that either writes."""
    for other in group:
        for written in other.writes:
            if written.is_in_hbm and any(ref.meets(written) for ref in (*work.reads, *work.writes)):
                return False
        for written in work.writes:
            if written.is_in_hbm and any(ref.meets(written) and not _in_place(ref, written) for ref in other.reads):
                return False
    return True


def _in_place(read: Ref, written: Ref) -> bool:
    return read.as_matrix() == written.as_matrix() and read.dtype == written.dtype
