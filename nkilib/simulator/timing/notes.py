# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The notes of the instructions of a core, kept in little memory; those of repeated iterations are made on request."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from types import CodeType
from typing import NamedTuple, overload

from .causes import Cause
from .event import Note
from .plans import Plan
from .timeline import Span


class _Site(NamedTuple):
    """The properties that are equal for all instructions that one call in the kernel issues with the same plan."""

    plan: Plan
    label: str | None
    code: CodeType | None
    position: int


class Shift(NamedTuple):
    """The distance of a repeated instruction, which was not run, from the one that it repeats.

    Attributes:
        ns: the distance in time.
        numbers: the distance in instructions.
        floor: the number of the first instruction of the period before the repeated one, in the outermost repeat:
            causes before it are the same for all repetitions.
    """

    ns: float = 0.0
    numbers: int = 0
    floor: int = 0


@dataclass(frozen=True)
class Repeat:
    """A stretch of instructions that were run, and stand for further iterations of a loop that were not run.

    Attributes:
        first, end: the positions of the first instruction of the stretch and of the first one after it, among the
            instructions that were run.
        times: the number of repetitions, besides the stretch itself.
        ns: the time from one repetition to the next.
        numbers: the number of instructions from one repetition to the next.
        inner: the repeats within the stretch, from loops inside the loop.
    """

    first: int
    end: int
    times: int
    ns: float
    numbers: int
    inner: tuple[Repeat, ...] = ()

    @property
    def period(self) -> int:
        """The number of notes of each repetition, with those of the inner repeats."""
        return self.end - self.first + self.added_inside

    @property
    def added_inside(self) -> int:
        """The number of notes that the inner repeats add."""
        return sum(repeat.added for repeat in self.inner)

    @property
    def added(self) -> int:
        """The number of notes that the repeat adds: one for each instruction of the iterations that were not run."""
        return self.added_inside + self.times * self.period


