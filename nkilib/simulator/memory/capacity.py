# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The check that the tensors that are live at the same time fit SBUF and PSUM.

The check follows a core's instructions in program order and, wherever a tensor becomes live, tests whether all live
tensors can lie side by side. A tile of at most 32 partitions may start at partition 0, 32, 64 or 96, one of at most 64
at 0 or 64, a larger one at 0 (``nki/guides/architecture/trainium_inferentia2_arch.rst``); in PSUM a tile of at most a
bank stays inside one bank, a larger one takes whole banks. Between two tests tiles may move, as if memory were never
fragmented: a kernel that passes may still be too large for a compiler, but not the other way round.

While the kernel runs, a lower bound on its use is tracked (certain.py): a kernel that can no longer fit ends at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from ..hardware.generation import Generation
from ..hardware.limits import PARTITIONS, PSUM_BANK_BYTES, PSUM_PARTITION_BYTES
from ..terms.errors import CapacityError
from ..terms.regions import MemoryRegion
from .certain import CertainUse
from .lives import QUARTER, LiveRange

_LISTED = 12


class Peak(NamedTuple):
    """The most bytes of a partition that tensors take at one time, and the tensors that are live then."""

    nbytes: int
    lives: tuple[LiveRange, ...]


class _Placed(NamedTuple):
    """The place of a tile: quarters ``first`` to ``first + quarters`` of the partitions, and bytes ``low`` to ``high``.

    A quarter is 32 partitions; the bytes are those of each partition. Both ends are exclusive.
    """

    first: int
    quarters: int
    low: int
    high: int

    def overlaps(self, other: _Placed) -> bool:
        shares_partitions = self.first < other.first + other.quarters and other.first < self.first + self.quarters
        return shares_partitions and self.low < other.high and other.low < self.high


@dataclass(frozen=True)
class _Room:
    """The size of a region: its bytes in a partition, and the size of the bank that a small tile must not leave."""

    region: MemoryRegion
    nbytes: int
    bank: int


def _rooms(generation: Generation) -> tuple[_Room, _Room]:
    return (
        _Room(MemoryRegion.sbuf, generation.sbuf_usable_bytes, generation.sbuf_usable_bytes),
        _Room(MemoryRegion.psum, PSUM_PARTITION_BYTES, PSUM_BANK_BYTES),
    )


