# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The check that tensors that are live at the same time fit SBUF and PSUM, and the peak use of each region.

Instructions record their use of each on-chip tensor in its :class:`LiveRange`. At the end of a kernel
:func:`check_capacity` checks the live ranges and returns the peaks. While the kernel runs, a lower bound on its use is
tracked (:func:`certain_uses`, :class:`CertainUse`): a kernel that can no longer fit ends at once, with the error of
:func:`certain_overflow`.

The check at the end follows a core's instructions in program order. Wherever a tensor becomes live, it tests whether
all live tensors can lie side by side. A tile of at most 32 partitions may start at partition 0, 32, 64 or 96, a tile of
at most 64 at 0 or 64, a larger tile at 0 (``nki/guides/architecture/trainium_inferentia2_arch.rst``). In PSUM a tile of
at most a bank stays inside one bank, and a larger tile takes whole banks. Between two tests tiles may move, as if
memory were never fragmented: a kernel that passes may still be too large for a compiler.

A *quarter* is 32 partitions. A *moment* is the number of an instruction. A tensor is *placed* if the kernel gives its
address.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import NamedTuple

from ..hardware.generations import PARTITIONS, PSUM_BANK_BYTES, PSUM_PARTITION_BYTES, Generation
from ..terms.descriptions import describe_tensor
from ..terms.dtypes import DType
from ..terms.enums import MemoryRegion
from ..terms.errors import CapacityError, kernel_frame

# Partitions are placed by quarters of 32.
_QUARTER = PARTITIONS // 4
# Before the first instruction, which has number 1.
_NEVER = 0


class LiveRange:
    """The lifetime of one on-chip tensor of one core: from the first instruction that touches the tensor to the last.

    Instructions are counted for each core. A tensor that the kernel makes but never uses takes no room, as in a
    compiler.

    Attributes:
        region: SBUF or PSUM.
        partitions: the number of partitions that the tensor takes.
        nbytes: the bytes that the tensor takes in each of these partitions on the device.
        quarters: the number of quarters that the tensor takes: 1, 2 or 4.
        area: ``nbytes`` times ``quarters``.
        storage: the number of the storage that holds the tensor.
        address: the first partition and first byte of a placed tensor, or None.
        first, last: the numbers of the first and the last instruction that touched the tensor; 0 if none did.
        counted: :class:`CertainUse` has added the tensor to the use up to the instruction with this number.
        window: the window of :class:`CertainUse` in which the tensor was last touched; 0 if there is none.
        earlier: first and last instruction of earlier lifetimes of a placed tensor; a lifetime ends when an instruction
            overwrites the whole tensor.
    """

    __slots__ = (
        "_code",
        "_dtype",
        "_earlier",
        "_line",
        "_name",
        "_shape",
        "address",
        "area",
        "counted",
        "first",
        "last",
        "nbytes",
        "partitions",
        "quarters",
        "region",
        "storage",
        "window",
    )

    def __init__(
        self,
        region: MemoryRegion,
        shape: tuple[int, ...],
        dtype: DType,
        name: str = "",
        address: tuple[int, ...] | None = None,
        storage: int = -1,
    ) -> None:
        self.region = region
        self.partitions = shape[0]
        elements = shape[1] if len(shape) == 2 else prod(shape[1:])  # most have two dimensions
        self.nbytes = elements * dtype.itemsize
        self.quarters = 1 if self.partitions <= _QUARTER else 2 if self.partitions <= 2 * _QUARTER else 4
        self.area = self.nbytes * self.quarters
        self.address = address
        self.storage = storage
        self._shape, self._dtype, self._name = shape, dtype, name
        self.first = self.last = self.counted = _NEVER
        self.window = 0
        self._earlier: list[tuple[int, int]] | None = None  # most have none
        frame = kernel_frame()
        self._code = None if frame is None else frame.f_code
        self._line = 0 if frame is None else frame.f_lineno

    @property
    def place(self) -> str:
        """The line of the kernel that makes the tensor, as ``file:line``."""
        return "<unknown>" if self._code is None else f"{self._code.co_filename}:{self._line}"

    @property
    def earlier(self) -> Sequence[tuple[int, int]]:
        return self._earlier or ()

    @property
    def lifetimes(self) -> list[tuple[int, int]]:
        """The first and the last instruction of each lifetime of the tensor, in order."""
        return [*self.earlier, (self.first, self.last)]

    @property
    def is_used(self) -> bool:
        return self.first != _NEVER

    def touch(self, number: int) -> None:
        """Record that instruction ``number`` reads or writes the tensor."""
        if self.first == _NEVER:
            self.first = number
        self.last = number

    def restart(self, number: int) -> None:
        """Record that instruction ``number`` overwrites the whole tensor, which ends a lifetime and begins a new
        one.
        """
        if self.is_used:
            self._earlier = self._earlier or []
            self._earlier.append((self.first, self.last))
        self.first = self.last = number

    @property
    def tensor(self) -> str:
        """The name, shape, type and region of the tensor, as text for messages."""
        return describe_tensor(self._name, self._shape, self._dtype, self.region)

    def __str__(self) -> str:
        return f"{self.tensor}, made at {self.place}"


