# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Detection of loops whose iterations only repeat the previous ones, some time later.

:class:`Watch` follows the iterations of one run of a loop, and finds a :class:`Period`: a stretch of iterations that
repeats the stretch before it. A *note* is the record of one instruction in the log.

Every time on the timeline is the maximum of some other times, plus a constant. Suppose that in two successive periods
each instruction starts and ends d nanoseconds after the same instruction of the previous period, and that each time for
which later instructions can wait has become d nanoseconds later or has not changed. Then every further period comes d
nanoseconds later too. The unchanged times do not matter: no instruction waited for them, or the second of the two
periods, which came later, would have waited less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..machine.loops import LONGEST_PERIOD
from .instruction import TensorAccess
from .instruction_log import InstructionLog, Repeat
from .parameters import SAME_NS
from .timeline import Marks, Timeline

# Fewer iterations are not watched, and this many run before one is left out, so that all alternatives have occurred.
FEWEST = 12


class Period(NamedTuple):
    """A stretch of iterations of a loop that repeats the stretch before it.

    Attributes:
        iterations: the number of iterations in the stretch.
        first: the position of its first instruction in the log.
        numbers: the numbers of its instructions.
        ns: the nanoseconds from the stretch before it to this one.
        before: the state of the timeline at the start of the stretch.
    """

    iterations: int
    first: int
    numbers: range
    ns: float
    before: Marks


class _End(NamedTuple):
    """The state at the start of a loop or at the end of an iteration.

    Attributes:
        notes: the number of instructions that have a note in the log so far.
        accesses: the number of instructions whose tensors were recorded so far.
        marks: the state of the timeline.
    """

    notes: int
    accesses: int
    marks: Marks


# The tensors of an instruction, and whether it writes them.
Accesses = Sequence[tuple[TensorAccess, bool]]


def _of_repeat(repeat: Repeat, first: int) -> tuple[int, int, int, float]:
    return repeat.first - first, repeat.end - first, repeat.times, round(repeat.ns, 3)


def _shape(log: InstructionLog, first: int, count: int) -> list[tuple[int, int, int, float]]:
    return [_of_repeat(repeat, first) for repeat in log.repeats_in(first) if repeat.first < first + count]


def _step(access: TensorAccess, another: TensorAccess) -> int | None:
    # The distance in elements between two equal views of one tensor, of which ``another`` belongs to the previous
    # period; None for other pairs.
    (known, layout, dtype, reach, _), (other, other_layout, other_dtype, other_reach, _) = access, another
    if known.uses is not other.uses or (dtype, reach) != (other_dtype, other_reach):
        return None
    if (layout.shape, layout.strides) != (other_layout.shape, other_layout.strides):
        return None
    return layout.offset - other_layout.offset


class Watch:
    """The states after the latest iterations of a loop; :meth:`period` finds out whether the iterations repeat."""

    def __init__(self, log: InstructionLog, timeline: Timeline, accesses: list[Accesses], *, drains: bool) -> None:
        self._log = log
        self._timeline = timeline
        self._accesses = accesses
        self._drains = drains
        self._ends: list[_End] = []
        self._count = 0
        self._next_look = FEWEST
        self.end()

    @property
    def first_number(self) -> int:
        """The number of the earliest instruction that the watch still needs for comparisons."""
        return self._number(self._ends[0].notes)

    def end(self) -> None:
        """Record the state of the timeline, at the start of the loop or at the end of an iteration."""
        self._ends.append(_End(self._log.run, len(self._accesses), self._timeline.marks()))
        del self._ends[: -3 * LONGEST_PERIOD - 1]
        self._count += 1

    def period(self) -> Period | None:
        """Return the shortest :class:`Period` that the latest iterations make up; None if they do not repeat."""
        if self._count <= self._next_look:
            return None
        for iterations in range(1, LONGEST_PERIOD + 1):
            period = self._period_of(iterations)
            if period is not None:
                return period
        # A loop without a period may reach one later: the search is repeated, less and less often.
        self._next_look = self._count + self._count // 4
        return None

    def again(self) -> None:
        """Forget all iterations so far, after the last period has been repeated on the timeline."""
        self._ends.clear()
        self._count = 0
        self.end()

    def _number(self, position: int) -> int:
        return self._log.number(position) if position < self._log.run else 1 << 62

    def _period_of(self, iterations: int) -> Period | None:
        last, before, earlier, first = (self._ends[-1 - number * iterations] for number in range(4))
        count = last.notes - before.notes
        if not count or not (count == before.notes - earlier.notes == earlier.notes - first.notes):
            return None
        if not self._has_same_notes(before.notes, earlier.notes, count):
            return None
        if not self._has_same_notes(earlier.notes, first.notes, count):
            return None
        times = [np.array(self._log.times(end.notes, end.notes + count)) for end in (before, earlier, first)]
        later, earlier_later = times[0] - times[1], times[1] - times[2]
        ns = float(later[0])
        if ns <= 0.0 or np.abs(later - ns).max() > SAME_NS or np.abs(earlier_later - ns).max() > SAME_NS:
            return None
        begin = float(times[0].min())
        if not last.marks.repeats(before.marks, ns, begin) or not before.marks.repeats(earlier.marks, ns, begin - ns):
            return None
        if not self._moves_evenly(last, before, earlier):
            return None
        end = self._log.number(last.notes - 1) + 1
        length = end - 1 - self._log.number(before.notes - 1)
        return Period(iterations, before.notes, range(end - length, end), ns, before.marks)

    def _has_same_notes(self, first: int, second: int, count: int) -> bool:
        # Compares kinds, labels, kernel lines and inner repeats of ``count`` run instructions from two positions on.
        log = self._log
        return log.sites(first, first + count) == log.sites(second, second + count) and _shape(
            log, first, count
        ) == _shape(log, second, count)

    def _moves_evenly(self, last: _End, before: _End, earlier: _End) -> bool:
        """Return whether in further periods the accesses overlap as in the last two.

        They do if no view has moved from one of these periods to the other. Views may have moved if the engines
        synchronise between iterations; all views of a moving tensor that is written must have moved equally far.
        """
        count = last.accesses - before.accesses
        if count != before.accesses - earlier.accesses:
            return False
        steps: dict[int, set[int]] = {}
        written: set[int] = set()
        for at in range(count):
            mine, others = self._accesses[before.accesses + at], self._accesses[earlier.accesses + at]
            if len(mine) != len(others):
                return False
            for (access, is_write), (other, _) in zip(mine, others, strict=True):
                step = _step(access, other)
                if step is None:
                    return False
                key = id(access[0].uses)
                steps.setdefault(key, set()).add(step)
                if is_write:
                    written.add(key)
        moving = {key for key, distances in steps.items() if distances != {0}}
        return not moving or (self._drains and all(len(steps[key]) == 1 for key in moving & written))