def certain_uses(generation: Generation) -> dict[MemoryRegion, CertainUse]:
    """Return a :class:`CertainUse` without tensors for SBUF and for PSUM, for a kernel that begins."""
    return {room.region: CertainUse(room.nbytes * PARTITIONS // QUARTER) for room in _rooms(generation)}


def certain_overflow(
    lives: Iterable[LiveRange], generation: Generation, region: MemoryRegion, moment: int
) -> CapacityError:
    """Return the error for a kernel that can no longer fit, raised by the instruction after which that is certain.

    Args:
        lives: every on-chip tensor that the core has made so far.
        generation: the generation with the SBUF size.
        region: the region that overflows.
        moment: the number of the instruction at which it overflows.
    """
    room = next(room for room in _rooms(generation) if room.region is region)
    live = [life for life in lives if life.region is region and _is_live(life, moment)]
    last = max(live, key=lambda life: life.first)
    return CapacityError(_overflow(room, live), last.place)


def _is_live(life: LiveRange, moment: int) -> bool:
    return any(first <= moment <= last for first, last in _spans(life))


def check_capacity(
    lives: Iterable[LiveRange], generation: Generation, *, finds_peaks: bool
) -> dict[MemoryRegion, Peak]:
    """Check that a kernel's live tensors fit, and return the peak use of each region and its tensors.

    Args:
        lives: every on-chip tensor that one core made.
        finds_peaks: whether to find the peaks; else the result is empty, and tensors that fit side by side in any order
            need not be placed.
        generation: the generation with the SBUF size.

    Raises:
        CapacityError: if they do not fit (the message names the region, the limit and the live tensors at the peak); or
            if two tensors placed by hand overlap while both are live.
    """
    used = [life for life in lives if life.is_used]
    peaks = {}
    for room in _rooms(generation):
        known = 0 if finds_peaks or room.bank < room.nbytes else room.nbytes
        peaks[room.region] = _peak(room, [life for life in used if life.region is room.region], known)
    return peaks if finds_peaks else {}


def _peak(room: _Room, lives: Sequence[LiveRange], known: int) -> Peak:
    """Return the peak of the bytes of a partition that are needed at one time, with the tensors that are live then.

    If it is not above ``known``, the result is ``known`` without tensors.
    """
    are_placed = any([life.address is not None for life in lives])
    if not are_placed and room.bank >= room.nbytes and sum([life.nbytes for life in lives]) <= known:
        return Peak(known, ())  # they would fit all at one time
    spans = sorted(((*span, life) for life in lives for span in _spans(life)), key=itemgetter(0, 1))
    live: dict[int, LiveRange] = {}  # by the number of the span
    ends: list[tuple[int, int]] = []
    peak = Peak(known, ())
    movable = 0  # bytes of the live tiles that the kernel has not placed
    for number, (first, last, life) in enumerate(spans):
        while ends and ends[0][0] < first:
            ended = live.pop(heapq.heappop(ends)[1])
            movable -= ended.nbytes if ended.address is None else 0
        if life.address is not None:
            _check_apart(room, life, live.values())
        live[number] = life
        movable += life.nbytes if life.address is None else 0
        heapq.heappush(ends, (last, number))
        # Most of the time stacking them shows that they need no more; where tiles stay inside banks they leave gaps.
        if room.bank < room.nbytes or (_placed_height(live.values()) if are_placed else 0) + movable > peak.nbytes:
            height = _height(room, live.values())
            if height is None:
                raise CapacityError(f"{life.place}: {_overflow(room, list(live.values()))}", life.place)
            if height > peak.nbytes:
                peak = Peak(height, tuple(live.values()))
    return peak


def _placed_height(live: Iterable[LiveRange]) -> int:
    """Return the highest end, in bytes of a partition, of live tiles that the kernel places; 0 without one."""
    return max([life.address[1] + life.nbytes for life in live if life.address is not None], default=0)


def _spans(life: LiveRange) -> list[tuple[int, int]]:
    return [*life.earlier, (life.first, life.last)]


def _rounded(room: _Room, life: LiveRange) -> int:
    """Return the bytes of a partition that a tile takes: whole banks if it is larger than one."""
    return life.nbytes if life.nbytes <= room.bank else -(-life.nbytes // room.bank) * room.bank


# The orders in which tiles are placed: the best one depends on the tiles.
_ORDERS: tuple[Callable[[LiveRange], tuple[int, ...]], ...] = (
    lambda life: (-life.quarters, -life.nbytes),
    lambda life: (-life.nbytes, -life.quarters),
    lambda life: (-life.nbytes * life.quarters, -life.quarters),
)


def _height(room: _Room, lives: Iterable[LiveRange]) -> int | None:
    """Return the bytes of a partition that the tiles need side by side, or None if they do not fit.

    Tiles that the kernel places lie where it puts them; the others are added at the lowest free place each, in
    several orders, of which the best one counts.
    """
    lives = list(lives)
    are_alike = len({life.quarters for life in lives}) < 2
    heights = [_height_in_order(room, sorted(lives, key=order)) for order in _ORDERS[: 1 if are_alike else None]]
    return min((height for height in heights if height is not None), default=None)


def _height_in_order(room: _Room, lives: Sequence[LiveRange]) -> int | None:
    placed = [_where_placed(life) for life in lives if life.address is not None]
    for life in lives:
        if life.address is not None:
            continue
        place = _lowest_place(room, placed, life.quarters, _rounded(room, life))
        if place is None:
            return None
        placed.append(place)
    return max((place.high for place in placed), default=0)


def _lowest_place(room: _Room, placed: Sequence[_Placed], quarters: int, nbytes: int) -> _Placed | None:
    best: _Placed | None = None
    for first in range(0, 4, quarters):
        beside = sorted(
            (place.low, place.high)
            for place in placed
            if place.first < first + quarters and first < place.first + place.quarters
        )
        low = _aligned(room, 0, nbytes)
        for other_low, other_high in beside:
            if low + nbytes <= other_low:
                break
            low = max(low, _aligned(room, other_high, nbytes))
        if low + nbytes <= room.nbytes and (best is None or low < best.low):
            best = _Placed(first, quarters, low, low + nbytes)
    return best


def _aligned(room: _Room, low: int, nbytes: int) -> int:
    """Return the first byte from ``low`` on at which a tile may start: it crosses no bank, or takes whole ones."""
    is_inside = nbytes <= room.bank and low % room.bank + nbytes <= room.bank
    return low if is_inside else -(-low // room.bank) * room.bank


def _where_placed(life: LiveRange) -> _Placed:
    assert life.address is not None
    partition, low = life.address
    first = partition // QUARTER
    last = (partition + life.partitions - 1) // QUARTER
    return _Placed(first, last - first + 1, low, low + life.nbytes)


def _check_apart(room: _Room, life: LiveRange, live: Iterable[LiveRange]) -> None:
    """Check that a tensor placed by hand does not overlap another such tensor that still holds data."""
    mine = _where_placed(life)
    for other in live:
        if other is not life and other.address is not None and mine.overlaps(_where_placed(other)):
            raise CapacityError(
                f"{life.place}: {life} at address {life.address} of {room.region} overlaps {other} at address "
                f"{other.address}, which is used later: place them apart, or use one of them after the other",
                life.place,
            )


def _overflow(room: _Room, live: Sequence[LiveRange]) -> str:
    """Return the message that the live tensors do not fit a region, without the line of the kernel."""
    listed = sorted(live, key=lambda life: -life.nbytes)
    lines = [f"  {life.nbytes:>7} bytes in {life.partitions:>3} partitions: {life}" for life in listed[:_LISTED]]
    if len(listed) > _LISTED:
        rest = sum(life.nbytes for life in listed[_LISTED:])
        lines.append(f"  and {len(listed) - _LISTED} more with {rest} bytes together")
    head = (
        f"{room.region} overflows: the {len(live)} tensors that are live at the same time do not fit the "
        f"{room.nbytes} bytes of a partition; use smaller tiles, or end the use of one before the next begins. Live "
        f"then, in program order (a compiler may reorder; using(capacity='ignore') or NKILIB_CAPACITY=ignore runs the "
        f"kernel):"
    )
    return "\n".join([head, *lines])