@dataclass(frozen=True)
class _Room:
    """The size of a region of memory.

    Attributes:
        region: SBUF or PSUM.
        nbytes: the bytes of a partition.
        bank: the bytes of a bank, whose borders a tile of at most this size must not cross.
    """

    region: MemoryRegion
    nbytes: int
    bank: int


def _rooms(generation: Generation) -> tuple[_Room, _Room]:
    return (
        _Room(MemoryRegion.sbuf, generation.sbuf_usable_bytes, generation.sbuf_usable_bytes),
        _Room(MemoryRegion.psum, PSUM_PARTITION_BYTES, PSUM_BANK_BYTES),
    )


class _Uncounted(NamedTuple):
    """A part of a tensor's lifetime that :class:`CertainUse` has not added to the use yet.

    Attributes:
        last: the number of the last instruction of this part.
        before: the number of the instruction just before this part.
        area: the area of the tensor, see :class:`LiveRange`.
    """

    last: int
    before: int
    area: int


def _uncounted(life: LiveRange) -> _Uncounted:
    return _Uncounted(life.last, max(life.counted, life.first - 1), life.area)


class CertainUse:
    """The space of a region that tensors certainly take, at each moment so far.

    Between two instructions that touch a tensor, the tensor certainly holds data. Later instructions only lengthen
    lifetimes, so that tensors that are live together now are live together at the end as well. If they take more than
    the region has, :func:`check_capacity` must fail at the end. (It also fails if tensors fit only without gaps between
    them.)

    Tensors that instructions touch enter a list, the *window*, which contains each tensor once. Nothing is computed
    while the highest use before the window plus the areas of the window's tensors is at most the region's size. When it
    is more, the uncounted parts (:class:`_Uncounted`) of lifetimes in the window are added to the use, and a new window
    begins.

    Only moments at which an uncounted part ends are kept, as the use is highest at one of them. A moment is dropped
    when a later one has at least the same use: what is added to the earlier one is added to the later one too. So the
    first of the remaining moments has the highest use.

    Args:
        room: the size of the region, in bytes times quarters.

    Attributes:
        window: the number of the window, from 1; its tensors have this number.
    """

    def __init__(self, room: int) -> None:
        self.window = 1
        self._room = room
        self._most = 0  # that is taken at one time, without the window
        self._bound = 0  # with all of the window at once
        self._lives: list[LiveRange] = []  # of the window
        self._ended: list[_Uncounted] = []  # of its tensors that were overwritten
        self._moments: list[int] = []
        self._falls: list[int] = []  # by how much the next moment uses less; for the last one, its use

    def touch(self, life: LiveRange, number: int) -> bool:
        """Record that instruction ``number`` touches a tensor that is not in the window yet.

        Returns:
            Whether the tensors that certainly hold data at the same time still fit the region.
        """
        life.touch(number)
        return self._enter(life)

    def restart(self, life: LiveRange, number: int) -> bool:
        """Record that instruction ``number`` overwrites a whole tensor, which begins a new lifetime.

        Returns:
            Whether the tensors that certainly hold data at the same time still fit the region.
        """
        is_inside, is_counted = life.window == self.window, life.last == number
        if is_inside:
            self._ended.append(_uncounted(life))
        life.restart(number)
        life.counted = number if is_counted else number - 1
        return is_inside or self._enter(life)

    @property
    def moment(self) -> int:
        """The moment at which the certain use of the region was highest, when it was last computed."""
        return self._moments[0]

    def _enter(self, life: LiveRange) -> bool:
        life.window = self.window
        self._lives.append(life)
        self._bound += life.area
        if self._bound > self._room:
            self._close()
        return self._most <= self._room

    def _close(self) -> None:
        """Add the uncounted lifetimes of the window's tensors to the use, and begin a new window."""
        for span in sorted([*self._ended, *map(_uncounted, self._lives)]):
            self._add(*span)
        for life in self._lives:
            life.counted = life.last
        self._lives, self._ended = [], []
        self._bound = self._most
        self.window += 1

    def _add(self, last: int, before: int, area: int) -> None:
        moments, falls = self._moments, self._falls
        if not moments or moments[-1] != last:
            moments.append(last)
            falls.append(0)
        falls[-1] += area
        first = bisect_right(moments, before)
        if first == 0:
            self._most += area
            return
        fall, kept = falls[first - 1] - area, first
        while kept and fall <= 0:  # the earlier moment uses no more than the next one
            kept -= 1
            if kept:
                fall += falls[kept - 1]
            else:
                self._most -= fall
        del moments[kept:first], falls[kept:first]
        if kept:
            falls[kept - 1] = fall


