# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Races of the two cores on shared HBM: both access the same element without a barrier, and at least one writes it.

- :class:`RaceWatch`: finds the races of a launch, and reacts as its :class:`RaceLevels` say.
- :class:`SharedAccesses`, with :class:`Touched`: the accesses of one core to each shared tensor.
- :func:`check_races`, :func:`check_all_races`: compare the accesses of two cores, at a barrier and at the end.

Every core records which elements of each shared tensor its DMAs access, until a ``core_barrier`` on this tensor orders
these accesses before the later accesses of the other core. At the barrier, and at the end of the kernel, the records of
the two cores are compared, element for element: strided accesses that interleave without a common element are no race.
Arguments that share memory count as one tensor (see launch/overlaps.py).

Both cores may write equal values to the same elements, as kernels do with results too small to divide; the option
``identical_writes`` reports such writes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy.typing as npt

from ..hardware.options import Level, refuse
from ..memory.byte_spans import Offsets, Spans, first_meeting, spans_of, spans_of_rows
from ..memory.storage import Storage
from ..tensors.view import View
from ..terms.descriptions import describe_tensor
from ..terms.enums import MemoryRegion
from ..terms.errors import IdenticalWritesError, RaceError, kernel_location
from ..terms.layout import Layout, Shape
from .observer import Issued, Observer, Observers, Watcher

_SHARED = MemoryRegion.shared_hbm

# Of larger writes about as much is compared, in pieces of so many elements: all of it would take as long as the write.
_CHECKSUM_BYTES = 1 << 17
_PIECE = 64


@dataclass
class _Access:
    """Accesses of one core to the same elements of a tensor, all reads or all writes.

    Attributes:
        tensor: the storage of the tensor.
        layout: the layout of the accessed elements.
        width: the bytes of an element.
        rows: the accessed rows of the layout (indices of dimension 0); None for all.
        place: the line of the kernel that made the first of these accesses.
        content: a checksum of all written values; None for a read, and if the launch did not compute the values.
    """

    tensor: Storage
    layout: Layout
    width: int
    rows: Offsets | None
    place: str
    content: int | None

    def spans(self) -> Spans:
        """Return the accessed bytes, counted from the start of the memory that holds the tensor."""
        if self.rows is None:
            spans = spans_of(self.layout, self.width)
        else:
            spans = spans_of_rows(self.layout, self.width, self.rows)
        return Spans(spans.starts + self.tensor.start, spans.length)

    def element(self, byte: int) -> list[int]:
        """Return the indices of the tensor's element at ``byte``, counted from the start of the tensor's memory."""
        return self.tensor.index_of(byte - self.tensor.start)

    def __str__(self) -> str:
        return describe_tensor(self.tensor.name, self.tensor.shape, self.tensor.dtype, self.tensor.region)


