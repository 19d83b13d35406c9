# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether the iterations of a loop only repeat those before them, some time later.

Everything on the timeline is the latest of some times plus a constant: if two periods of iterations have come in a row
in which each instruction starts and ends so many nanoseconds after the same one of the period before, and everything
that later instructions can wait for has moved by as much or not at all, then so does every further period: what has
not moved was not waited for, since the second period came later and did not wait longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..machine.repetition import LONGEST_PERIOD
from .busy_times import SAME_NS
from .noted import Access
from .notes import Notes, Repeat
from .timeline import Marks, Timeline

# Fewer iterations are not watched, and so many have to run before one is left out: what takes turns has had its turn.
FEWEST = 12


class Period(NamedTuple):
    """What repeats.

    Attributes:
        iterations: how many there are in it.
        first: the position of its first note.
        numbers: of its instructions.
        ns: how long it takes.
        before: where the timeline stood when it began.
    """

    iterations: int
    first: int
    numbers: range
    ns: float
    before: Marks


class _End(NamedTuple):
    """The end of an iteration, or the start of the loop: how many notes and accesses there were, and the timeline."""

    notes: int
    accesses: int
    marks: Marks


# The tensors of an instruction, and whether it writes them.
Accesses = Sequence[tuple[Access, bool]]


class Watch:
    """Watches the iterations of one run of a loop."""

    def __init__(self, notes: Notes, timeline: Timeline, accesses: list[Accesses], *, drains: bool) -> None:
        self._notes = notes
        self._timeline = timeline
        self._accesses = accesses
        self._drains = drains
        self._ends: list[_End] = []
        self._count = 0
        self._next_look = FEWEST
        self.end()

    @property
    def first_number(self) -> int:
        """The number of the first instruction that it still compares."""
        return self._number(self._ends[0].notes)

    def end(self) -> None:
        """The loop starts, or an iteration has ended."""
        self._ends.append(_End(self._notes.run, len(self._accesses), self._timeline.marks()))
        del self._ends[: -3 * LONGEST_PERIOD - 1]
        self._count += 1

    def period(self) -> Period | None:
        """The shortest period that the last iterations have, if they have one."""
        if self._count <= self._next_look:
            return None
        for iterations in range(1, LONGEST_PERIOD + 1):
            found = self._period_of(iterations)
            if found is not None:
                return found
        # What has no period yet may come to one: it is looked for again, ever more rarely.
        self._next_look = self._count + self._count // 4
        return None

    def again(self) -> None:
        """A period is repeated: what comes is compared with nothing before."""
        self._ends.clear()
        self._count = 0
        self.end()

    def _number(self, position: int) -> int:
        return self._notes.number(position) if position < self._notes.run else 1 << 62

    def _period_of(self, iterations: int) -> Period | None:
        last, before, earlier, first = (self._ends[-1 - each * iterations] for each in range(4))
        count = last.notes - before.notes
        if not count or not (count == before.notes - earlier.notes == earlier.notes - first.notes):
            return None
        if not self._has_same_notes(before.notes, earlier.notes, count):
            return None
        if not self._has_same_notes(earlier.notes, first.notes, count):
            return None
        times = [np.array(self._notes.times(each.notes, each.notes + count)) for each in (before, earlier, first)]
        later, earlier_later = times[0] - times[1], times[1] - times[2]
        ns = float(later[0])
        if ns <= 0.0 or np.abs(later - ns).max() > SAME_NS or np.abs(earlier_later - ns).max() > SAME_NS:
            return None
        begin = float(times[0].min())
        if not last.marks.repeats(before.marks, ns, begin) or not before.marks.repeats(earlier.marks, ns, begin - ns):
            return None
        if not self._moves_evenly(last, before, earlier):
            return None
        end = self._notes.number(last.notes - 1) + 1
        length = end - 1 - self._notes.number(before.notes - 1)
        return Period(iterations, before.notes, range(end - length, end), ns, before.marks)

    def _has_same_notes(self, first: int, other: int, count: int) -> bool:
        """Whether two stretches of notes are of the same instructions, with the same repeats among them."""
        notes = self._notes
        return notes.sites(first, first + count) == notes.sites(other, other + count) and _shape(
            notes, first, count
        ) == _shape(notes, other, count)

    def _moves_evenly(self, last: _End, before: _End, earlier: _End) -> bool:
        """Whether tensors move by the same in each period, so that what meets in one meets in all.

        Where iterations overlap nothing may move: what an iteration waits for could be somewhere else.
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
        moving = {key for key, found in steps.items() if found != {0}}
        return not moving or (self._drains and all(len(steps[key]) == 1 for key in moving & written))


def _step(one: Access, another: Access) -> int | None:
    """By how many elements a tensor has moved from one period to the next; None if it is another one."""
    (known, layout, dtype, reach, _), (other, other_layout, other_dtype, other_reach, _) = one, another
    if known.uses is not other.uses or (dtype, reach) != (other_dtype, other_reach):
        return None
    if (layout.shape, layout.strides) != (other_layout.shape, other_layout.strides):
        return None
    return layout.offset - other_layout.offset


def _shape(notes: Notes, first: int, count: int) -> list[tuple[int, int, int, float]]:
    return [_of_repeat(each, first) for each in notes.repeats_in(first) if each.first < first + count]


def _of_repeat(repeat: Repeat, first: int) -> tuple[int, int, int, float]:
    return repeat.first - first, repeat.end - first, repeat.times, round(repeat.ns, 3)
