# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The model of the DMA engines: the queue of a transfer, the time that each engine works on it, and busy times.

- :class:`Queue`, :func:`queue_of`: the queue that triggers a transfer; :class:`Address`: the source of its address;
- :func:`is_software`, :func:`between_triggers_ns`: the descriptors and the rate of a queue;
- :class:`Side`, :func:`side_of`: the source or the destination of a transfer, called a *side*;
- :func:`engine_times`, :func:`bytes_of`, :func:`row_bytes_of`: the time, the bytes and the row size of a transfer;
- :class:`DmaEngines`, :class:`DmaWork`: when the engines of a core are busy with transfers, from :class:`BusyTimes` and
  :class:`BusyIntervals`.

A transfer is moved row by row. A *row* is a run of bytes that is contiguous on both sides; even a short row takes an
engine a minimum time. Each engine serves eight partitions (``nki/get-started/about/nki-dma-overview.rst``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import ceil, prod
from typing import Any, NamedTuple

from ..hardware.generations import PARTITIONS, DmaTiming
from ..memory.byte_spans import spans_of
from ..terms.enums import ON_CHIP, Engine, MemoryRegion, dge_mode, dma_engine
from ..terms.layout import Layout
from .parameters import NS_PER_US, SAME_NS, ModelParameters

# The number of an engine's latest busy intervals that are kept. Gaps between earlier ones are forgotten: no transfer is
# triggered so long after later ones.
_KEPT = 512

# A transfer between tensors in HBM is cut into pieces for all engines; nothing is published about it.
_LEAST_PIECE_BYTES = 512

# HBM rows of at most this number of bytes are read before they are written: see ModelParameters.small_store_factor.
_SMALL_STORE_BYTES = 512

# The block that a DMA transpose writes at a time (trainium2_arch.rst, DMA Transpose): partitions, elements.
_TRANSPOSED_BLOCK = (128, 16)

# The queues of transfers whose engine the kernel leaves open, and those of such transfers with software descriptors.
_OPEN_QUEUES = frozenset({"dma", "load", "store"})
_SOFTWARE = {queue: f"software {queue}" for queue in _OPEN_QUEUES}
# The queue of gathers, scatters and of transfers for which the kernel asks for software descriptors.
_GPSIMD_QUEUE = Engine.gpsimd.name
_SOFTWARE_QUEUES = frozenset({_GPSIMD_QUEUE, *_SOFTWARE.values()})


class Address(Enum):
    """The source of the address of a transfer: known before the launch, a register, or a vector of row indices."""

    known = "known"
    register = "register"
    rows = "rows"


class Queue(NamedTuple):
    """The queue that triggers a transfer.

    Attributes:
        name: the name of the queue.
        otherwise: the queue for the other kind of descriptors (software or hardware), if the compiler chooses the kind;
            empty if the kernel or the hardware decides.
    """

    name: str
    otherwise: str = ""


def is_software(queue: str) -> bool:
    """Return whether GpSimd writes the descriptors of the transfers that ``queue`` triggers."""
    return queue in _SOFTWARE_QUEUES


def queue_of(
    values: Mapping[str, Any],
    address: Address,
    to_chip: bool,
    dma: DmaTiming,
    parameters: ModelParameters,
    is_transpose: bool = False,
) -> Queue:
    """Return the queue of a DMA instruction.

    A gather, a scatter and a transfer for which the kernel asks for software descriptors use GpSimd's queue. Another
    transfer uses the queue of the engine that the kernel names. If the kernel names none, the queue follows from the
    direction and from the kind of descriptors that the assumptions choose. A transpose has software descriptors only if
    its address is read at run time (``nki/deep-dives/nki-dge.rst``).

    Args:
        values: the parameters of the instruction by name.
        address: the source of the address.
        to_chip: whether the destination is on chip.
        dma: the timing of the DMA engines.
        parameters: the assumptions of the model.
        is_transpose: whether the instruction is ``dma_transpose``.
    """
    mode = values.get("dge_mode")
    asks_software = mode is dge_mode.swdge or values.get("dma_engine") is dma_engine.gpsimd_dma
    if address is Address.rows or asks_software:
        return Queue(_GPSIMD_QUEUE)
    asked = values.get("engine", Engine.unknown)
    if asked is not Engine.unknown:
        return Queue(str(asked.name))
    queue = "dma" if not parameters.queues_by_direction else "load" if to_chip else "store"
    if parameters.software_descriptors == "never":
        return Queue(queue)
    if address is Address.register and not dma.has_hardware_descriptors:
        return Queue(_SOFTWARE[queue])
    if mode is not dge_mode.unknown or (is_transpose and address is Address.known):
        return Queue(queue)
    if parameters.software_descriptors == "always":
        return Queue(_SOFTWARE[queue], queue)
    return Queue(queue, _SOFTWARE[queue])


def between_triggers_ns(queue: str, dma: DmaTiming, parameters: ModelParameters) -> float:
    """Return the least time, in nanoseconds, between two transfers that a queue triggers."""
    trigger_ns = dma.trigger_ns if parameters.trigger_us is None else parameters.trigger_us * NS_PER_US
    if queue in _OPEN_QUEUES:
        return trigger_ns / parameters.descriptor_units
    if is_software(queue):
        if parameters.software_descriptors == "never":
            return trigger_ns
        return dma.software_ns if parameters.software_us is None else parameters.software_us * NS_PER_US
    return trigger_ns if parameters.queue_us is None else parameters.queue_us * NS_PER_US


def _runs(layout: Layout, width: int) -> int:
    return int(spans_of(layout, width).starts.size)


@dataclass(frozen=True, eq=False)
class Side:
    """The source or the destination of a transfer, as far as the time depends on it. :func:`side_of` makes it.

    Attributes:
        shape: the shape of the view.
        strides: the strides of the view, in elements.
        width: the bytes of an element.
        region: the memory region.
        first: on chip, the first partition; else 0.
        step: on chip, the distance from one partition to the next; else 0.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width: int
    region: MemoryRegion
    first: int
    step: int

    @property
    def is_on_chip(self) -> bool:
        return self.region in ON_CHIP

    @property
    def runs(self) -> int:
        """The number of runs of contiguous bytes that the elements form; on chip, a run lies within one partition."""
        if self.is_on_chip:
            return self.shape[0] * _runs(Layout(self.shape[1:], self.strides[1:], 0), self.width)
        return _runs(Layout(self.shape, self.strides, 0), self.width)


@lru_cache(maxsize=65536)
def side_of(
    shape: tuple[int, ...], strides: tuple[int, ...], width: int, region: MemoryRegion, first: int, step: int
) -> Side:
    """Return the :class:`Side` with these properties, one object for equal arguments."""
    return Side(shape, strides, width, region, first, step)


def bytes_of(sides: Sequence[Side]) -> int:
    """Return the number of bytes that a transfer between ``sides`` moves; if it casts, in the wider of the types."""
    return prod(sides[0].shape) * max(side.width for side in sides)


def row_bytes_of(sides: Sequence[Side], rows: int, is_transpose: bool) -> float:
    """Return the average number of bytes of a row of a transfer; 0 for a transpose, which is not moved row by row.

    The arguments are those of :func:`engine_times`.
    """
    if is_transpose:
        return 0.0
    return bytes_of(sides) / max(1, rows or max(side.runs for side in sides))


def _whole_blocks(shape: tuple[int, ...]) -> int:
    """Return the number of elements of ``shape`` when it is padded to blocks of 128 partitions x 16 elements."""
    partitions, columns = _TRANSPOSED_BLOCK
    return ceil(shape[0] / partitions) * partitions * ceil(shape[-1] / columns) * columns * prod(shape[1:-1])


def _partitions_of(side: Side, engines: int) -> list[tuple[int, int]]:
    """Return pairs (number of a DMA engine, number of partitions that it serves) for an on-chip side.

    Args:
        side: the on-chip side.
        engines: the number of DMA engines of the core.
    """
    places = (side.first + side.step * number for number in range(side.shape[0]))
    return sorted(Counter(place % PARTITIONS * engines // PARTITIONS for place in places).items())


def engine_times(
    sides: Sequence[Side], rows: int, is_transpose: bool, dma: DmaTiming, parameters: ModelParameters
) -> list[tuple[int, float]]:
    """Return, for each DMA engine that a transfer uses, a pair (number of the engine, nanoseconds that it works).

    Args:
        sides: the destination, then the sources: none for a constant, several for a sum of tensors.
        rows: the number of rows that a vector of indices names; 0 if there is no such vector.
        is_transpose: whether the transfer reverses the dimensions.
        dma: the number and the rates of the DMA engines.
        parameters: the assumptions of the model.
    """
    nbytes = bytes_of(sides)
    sources = max(1, len(sides) - 1)
    if rows:
        used = min(rows, dma.engines)
        row = max(parameters.indirect_row_ns, nbytes / rows / dma.gb_per_s)
        return [(number, ceil(rows / used) * row) for number in range(used)]
    if is_transpose:
        if parameters.pads_dma_transpose:
            nbytes = ceil(nbytes / prod(sides[0].shape) * _whole_blocks(sides[0].shape))
        share = dma.transpose_from_sbuf if sides[1].region is MemoryRegion.sbuf else dma.transpose_from_hbm
        return [(number, nbytes / dma.engines / (dma.gb_per_s * share)) for number in range(dma.engines)]
    runs = max(side.runs for side in sides)
    on_chip = next((side for side in sides if side.is_on_chip), None)
    if on_chip is None:
        count = max(runs, min(dma.engines, nbytes // _LEAST_PIECE_BYTES), 1)
        row = sources * max(dma.row_ns, nbytes / count / dma.gb_per_s)
        used = min(count, dma.engines)
        return [(number, ceil(count / used) * row) for number in range(used)]
    partitions = on_chip.shape[0]
    rows_each = max(1, ceil(runs / max(1, partitions)))
    row_bytes = nbytes / max(1, partitions * rows_each)
    row = sources * max(dma.row_ns, row_bytes / dma.gb_per_s)
    if not sides[0].is_on_chip and row_bytes <= _SMALL_STORE_BYTES:
        row *= parameters.small_store_factor
    least = parameters.least_transfer_ns
    return [(number, max(least, served * rows_each * row)) for number, served in _partitions_of(on_chip, dma.engines)]


class BusyIntervals(NamedTuple):
    """The intervals in which an engine was busy, in nanoseconds.

    Attributes:
        total_ns: the total busy time since the start of the kernel.
        starts: the starts of the latest intervals, in order; earlier ones may have been dropped.
        ends: the ends of the same intervals.
    """

    total_ns: float
    starts: list[float]
    ends: list[float]

    def since(self, begin_ns: float) -> list[tuple[float, float]]:
        """Return the intervals after ``begin_ns`` as pairs (start, end), cut at ``begin_ns``."""
        first = bisect_right(self.ends, begin_ns + SAME_NS)
        return [(max(start, begin_ns), end) for start, end in zip(self.starts[first:], self.ends[first:], strict=True)]

    def repeats(self, before: BusyIntervals, shift_ns: float, begin_ns: float) -> bool:
        """Return whether the intervals from ``begin_ns`` on equal those of an earlier state, moved by ``shift_ns``.

        Args:
            before: the earlier state.
            shift_ns: the distance in time.
            begin_ns: the time from which the intervals are compared; in ``before`` it is ``begin_ns - shift_ns``.
        """
        mine, others = self.since(begin_ns), before.since(begin_ns - shift_ns)
        return len(mine) == len(others) and all(
            abs(mine_part[0] - their_part[0] - shift_ns) <= SAME_NS
            and abs(mine_part[1] - their_part[1] - shift_ns) <= SAME_NS
            for mine_part, their_part in zip(mine, others, strict=True)
        )


class BusyTimes:
    """The busy times of an engine in nanoseconds. Later work fills the gaps between earlier busy intervals."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self.total_ns = 0.0

    def add(self, earliest: float, duration: float) -> float:
        """Add work to the gaps between the busy intervals, in pieces if needed; return the time at which it ends.

        Args:
            earliest: the time from which gaps are filled.
            duration: the time that the work takes.
        """
        self.total_ns += duration
        if duration > 0.0 and self._ends and earliest > self._ends[-1]:  # most often it comes after all other work
            self._append(earliest, earliest + duration)
            return earliest + duration
        now, left = earliest, duration
        position = bisect_right(self._ends, now)
        pieces: list[tuple[float, float]] = []
        while left > 0.0:
            gap_end = self._starts[position] if position < len(self._starts) else float("inf")
            if gap_end > now:
                step = min(left, gap_end - now)
                pieces.append((now, now + step))
                now, left = now + step, left - step
            if left > 0.0:
                now = max(now, self._ends[position])
                position += 1
        for piece in pieces:
            self._insert(*piece)
        return now

    def intervals(self) -> BusyIntervals:
        """Return the intervals in which the engine is busy, and their total time."""
        return BusyIntervals(self.total_ns, self._starts.copy(), self._ends.copy())

    def repeat(self, before_ns: float, shift_ns: float, times: int) -> None:
        """Add ``times`` copies of the work of the last ``shift_ns`` nanoseconds, each ``shift_ns`` later.

        Args:
            before_ns: ``total_ns`` before that work.
            shift_ns: the time from one copy to the next.
            times: the number of copies.
        """
        if self.total_ns == before_ns:
            return
        self.total_ns += times * (self.total_ns - before_ns)
        latest = self.intervals().since(self._ends[-1] - shift_ns)
        most = _KEPT // max(1, len(latest)) + 2
        for time in range(max(1, times - most), times + 1):
            for start, end in latest:
                self._insert(start + time * shift_ns, end + time * shift_ns)

    def copy(self) -> BusyTimes:
        """Return a copy, for an engine that must not share these busy times any longer."""
        copied = BusyTimes()
        copied._starts, copied._ends, copied.total_ns = self._starts.copy(), self._ends.copy(), self.total_ns
        return copied

    def _append(self, start: float, end: float) -> None:
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) > _KEPT:
            del self._starts[0], self._ends[0]

    def _insert(self, start: float, end: float) -> None:
        # The new interval is merged with the intervals that it touches.
        first = bisect_right(self._ends, start)
        if first and self._ends[first - 1] == start:
            first -= 1
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            start, end = min(start, self._starts[last]), max(end, self._ends[last])
            last += 1
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > _KEPT:
            del self._starts[0], self._ends[0]


