"""Races of the two cores on shared HBM: the same element accessed by both, at least once written, without a barrier.

Every core remembers what its DMAs touch of each shared tensor until a ``core_barrier`` on that tensor, which orders
what came before it with what comes after it on the other core. Then, and at the end of the kernel, what the two cores
remember is compared, element for element: strided accesses that interleave without meeting are no race.

Both cores may write the same values to the same place, as kernels do whose small results are not worth dividing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .description import describe
from .errors import RaceError, kernel_location
from .layout import Layout
from .storage import Storage

if TYPE_CHECKING:
    from .tensor import NkiTensor

Offsets = npt.NDArray[np.int64]

# Of larger writes about as much is compared, in pieces of so many elements: all of it would take as long as the write.
_CHECKSUM_BYTES = 1 << 20
_PIECE = 64


class _Spans(NamedTuple):
    """Byte ranges ``starts[i]`` to ``starts[i] + length`` (exclusive)."""

    starts: Offsets
    length: int


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

    def spans(self) -> _Spans:
        """The bytes that are accessed."""
        if self.rows is None:
            return _spans(self.layout, self.width)
        return _spans_of_rows(self.layout, self.width, self.rows)


class _Accesses:
    """Accesses of one kind, by what was accessed."""

    def __init__(self) -> None:
        self._made: dict[tuple[Layout, int, bytes], _Access] = {}

    def note(self, base: NkiTensor, rows: Offsets | None, values: npt.NDArray[Any] | None) -> None:
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
    pieces = values.reshape(-1)[: values.size // _PIECE * _PIECE].reshape(-1, _PIECE)
    every = -(-values.nbytes // _CHECKSUM_BYTES)
    tail = values.reshape(-1)[-_PIECE:]
    return zlib.crc32(tail.tobytes(), zlib.crc32(pieces[::every].tobytes(), before))


def _is_same(write: _Access, other: _Access | None) -> bool:
    return other is not None and write.content is not None and write.content == other.content


@dataclass
class Touched:
    """What one core did to one shared tensor since the last barrier on it."""

    reads: _Accesses = field(default_factory=_Accesses)
    writes: _Accesses = field(default_factory=_Accesses)


class SharedAccesses:
    """What one core did to each shared tensor since the last barrier on that tensor."""

    def __init__(self) -> None:
        self._touched: dict[Storage, Touched] = {}

    def note(
        self,
        base: NkiTensor,
        is_write: bool,
        rows: Offsets | None = None,
        values: npt.NDArray[Any] | None = None,
    ) -> None:
        """The core accesses ``base``, or those of its rows (indices of dimension 0) that ``rows`` names.

        Args:
            base: a static view.
            is_write: whether it writes.
            rows: which rows; None for all.
            values: what it writes, in the order of the elements.
        """
        touched = self._touched.setdefault(base.storage, Touched())
        (touched.writes if is_write else touched.reads).note(base, rows, values)

    def take(self, storage: Storage) -> Touched:
        """What the core did to a tensor, which it then forgets: what follows is ordered with it."""
        return self._touched.pop(storage, Touched())

    def tensors(self) -> list[Storage]:
        """The tensors that the core touched, in the order of the first time."""
        return list(self._touched)


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
    _check_pair(tensor, ("writes", first_unlike), ("writes", second.writes.all()))
    _check_pair(tensor, ("writes", first.writes.all()), ("writes", second_unlike))
    _check_pair(tensor, ("writes", first_unlike), ("reads", second.reads.all()))
    _check_pair(tensor, ("reads", first.reads.all()), ("writes", second_unlike))


_Side = tuple[str, list[_Access]]


def _check_pair(tensor: Storage, first: _Side, second: _Side) -> None:
    (first_verb, first_accesses), (second_verb, second_accesses) = first, second
    if not first_accesses or not second_accesses:
        return
    meeting = _first_meeting([item.spans() for item in first_accesses], [item.spans() for item in second_accesses])
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


def _first_meeting(first: Sequence[_Spans], second: Sequence[_Spans]) -> tuple[int, int, int] | None:
    """A byte that is in a span of both, and which of ``first`` and of ``second`` it is in; None if there is none."""
    starts, ends, owners = _together([*first, *second])
    is_first = owners < len(first)
    order = np.argsort(starts, kind="stable")
    starts, ends, owners, is_first = starts[order], ends[order], owners[order], is_first[order]
    for side in (True, False):
        # A span meets one of the other side that starts before it or with it if any of those ends behind its start.
        reach = np.maximum.accumulate(np.where(is_first == side, ends, -1))
        met = np.flatnonzero((is_first != side) & (reach > starts))
        if met.size:
            at = int(met[0])
            partner = int(np.flatnonzero((is_first == side) & (starts <= starts[at]) & (ends > starts[at]))[0])
            one, other = (partner, at) if side else (at, partner)
            return int(starts[at]), int(owners[one]), int(owners[other]) - len(first)
    return None


def _together(spans: Sequence[_Spans]) -> tuple[Offsets, Offsets, Offsets]:
    """Starts, ends and number of the owner of all byte ranges."""
    starts = np.concatenate([item.starts for item in spans])
    counts = [item.starts.size for item in spans]
    lengths = np.repeat([item.length for item in spans], counts)
    return starts, starts + lengths, np.repeat(np.arange(len(spans)), counts)


def _spans(layout: Layout, width: int) -> _Spans:
    """The bytes of a layout of elements of ``width`` bytes, in as few ranges as its dimensions allow."""
    starts, length = _merge(zip(layout.shape, layout.strides, strict=True), width)
    return _Spans(starts + layout.offset * width, length)


def _spans_of_rows(layout: Layout, width: int, rows: Offsets) -> _Spans:
    """The bytes of some rows (indices of dimension 0) of a layout."""
    starts, length = _merge(zip(layout.shape[1:], layout.strides[1:], strict=True), width)
    first = layout.offset * width + np.unique(rows) * (layout.strides[0] * width)
    return _Spans((first[:, None] + starts[None, :]).reshape(-1), length)


def _merge(dimensions: Iterable[tuple[int, int]], width: int) -> tuple[Offsets, int]:
    """Starts, from that of the first element, and length of the byte ranges that dimensions (size, stride) make."""
    starts, length = np.zeros(1, np.int64), width
    for size, stride in sorted(dimensions, key=lambda dimension: abs(dimension[1])):
        step = abs(stride) * width
        if stride < 0:
            starts = starts - step * (size - 1)
        if size == 0:
            return np.zeros(0, np.int64), width
        if step == 0 or size == 1:
            continue
        if step <= length and starts.size == 1:
            length += step * (size - 1)
        else:
            starts = (starts[:, None] + step * np.arange(size)[None, :]).reshape(-1)
    return starts, length
