"""What was done to a storage, as far as later instructions have to wait for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import Protocol

from ..terms.enums import Engine
from .parts import Part

# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every access.
_DMA = Engine.dma


class Place(Protocol):
    """A part of a storage, to which instructions come that have to wait for each other."""

    def ready_to_read(self, by: Engine, sync_ns: float) -> float:
        """From when on ``by`` can read it: all that it meets is written; others' writes are noticed later."""

    def ready_to_write(self, by: Engine, sync_ns: float) -> float:
        """From when on ``by`` can overwrite it: all that it meets is written and read."""

    def note_read(self, by: Engine, until_ns: float) -> None:
        """A read that has waited is done at ``until_ns``."""

    def note_write(self, by: Engine, until_ns: float) -> None:
        """A write that has waited can be used from ``until_ns`` on."""


class TilePlace:
    """A part of a tile, with its last write, the reads since then, and the other parts that it meets.

    Whoever waits for the last write waits for what that has waited for itself: the rest is forgotten.
    """

    __slots__ = ("_read_ns", "_writer", "_written_ns", "others", "part")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.others: list[TilePlace] = []
        self._writer: Engine | None = None
        self._written_ns = 0.0
        self._read_ns: dict[Engine, float] = {}

    def ready_to_read(self, by: Engine, sync_ns: float) -> float:
        writer = self._writer
        latest = self._written_ns
        # The end of a DMA has in it what others take to notice it.
        if writer is not by and writer is not _DMA and writer is not None:
            latest += sync_ns
        for other in self.others:
            writer = other._writer
            if writer is not None:
                ready = other._written_ns
                if writer is not by and writer is not _DMA:
                    ready += sync_ns
                if ready > latest:
                    latest = ready
        return latest

    def ready_to_write(self, by: Engine, sync_ns: float) -> float:
        latest = self._free_ns(by, sync_ns)
        for other in self.others:
            ready = other._free_ns(by, sync_ns)
            if ready > latest:
                latest = ready
        return latest

    def _free_ns(self, by: Engine, sync_ns: float) -> float:
        """As :meth:`ready_to_write`, without the other parts."""
        latest = 0.0
        writer = self._writer
        # What an engine itself did to a part that it overwrites it has done before: it works in order, unlike DMA.
        if writer is _DMA:
            latest = self._written_ns
        elif writer is not by and writer is not None:
            latest = self._written_ns + sync_ns
        for reader, until in self._read_ns.items():
            if reader is _DMA:
                ready = until
            elif reader is by:
                continue
            else:
                ready = until + sync_ns
            if ready > latest:
                latest = ready
        return latest

    def note_read(self, by: Engine, until_ns: float) -> None:
        read_ns = self._read_ns
        if until_ns > read_ns.get(by, -1.0):
            read_ns[by] = until_ns

    def note_write(self, by: Engine, until_ns: float) -> None:
        self._writer = by
        self._written_ns = until_ns
        if self._read_ns:
            self._read_ns.clear()


class TileUses(dict[Part, TilePlace]):
    """The accesses to a tile, by part. A kernel uses a tile as a whole or in a few parts, again and again."""

    __slots__ = ()

    def __missing__(self, part: Part) -> TilePlace:
        place = TilePlace(part)
        for other in self.values():
            if _meet(part, other.part):
                place.others.append(other)
                other.others.append(place)
        self[part] = place
        return place


@lru_cache(maxsize=65536)
def _meet(one: Part, other: Part) -> bool:
    return one.meets(other)


class Use:
    """From when on what an instruction left of a part can be used, and which engine it ran on."""

    __slots__ = ("by", "part", "until_ns")

    def __init__(self, part: Part, by: Engine, until_ns: float) -> None:
        self.part = part
        self.by = by
        self.until_ns = until_ns


class _Index:
    """Uses by where their parts begin; those of like extent together, so that few are looked at."""

    __slots__ = ("_known", "_levels", "_unsorted")

    def __init__(self) -> None:
        self._known: dict[tuple[Part, Engine], Use] = {}
        self._levels: dict[int, tuple[list[int], list[Use]]] = {}
        # Those that no one has looked for yet: what is only ever read, such as an input, is never sorted.
        self._unsorted: list[Use] = []

    def add(self, part: Part, by: Engine, until_ns: float) -> None:
        key = part, by
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Use(part, by, until_ns)
            self._unsorted.append(known)
        elif until_ns > known.until_ns:
            known.until_ns = until_ns

    def meeting(self, part: Part) -> list[Use]:
        """The uses of all parts that meet ``part``."""
        found: list[Use] = []
        if not self._known:
            return found
        if self._unsorted:
            self._sort()
        for level, (firsts, uses) in self._levels.items():
            low = bisect_left(firsts, part.first - (1 << level))
            found += uses[low : bisect_right(firsts, part.last, low)]
        return [use for use in found if use.part.meets(part)]

    def _sort(self) -> None:
        for use in self._unsorted:
            firsts, uses = self._levels.setdefault(use.part.level, ([], []))
            at = bisect_right(firsts, use.part.first)
            firsts.insert(at, use.part.first)
            uses.insert(at, use)
        self._unsorted.clear()

    def remove(self, use: Use) -> None:
        """Forget one of those that :meth:`meeting` has found."""
        del self._known[use.part, use.by]
        firsts, uses = self._levels[use.part.level]
        at = bisect_left(firsts, use.part.first)
        while uses[at] is not use:
            at += 1
        del firsts[at], uses[at]


class HbmUses:
    """The accesses to a tensor in HBM, of which a kernel may touch very many parts, each of them once."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads = _Index()
        self.writes = _Index()

    def __getitem__(self, part: Part) -> HbmPlace:
        return HbmPlace(self, part)


class HbmPlace:
    """A part of a tensor in HBM."""

    __slots__ = ("_part", "_uses")

    def __init__(self, uses: HbmUses, part: Part) -> None:
        self._uses = uses
        self._part = part

    def ready_to_read(self, by: Engine, sync_ns: float) -> float:
        return _latest(self._uses.writes.meeting(self._part), by, sync_ns)

    def ready_to_write(self, by: Engine, sync_ns: float) -> float:
        found = self._uses.writes.meeting(self._part) + self._uses.reads.meeting(self._part)
        # As for a tile, an engine that works in order waits for others only.
        return _latest([use for use in found if use.by is _DMA or use.by is not by], by, sync_ns)

    def note_read(self, by: Engine, until_ns: float) -> None:
        self._uses.reads.add(self._part, by, until_ns)

    def note_write(self, by: Engine, until_ns: float) -> None:
        for index in (self._uses.reads, self._uses.writes):
            for use in index.meeting(self._part):
                # It has waited for these: they are forgotten.
                if self._part.covers(use.part):
                    index.remove(use)
        self._uses.writes.add(self._part, by, until_ns)


def _latest(uses: list[Use], by: Engine, sync_ns: float) -> float:
    latest = 0.0
    for use in uses:
        ready = use.until_ns if use.by is by or use.by is _DMA else use.until_ns + sync_ns
        if ready > latest:
            latest = ready
    return latest