class DmaWork(NamedTuple):
    """The work of one transfer for the DMA engines.

    Attributes:
        times: for each DMA engine that takes part, a pair (number of the engine, nanoseconds that it works).
        is_even: whether all DMA engines of the core take part, each for the same time.
        nbytes: the bytes that the transfer moves.
        row_bytes: the average bytes of a row; 0 if the transfer is not moved row by row.
        is_gathered: whether a vector of indices names the rows.
    """

    times: Sequence[tuple[int, float]]
    is_even: bool
    nbytes: int = 0
    row_bytes: float = 0.0
    is_gathered: bool = False

    @property
    def longest_ns(self) -> float:
        """The nanoseconds that the engine with the most work spends on the transfer."""
        return max((time for _, time in self.times), default=0.0)


class DmaEngines:
    """The DMA engines of a core. Engines that have been busy at the same times so far share one :class:`BusyTimes`."""

    def __init__(self, count: int) -> None:
        self._times = [BusyTimes()] * count
        self._are_alike = True

    def add(self, earliest: float, work: DmaWork) -> float:
        """Add a transfer whose work can start at ``earliest``, and return when the last engine has finished it
        (nanoseconds).
        """
        if self._are_alike and work.is_even:
            return self._times[0].add(earliest, work.times[0][1])
        self._are_alike = False
        alike: dict[tuple[int, float], list[int]] = {}
        for number, duration in work.times:
            alike.setdefault((id(self._times[number]), duration), []).append(number)
        done = earliest
        for (_, duration), numbers in alike.items():
            times = self._times[numbers[0]]
            if len(numbers) < self._times.count(times):  # from here on these differ from the others
                times = times.copy()
                for number in numbers:
                    self._times[number] = times
            done = max(done, times.add(earliest, duration))
        return done

    def intervals(self) -> list[BusyIntervals]:
        """Return the intervals in which each engine was busy, by the number of the engine."""
        accounts = {id(times): times.intervals() for times in self._times}
        return [accounts[id(times)] for times in self._times]

    def repeat(self, before: Sequence[BusyIntervals], shift_ns: float, times: int) -> None:
        """Add ``times`` copies of the work of the last ``shift_ns`` nanoseconds, each ``shift_ns`` later.

        Args:
            before: each engine's busy intervals before that work.
            shift_ns: the time from one copy to the next.
            times: the number of copies.
        """
        accounts = {id(account): (account, intervals) for account, intervals in zip(self._times, before, strict=True)}
        for account, intervals in accounts.values():
            account.repeat(intervals.total_ns, shift_ns, times)

    @property
    def longest_ns(self) -> float:
        """The total busy time, in nanoseconds, of the engine with the longest total."""
        return max(times.total_ns for times in self._times)
