# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The busy intervals of a DMA engine, which moves the rows of several queues in the order in which they arrive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

# Gaps further back than this are forgotten: no transfer is triggered so long after later ones.
_KEPT = 512
# Times that differ by less are equal: they are sums in another order.
SAME_NS = 1e-4


class BusyIntervals(NamedTuple):
    """The intervals in which an engine was busy, in nanoseconds.

    Attributes:
        total_ns: the total busy time since the start of the kernel.
        starts, ends: the starts and ends of the latest intervals, in order.
    """

    total_ns: float
    starts: list[float]
    ends: list[float]

    def since(self, begin_ns: float) -> list[tuple[float, float]]:
        """Return the pairs (start, end) of the intervals after ``begin_ns``, the first one cut off there."""
        first = bisect_right(self.ends, begin_ns + SAME_NS)
        return [(max(start, begin_ns), end) for start, end in zip(self.starts[first:], self.ends[first:], strict=True)]

    def repeats(self, before: BusyIntervals, shift_ns: float, begin_ns: float) -> bool:
        """Tell whether the intervals from ``begin_ns`` on are those of ``before``, shifted by ``shift_ns``."""
        mine, others = self.since(begin_ns), before.since(begin_ns - shift_ns)
        return len(mine) == len(others) and all(
            abs(mine_part[0] - their_part[0] - shift_ns) <= SAME_NS
            and abs(mine_part[1] - their_part[1] - shift_ns) <= SAME_NS
            for mine_part, their_part in zip(mine, others, strict=True)
        )


class BusyTimes:
    """The busy times of an engine in nanoseconds; a transfer that is triggered late leaves gaps that others fill."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self.total_ns = 0.0

    def add(self, earliest: float, duration: float) -> float:
        """Add work of ``duration``, split over the gaps from ``earliest`` on, and return the time of its end."""
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
        """Return the busy intervals so far."""
        return BusyIntervals(self.total_ns, self._starts.copy(), self._ends.copy())

    def repeat(self, before_ns: float, shift_ns: float, times: int) -> None:
        """Repeat the work of the last ``shift_ns`` nanoseconds ``times`` times, each time ``shift_ns`` later.

        ``before_ns`` is the total busy time of the engine before that work.
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
        """Return a copy, for another engine that has been busy at the same times so far."""
        copied = BusyTimes()
        copied._starts, copied._ends, copied.total_ns = self._starts.copy(), self._ends.copy(), self.total_ns
        return copied

    def _append(self, start: float, end: float) -> None:
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) > _KEPT:
            del self._starts[0], self._ends[0]

    def _insert(self, start: float, end: float) -> None:
        """Insert an interval, merged with the intervals that it touches."""
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
        is_even: whether every engine works, and for the same time.
        nbytes: the bytes that the transfer moves.
        row_bytes: the average bytes of a row; 0 if the transfer is not moved row by row.
        is_gathered: whether a vector offset names its rows.
    """

    times: Sequence[tuple[int, float]]
    is_even: bool
    nbytes: int = 0
    row_bytes: float = 0.0
    is_gathered: bool = False

    @property
    def longest_ns(self) -> float:
        """The longest time that any of the engines works on the transfer."""
        return max((time for _, time in self.times), default=0.0)


class DmaEngines:
    """The DMA engines of a core. Those that were busy at the same times so far share one record, usually all."""

    def __init__(self, count: int) -> None:
        self._times = [BusyTimes()] * count
        self._are_alike = True

    def add(self, earliest: float, work: DmaWork) -> float:
        """Add the work of a transfer from ``earliest`` nanoseconds on, and return when the last engine is done."""
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
        """Return the busy intervals of each engine."""
        accounts = {id(times): times.intervals() for times in self._times}
        return [accounts[id(times)] for times in self._times]

    def repeat(self, before: Sequence[BusyIntervals], shift_ns: float, times: int) -> None:
        """Repeat the work of the last ``shift_ns`` nanoseconds ``times`` times; ``before`` is the state before it."""
        accounts = {id(account): (account, intervals) for account, intervals in zip(self._times, before, strict=True)}
        for account, intervals in accounts.values():
            account.repeat(intervals.total_ns, shift_ns, times)

    @property
    def longest_ns(self) -> float:
        """The total busy time of the engine that is busy longest."""
        return max(times.total_ns for times in self._times)
