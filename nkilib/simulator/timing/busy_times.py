"""The working hours of a DMA engine, which takes rows of several queues as they come."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

# Gaps further back than this are forgotten: no transfer is triggered so long after those behind it.
_KEPT = 512


class BusyTimes:
    """When an engine works, in nanoseconds; a transfer that is triggered late leaves gaps that others fill."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self.total_ns = 0.0

    def add(self, earliest: float, duration: float) -> float:
        """DmaWork for ``duration`` from ``earliest`` on, in as many pieces as gaps ask for; returns when it is done."""
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

    def copy(self) -> BusyTimes:
        """Another engine that has done the same so far."""
        other = BusyTimes()
        other._starts, other._ends, other.total_ns = self._starts.copy(), self._ends.copy(), self.total_ns
        return other

    def _append(self, start: float, end: float) -> None:
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) > _KEPT:
            del self._starts[0], self._ends[0]

    def _insert(self, start: float, end: float) -> None:
        """Enter working hours, joined with those that they touch."""
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
    """What a transfer asks of the DMA engines.

    Attributes:
        times: pairs (number of an engine, nanoseconds).
        is_even: whether every engine works, and for the same time.
        nbytes: that it moves.
        row_bytes: of a row, on the average; 0 where it is not moved row by row.
        is_gathered: whether a vector offset names its rows.
    """

    times: Sequence[tuple[int, float]]
    is_even: bool
    nbytes: int = 0
    row_bytes: float = 0.0
    is_gathered: bool = False

    @property
    def longest_ns(self) -> float:
        """What the engine works that has most of it to do."""
        return max((time for _, time in self.times), default=0.0)


class DmaEngines:
    """The DMA engines of a core. Those that have done the same so far share one account: mostly that is all of them."""

    def __init__(self, count: int) -> None:
        self._times = [BusyTimes()] * count
        self._are_alike = True

    def add(self, earliest: float, work: DmaWork) -> float:
        """DmaWork from ``earliest`` nanoseconds on; returns when the last engine is done."""
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

    @property
    def longest_ns(self) -> float:
        """What the engine that works longest has worked."""
        return max(times.total_ns for times in self._times)
