# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The critical path of a launch: the stretches of time that add up to it, from the last result back to the start.

- :func:`critical_path`: the path, a list of :class:`Link`, one for each stretch. It is followed backwards: the link
  before an instruction's link is that of the last thing that the instruction waited for;
- :class:`AnalysedLaunch`, :class:`AnalysedCore`: the instructions that the analysis examines;
- :class:`TimeModel`: the assumptions of the performance model.

A *note* is the record of one instruction in the log of its core (:data:`.instruction_log.Note`). The *number* of an
instruction counts the instructions of its core, from 1; its *position* is the index of its note.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ...hardware.generations import Generation
from ...memory.capacity import LiveRange
from ...terms.enums import Engine
from ...timing.dma import between_triggers_ns
from ...timing.instruction import InstructionKind
from ...timing.instruction_log import InstructionLog, Lines, Note
from ...timing.parameters import NS_PER_US, ModelParameters
from ...timing.recording import CoreProgram, Recording
from ...timing.timeline import Waited

# The last instructions of a core up to this number are analysed: a longer path only says the same again.
MOST_ANALYSED = 200_000

# The engines by the names that kinds of instructions have for them.
ENGINES = {engine.name: engine for engine in Engine}


class TimeModel(NamedTuple):
    """The generation of the hardware and the assumptions with which the times of a launch were modelled."""

    generation: Generation
    parameters: ModelParameters

    def trigger_ns(self, queue: str) -> float:
        """Return the time between two triggers of a DMA queue, in nanoseconds."""
        return between_triggers_ns(queue, self.generation.timing.dma, self.parameters)

    def issue_ns(self, engine: Engine) -> float:
        """Return the pause between two instructions of a compute engine, in nanoseconds."""
        timing = self.generation.timing
        return 0.0 if engine is Engine.tensor else self.parameters.issue_cycles_of(timing) / timing.clock_ghz[engine]

    @property
    def barrier_ns(self) -> float:
        """The time from the arrival of the last core at a barrier or exchange until both cores continue."""
        return self.parameters.barrier_us * NS_PER_US

    @property
    def descriptors_ns(self) -> float:
        """The time that GpSimd needs for the descriptors of a gather or a scatter."""
        return self.parameters.indirect_gpsimd_us * NS_PER_US

    def fixed_ns(self, kind: InstructionKind) -> float:
        """Return the least time from the trigger of a transfer to its first row, in nanoseconds."""
        if kind.work is not None and kind.work.is_gathered:
            return self.parameters.indirect_base_us * NS_PER_US
        return self.generation.timing.dma.fixed_ns

    def finish_ns(self, note: Note) -> float:
        """Return the time at which other engines can use the result of the instruction with this note."""
        _, kind, _, span, *_ = note
        timing = self.generation.timing
        if kind.work is not None:
            return span.end_ns + timing.dma.to_consumer_ns
        return span.end_ns + (timing.result_ns[ENGINES[kind.engine]] if kind.cycles else 0.0)


class AnalysedCore:
    """One core of a launch, with the instructions that the analysis examines.

    Attributes:
        number: the number of the core.
        is_whole: whether ``notes`` has all instructions; False if it has only the last 200,000.
        notes: the notes of the examined instructions, in program order.
        lives: its on-chip tensors.
        end_ns: the time at which the core has finished.
    """

    def __init__(
        self, number: int, log: InstructionLog, lives: Sequence[LiveRange], end_ns: float, recording: Recording
    ) -> None:
        self.number = number
        self._log = log
        self._recording = recording
        first = max(0, len(log) - MOST_ANALYSED)
        self.is_whole = not first
        self.notes = log[first:]
        self.lives = lives
        self.end_ns = end_ns
        self._lines = Lines()
        self._places: dict[tuple[int, int], str] = {}
        self._last_done = array("q")

    @cached_property
    def _first(self) -> int:
        return self.notes[0][0] if self.notes else 0

    @cached_property
    def _positions(self) -> dict[int, int] | None:
        # By number; None if the numbers have no gaps, so that positions follow from them.
        if all(note[0] == position for position, note in enumerate(self.notes, self._first)):
            return None
        return {note[0]: position for position, note in enumerate(self.notes)}

    def at(self, number: int) -> Note:
        """Return the note of the instruction with this number."""
        return self.notes[self.position(number)]

    def has(self, number: int) -> bool:
        """Return whether the instruction with this number is among the examined ones."""
        return number >= self._first

    def place(self, number: int) -> str:
        """Return ``file:line`` of an instruction in the kernel."""
        *_, code, position = self.at(number)
        key = id(code), position
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._lines.place(code, position)
        return place

    @cached_property
    def program(self) -> CoreProgram:
        """The recorded instructions, to be timed again; empty if there were too many to record."""
        return CoreProgram(self._recording.program(self._log), self._recording.storages)

    @cached_property
    def meetings(self) -> list[int]:
        """The numbers of the instructions at which the core synchronises with the other core."""
        return [note[0] for note in self.notes if note[3].cause.meets]

    @cached_property
    def table_loads(self) -> frozenset[int]:
        """The numbers of the instructions before which Scalar loads another activation table."""
        loaded: list[int] = []
        table = "" if self.is_whole else None  # unknown
        for number, kind, *_ in self.notes:
            if kind.table and kind.table != table:
                if table is not None:
                    loaded.append(number)
                table = kind.table
        return frozenset(loaded)

    def last_done(self, model: TimeModel) -> Sequence[int]:
        """Return, for each position, the number of the instruction that finishes last among those up to this
        position.
        """
        if not self._last_done:
            latest_ns, latest = -1.0, 0
            for note in self.notes:
                finish = model.finish_ns(note)
                if finish > latest_ns:
                    latest_ns, latest = finish, note[0]
                self._last_done.append(latest)
        return self._last_done

    def position(self, number: int) -> int:
        """Return the position of the instruction with this number."""
        return number - self._first if self._positions is None else self._positions[number]


