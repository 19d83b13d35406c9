# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tracked tensors: those of which only the data of a launch decide which elements it touches.

The instructions on them run as they are, with all their usual bookkeeping, unless the cores divide their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from ..engines.dma.rows import row_space
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.layout import dense
from ..terms.regions import MemoryRegion
from .ghosts import Ghost, ghost_of
from .stream import Entry, Recorded, Stored, Stream
from .territories import Territory, territories


class Tracked(NamedTuple):
    """The tensors of a launch of which the data decide which elements it touches.

    Attributes:
        watched: tensors that both cores may touch, one of them writing; each run finds out whether they race for a row.
        divided: such tensors in which each core touches rows of its own; by core, the rows that it may touch.
        unwritten: tensors without values at the beginning of the launch whose written elements depend on the data, or
            from which the data choose rows before all of them are written; each run finds out whether it reads others.
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
    gathered: set[Ghost] = set()
    scattered: set[Ghost] = set()
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
            if ghost.has_data:
                continue
            if is_written and (is_chosen or entry.is_collective):
                scattered.add(ghost)
            elif is_chosen:
                gathered.add(ghost)
    early = {ghost for core in range(len(stream.cores)) for ghost in _gathered_early(stream, core, gathered)}
    unknown = frozenset(early | {ghost for ghost in scattered - early if not _is_written(stream, ghost)})
    shared = chosen & written if may_race else set()
    divided = {ghost: sides for ghost in shared - unknown if (sides := _sides(stream, ghost)) is not None}
    return Tracked(frozenset(shared - divided.keys()), divided, unknown)


def _is_written(stream: Stream, ghost: Ghost) -> bool:
    """Tell whether instructions whose destinations do not depend on the data write every element of a tensor."""
    for entries in stream.cores:
        _mark(entries, {ghost})
    is_written = ghost.written.is_written(dense(ghost.shape), ghost.numpy_dtype.itemsize)
    ghost.forget_writes()
    return is_written


def _gathered_early(stream: Stream, core: int, gathered: set[Ghost]) -> set[Ghost]:
    """Return those tensors from which the data choose rows for a core before instructions have written all of them.

    Until the cores meet again, all that the other one writes counts as written: a read of such rows is a race.
    """
    if not gathered:
        return gathered
    rounds = [_rounds(entries) for entries in stream.cores]
    own, others = rounds.pop(core), rounds
    early: set[Ghost] = set()
    for own_round, *other_rounds in zip_longest(own, *others, fillvalue=()):
        for entries in other_rounds:
            _mark(entries, gathered)
        for entry in own_round:
            early.update(ghost_of(view) for view in _gathers(entry, gathered) if not _has_all_rows(view))
            _mark([entry], gathered)
    for ghost in gathered:
        ghost.forget_writes()
    return early


def _rounds(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    """Divide what a core does where the cores of a launch on two cores meet."""
    ends = [number + 1 for number, entry in enumerate(entries) if isinstance(entry, Recorded) and entry.is_meeting]
    return [entries[start:end] for start, end in pairwise([0, *ends, len(entries)])]


def _mark(entries: Iterable[Entry], ghosts: set[Ghost]) -> None:
    """Mark what instructions write in these tensors whatever the data are."""
    for entry in entries:
        for view in _written_views(entry):
            ghost = ghost_of(view)
            if ghost in ghosts:
                ghost.written.mark(view.layout, ghost.width_of(view.dtype))


def _written_views(entry: Entry) -> list[View]:
    if isinstance(entry, Recorded):
        return entry.written
    return [entry.view] if isinstance(entry, Stored) else []


def _gathers(entry: Entry, ghosts: set[Ghost]) -> list[View]:
    """Return the views of these tensors in an instruction whose rows the data choose, and that it reads."""
    tensors = entry.tensors if isinstance(entry, Recorded) else []
    return [view for view, is_written in tensors if view.is_indirect() and not is_written and ghost_of(view) in ghosts]


def _has_all_rows(view: View) -> bool:
    """Tell whether all rows that the data may choose are marked as written."""
    assert isinstance(view, NkiTensor) and view.indirect_access is not None
    rows, ghost = row_space(view, view.indirect_access), ghost_of(view)
    return ghost.written.is_written(rows.layout, ghost.width_of(rows.dtype))


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
