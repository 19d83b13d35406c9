# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The accesses to a storage for which later instructions have to wait.

A *storage* is the memory of one tensor and all its views; a *part* is the bytes of a storage that one view occupies.
:class:`Tracked` (made by :func:`tracked`) holds the accesses to a storage by part: :class:`TileUses` for a tile,
:class:`HbmUses` for a tensor in HBM. A :class:`Place` answers when the accesses to a part are complete (:class:`Done`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Protocol

from ..memory.storage import Storage
from ..terms.enums import ON_CHIP, Engine
from .footprints import OccupiedBytes, Views, views_of

# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every access.
_DMA = Engine.dma


class Done:
    """The completion of an instruction's reads, or of its writes.

    Attributes:
        by: the engine that ran the instruction.
        own_ns: the time at which the engine ``by`` notices the completion.
        other_ns: the time at which the other engines notice it.
        number: the number of the instruction on its core, from 1; 0 stands for no instruction.
    """

    __slots__ = ("by", "number", "other_ns", "own_ns")

    def __init__(self, by: Engine, own_ns: float, other_ns: float, number: int) -> None:
        self.by = by
        self.own_ns = own_ns
        self.other_ns = other_ns
        self.number = number

    def ready_ns(self, by: Engine) -> float:
        """Return the time at which the engine ``by`` notices the completion."""
        return self.own_ns if self.by is by else self.other_ns


NOTHING = Done(Engine.unknown, 0.0, 0.0, 0)


class Place(Protocol):
    """The interface of an object that knows for which accesses to a part of a storage later instructions have to wait.

    Attributes:
        storage: the number of the storage.
    """

    @property
    def storage(self) -> int: ...

    def last_write(self, by: Engine) -> Done:
        """Return the write for which a read of this part by the engine ``by`` has to wait: the last one that overlaps
        it.
        """

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        """Return the access for which a write to this part by the engine ``by`` has to wait, and whether it reads."""

    def note_read(self, done: Done) -> None:
        """Record a completed read of the part, for which later writes to the part wait."""

    def note_write(self, done: Done) -> None:
        """Record a completed write to the part, for which later reads and writes of the part wait."""


class RegisterPlace:
    """A register or scalar that holds an operand's address; the instruction waits until the register is loaded."""

    __slots__ = ("_loaded", "storage")

    def __init__(self, loaded: Done) -> None:
        self._loaded = loaded
        self.storage = 0

    def last_write(self, by: Engine) -> Done:
        return self._loaded

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        return self._loaded, False

    def note_read(self, done: Done) -> None:
        """Do nothing: each load makes another register, so no later write has to wait for this read."""

    def note_write(self, done: Done) -> None:
        """Do nothing: each load makes another register, so no instruction writes this one again."""


class TilePlace:
    """A part of a tile, with its last write, the reads since that write, and the other parts that overlap it.

    Accesses before the last write are not kept: an instruction that waits for that write has also waited for them.
    """

    __slots__ = ("_reads", "_write", "others", "part", "storage")

    def __init__(self, part: OccupiedBytes, storage: int) -> None:
        self.part = part
        self.storage = storage
        self.others: list[TilePlace] = []
        self._write = NOTHING
        self._reads: dict[Engine, Done] = {}

    def last_write(self, by: Engine) -> Done:
        latest = self._write
        if self.others:
            latest_ns = latest.own_ns if latest.by is by else latest.other_ns
            for other in self.others:
                write = other._write
                ready = write.own_ns if write.by is by else write.other_ns
                if ready > latest_ns:
                    latest, latest_ns = write, ready
        return latest

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        latest, is_read = self._last_access(by)
        for other in self.others:
            access, access_is_read = other._last_access(by)
            if access.ready_ns(by) > latest.ready_ns(by):
                latest, is_read = access, access_is_read
        return latest, is_read

    def _last_access(self, by: Engine) -> tuple[Done, bool]:
        # Overlapping parts are not considered.
        latest, is_read = self._write, False
        # An engine need not wait for its own accesses to a part that it overwrites: it works in order, unlike DMA.
        if latest.by is by and by is not _DMA:
            latest = NOTHING
        if self._reads:
            latest_ns = latest.other_ns
            for reader, read in self._reads.items():
                if (reader is not by or by is _DMA) and read.other_ns > latest_ns:
                    latest, latest_ns, is_read = read, read.other_ns, True
        return latest, is_read

    def note_read(self, done: Done) -> None:
        known = self._reads.get(done.by)
        if known is None or done.own_ns > known.own_ns:
            self._reads[done.by] = done

    def note_write(self, done: Done) -> None:
        self._write = done
        if self._reads:
            self._reads.clear()


@lru_cache(maxsize=65536)
def _meet(first: OccupiedBytes, second: OccupiedBytes) -> bool:
    return first.meets(second)


class TileUses(dict[OccupiedBytes, TilePlace]):
    """The accesses to a tile: a :class:`TilePlace` for each part of the tile that was accessed."""

    __slots__ = ("storage",)

    def __init__(self, storage: int) -> None:
        super().__init__()
        self.storage = storage

    def __missing__(self, part: OccupiedBytes) -> TilePlace:
        place = TilePlace(part, self.storage)
        for other in self.values():
            if _meet(part, other.part):
                place.others.append(other)
                other.others.append(place)
        self[part] = place
        return place


class HbmAccess:
    """An access to a part of a tensor in HBM, with the completion of the instruction that made it."""

    __slots__ = ("done", "part")

    def __init__(self, part: OccupiedBytes, done: Done) -> None:
        self.part = part
        self.done = done


class _Index:
    """The accesses to a tensor in HBM, grouped by the size of the accessed part and sorted by the part's first byte.

    This order makes the search for accesses that overlap a part fast.
    """

    __slots__ = ("_known", "_levels", "_unsorted")

    def __init__(self) -> None:
        self._known: dict[tuple[OccupiedBytes, Engine], HbmAccess] = {}
        self._levels: dict[int, tuple[list[int], list[HbmAccess]]] = {}
        # Uses that nothing has searched yet: tensors that are only read, such as inputs, are never sorted.
        self._unsorted: list[HbmAccess] = []

    def add(self, part: OccupiedBytes, done: Done) -> None:
        key = part, done.by
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = HbmAccess(part, done)
            self._unsorted.append(known)
        elif done.own_ns > known.done.own_ns:
            known.done = done

    def uses(self) -> Iterable[HbmAccess]:
        return self._known.values()

    def meeting(self, part: OccupiedBytes) -> list[HbmAccess]:
        """Return the accesses to all parts that overlap ``part``."""
        meeting: list[HbmAccess] = []
        if not self._known:
            return meeting
        if self._unsorted:
            self._sort()
        for level, (firsts, uses) in self._levels.items():
            low = bisect_left(firsts, part.first - (1 << level))
            meeting += uses[low : bisect_right(firsts, part.last, low)]
        # Most are other columns of the same rows, which two comparisons tell.
        step, column, column_end = part.step, part.column, part.column_end
        return [
            use
            for use in meeting
            if ((other := use.part).step != step or (other.column < column_end and column < other.column_end))
            and other.meets(part)
        ]

    def _sort(self) -> None:
        for use in self._unsorted:
            firsts, uses = self._levels.setdefault(use.part.level, ([], []))
            at = bisect_right(firsts, use.part.first)
            firsts.insert(at, use.part.first)
            uses.insert(at, use)
        self._unsorted.clear()

    def remove(self, use: HbmAccess) -> None:
        del self._known[use.part, use.done.by]
        firsts, uses = self._levels[use.part.level]
        at = bisect_left(firsts, use.part.first)
        while uses[at] is not use:
            at += 1
        del firsts[at], uses[at]


def _latest(uses: list[HbmAccess], by: Engine) -> Done:
    latest, latest_ns = NOTHING, 0.0
    for use in uses:
        done = use.done
        ready = done.own_ns if done.by is by else done.other_ns
        if ready > latest_ns:
            latest, latest_ns = done, ready
    return latest


class HbmPlace:
    """A part of a tensor in HBM; its accesses are those in :class:`HbmUses` that overlap the part."""

    __slots__ = ("_part", "_uses")

    def __init__(self, uses: HbmUses, part: OccupiedBytes) -> None:
        self._uses = uses
        self._part = part

    @property
    def storage(self) -> int:
        return self._uses.storage

    def last_write(self, by: Engine) -> Done:
        return _latest(self._uses.writes.meeting(self._part), by)

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        # As for a tile, an engine that works in order waits for others only.
        wrote, has_read = (
            _latest([use for use in index.meeting(self._part) if use.done.by is _DMA or use.done.by is not by], by)
            for index in (self._uses.writes, self._uses.reads)
        )
        is_read = has_read is not NOTHING and has_read.ready_ns(by) > wrote.ready_ns(by)
        return has_read if is_read else wrote, is_read

    def note_read(self, done: Done) -> None:
        self._uses.reads.add(self._part, done)

    def note_write(self, done: Done) -> None:
        self._uses.note_write(self._part, done)


class HbmUses:
    """The accesses to a tensor in HBM. Unlike a tile, such a tensor may have very many accessed parts.

    Attributes:
        storage: the number of the storage.
        reads: the reads for which later instructions have to wait.
        writes: the writes for which later instructions have to wait.
        reached: the parts accessed with an index that is read at run time; an access touches some bytes of its part.
        gathered_bytes: the number of bytes that transfers with such an index have read.
        scattered_bytes: the number of bytes that transfers with such an index have written.
    """

    __slots__ = ("_overwritten", "gathered_bytes", "reached", "reads", "scattered_bytes", "storage", "writes")

    def __init__(self, storage: int) -> None:
        self.storage = storage
        self.reached: set[OccupiedBytes] = set()
        self.gathered_bytes = self.scattered_bytes = 0
        self._overwritten: set[OccupiedBytes] = (
            set()
        )  # parts that were read before anything was written there, and overwritten
        self.reads = _Index()
        self.writes = _Index()

    def __getitem__(self, part: OccupiedBytes) -> HbmPlace:
        return HbmPlace(self, part)

    def note_reached(self, part: OccupiedBytes, nbytes: int, is_write: bool) -> None:
        """Record a transfer whose bytes in ``part`` are chosen by an index that is read at run time.

        Args:
            part: the bytes among which the index chooses.
            nbytes: the number of bytes that the transfer moves.
            is_write: whether the transfer writes the tensor.
        """
        self.reached.add(part)
        if is_write:
            self.scattered_bytes += nbytes
        else:
            self.gathered_bytes += nbytes

    def brought_in(self) -> set[OccupiedBytes]:
        """Return the parts that were read before anything was written to them, except the parts in :attr:`reached`."""
        parts = set(self._overwritten)
        for use in self.reads.uses():
            if all(write.done.number > use.done.number for write in self.writes.meeting(use.part)):
                parts.add(use.part)
        return parts - self.reached

    def written(self) -> set[OccupiedBytes]:
        """Return the parts that were written, except parts in :attr:`reached` and parts that a later write covered."""
        return {use.part for use in self.writes.uses()} - self.reached

    def note_write(self, part: OccupiedBytes, done: Done) -> None:
        """Record a write to a part, and drop earlier accesses that lie completely within the part.

        Later accesses wait for this write instead of the dropped ones.
        """
        covered = [use for use in self.reads.meeting(part) if part.covers(use.part)]
        written = self.writes.meeting(part)
        for use in covered:
            self.reads.remove(use)
            if not any(use.part.meets(write.part) for write in written):
                self._overwritten.add(use.part)
        for use in written:
            if part.covers(use.part):
                self.writes.remove(use)
        self.writes.add(part, done)


class Tracked:
    """The record that the performance model keeps of a storage.

    Attributes:
        uses: the accesses to the storage, by part.
        views: the footprints of its views.
        name: the name of a tensor in HBM, or its shape and type if it has no name; empty for a tensor on chip.
        nbytes: the bytes of the whole storage, on the device.
        contents: data of a pass about the values in the storage (see :mod:`.passes.invariants`); None if none.
        has_place: False as long as the model still has to choose a place in PSUM for the storage.
        is_placed: True if the model never chooses a place: the kernel has, or the storage is in HBM or shares memory.
    """

    __slots__ = ("contents", "has_place", "is_placed", "name", "nbytes", "uses", "views")

    def __init__(self, uses: TileUses | HbmUses, views: Views, name: str, nbytes: int) -> None:
        self.uses = uses
        self.views = views
        self.name = name
        self.nbytes = nbytes
        self.contents: object | None = None
        self.has_place = self.is_placed = False

    @property
    def hbm_uses(self) -> HbmUses:
        """The attribute ``uses`` of a storage in HBM."""
        assert isinstance(self.uses, HbmUses)
        return self.uses

    def share(self, other: Tracked) -> None:
        """Share the memory of ``other`` on the device: accesses to either tensor wait for accesses to both."""
        self.uses = other.uses
        self.has_place = self.is_placed = True


def tracked(storage: Storage) -> Tracked:
    """Return a new record, without accesses, for a storage."""
    views = views_of(storage.shape, storage.dtype, storage.numpy_dtype, storage.region)
    nbytes = prod(storage.shape) * storage.dtype.itemsize
    if storage.region in ON_CHIP:
        known = Tracked(TileUses(storage.number), views, "", nbytes)
        # The kernel has placed it, and orders its uses itself.
        known.has_place = known.is_placed = storage.address is not None
        return known
    name = storage.name or f"{list(storage.shape)} {storage.dtype}"
    known = Tracked(HbmUses(storage.number), views, name, nbytes)
    known.has_place = known.is_placed = True
    return known