class Notes(Sequence[Note]):
    """The notes of a core, in program order, with those of the iterations that only repeat others."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._site = array("I")
        self._starts = array("d")
        self._ends = array("d")
        self._cause = array("I")
        self._sites: list[_Site] = []
        self._site_of: dict[tuple[int, str | None, int, int], int] = {}
        self._causes: list[Cause] = []
        self._cause_of: dict[int, int] = {}  # by the id of a cause, of which there is one object
        self._repeats: list[Repeat] = []

    def add(self, number: int, plan: Plan, label: str | None, span: Span, code: CodeType | None, position: int) -> None:
        """Add the note of the next instruction; the arguments are the items of the note."""
        key = id(plan), label, id(code), position
        site = self._site_of.get(key)
        if site is None:
            site = self._site_of[key] = len(self._sites)
            self._sites.append(_Site(plan, label, code, position))
        start, end, cause = span
        known = self._cause_of.get(id(cause))
        if known is None:
            known = self._cause_of[id(cause)] = len(self._causes)
            self._causes.append(cause)
        self._numbers.append(number)
        self._site.append(site)
        self._starts.append(start)
        self._ends.append(end)
        self._cause.append(known)

    @property
    def run(self) -> int:
        """The number of instructions that were run, without the repetitions."""
        return len(self._numbers)

    @property
    def repeats(self) -> Sequence[Repeat]:
        """The outermost repeats; those within others are in ``Repeat.inner``."""
        return self._repeats

    def number(self, position: int) -> int:
        """Return the number of the instruction at a position among those that were run."""
        return self._numbers[position]

    def sites(self, first: int, end: int) -> array[int]:
        """Return the site numbers of the run instructions from position ``first`` up to ``end``.

        They are equal for instructions with the same plan, label and place in the kernel.
        """
        return self._site[first:end]

    def times(self, first: int, end: int) -> array[float]:
        """Return the start times of the run instructions from ``first`` up to ``end``, followed by their end times."""
        return self._starts[first:end] + self._ends[first:end]

    def repeats_in(self, first: int) -> tuple[Repeat, ...]:
        """Return the outermost repeats that begin at position ``first`` or after it."""
        return tuple(repeat for repeat in self._repeats if repeat.first >= first)

    def repeat(self, first: int, times: int, ns: float, numbers: int) -> None:
        """Repeat the run instructions from position ``first`` on ``times`` times.

        Args:
            first: the position of the first instruction to repeat.
            times: the number of repetitions.
            ns: the time from one repetition to the next.
            numbers: the number of instructions from one repetition to the next.
        """
        inner = self.repeats_in(first)
        del self._repeats[len(self._repeats) - len(inner) :]
        self._repeats.append(Repeat(first, self.run, times, ns, numbers, inner))

    def span_of(self, number: int) -> Span:
        """Return the span of the run instruction with this number."""
        return self._note(bisect_left(self._numbers, number), Shift())[3]

    def plans(self) -> Iterator[tuple[Plan, int]]:
        """Return pairs (plan, number of its instructions), repetitions included; a plan may occur several times."""
        counts: Counter[int] = Counter()
        self._count(counts, 0, self.run, self._repeats, 1)
        return ((self._sites[site].plan, count) for site, count in counts.items())

    def _count(self, counts: Counter[int], first: int, end: int, repeats: Sequence[Repeat], times: int) -> None:
        for repeat in repeats:
            self._count(counts, first, repeat.end, repeat.inner, times)
            self._count(counts, repeat.first, repeat.end, repeat.inner, times * repeat.times)
            first = repeat.end
        for site, count in Counter(self._site[first:end]).items():
            counts[site] += times * count

    def again(self, first: int, last: int) -> Iterator[float]:
        """Yield how many nanoseconds later each repetition of the instructions ``first`` to ``last`` happens."""
        begin, end = (bisect_left(self._numbers, number) for number in (first, last))
        return _again(self._repeats, begin, end, 0.0)

    def __len__(self) -> int:
        return self.run + sum(repeat.added for repeat in self._repeats)

    def __iter__(self) -> Iterator[Note]:
        return self._between(0, self.run, self._repeats, Shift())

    @overload
    def __getitem__(self, at: int) -> Note: ...

    @overload
    def __getitem__(self, at: slice) -> list[Note]: ...

    def __getitem__(self, at: int | slice) -> Note | list[Note]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                return list(islice(self._between(0, self.run, self._repeats, Shift(), start), max(0, stop - start)))
            return [self[index] for index in range(start, stop, step)]
        count = len(self)
        position = at + count if at < 0 else at
        if not 0 <= position < count:
            raise IndexError(f"note {at} of {count}")
        return self._found(0, self._repeats, position, Shift())

    def _between(self, first: int, end: int, repeats: Sequence[Repeat], shift: Shift, skip: int = 0) -> Iterator[Note]:
        """Yield the notes from position ``first`` up to ``end`` with repetitions, without the first ``skip`` notes."""
        for repeat in repeats:
            inside = repeat.end - first + repeat.added_inside
            if skip < inside:
                yield from self._between(first, repeat.end, repeat.inner, shift, skip)
            skip = max(0, skip - inside)
            first = repeat.end
            skipped = min(repeat.times, skip // repeat.period)
            skip -= skipped * repeat.period
            for time in range(1 + skipped, 1 + repeat.times):
                yield from self._between(repeat.first, repeat.end, repeat.inner, self._shift(repeat, time, shift), skip)
                skip = 0
        for position in range(first + skip, end):
            yield self._note(position, shift)

    def _found(self, first: int, repeats: Sequence[Repeat], position: int, shift: Shift) -> Note:
        """Return the note that is ``position`` notes after the run instruction at ``first``, repetitions included."""
        # The number of notes up to the end of each repeat, with all that it adds.
        added = list(accumulate(repeat.added for repeat in repeats))
        ends = [repeat.end - first + before for repeat, before in zip(repeats, added, strict=True)]
        before = bisect_right(ends, position)
        if before:
            first, position = repeats[before - 1].end, position - ends[before - 1]
        if before == len(repeats):
            return self._note(first + position, shift)
        repeat = repeats[before]
        inside = repeat.end - first + repeat.added_inside
        if position < inside:
            return self._found(first, repeat.inner, position, shift)
        time, within = divmod(position - inside, repeat.period)
        return self._found(repeat.first, repeat.inner, within, self._shift(repeat, time + 1, shift))

    def _shift(self, repeat: Repeat, time: int, outer: Shift) -> Shift:
        floor = self._numbers[repeat.first] - repeat.numbers
        return Shift(outer.ns + time * repeat.ns, outer.numbers + time * repeat.numbers, outer.floor or floor)

    def _note(self, position: int, shift: Shift) -> Note:
        plan, label, code, at = self._sites[self._site[position]]
        number, cause = self._numbers[position], self._causes[self._cause[position]]
        if shift.numbers:
            cause = _moved(cause, number, shift)
        span = Span(self._starts[position] + shift.ns, self._ends[position] + shift.ns, cause)
        return number + shift.numbers, plan, label, span, code, at


def _again(repeats: Sequence[Repeat], begin: int, end: int, later: float) -> Iterator[float]:
    for repeat in repeats:
        if repeat.first <= begin and end < repeat.end:
            yield from _again(repeat.inner, begin, end, later)
            for time in range(1, repeat.times + 1):
                yield later + time * repeat.ns
                yield from _again(repeat.inner, begin, end, later + time * repeat.ns)


def _moved(cause: Cause, number: int, shift: Shift) -> Cause:
    """Return the cause of a repeated instruction: instructions before the repeated iterations are further away."""

    def moved(distance: int) -> int:
        return distance + shift.numbers if distance and number - distance < shift.floor else distance

    on, overwrites, reads = moved(cause.on), moved(cause.overwrites), tuple(map(moved, cause.reads))
    if (on, overwrites, reads) == (cause.on, cause.overwrites, cause.reads):
        return cause
    return cause._replace(on=on, overwrites=overwrites, reads=reads)
