# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Iterations of a device loop that can be skipped, because they repeat earlier ones.

The device has one copy of a loop's body, so that Python sees the same instructions in each iteration. In a launch
without data an iteration then differs from others only in its timing; the observer that models time decides whether
further iterations only repeat it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

# The most iterations after which everything may repeat.
LONGEST_PERIOD = 4


class Skip(NamedTuple):
    """The iterations of a loop that can be skipped, because they repeat the last ones that have run.

    Attributes:
        period: the number of iterations that repeat together: the last ``period`` ones that have run.
        times: the number of repetitions.
        instructions: the number of instructions in a period.
    """

    period: int
    times: int
    instructions: int


class Tally:
    """Counters with their values at the ends of the last iterations of each enclosing loop.

    Args:
        counters: a function that returns the counters.
    """

    def __init__(self, counters: Callable[[], Sequence[Counter[Any]]]) -> None:
        self._counters = counters
        self._loops: list[deque[list[dict[Hashable, int]]]] = []

    def enter(self) -> None:
        """Record that a loop starts."""
        self._loops.append(deque([self._copies()], maxlen=LONGEST_PERIOD + 1))

    def iterate(self) -> None:
        """Record that an iteration of the innermost loop has ended."""
        self._loops[-1].append(self._copies())

    def leave(self) -> None:
        """Record that the innermost loop has ended."""
        self._loops.pop()

    def repeat(self, skip: Skip) -> None:
        """Add to each counter ``skip.times`` times what the innermost loop's last ``skip.period`` iterations added."""
        for counter, before in zip(self._counters(), self._loops[-1][-1 - skip.period], strict=True):
            for name, count in counter.items():
                counter[name] = count + skip.times * (count - before.get(name, 0))

    def _copies(self) -> list[dict[Hashable, int]]:
        return [dict(counter) for counter in self._counters()]
