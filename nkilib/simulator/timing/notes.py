# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The notes of a core, one for each instruction, in little memory; those of repeated iterations are made when asked."""

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
    """What instructions have in common that a line of the kernel issues again and again."""

    plan: Plan
    label: str | None
    code: CodeType | None
    position: int


class Shift(NamedTuple):
    """How far a repeated instruction is from the one that was run.

    Attributes:
        ns: in time.
        numbers: in instructions.
        floor: what is before this number is not repeated.
    """

    ns: float = 0.0
    numbers: int = 0
    floor: int = 0


@dataclass(frozen=True)
class Repeat:
    """Instructions that follow once more, several times, without having been run.

    Attributes:
        first, end: the positions of those that were run.
        times: how often they follow.
        ns: from one time to the next.
        numbers: how many instructions that is.
        inner: the repeats among them.
    """

    first: int
    end: int
    times: int
    ns: float
    numbers: int
    inner: tuple[Repeat, ...] = ()

    @property
    def period(self) -> int:
        """How many notes each time has."""
        return self.end - self.first + self.added_inside

    @property
    def added_inside(self) -> int:
        """How many notes the repeats among them add."""
        return sum(each.added for each in self.inner)

    @property
    def added(self) -> int:
        """How many notes it adds, besides those that were run."""
        return self.added_inside + self.times * self.period


class Notes(Sequence[Note]):
    """The notes of a core, in program order."""

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
        """The next instruction; the parameters are those of a note."""
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
        """How many there are of instructions that were run."""
        return len(self._numbers)

    @property
    def repeats(self) -> Sequence[Repeat]:
        """What was repeated, without the repeats within others."""
        return self._repeats

    def number(self, position: int) -> int:
        """The number of an instruction that was run, by its position among these."""
        return self._numbers[position]

    def sites(self, first: int, end: int) -> array[int]:
        """What the instructions were that were run: equal numbers for equal ones."""
        return self._site[first:end]

    def times(self, first: int, end: int) -> array[float]:
        """When those that were run have started, and then when each has ended."""
        return self._starts[first:end] + self._ends[first:end]

    def repeats_in(self, first: int) -> tuple[Repeat, ...]:
        """The repeats of what was run from a position on."""
        return tuple(each for each in self._repeats if each.first >= first)

    def repeat(self, first: int, times: int, ns: float, numbers: int) -> None:
        """What was run from a position on follows several times more."""
        inner = self.repeats_in(first)
        del self._repeats[len(self._repeats) - len(inner) :]
        self._repeats.append(Repeat(first, self.run, times, ns, numbers, inner))

    def span_of(self, number: int) -> Span:
        """When an instruction that was run has started and ended."""
        return self._note(bisect_left(self._numbers, number), Shift())[3]

    def plans(self) -> Iterator[tuple[Plan, int]]:
        """What instructions there are, and how many of each; a plan may come several times."""
        counts: Counter[int] = Counter()
        self._count(counts, 0, self.run, self._repeats, 1)
        return ((self._sites[site].plan, count) for site, count in counts.items())

    def _count(self, counts: Counter[int], first: int, end: int, repeats: Sequence[Repeat], times: int) -> None:
        for each in repeats:
            self._count(counts, first, each.end, each.inner, times)
            self._count(counts, each.first, each.end, each.inner, times * each.times)
            first = each.end
        for site, count in Counter(self._site[first:end]).items():
            counts[site] += times * count

    def again(self, first: int, last: int) -> Iterator[float]:
        """How much later that happens again, each time, which two instructions begin and end that were run."""
        begin, end = (bisect_left(self._numbers, number) for number in (first, last))
        return _again(self._repeats, begin, end, 0.0)

    def __len__(self) -> int:
        return self.run + sum(each.added for each in self._repeats)

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
            return [self[each] for each in range(start, stop, step)]
        count = len(self)
        position = at + count if at < 0 else at
        if not 0 <= position < count:
            raise IndexError(f"note {at} of {count}")
        return self._found(0, self._repeats, position, Shift())

    def _between(self, first: int, end: int, repeats: Sequence[Repeat], shift: Shift, skip: int = 0) -> Iterator[Note]:
        """The notes between two positions with what is repeated there, but for the first ``skip`` ones."""
        for each in repeats:
            inside = each.end - first + each.added_inside
            if skip < inside:
                yield from self._between(first, each.end, each.inner, shift, skip)
            skip = max(0, skip - inside)
            first = each.end
            skipped = min(each.times, skip // each.period)
            skip -= skipped * each.period
            for time in range(1 + skipped, 1 + each.times):
                yield from self._between(each.first, each.end, each.inner, self._shift(each, time, shift), skip)
                skip = 0
        for position in range(first + skip, end):
            yield self._note(position, shift)

    def _found(self, first: int, repeats: Sequence[Repeat], position: int, shift: Shift) -> Note:
        """The note at a position behind ``first``."""
        # How many notes there are up to the end of each repeat, with all that it adds.
        added = list(accumulate(each.added for each in repeats))
        ends = [each.end - first + before for each, before in zip(repeats, added, strict=True)]
        before = bisect_right(ends, position)
        if before:
            first, position = repeats[before - 1].end, position - ends[before - 1]
        if before == len(repeats):
            return self._note(first + position, shift)
        each = repeats[before]
        inside = each.end - first + each.added_inside
        if position < inside:
            return self._found(first, each.inner, position, shift)
        time, within = divmod(position - inside, each.period)
        return self._found(each.first, each.inner, within, self._shift(each, time + 1, shift))

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
    for each in repeats:
        if each.first <= begin and end < each.end:
            yield from _again(each.inner, begin, end, later)
            for time in range(1, each.times + 1):
                yield later + time * each.ns
                yield from _again(each.inner, begin, end, later + time * each.ns)


def _moved(cause: Cause, number: int, shift: Shift) -> Cause:
    """The cause of a repeated instruction: what is before all iterations is further away from it."""

    def moved(distance: int) -> int:
        return distance + shift.numbers if distance and number - distance < shift.floor else distance

    on, overwrites, reads = moved(cause.on), moved(cause.overwrites), tuple(moved(each) for each in cause.reads)
    if (on, overwrites, reads) == (cause.on, cause.overwrites, cause.reads):
        return cause
    return cause._replace(on=on, overwrites=overwrites, reads=reads)
