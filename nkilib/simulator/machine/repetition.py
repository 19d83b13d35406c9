# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Iterations of a device loop that need not run, because they do what those before have done.

The device has one copy of a loop's body, so that Python sees the same instructions in each iteration. In a launch
without data nothing else is left of an iteration but when it happens: whoever models that says whether further
iterations only repeat it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

# The most iterations after which everything may repeat.
LONGEST_PERIOD = 4


class Skip(NamedTuple):
    """What need not run.

    Attributes:
        period: how many iterations make what repeats: the last ones that have run.
        times: how often it repeats.
        instructions: how many a period has.
    """

    period: int
    times: int
    instructions: int


class Tally:
    """Counters, of which it is known what they were at the ends of the last iterations of each loop around.

    Args:
        counters: returns them.
    """

    def __init__(self, counters: Callable[[], Sequence[Counter[Any]]]) -> None:
        self._counters = counters
        self._loops: list[deque[list[dict[Hashable, int]]]] = []

    def enter(self) -> None:
        """A loop starts."""
        self._loops.append(deque([self._copies()], maxlen=LONGEST_PERIOD + 1))

    def iterate(self) -> None:
        """An iteration of the innermost loop has ended."""
        self._loops[-1].append(self._copies())

    def leave(self) -> None:
        """The innermost loop has ended."""
        self._loops.pop()

    def repeat(self, skip: Skip) -> None:
        """The last period of the innermost loop counts several times more."""
        for counter, before in zip(self._counters(), self._loops[-1][-1 - skip.period], strict=True):
            for name, count in counter.items():
                counter[name] = count + skip.times * (count - before.get(name, 0))

    def _copies(self) -> list[dict[Hashable, int]]:
        return [dict(counter) for counter in self._counters()]
