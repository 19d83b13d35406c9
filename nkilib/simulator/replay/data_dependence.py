# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors of a launch whose accessed elements depend on data: an index read at run time chooses them.

:func:`data_dependent_tensors` finds these tensors (:class:`DataDependent`), with the rows of each that a core may
access (:class:`OwnedRows`).

A replay runs the instructions on these tensors as in a normal launch, with all bookkeeping, unless the two cores divide
the rows of the tensor between them, as most kernels do. For divided rows a check that each core stays within its own
rows excludes races; a search for races element by element, as in machine/races.py, takes longer than the transfers.

A *row* of a tensor is one index of its dimension 0. An *indirect* view has rows that an index tensor chooses; the other
views are *static*. To *gather* is to read, and to *scatter* is to write an indirect view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..engines.dma_endpoints import row_space
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.enums import MemoryRegion
from ..terms.layout import Layout, dense, extent
from .errors import ReplayFailed
from .stream import Entry, Indexed, PlaceholderStorage, RecordedCall, Stored, Stream, placeholder_of

_NOBODY = -1
# The instruction that names a tensor and touches nothing of it.
_BARRIER = "core_barrier"


class _Span(NamedTuple):
    """The bytes of a tensor that one row of an indirect view occupies, counted from the start of the tensor.

    Attributes:
        first: the first byte of the row of the view whose index is 0.
        last: the last byte of that row.
        step: the number of bytes by which ``first`` and ``last`` move when the index grows by 1.
        limit: the exclusive upper limit of the index.
        row_bytes: the bytes of a row of the tensor.
    """

    first: int
    last: int
    step: int
    limit: int
    row_bytes: int

    @classmethod
    def of(cls, view: View, row_bytes: int) -> _Span:
        indirect = view.indirect_access
        assert indirect is not None
        width = placeholder_of(view).width_of(view.dtype)
        low, high = extent(Layout(view.shape[1:], view.strides[1:], view.offset))
        return cls(low * width, (high + 1) * width - 1, indirect.stride * width, indirect.limit, row_bytes)

    @property
    def is_long(self) -> bool:
        """Whether a row of the view may cover a whole row of the tensor besides those in which it begins and ends."""
        return self.last - self.first >= 2 * self.row_bytes

    def ends(self, index: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the rows of the tensor in which rows of the view begin or end, for those indices that are in range."""
        rows = index[(index >= 0) & (index < self.limit)].astype(np.int64) * self.step
        return np.concatenate(((rows + self.first) // self.row_bytes, (rows + self.last) // self.row_bytes))


class OwnedRows(NamedTuple):
    """The rows of a tensor that one core may access.

    Attributes:
        is_own: for each row, whether the core may access it.
        row_bytes: the bytes of a row.
    """

    is_own: npt.NDArray[np.bool_]
    row_bytes: int

    def checking(self, view: View) -> Callable[[npt.NDArray[Any]], None]:
        """Return a function that takes the index of ``view`` and raises ``ReplayFailed`` if ``view`` leaves the core's
        rows.

        Rows that do not exist are not checked: the instruction itself raises an error for them.
        """
        span, is_own = _Span.of(view, self.row_bytes), self.is_own

        def check(index: npt.NDArray[Any]) -> None:
            if not is_own.take(span.ends(index), mode="clip").all():
                raise ReplayFailed("a core touches what may be the other core's")

        return check


def _filled(owners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the core that owns each row. A row without an owner gets the owner of the last owned row before it.

    Rows before the first owned row get the owner of that row.
    """
    known = np.flatnonzero(owners != _NOBODY)
    places = np.searchsorted(known, np.arange(len(owners)), side="right") - 1
    filled: npt.NDArray[np.int64] = owners[known[places.clip(0)]]
    return filled


def _mark(side: OwnedRows, view: View) -> None:
    # Marks the rows in which ``view`` has elements as rows of this core.
    width = placeholder_of(view).width_of(view.dtype)
    starts = np.array([view.offset * width])
    low = high = 0
    for size, stride in zip(view.shape, view.strides, strict=True):
        if abs(stride) * width >= side.row_bytes:
            starts = (starts[:, np.newaxis] + np.arange(size) * stride * width).reshape(-1)
        elif stride > 0:
            high += (size - 1) * stride * width
        else:
            low += (size - 1) * stride * width
    for start in range(low, high + width, side.row_bytes):
        side.is_own[(starts + start) // side.row_bytes] = True
    side.is_own[(starts + high + width - 1) // side.row_bytes] = True


def _owned_rows(
    storage: PlaceholderStorage, touched: Sequence[Sequence[View]], indexed: Sequence[Sequence[Indexed]]
) -> list[OwnedRows] | None:
    """Return the rows of a tensor that belong to each of two cores; None if the cores do not divide the rows.

    The cores do not divide the rows if both access the same row, if one core accesses none, or if a row of a view in
    ``indexed`` may extend over whole rows of the tensor. Rows that no core accesses belong to the core that has the row
    before them.

    Args:
        storage: the tensor.
        touched: by core, the static views of the tensor that the core reads or writes.
        indexed: by core, the views of the tensor whose rows an index chose when the launch was recorded.
    """
    row_bytes = max(1, storage.partition_bytes)
    count = -(-storage.nbytes // row_bytes)
    sides = [OwnedRows(np.zeros(count, np.bool_), row_bytes) for _ in touched]
    for side, views, chosen in zip(sides, touched, indexed, strict=True):
        for view in views:
            _mark(side, view)
        for chosen_view in chosen:
            span = _Span.of(chosen_view.view, row_bytes)
            if span.is_long:
                return None
            side.is_own[span.ends(chosen_view.index).clip(0, count - 1)] = True
    first, second = (side.is_own for side in sides)
    if (first & second).any() or not first.any() or not second.any():
        return None
    owner = _filled(np.where(first, 0, np.where(second, 1, _NOBODY)))
    return [OwnedRows(owner == number, row_bytes) for number in range(len(sides))]


class DataDependent(NamedTuple):
    """The tensors of a launch whose accessed elements depend on data, grouped by how a replay treats them.

    Attributes:
        watched: tensors that both cores may access, one of them writing; each replay looks for races.
        divided: shared tensors whose rows the cores divide between them, with the rows that each core may access.
        unwritten: tensors without values at the beginning of the launch, if data decide which elements are written, or
            if rows are gathered before all are written. Each replay checks that it reads no unwritten element.
    """

    watched: frozenset[PlaceholderStorage]
    divided: dict[PlaceholderStorage, list[OwnedRows]]
    unwritten: frozenset[PlaceholderStorage]

    @property
    def all(self) -> frozenset[PlaceholderStorage]:
        """The tensors on which instructions run as in a normal launch: :attr:`watched` and :attr:`unwritten`."""
        return self.watched | self.unwritten


def _written_views(entry: Entry) -> list[View]:
    if isinstance(entry, RecordedCall):
        return entry.written
    return [entry.view] if isinstance(entry, Stored) else []


def _mark_written(entries: Iterable[Entry], storages: set[PlaceholderStorage]) -> None:
    # Only elements that the instructions write whatever the data are.
    for entry in entries:
        for view in _written_views(entry):
            storage = placeholder_of(view)
            if storage in storages:
                storage.written.mark(view.layout, storage.width_of(view.dtype))


def _is_written(stream: Stream, storage: PlaceholderStorage) -> bool:
    """Return whether instructions with static destinations write every element of a tensor."""
    for entries in stream.cores:
        _mark_written(entries, {storage})
    is_written = storage.written.is_written(dense(storage.shape), storage.numpy_dtype.itemsize)
    storage.forget_writes()
    return is_written


def _rounds(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    # A round ends with an instruction at which the two cores synchronise.
    ends = [number + 1 for number, entry in enumerate(entries) if isinstance(entry, RecordedCall) and entry.is_meeting]
    return [entries[start:end] for start, end in pairwise([0, *ends, len(entries)])]


def _gathers(entry: Entry, storages: set[PlaceholderStorage]) -> list[View]:
    tensors = entry.tensors if isinstance(entry, RecordedCall) else []
    return [
        view
        for view, is_written in tensors
        if view.is_indirect() and not is_written and placeholder_of(view) in storages
    ]


def _has_all_rows(view: View) -> bool:
    # Whether all rows that the index may choose are marked as written.
    assert isinstance(view, NkiTensor) and view.indirect_access is not None
    rows, storage = row_space(view, view.indirect_access), placeholder_of(view)
    return storage.written.is_written(rows.layout, storage.width_of(rows.dtype))


def _gathered_early(stream: Stream, core: int, gathered: set[PlaceholderStorage]) -> set[PlaceholderStorage]:
    """Return the tensors of ``gathered`` from which a core gathers rows before all rows that the index may choose are
    written.

    Rows that the other core writes before the next synchronisation count as written, because reading them is a race
    anyway.
    """
    if not gathered:
        return gathered
    rounds = [_rounds(entries) for entries in stream.cores]
    own, others = rounds.pop(core), rounds
    early: set[PlaceholderStorage] = set()
    for own_round, *other_rounds in zip_longest(own, *others, fillvalue=()):
        for entries in other_rounds:
            _mark_written(entries, gathered)
        for entry in own_round:
            early.update(placeholder_of(view) for view in _gathers(entry, gathered) if not _has_all_rows(view))
            _mark_written([entry], gathered)
    for storage in gathered:
        storage.forget_writes()
    return early


def _views_of(entry: Entry) -> list[View]:
    if isinstance(entry, RecordedCall):
        return [] if entry.definition.name == _BARRIER else [touched.view for touched in entry.tensors]
    return [entry.view]


def _sides(stream: Stream, storage: PlaceholderStorage) -> list[OwnedRows] | None:
    static = [
        [
            view
            for entry in entries
            for view in _views_of(entry)
            if placeholder_of(view) is storage and not view.is_indirect()
        ]
        for entries in stream.cores
    ]
    indexed = [
        [indexed_view for indexed_view in core if placeholder_of(indexed_view.view) is storage]
        for core in stream.indexed
    ]
    return _owned_rows(storage, static, indexed)


def _calls(stream: Stream) -> Iterator[RecordedCall]:
    return (entry for entries in stream.cores for entry in entries if isinstance(entry, RecordedCall))


def data_dependent_tensors(stream: Stream) -> DataDependent:
    """Return the tensors of a recorded launch whose accessed elements depend on data."""
    options = stream.options
    may_race = len(stream.cores) > 1 and (options.races, options.identical_writes) != ("ignore", "ignore")
    chosen: set[PlaceholderStorage] = set()
    written: set[PlaceholderStorage] = set()
    gathered: set[PlaceholderStorage] = set()
    scattered: set[PlaceholderStorage] = set()
    for entry in _calls(stream):
        for view, is_written in entry.tensors:
            is_chosen = view.indirect_access is not None
            if not is_chosen and not is_written:
                continue
            storage = placeholder_of(view)
            if is_written:
                written.add(storage)
            if is_chosen and view.buffer is MemoryRegion.shared_hbm:
                chosen.add(storage)
            if storage.has_data:
                continue
            if is_written and (is_chosen or entry.is_collective):
                scattered.add(storage)
            elif is_chosen:
                gathered.add(storage)
    early = {storage for core in range(len(stream.cores)) for storage in _gathered_early(stream, core, gathered)}
    unknown = frozenset(early | {storage for storage in scattered - early if not _is_written(stream, storage)})
    shared = chosen & written if may_race else set()
    divided = {storage: sides for storage in shared - unknown if (sides := _sides(stream, storage)) is not None}
    return DataDependent(frozenset(shared - divided.keys()), divided, unknown)
