"""The critical path of a launch: what its time consists of, from the last result back to the start.

Each link of it follows from the one before: an instruction starts when what it waited for last is over.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ...timing.causes import Waited
from ...timing.event import Note
from .cores import ENGINES, Core, Launch, Model


class Kind(Enum):
    """What the time of a link is spent on."""

    work = "work"
    rows = "moving rows"
    first_byte = "before the first row of a transfer"
    busy_dma = "waiting for DMA engines that move other rows"
    trigger = "between two triggers of a queue"
    result = "until another engine can use a result"
    issue = "between two instructions of an engine"
    table = "loading activation tables"
    meeting = "meetings of the cores"
    descriptors = "descriptors of gathers and scatters"


class Link(NamedTuple):
    """A stretch of the critical path.

    Attributes:
        core: number of the core.
        number: of the instruction that the time is spent on.
        kind: what it is spent on.
        start_ns, end_ns: from when to when.
    """

    core: int
    number: int
    kind: Kind
    start_ns: float
    end_ns: float

    @property
    def duration_ns(self) -> float:
        return self.end_ns - self.start_ns


def critical_path(launch: Launch) -> list[Link]:
    """The links, the first one first: they follow each other without a gap from 0 to the end of the launch."""
    walk = _Walk(launch)
    walk.run()
    return walk.links[::-1]


def finish_ns(note: Note, model: Model) -> float:
    """When others can use what an instruction leaves."""
    _, plan, _, span, *_ = note
    timing = model.generation.timing
    if plan.work is not None:
        return span.end_ns + timing.dma.to_consumer_ns
    return span.end_ns + (timing.result_ns[ENGINES[plan.engine]] if plan.cycles else 0.0)


class _Walk:
    """From the last result back to the start."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._model = launch.model
        self.links: list[Link] = []
        self._core: Core = launch.cores[0]
        self._number = 0
        self._until = 0.0

    def run(self) -> None:
        ends = [
            (finish_ns(note, self._model), core.number, core, note[0])
            for core in self._launch.cores
            for note in core.notes
        ]
        if not ends:
            return
        self._until, _, self._core, self._number = max(ends, key=lambda end: end[0])
        gap = Kind.result
        is_trigger = False  # whether it is the trigger of the transfer that counts, not its end
        while self._number:
            plan = self._core.at(self._number)[1]
            if is_trigger:
                self._add(gap, self._core.at(self._number)[3].start_ns)
            else:
                self._add_own_time(gap)
            waited = self._before_start()
            if waited is Waited.nothing:
                break
            if waited is Waited.meeting:
                self._to_other_core()
                waited = self._core.at(self._number)[3].cause.waited
                if waited in (Waited.nothing, Waited.meeting):
                    break
            self._number -= self._core.at(self._number)[3].cause.on
            plan = self._core.at(self._number)[1]
            is_engine = waited is Waited.engine
            is_trigger = waited is Waited.trigger or (is_engine and plan.work is not None)
            gap = Kind.issue if is_engine else Kind.result
            if is_trigger:
                gap = Kind.descriptors if is_engine else Kind.trigger

    def _add(self, kind: Kind, start_ns: float) -> None:
        """The time from ``start_ns`` on is spent on this, up to where the walk has come."""
        if start_ns < self._until:
            self.links.append(Link(self._core.number, self._number, kind, start_ns, self._until))
            self._until = start_ns

    def _add_own_time(self, gap: Kind) -> None:
        """The time of an instruction that had to be over, and the gap behind it."""
        _, plan, _, span, *_ = self._core.at(self._number)
        self._add(gap, span.end_ns)
        if plan.work is not None:
            first_row = span.start_ns + self._model.fixed_ns(plan)
            self._add(Kind.rows, max(first_row, span.end_ns - plan.work.longest_ns))
            self._add(Kind.busy_dma, first_row)
            self._add(Kind.first_byte, span.start_ns)
        elif span.cause.meets:
            self._add(Kind.meeting, span.end_ns - self._model.barrier_ns)
            if span.cause.waited is not Waited.meeting:
                self._add(Kind.meeting, span.start_ns)
        else:
            self._add(Kind.work, span.start_ns)

    def _before_start(self) -> Waited:
        """What lies between the start of an instruction and what it waited for; returns what that was."""
        _, plan, _, span, *_ = self._core.at(self._number)
        if self._number in self._core.table_loads:
            self._add(Kind.table, self._until - self._model.generation.timing.activation_table_ns)
        if plan.work is not None and plan.work.is_gathered:
            self._add(Kind.descriptors, self._until - self._model.descriptors_ns)
        if plan.work is not None and span.cause.meets:
            self._add(Kind.meeting, self._until - self._model.barrier_ns)
        return span.cause.waited

    def _to_other_core(self) -> None:
        """Go on with the instruction of the other core that came to the same meeting."""
        turn = self._core.meetings.index(self._number)
        other = next(core for core in self._launch.cores if core is not self._core)
        self._core, self._number = other, other.meetings[turn]
