"""Races of the two cores on shared HBM: the same element accessed by both, at least once written, without a barrier.

Every core remembers what its DMAs touch of each shared tensor until a ``core_barrier`` on that tensor, which orders
what came before it with what comes after it on the other core. Then, and at the end of the kernel, what the two cores
remember is compared, element for element: strided accesses that interleave without meeting are no race.

Both cores may write the same values to the same place, as kernels do whose small results are not worth dividing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..memory.byte_spans import Offsets, Spans, first_meeting, spans_of, spans_of_rows
from ..memory.storage import Storage
from ..tensors.view import View
from ..terms.description import describe
from ..terms.errors import RaceError, kernel_location
from ..terms.layout import Layout
from ..terms.regions import MemoryRegion
from .observer import Issued, Observer, Observers, Watcher

_SHARED = MemoryRegion.shared_hbm

# Of larger writes about as much is compared, in pieces of so many elements: all of it would take as long as the write.
_CHECKSUM_BYTES = 1 << 17
_PIECE = 64


@dataclass
class _Access:
    """One kind of access to one part of a tensor, made once or again and again.

    Attributes:
        layout, width: the elements, and the bytes of each.
        rows: of the layout (indices of dimension 0) that are accessed; None for all.
        place: where in the kernel it was first made.
        content: what was written, as a checksum of all the writes; None for a read.
    """

    layout: Layout
    width: int
    rows: Offsets | None
    place: str
    content: int | None

    def spans(self) -> Spans:
        """The bytes that are accessed."""
        if self.rows is None:
            return spans_of(self.layout, self.width)
        return spans_of_rows(self.layout, self.width, self.rows)


class _Accesses:
    """Accesses of one kind, by what was accessed."""

    def __init__(self) -> None:
        self._made: dict[tuple[Layout, int, bytes], _Access] = {}

    def note(self, base: View, rows: Offsets | None, values: npt.NDArray[Any] | None) -> None:
        width = base.storage.width_of(base.dtype)
        key = base.layout, width, b"" if rows is None else rows.tobytes()
        access = self._made.get(key)
        if access is None:
            chosen = None if rows is None else rows.copy()
            access = self._made[key] = _Access(base.layout, width, chosen, kernel_location(), 0)
        if values is None:
            access.content = None
        elif access.content is not None:
            access.content = _checksum(values, access.content)

    def all(self) -> list[_Access]:
        return list(self._made.values())

    def unlike(self, other: _Accesses) -> list[_Access]:
        """The writes that ``other`` has not made in just the same way, with the same values."""
        return [access for key, access in self._made.items() if not _is_same(access, other._made.get(key))]


def _checksum(values: npt.NDArray[Any], before: int) -> int:
    """A checksum of what is written, on top of that of earlier writes: of all of it, or of many pieces of a lot."""
    if values.nbytes <= _CHECKSUM_BYTES:
        return zlib.crc32(values.tobytes(), before)
    rows = values.reshape(values.shape[0], -1)  # a view, also where rows are not next to each other
    every = -(-values.nbytes // _CHECKSUM_BYTES)
    pieces = rows[:, : rows.shape[1] // _PIECE * _PIECE].reshape(len(rows), -1, _PIECE)
    tails = rows[:, -_PIECE:]
    return zlib.crc32(tails.tobytes(), zlib.crc32(pieces[:, ::every].tobytes(), before))


def _is_same(write: _Access, other: _Access | None) -> bool:
    return other is not None and write.content is not None and write.content == other.content


@dataclass
class Touched:
    """What one core did to one shared tensor since the last barrier on it."""

    reads: _Accesses = field(default_factory=_Accesses)
    writes: _Accesses = field(default_factory=_Accesses)


class SharedAccesses(Observer):
    """What one core did to each shared tensor since the last barrier on that tensor."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._touched: dict[Storage, Touched] = {}
        self._before_barrier = Touched()

    def moved(self, view: View, is_write: bool, rows: Offsets | None, values: npt.NDArray[Any] | None) -> None:
        if view.buffer is _SHARED:
            touched = self._touched.setdefault(view.storage, Touched())
            (touched.writes if is_write else touched.reads).note(view, rows, values)

    def arrives(self, call: Issued) -> Touched:
        """What the core did before a barrier, which it then forgets: what follows is ordered with it."""
        self._before_barrier = self.take(call.values[0].storage)
        return self._before_barrier

    def meets(self, call: Issued, brought: Touched) -> None:
        if self._number == 0:  # one of them compares for both
            check_races(call.values[0].storage, self._before_barrier, brought)

    def take(self, storage: Storage) -> Touched:
        """What the core did to a tensor, which it then forgets."""
        return self._touched.pop(storage, Touched())

    def tensors(self) -> list[Storage]:
        """The tensors that the core touched, in the order of the first time."""
        return list(self._touched)


class RaceWatch(Watcher):
    """Looks for races of the two cores of a launch."""

    def __init__(self) -> None:
        self._cores: list[SharedAccesses] = []

    def watch(self, number: int, observers: Observers) -> Observer:
        self._cores.append(SharedAccesses(number))
        return self._cores[-1]

    def conclude(self, has_ended: bool) -> None:
        if has_ended:
            check_all_races(*self._cores)


def check_all_races(first: SharedAccesses, second: SharedAccesses) -> None:
    """Compare what cores 0 and 1 did to every shared tensor.

    Raises:
        RaceError: naming the tensor, and what each core did where in the kernel.
    """
    for tensor in first.tensors():
        check_races(tensor, first.take(tensor), second.take(tensor))


def check_races(tensor: Storage, first: Touched, second: Touched) -> None:
    """Compare what cores 0 and 1 did to a shared tensor.

    Raises:
        RaceError: naming the tensor, and what each core did where in the kernel.
    """
    first_unlike, second_unlike = first.writes.unlike(second.writes), second.writes.unlike(first.writes)
    first_writes = first.writes.all()
    _check_pair(tensor, ("writes", first_unlike), ("writes", second.writes.all()))
    if len(first_unlike) < len(first_writes):  # else that was every pair of writes
        _check_pair(tensor, ("writes", first_writes), ("writes", second_unlike))
    _check_pair(tensor, ("writes", first_unlike), ("reads", second.reads.all()))
    _check_pair(tensor, ("reads", first.reads.all()), ("writes", second_unlike))


_Side = tuple[str, list[_Access]]


def _check_pair(tensor: Storage, first: _Side, second: _Side) -> None:
    (first_verb, first_accesses), (second_verb, second_accesses) = first, second
    if not first_accesses or not second_accesses:
        return
    meeting = first_meeting([item.spans() for item in first_accesses], [item.spans() for item in second_accesses])
    if meeting is None:
        return
    byte, one, other = meeting
    element = [int(index) for index in np.unravel_index(byte // tensor.numpy_dtype.itemsize, tensor.shape)]
    described = describe(tensor.name, tensor.shape, tensor.dtype, tensor.region)
    raise RaceError(
        f"race on {described}: core 0 {first_verb} element {element} at {first_accesses[one].place} and core 1 "
        f"{second_verb} it at {second_accesses[other].place}; let the cores use different elements, or put "
        f"nisa.core_barrier on this tensor between the two; if it does no harm, run with using(races='ignore')"
    )
