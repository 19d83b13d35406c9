# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tracked tensors: those of which only the data of a launch decide which elements it touches.

The instructions on them run as they are, with all their usual bookkeeping, unless the cores divide their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..tensors.view import View
from ..terms.layout import dense
from ..terms.regions import MemoryRegion
from .ghosts import Ghost, ghost_of
from .stream import Entry, Recorded, Stream
from .territories import Territory, territories


class Tracked(NamedTuple):
    """The tensors of a launch of which the data decide which elements it touches.

    Attributes:
        watched: tensors that both cores may touch, one of them writing; each run finds out whether they race for a row.
        divided: such tensors in which each core touches rows of its own; by core, the rows that it may touch.
        unwritten: tensors without values at the beginning of the launch whose written elements depend on the data.
    """

    watched: frozenset[Ghost]
    divided: dict[Ghost, list[Territory]]
    unwritten: frozenset[Ghost]

    @property
    def all(self) -> frozenset[Ghost]:
        """The tensors on which instructions run as they are: those that are watched, and those that are unwritten."""
        return self.watched | self.unwritten


def tracked_storages(stream: Stream) -> Tracked:
    """Return the tracked tensors of a recorded launch."""
    options = stream.options
    may_race = len(stream.cores) > 1 and (options.races, options.identical_writes) != ("ignore", "ignore")
    chosen: set[Ghost] = set()
    written: set[Ghost] = set()
    unwritten: set[Ghost] = set()
    for entry in _calls(stream):
        for view, is_written in entry.tensors:
            is_chosen = view.indirect_access is not None
            if not is_chosen and not is_written:
                continue
            ghost = ghost_of(view)
            if is_written:
                written.add(ghost)
            if is_chosen and view.buffer is MemoryRegion.shared_hbm:
                chosen.add(ghost)
            if (is_chosen and is_written) or entry.is_collective:
                unwritten.add(ghost)
    unknown = frozenset(ghost for ghost in unwritten if not ghost.has_data and not _is_written(stream, ghost))
    shared = chosen & written if may_race else set()
    divided = {ghost: sides for ghost in shared - unknown if (sides := _sides(stream, ghost)) is not None}
    return Tracked(frozenset(shared - divided.keys()), divided, unknown)


def _is_written(stream: Stream, ghost: Ghost) -> bool:
    """Tell whether instructions whose destinations do not depend on the data write every element of a tensor."""
    for entry in _calls(stream):
        for view, is_output in [] if entry.is_collective else entry.tensors:
            if is_output and view.indirect_access is None and ghost_of(view) is ghost:
                ghost.written.mark(view.layout, ghost.width_of(view.dtype))
    is_written = ghost.written.is_written(dense(ghost.shape), ghost.numpy_dtype.itemsize)
    ghost.forget_writes()
    return is_written


def _sides(stream: Stream, ghost: Ghost) -> list[Territory] | None:
    """Return the rows of a tensor that each core may touch; None if the cores do not divide them."""
    static = [
        [view for entry in entries for view in _views_of(entry) if ghost_of(view) is ghost and not view.is_indirect()]
        for entries in stream.cores
    ]
    indexed = [
        [indexed_view for indexed_view in core if ghost_of(indexed_view.view) is ghost] for core in stream.indexed
    ]
    return territories(ghost, static, indexed)


def _views_of(entry: Entry) -> list[View]:
    if isinstance(entry, Recorded):
        return [] if entry.definition.name == _BARRIER else [touched.view for touched in entry.tensors]
    return [entry.view]


# Names a tensor and touches nothing of it.
_BARRIER = "core_barrier"


def _calls(stream: Stream) -> Iterator[Recorded]:
    return (entry for entries in stream.cores for entry in entries if isinstance(entry, Recorded))
