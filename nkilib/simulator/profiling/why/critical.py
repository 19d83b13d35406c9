# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The critical path of a launch: the stretches of time that add up to it, from the last result back to the start.

Each stretch is a link. The one before it is found by the cause of an instruction's start time: the last thing that it
waited for.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import NamedTuple

from ...timing.causes import Waited
from .cores import Core, Launch


class Kind(Enum):
    """The kinds of links of a critical path, by the use of their time."""

    work = "work"
    rows = "moving rows"
    first_byte = "before the first row of a transfer"
    busy_dma = "waiting for DMA engines that move other rows"
    trigger = "between two triggers of a queue"
    result = "until another engine can use a result"
    issue = "between two instructions of an engine"
    table = "loading activation tables"
    meeting = "meetings of the cores"
    loop = "loops of the device"
    descriptors = "descriptors of gathers and scatters"


class Link(NamedTuple):
    """A stretch of time on the critical path.

    Attributes:
        core: the number of the core.
        number: the number of the instruction that the time is spent on.
        kind: the use of the time.
        start_ns, end_ns: the start and the end of the stretch.
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
    """Return the links of the critical path in the order of time, without gaps up to the end of the launch.

    They start at 0, unless the launch is so long that only its last instructions are analysed.
    """
    walk = _Walk(launch)
    walk.run()
    return walk.links[::-1]


class _Walk:
    """The walk along the critical path, from the last result back to the start of the launch."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._model = launch.model
        self.links: list[Link] = []
        self._core: Core = launch.cores[0]
        self._number = 0
        self._until = 0.0

    def run(self) -> None:
        self._core = max(self._launch.cores, key=lambda core: core.end_ns)
        if not self._core.notes:
            return
        self._until = self._core.end_ns
        self._to_last_done(len(self._core.notes) - 1)
        gap = Kind.result
        is_trigger = False  # whether the trigger of the transfer matters, not its end
        while self._number:
            plan = self._core.at(self._number)[1]
            if is_trigger:
                self._add(gap, self._core.at(self._number)[3].start_ns)
            else:
                self._add_own_time(gap)
            waited = self._before_start()
            if waited is Waited.nothing:
                break
            if waited is Waited.loop:
                position = self._core.position(self._number)
                if not position:
                    self._add(Kind.loop, 0.0)
                    break
                self._to_last_done(position - 1)
                gap, is_trigger = Kind.result, False
                continue
            if waited is Waited.meeting:
                if not self._to_other_core():
                    break
                waited = self._core.at(self._number)[3].cause.waited
                if waited in (Waited.nothing, Waited.meeting):
                    break
            self._number -= self._core.at(self._number)[3].cause.on
            if not self._core.has(self._number):
                break
            plan = self._core.at(self._number)[1]
            is_engine = waited is Waited.engine
            is_trigger = waited is Waited.trigger or (is_engine and plan.work is not None)
            gap = Kind.issue if is_engine else Kind.result
            if is_trigger:
                gap = Kind.descriptors if is_engine else Kind.trigger

    def _add(self, kind: Kind, start_ns: float) -> None:
        """Add a link of a kind from ``start_ns`` up to the point that the walk has reached."""
        if start_ns < self._until:
            self.links.append(Link(self._core.number, self._number, kind, start_ns, self._until))
            self._until = start_ns

    def _add_own_time(self, gap: Kind) -> None:
        """Add the time of the present instruction, for whose end the next one waited, and the gap between them."""
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
        """Add the time between the end of what the instruction waited for and its start, and return the cause."""
        _, plan, _, span, *_ = self._core.at(self._number)
        if self._number in self._core.table_loads:
            self._add(Kind.table, self._until - self._model.generation.timing.activation_table_ns)
        if plan.work is not None and plan.work.is_gathered:
            self._add(Kind.descriptors, self._until - self._model.descriptors_ns)
        if plan.work is not None and span.cause.meets:
            self._add(Kind.meeting, self._until - self._model.barrier_ns)
        return span.cause.waited

    def _to_last_done(self, position: int) -> None:
        """Continue with the instruction up to a position that is done last; the time after it is spent on a loop."""
        self._number = self._core.last_done(self._model)[position]
        self._add(Kind.loop, self._model.finish_ns(self._core.at(self._number)))

    def _to_other_core(self) -> bool:
        """Continue with the instruction of the other core at the same barrier or exchange, if it is known."""
        other = next(core for core in self._launch.cores if core is not self._core)
        # Counted from the end, which the notes of both cores contain.
        later = len(self._core.meetings) - bisect_left(self._core.meetings, self._number)
        if later > len(other.meetings):
            return False
        self._core, self._number = other, other.meetings[-later]
        return True