def certain_uses(generation: Generation) -> dict[MemoryRegion, CertainUse]:
    """Return a :class:`CertainUse` without tensors for SBUF and for PSUM."""
    return {room.region: CertainUse(room.nbytes * PARTITIONS // _QUARTER) for room in _rooms(generation)}


# The live tensors that a message lists.
_LISTED = 12


def _is_live(life: LiveRange, moment: int) -> bool:
    return any(first <= moment <= last for first, last in life.lifetimes)


def _overflow(room: _Room, live: Sequence[LiveRange]) -> str:
    """Return the message that the tensors ``live`` do not fit a region, without the line of the kernel."""
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


def certain_overflow(
    lives: Iterable[LiveRange], generation: Generation, region: MemoryRegion, moment: int
) -> CapacityError:
    """Return the error for a kernel that can no longer fit.

    Args:
        lives: every on-chip tensor that the core has made so far.
        generation: the hardware generation, which determines the size of SBUF.
        region: the region that overflows.
        moment: the moment at which it overflows.
    """
    room = next(room for room in _rooms(generation) if room.region is region)
    live = [life for life in lives if life.region is region and _is_live(life, moment)]
    last = max(live, key=lambda life: life.first)
    return CapacityError(_overflow(room, live), last.place)


class _Placed(NamedTuple):
    """The place of a tile: quarters ``first`` to ``first + quarters``, and bytes ``low`` to ``high`` of each partition.

    Both ends are exclusive.
    """

    first: int
    quarters: int
    low: int
    high: int

    def overlaps(self, other: _Placed) -> bool:
        shares_partitions = self.first < other.first + other.quarters and other.first < self.first + self.quarters
        return shares_partitions and self.low < other.high and other.low < self.high


def _rounded(room: _Room, life: LiveRange) -> int:
    """Return the bytes of a partition that a tile occupies: a tile larger than a bank takes whole banks."""
    return life.nbytes if life.nbytes <= room.bank else -(-life.nbytes // room.bank) * room.bank


def _aligned(room: _Room, low: int, nbytes: int) -> int:
    """Return the first byte, not below ``low``, at which a tile of ``nbytes`` bytes may start.

    The tile must lie within one bank, or begin at the start of a bank.
    """
    is_inside = nbytes <= room.bank and low % room.bank + nbytes <= room.bank
    return low if is_inside else -(-low // room.bank) * room.bank


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


def _where_placed(life: LiveRange) -> _Placed:
    assert life.address is not None
    partition, low = life.address
    first = partition // _QUARTER
    last = (partition + life.partitions - 1) // _QUARTER
    return _Placed(first, last - first + 1, low, low + life.nbytes)


# The orders in which tiles are placed: the best one depends on the tiles.
_ORDERS: tuple[Callable[[LiveRange], tuple[int, ...]], ...] = (
    lambda life: (-life.quarters, -life.nbytes),
    lambda life: (-life.nbytes, -life.quarters),
    lambda life: (-life.nbytes * life.quarters, -life.quarters),
)


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


def _height(room: _Room, lives: Iterable[LiveRange]) -> int | None:
    """Return the bytes of a partition that live tiles need if they lie side by side; None if they do not fit the
    region.

    Placed tiles stay at their addresses; every other tile is added at the lowest free place. Several orders of adding
    are tried; the order that needs the fewest bytes counts.
    """
    lives = list(lives)
    are_alike = len({life.quarters for life in lives}) < 2
    heights = [_height_in_order(room, sorted(lives, key=order)) for order in _ORDERS[: 1 if are_alike else None]]
    return min((height for height in heights if height is not None), default=None)


def _placed_height(live: Iterable[LiveRange]) -> int:
    """Return the byte of a partition at which the last placed tile ends; 0 without placed tiles."""
    return max([life.address[1] + life.nbytes for life in live if life.address is not None], default=0)


def _check_apart(room: _Room, life: LiveRange, live: Iterable[LiveRange]) -> None:
    """Check that the placed tensor ``life`` overlaps no other placed tensor that still holds data."""
    mine = _where_placed(life)
    for other in live:
        if other is not life and other.address is not None and mine.overlaps(_where_placed(other)):
            raise CapacityError(
                f"{life.place}: {life} at address {life.address} of {room.region} overlaps {other} at address "
                f"{other.address}, which is used later: place them apart, or use one of them after the other",
                life.place,
            )


class Peak(NamedTuple):
    """The largest number of bytes of a partition that tensors take at one time, and the tensors that are live at this
    time.
    """

    nbytes: int
    lives: tuple[LiveRange, ...]


def _peak(room: _Room, lives: Sequence[LiveRange], known: int) -> Peak:
    """Return the largest number of bytes of a partition that is needed at one time, with the live tensors at that time.

    If it is at most ``known`` bytes, the result is ``known`` without tensors.
    """
    are_placed = any([life.address is not None for life in lives])
    if not are_placed and room.bank >= room.nbytes and sum([life.nbytes for life in lives]) <= known:
        return Peak(known, ())  # they would fit all at one time
    lifetimes = sorted(((*lifetime, life) for life in lives for lifetime in life.lifetimes), key=itemgetter(0, 1))
    live: dict[int, LiveRange] = {}  # by the number of the lifetime
    ends: list[tuple[int, int]] = []
    peak = Peak(known, ())
    movable = 0  # bytes of the live tiles that the kernel has not placed
    for number, (first, last, life) in enumerate(lifetimes):
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


def check_capacity(
    lives: Iterable[LiveRange], generation: Generation, *, finds_peaks: bool
) -> dict[MemoryRegion, Peak]:
    """Check that a kernel's live tensors fit, and return the peak of each region.

    Args:
        lives: every on-chip tensor that one core made.
        finds_peaks: whether to find the peaks; otherwise the result is empty, which takes less time.
        generation: the hardware generation, which determines the size of SBUF.

    Raises:
        CapacityError: the live tensors do not fit (the message names the region, the limit and these tensors), or two
            placed tensors overlap while both are live.
    """
    used = [life for life in lives if life.is_used]
    peaks = {}
    for room in _rooms(generation):
        known = 0 if finds_peaks or room.bank < room.nbytes else room.nbytes
        peaks[room.region] = _peak(room, [life for life in used if life.region is room.region], known)
    return peaks if finds_peaks else {}