class AnalysedLaunch(NamedTuple):
    """The examined instructions of a launch.

    Attributes:
        cores: the cores with their notes.
        model: the hardware and the assumptions with which the times were modelled.
        stored_by_every_core: the tensors that all cores store, if they do the same work; see :mod:`.facts`.
    """

    cores: Sequence[AnalysedCore]
    model: TimeModel
    stored_by_every_core: Sequence[str] = ()


class LinkKind(Enum):
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
        number: the number of the instruction on which the time is spent.
        kind: the use of the time.
        start_ns: the start of the stretch.
        end_ns: the end of the stretch.
    """

    core: int
    number: int
    kind: LinkKind
    start_ns: float
    end_ns: float

    @property
    def duration_ns(self) -> float:
        return self.end_ns - self.start_ns


class _Walk:
    """The search for the critical path, from the last result back to the start of the launch."""

    def __init__(self, launch: AnalysedLaunch) -> None:
        self._launch = launch
        self._model = launch.model
        self.links: list[Link] = []
        self._core: AnalysedCore = launch.cores[0]
        self._number = 0
        self._until = 0.0

    def run(self) -> None:
        self._core = max(self._launch.cores, key=lambda core: core.end_ns)
        if not self._core.notes:
            return
        self._until = self._core.end_ns
        self._to_last_done(len(self._core.notes) - 1)
        gap = LinkKind.result
        is_trigger = False  # whether the trigger of the transfer matters, not its end
        while self._number:
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
                    self._add(LinkKind.loop, 0.0)
                    break
                self._to_last_done(position - 1)
                gap, is_trigger = LinkKind.result, False
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
            kind = self._core.at(self._number)[1]
            is_engine = waited is Waited.engine
            is_trigger = waited is Waited.trigger or (is_engine and kind.work is not None)
            gap = LinkKind.issue if is_engine else LinkKind.result
            if is_trigger:
                gap = LinkKind.descriptors if is_engine else LinkKind.trigger

    def _add(self, use: LinkKind, start_ns: float) -> None:
        # The link ends at the earliest time that the path has reached so far.
        if start_ns < self._until:
            self.links.append(Link(self._core.number, self._number, use, start_ns, self._until))
            self._until = start_ns

    def _add_own_time(self, gap: LinkKind) -> None:
        # The next instruction on the path waited for the end of this one; the time in between is a link of kind
        # ``gap``.
        _, kind, _, span, *_ = self._core.at(self._number)
        self._add(gap, span.end_ns)
        if kind.work is not None:
            first_row = span.start_ns + self._model.fixed_ns(kind)
            self._add(LinkKind.rows, max(first_row, span.end_ns - kind.work.longest_ns))
            self._add(LinkKind.busy_dma, first_row)
            self._add(LinkKind.first_byte, span.start_ns)
        elif span.cause.meets:
            self._add(LinkKind.meeting, span.end_ns - self._model.barrier_ns)
            if span.cause.waited is not Waited.meeting:
                self._add(LinkKind.meeting, span.start_ns)
        else:
            self._add(LinkKind.work, span.start_ns)

    def _before_start(self) -> Waited:
        # Adds other delays of the instruction, such as the load of an activation table, and returns what it waited for.
        _, kind, _, span, *_ = self._core.at(self._number)
        if self._number in self._core.table_loads:
            self._add(LinkKind.table, self._until - self._model.generation.timing.activation_table_ns)
        if kind.work is not None and kind.work.is_gathered:
            self._add(LinkKind.descriptors, self._until - self._model.descriptors_ns)
        if kind.work is not None and span.cause.meets:
            self._add(LinkKind.meeting, self._until - self._model.barrier_ns)
        return span.cause.waited

    def _to_last_done(self, position: int) -> None:
        # The path continues with the instruction up to ``position`` that finishes last; the time after its end is the
        # loop's.
        self._number = self._core.last_done(self._model)[position]
        self._add(LinkKind.loop, self._model.finish_ns(self._core.at(self._number)))

    def _to_other_core(self) -> bool:
        # The path continues with the other core's instruction at the same barrier or exchange; False if its note is not
        # known.
        other = next(core for core in self._launch.cores if core is not self._core)
        # Counted from the end, which the notes of both cores contain.
        later = len(self._core.meetings) - bisect_left(self._core.meetings, self._number)
        if later > len(other.meetings):
            return False
        self._core, self._number = other, other.meetings[-later]
        return True


def critical_path(launch: AnalysedLaunch) -> list[Link]:
    """Return the links of the critical path in the order of time, without gaps up to the end of the launch.

    The first link starts at 0, unless the launch is so long that only its last instructions are analysed.
    """
    walk = _Walk(launch)
    walk.run()
    return walk.links[::-1]
