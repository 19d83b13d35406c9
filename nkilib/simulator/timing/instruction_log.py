# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The log of the instructions of a core: a note of each, kept in little memory, and events made from the notes.

:class:`InstructionLog` keeps a note (:data:`Note`) of each instruction; :func:`events_of` makes an :class:`Event` of
each note. :class:`Lines` finds the lines of the kernel.

If iterations of a loop only repeat earlier iterations, the simulator does not *run* them, and the log has no entries
for their instructions. A :class:`Repeat` names the earlier instructions, from which the log makes the missing notes on
request. The *position* of an instruction counts the instructions that were run, from 0; its *number* counts all
instructions of its core, from 1.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, starmap
from types import CodeType
from typing import NamedTuple, overload

from .instruction import InstructionKind
from .parameters import NS_PER_US
from .timeline import Cause, Span

# The note of an instruction while the kernel runs, at a fraction of the cost of an event: its number, its kind, its
# label, the start and end of its engine's work in nanoseconds with the cause, and the position in the kernel's code.
Note = tuple[int, InstructionKind, str | None, Span, CodeType | None, int]


class Event(NamedTuple):
    """One instruction on the timeline.

    Attributes:
        core: the number of the core.
        engine: the name of the engine: tensor, vector, scalar, gpsimd, dma or sync.
        name: the name of the instruction, without ``nisa.``.
        label: the argument ``name=`` of the call, or empty.
        operands: by parameter name, a pair (shape, name of the type) for each tensor.
        cycles: the cycles that its engine spends on it; 0 for a transfer.
        start_us: the time when its engine starts it; for a transfer, when its queue triggers it.
        end_us: the time when its engine has finished it; for a transfer, when its last byte is moved.
        place: ``file:line`` in the kernel.
        number: the number of the instruction on its core, from 1.
        waited: the last thing that it waited for: nothing, engine (busy with other instructions), data, reuse (an
            earlier access to the memory that it overwrites), trigger (earlier transfers of its queue), meeting (the
            other core, at a barrier or exchange) or loop (the engines synchronise at a device loop).
        waited_for: the number of the instruction that delayed it; 0 if none did.
        queue: for a transfer, the queue that triggers it.
        nbytes: for a transfer, the bytes that it moves.
        row_bytes: for a transfer, the average bytes of a row; 0 if it is not moved row by row.
        dropped_by: the pass that models that the device does not run it, so that it takes no time; empty if it runs.
    """

    core: int
    engine: str
    name: str
    label: str
    operands: dict[str, tuple[tuple[int, ...], str]]
    cycles: float
    start_us: float
    end_us: float
    place: str
    number: int
    waited: str = ""
    waited_for: int = 0
    queue: str = ""
    nbytes: int = 0
    row_bytes: float = 0.0
    dropped_by: str = ""


def _lines_of(code: CodeType) -> dict[int, int]:
    # One pass over all offsets is faster than one look-up at a time.
    return {at: line or 0 for start, end, line in code.co_lines() for at in range(start, end, 2)}


class Lines:
    """A cache of the source lines of the kernel's code, by code object and bytecode offset."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, int]] = {}  # by the id of a code object, which the notes keep alive

    def place(self, code: CodeType | None, position: int) -> str:
        """Return ``file:line`` of the bytecode offset ``position`` in ``code``, the code object of the kernel."""
        if code is None:
            return "<unknown>"
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = _lines_of(code)
        return f"{code.co_filename}:{known[position]}"


def events_of(core: int, notes: Iterable[Note]) -> Iterator[Event]:
    """Yield an event for each of the notes of core number ``core``."""
    lines = Lines()
    for number, kind, label, (start, end, cause), code, position in notes:
        work = kind.work
        yield Event(
            core,
            kind.engine,
            kind.name,
            label or "",
            dict(kind.operands),
            kind.cycles,
            start / NS_PER_US,
            end / NS_PER_US,
            lines.place(code, position),
            number,
            cause.waited.name,
            number - cause.on if cause.on else 0,
            kind.queue,
            0 if work is None else work.nbytes,
            0.0 if work is None else work.row_bytes,
            kind.dropped_by,
        )


class Site(NamedTuple):
    """A call in the kernel's code, the kind of the instructions that it issues, and their label."""

    kind: InstructionKind
    label: str | None
    code: CodeType | None
    position: int