def _checksum(values: npt.NDArray[Any], before: int) -> int:
    """Return a checksum of written values; ``before`` is the checksum of earlier writes to the same elements.

    A large write is only sampled, in pieces at regular distances and at the ends of rows.
    """
    if values.nbytes <= _CHECKSUM_BYTES:
        return zlib.crc32(values.tobytes(), before)
    # To take the last dimension apart is a view, whatever the strides; to join dimensions may be a copy of everything.
    rows = values if values.shape[-1] >= _PIECE else values.reshape(values.shape[0], -1)
    step = -(-values.nbytes // _CHECKSUM_BYTES)
    pieces = rows[..., : rows.shape[-1] // _PIECE * _PIECE].reshape(*rows.shape[:-1], -1, _PIECE)
    tails = rows[..., -_PIECE:]
    return zlib.crc32(tails.tobytes(), zlib.crc32(pieces[..., ::step, :].tobytes(), before))


def _is_same(write: _Access, other: _Access | None) -> bool:
    return other is not None and write.content is not None and write.content == other.content


class _Accesses:
    """The reads, or the writes, of one core to one tensor since the last barrier.

    Accesses to exactly the same elements are kept as one :class:`_Access`.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Shape, Shape, int, int, bytes], _Access] = {}

    def note(self, base: View, rows: Offsets | None, values: npt.NDArray[Any] | None) -> None:
        storage = base.storage
        width = storage.width_of(base.dtype)
        first = base.offset * width + storage.start
        key = base.shape, base.strides, first, width, b"" if rows is None else rows.tobytes()
        access = self._made.get(key)
        if access is None:
            chosen = None if rows is None else rows.copy()
            access = self._made[key] = _Access(storage, base.layout, width, chosen, kernel_location(), 0)
        if values is None:
            access.content = None
        elif access.content is not None:
            access.content = _checksum(values, access.content)

    def all(self) -> list[_Access]:
        return list(self._made.values())

    def need_values(self, other: _Accesses) -> None:
        """Check that the written values are known wherever this core and ``other`` wrote exactly the same elements.

        Raises:
            ValuesWanted: the launch did not compute these values.
            DataNeeded: the launch has only shapes, without values.
        """
        for key, access in self._made.items():
            twin = other._made.get(key)
            if twin is not None:
                for write in (access, twin):
                    if write.content is None:
                        write.tensor.need_values(write)

    def like(self, other: _Accesses) -> list[tuple[_Access, _Access]]:
        """Return pairs (write of this core, write of the other core) of equal values to the same elements."""
        pairs = ((access, other._made.get(key)) for key, access in self._made.items())
        return [(one, two) for one, two in pairs if two is not None and _is_same(one, two)]

    def unlike(self, other: _Accesses) -> list[_Access]:
        """Return this core's writes for which ``other`` has no write of equal values to exactly the same elements."""
        return [access for key, access in self._made.items() if not _is_same(access, other._made.get(key))]


@dataclass
class Touched:
    """The reads and the writes of one core to one shared tensor since the last barrier on that tensor."""

    reads: _Accesses = field(default_factory=_Accesses)
    writes: _Accesses = field(default_factory=_Accesses)


class RaceLevels(NamedTuple):
    """The reactions to a race, and to writes of equal values by both cores: an error, a warning or none."""

    races: Level
    identical_writes: Level


DEFAULT_LEVELS = RaceLevels(races="error", identical_writes="ignore")


class SharedAccesses(Observer):
    """The accesses of one core to each shared tensor since the last barrier on that tensor.

    Attributes:
        levels: the reactions to races, and to writes of equal values.
    """

    def __init__(self, number: int, levels: RaceLevels = DEFAULT_LEVELS) -> None:
        self.levels = levels
        self._number = number
        self._touched: dict[int, Touched] = {}
        self._before_barrier = Touched()

    def moved(self, view: View, is_write: bool, rows: Offsets | None, values: npt.NDArray[Any] | None) -> None:
        if view.buffer is _SHARED:
            touched = self._touched.setdefault(view.storage.allocation, Touched())
            (touched.writes if is_write else touched.reads).note(view, rows, values)

    def arrives(self, call: Issued) -> Touched:
        """Return the core's accesses to the tensor of a barrier so far, and forget them.

        The barrier orders them before all later accesses.
        """
        self._before_barrier = self.take(call.values[0].storage.allocation)
        return self._before_barrier

    def meets(self, call: Issued, brought: Touched) -> None:
        if self._number == 0:  # one of them compares for both
            check_races(self._before_barrier, brought, self.levels)

    def take(self, allocation: int) -> Touched:
        """Return the core's accesses to the tensor whose ``Storage.allocation`` is ``allocation``, and forget them."""
        return self._touched.pop(allocation, Touched())

    def tensors(self) -> list[int]:
        """Return ``Storage.allocation`` of each tensor that the core accessed, in the order of first access."""
        return list(self._touched)


class RaceWatch(Watcher):
    """The watcher that records the accesses of the two cores of a launch, and finds races between them."""

    def __init__(self, levels: RaceLevels) -> None:
        self._levels = levels
        self._cores: list[SharedAccesses] = []

    def watch(self, number: int, observers: Observers) -> Observer:
        self._cores.append(SharedAccesses(number, self._levels))
        return self._cores[-1]

    def conclude(self, has_ended: bool) -> None:
        if has_ended:
            check_all_races(*self._cores)


def check_all_races(first: SharedAccesses, second: SharedAccesses) -> None:
    """Compare the accesses of cores 0 and 1 to every shared tensor, and report races and identical writes.

    Raises:
        RaceError: there is a race, at the level ``"error"``; the message names the tensor, and the access and the line
            of each core.
    """
    for tensor in first.tensors():
        check_races(first.take(tensor), second.take(tensor), first.levels)


def _refuse_identical(one: _Access, other: _Access, level: Level) -> None:
    starts = one.spans().starts
    if not starts.size:
        return
    element = one.element(int(starts.min()))
    error = IdenticalWritesError(
        f"both cores write the same values to {one}, from element {element} on: core 0 at {one.place} "
        f"and core 1 at {other.place}; that is no race, but one of them works for nothing: let each write a part, by "
        f"nl.program_id(0)"
    )
    refuse(level, error, one.place, other.place)


class _Side(NamedTuple):
    """Accesses of one core, all reads or all writes.

    Attributes:
        verb: "reads" or "writes", for messages.
        accesses: the accesses.
    """

    verb: str
    accesses: list[_Access]

    def by_line(self) -> list[_Side]:
        lines: dict[str, list[_Access]] = {}
        for access in self.accesses:
            lines.setdefault(access.place, []).append(access)
        return [_Side(self.verb, accesses) for accesses in lines.values()]


class _Race(NamedTuple):
    """The error that reports a race, and the lines of the accesses on cores 0 and 1."""

    error: RaceError
    places: tuple[str, str]


def _race_of(first: _Side, second: _Side) -> _Race | None:
    """Return a race between accesses of core 0 and accesses of core 1; None if no element is common."""
    if not first.accesses or not second.accesses:
        return None
    meeting = first_meeting([item.spans() for item in first.accesses], [item.spans() for item in second.accesses])
    if meeting is None:
        return None
    byte = meeting[0]
    one, other = first.accesses[meeting[1]], second.accesses[meeting[2]]
    it = "it" if one.tensor is other.tensor else f"the same memory, element {other.element(byte)} of {other},"
    error = RaceError(
        f"race on {one}: core 0 {first.verb} element {one.element(byte)} at {one.place} and core 1 {second.verb} {it} "
        f"at {other.place}; let the cores use different elements, or put nisa.core_barrier on this tensor between the "
        f"two; if it does no harm, using(races='ignore') or NKILIB_RACES=ignore lets it run"
    )
    return _Race(error, (one.place, other.place))


def _check_pair(first: _Side, second: _Side, level: Level) -> None:
    race = _race_of(first, second)
    if race is None:
        return
    if level == "error":
        raise race.error
    for one, other in product(first.by_line(), second.by_line()):  # each pair of lines is a place to warn of
        race = _race_of(one, other)
        if race is not None:
            refuse(level, race.error, *race.places)


def _check_unlike(first: Touched, second: Touched, level: Level) -> None:
    """Report races between accesses of cores 0 and 1, except writes of equal values to the same elements by both
    cores.
    """
    first_unlike, second_unlike = first.writes.unlike(second.writes), second.writes.unlike(first.writes)
    first_writes = first.writes.all()
    _check_pair(_Side("writes", first_unlike), _Side("writes", second.writes.all()), level)
    if len(first_unlike) < len(first_writes):  # else that was every pair of writes
        _check_pair(_Side("writes", first_writes), _Side("writes", second_unlike), level)
    _check_pair(_Side("writes", first_unlike), _Side("reads", second.reads.all()), level)
    _check_pair(_Side("reads", first.reads.all()), _Side("writes", second_unlike), level)


def check_races(first: Touched, second: Touched, levels: RaceLevels) -> None:
    """Compare the accesses of cores 0 and 1 to one shared tensor, and report races and identical writes.

    Raises:
        RaceError: there is a race, at the level ``"error"``; the message names the tensor, and the access and the line
            of each core.
    """
    first.writes.need_values(second.writes)
    if levels.identical_writes != "ignore":
        for one, other in first.writes.like(second.writes):
            _refuse_identical(one, other, levels.identical_writes)
    if levels.races != "ignore":
        _check_unlike(first, second, levels.races)