class Shift(NamedTuple):
    """The difference between an instruction that was run and one of its repetitions, which was not.

    Attributes:
        ns: the difference of their times, in nanoseconds.
        numbers: the difference of their instruction numbers.
        floor: the lowest number of an instruction that is repeated too. If the run instruction has waited for one with
            a lower number, its repetitions wait for that same instruction.
    """

    ns: float = 0.0
    numbers: int = 0
    floor: int = 0


@dataclass(frozen=True)
class Repeat:
    """A stretch of instructions that were run, and its repetitions, which were not.

    Attributes:
        first: the position of the first instruction of the stretch.
        end: the position after its last instruction.
        times: the number of repetitions, without the stretch itself.
        ns: the time from one repetition to the next, in nanoseconds.
        numbers: the number of instructions in one repetition.
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
        """The number of notes of each repetition, including the notes that inner repeats add."""
        return self.end - self.first + self.added_inside

    @property
    def added_inside(self) -> int:
        """The number of notes that the inner repeats add to the stretch, and to each of its repetitions."""
        return sum(repeat.added for repeat in self.inner)

    @property
    def added(self) -> int:
        """The number of notes that the repeat adds: one for each instruction that was not run."""
        return self.added_inside + self.times * self.period


def _again(repeats: Sequence[Repeat], begin: int, end: int, later: float) -> Iterator[float]:
    for repeat in repeats:
        if repeat.first <= begin and end < repeat.end:
            yield from _again(repeat.inner, begin, end, later)
            for time in range(1, repeat.times + 1):
                yield later + time * repeat.ns
                yield from _again(repeat.inner, begin, end, later + time * repeat.ns)


def _moved(cause: Cause, number: int, shift: Shift) -> Cause:
    """Return the cause of the start of a repetition.

    It is ``cause`` with longer distances (see :class:`.timeline.Cause`) to instructions that are not repeated, which
    have numbers below ``shift.floor``: the distance to such an instruction grows by ``shift.numbers``.

    Args:
        cause: the cause of the start of the instruction that was run.
        number: the number of the instruction that was run.
        shift: the difference between that instruction and the repetition.
    """

    def moved(distance: int) -> int:
        return distance + shift.numbers if distance and number - distance < shift.floor else distance

    on, overwrites, reads = moved(cause.on), moved(cause.overwrites), tuple(map(moved, cause.reads))
    if (on, overwrites, reads) == (cause.on, cause.overwrites, cause.reads):
        return cause
    return cause._replace(on=on, overwrites=overwrites, reads=reads)


class InstructionLog(Sequence[Note]):
    """The notes of all instructions of a core, in program order. Notes of repetitions are made on request."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._site = array("I")
        self._starts = array("d")
        self._ends = array("d")
        self._cause = array("I")
        self._sites: list[Site] = []
        self._site_of: dict[tuple[int, str | None, int, int], int] = {}
        self._causes: list[Cause] = []
        self._cause_of: dict[int, int] = {}  # by the id of a cause, of which there is one object
        self._repeats: list[Repeat] = []

    def add(
        self, number: int, kind: InstructionKind, label: str | None, span: Span, code: CodeType | None, position: int
    ) -> None:
        """Add the note of the instruction that was issued next; the arguments are the items of the note."""
        key = id(kind), label, id(code), position
        site = self._site_of.get(key)
        if site is None:
            site = self._site_of[key] = len(self._sites)
            self._sites.append(Site(kind, label, code, position))
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
        """The number of instructions that were run, not counting repetitions."""
        return len(self._numbers)

    @property
    def repeats(self) -> Sequence[Repeat]:
        """The repeats that lie within no other repeat; ``Repeat.inner`` has the others."""
        return self._repeats

    def number(self, position: int) -> int:
        """Return the number of the instruction at ``position``."""
        return self._numbers[position]

    def sites(self, first: int, end: int) -> array[int]:
        """Return the indices of the sites (:class:`Site`) of the instructions at positions ``first`` to ``end - 1``."""
        return self._site[first:end]

    def times(self, first: int, end: int) -> array[float]:
        """Return all start times of the instructions at positions ``first`` to ``end - 1``, then all end times (ns)."""
        return self._starts[first:end] + self._ends[first:end]

    def repeats_in(self, first: int) -> tuple[Repeat, ...]:
        """Return the outermost repeats that begin at position ``first`` or after it."""
        return tuple(repeat for repeat in self._repeats if repeat.first >= first)

    def repeat(self, first: int, times: int, ns: float, numbers: int) -> None:
        """Record that all instructions from position ``first`` on are repeated.

        Args:
            first: the position of the first instruction to repeat.
            times: the number of repetitions.
            ns: the time from one repetition to the next, in nanoseconds.
            numbers: the number of instructions in one repetition.
        """
        inner = self.repeats_in(first)
        del self._repeats[len(self._repeats) - len(inner) :]
        self._repeats.append(Repeat(first, self.run, times, ns, numbers, inner))

    def span_of(self, number: int) -> Span:
        """Return the start, end and cause of the instruction ``number``, which must have been run."""
        return self._note(bisect_left(self._numbers, number), Shift())[3]

    def kinds(self) -> Iterator[tuple[InstructionKind, int]]:
        """Return pairs (kind, number of its instructions), repetitions included; a kind may occur several times."""
        return ((site.kind, count) for site, count in self.site_counts())

    def site_counts(self) -> Iterator[tuple[Site, int]]:
        """Return pairs (site, number of its instructions), repetitions included."""
        counts: Counter[int] = Counter()
        self._count(counts, 0, self.run, self._repeats, 1)
        return ((self._sites[site], count) for site, count in counts.items())

    def _count(self, counts: Counter[int], first: int, end: int, repeats: Sequence[Repeat], times: int) -> None:
        for repeat in repeats:
            self._count(counts, first, repeat.end, repeat.inner, times)
            self._count(counts, repeat.first, repeat.end, repeat.inner, times * repeat.times)
            first = repeat.end
        for site, count in Counter(self._site[first:end]).items():
            counts[site] += times * count

    def again(self, first: int, last: int) -> Iterator[float]:
        """Yield, for each repetition of the run instructions ``first`` to ``last``, how many ns after them it comes.

        ``first`` and ``last`` are instruction numbers.
        """
        begin, end = (bisect_left(self._numbers, number) for number in (first, last))
        return _again(self._repeats, begin, end, 0.0)

    def __len__(self) -> int:
        return self.run + sum(repeat.added for repeat in self._repeats)

    def __iter__(self) -> Iterator[Note]:
        return starmap(self._note, self._between(0, self.run, self._repeats, Shift()))

    def run_positions(self) -> Iterator[tuple[int, Shift, int, Site]]:
        """Yield a tuple (position, shift, number, site) for each note, in program order.

        The position is that of the instruction that was run; the shift leads from it to the repetition.
        """
        for position, shift in self._between(0, self.run, self._repeats, Shift()):
            yield position, shift, self._numbers[position] + shift.numbers, self._sites[self._site[position]]

    @overload
    def __getitem__(self, at: int) -> Note: ...

    @overload
    def __getitem__(self, at: slice) -> list[Note]: ...

    def __getitem__(self, at: int | slice) -> Note | list[Note]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                positions = self._between(0, self.run, self._repeats, Shift(), start)
                return list(starmap(self._note, islice(positions, max(0, stop - start))))
            return [self[index] for index in range(start, stop, step)]
        count = len(self)
        position = at + count if at < 0 else at
        if not 0 <= position < count:
            raise IndexError(f"note {at} of {count}")
        return self._found(0, self._repeats, position, Shift())

    def _between(
        self, first: int, end: int, repeats: Sequence[Repeat], shift: Shift, skip: int = 0
    ) -> Iterator[tuple[int, Shift]]:
        """Yield a pair (position, shift), as in :meth:`run_positions`, for each note of some run instructions and of
        their repetitions.

        Args:
            first: the position of the first of these instructions.
            end: the position after the last one.
            repeats: the repeats among these instructions.
            shift: the shift from outer repeats, which applies to all of these notes.
            skip: the number of notes to leave out at the beginning.
        """
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
            yield position, shift

    def _found(self, first: int, repeats: Sequence[Repeat], position: int, shift: Shift) -> Note:
        """Return the note that is ``position`` notes after the note of the instruction at position ``first``.

        Args:
            first: the position of an instruction that was run.
            repeats: the repeats after ``first``, whose notes are counted.
            position: the number of notes to go forward.
            shift: the shift from outer repeats, which applies to all of these notes.
        """
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
        kind, label, code, at = self._sites[self._site[position]]
        number, cause = self._numbers[position], self._causes[self._cause[position]]
        if shift.numbers:
            cause = _moved(cause, number, shift)
        span = Span(self._starts[position] + shift.ns, self._ends[position] + shift.ns, cause)
        return number + shift.numbers, kind, label, span, code, at
