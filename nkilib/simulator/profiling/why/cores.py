# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The input of the analysis of a launch: the notes of its cores, and the assumptions of the model of time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from ...hardware.generation import Generation
from ...memory.lives import LiveRange
from ...terms.enums import Engine
from ...timing.event import Lines, Note
from ...timing.parameters import ModelParameters
from ...timing.plans import Plan
from ...timing.transfers import between_triggers_ns

_NS_PER_US = 1000.0

# The last instructions of a core up to this number are analysed: a longer path only says the same again.
MOST_ANALYSED = 200_000

# The engines by the names that plans have for them.
ENGINES = {engine.name: engine for engine in Engine}


class Model(NamedTuple):
    """The generation of the hardware and the assumptions with which the times of a launch were modelled."""

    generation: Generation
    parameters: ModelParameters

    def trigger_ns(self, queue: str) -> float:
        """Return the time between two triggers of a DMA queue."""
        return between_triggers_ns(queue, self.generation.timing.dma, self.parameters)

    def issue_ns(self, engine: Engine) -> float:
        """Return the pause between two instructions of a compute engine."""
        timing = self.generation.timing
        return 0.0 if engine is Engine.tensor else self.parameters.issue_cycles_of(timing) / timing.clock_ghz[engine]

    @property
    def barrier_ns(self) -> float:
        """The time from the arrival of the last core at a barrier or exchange until both cores go on."""
        return self.parameters.barrier_us * _NS_PER_US

    @property
    def descriptors_ns(self) -> float:
        """The time that GpSimd needs for the descriptors of a gather or a scatter."""
        return self.parameters.indirect_gpsimd_us * _NS_PER_US

    def fixed_ns(self, plan: Plan) -> float:
        """Return the least time from the trigger of a transfer to its first row."""
        if plan.work is not None and plan.work.is_gathered:
            return self.parameters.indirect_base_us * _NS_PER_US
        return self.generation.timing.dma.fixed_ns

    def finish_ns(self, note: Note) -> float:
        """Return the time at which others can use the result of an instruction."""
        _, plan, _, span, *_ = note
        timing = self.generation.timing
        if plan.work is not None:
            return span.end_ns + timing.dma.to_consumer_ns
        return span.end_ns + (timing.result_ns[ENGINES[plan.engine]] if plan.cycles else 0.0)


class Core:
    """One core of a launch, with the instructions that the analysis examines.

    Attributes:
        number: the number of the core.
        is_whole: whether ``notes`` are those of all instructions; else they are the last 200,000.
        notes: the notes of the examined instructions, in program order.
        lives: its on-chip tensors.
        end_ns: the time at which it is done.
    """

    def __init__(self, number: int, notes: Sequence[Note], lives: Sequence[LiveRange], end_ns: float) -> None:
        self.number = number
        first = max(0, len(notes) - MOST_ANALYSED)
        self.is_whole = not first
        self.notes = notes[first:]
        self.lives = lives
        self.end_ns = end_ns
        self._lines = Lines()
        self._places: dict[tuple[int, int], str] = {}
        self._last_done = array("q")

    @cached_property
    def _first(self) -> int:
        """The number of the instruction with the first note."""
        return self.notes[0][0] if self.notes else 0

    @cached_property
    def _positions(self) -> dict[int, int] | None:
        """The position of the note of each instruction, by its number; None if every number has a note."""
        if all(note[0] == position for position, note in enumerate(self.notes, self._first)):
            return None
        return {note[0]: position for position, note in enumerate(self.notes)}

    def at(self, number: int) -> Note:
        """Return the note of the instruction with this number."""
        return self.notes[self.position(number)]

    def has(self, number: int) -> bool:
        """Tell whether the instruction with this number is among the examined ones."""
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
    def meetings(self) -> list[int]:
        """The numbers of the instructions at which the core synchronises with the other core."""
        return [note[0] for note in self.notes if note[3].cause.meets]

    @cached_property
    def table_loads(self) -> frozenset[int]:
        """The numbers of the instructions before which Scalar loads another activation table."""
        loaded: list[int] = []
        table = "" if self.is_whole else None  # unknown
        for number, plan, *_ in self.notes:
            if plan.table and plan.table != table:
                if table is not None:
                    loaded.append(number)
                table = plan.table
        return frozenset(loaded)

    def last_done(self, model: Model) -> Sequence[int]:
        """Return, for each position, the number of the instruction that is done last among those up to there."""
        if not self._last_done:
            latest_ns, latest = -1.0, 0
            for note in self.notes:
                finish = model.finish_ns(note)
                if finish > latest_ns:
                    latest_ns, latest = finish, note[0]
                self._last_done.append(latest)
        return self._last_done

    def position(self, number: int) -> int:
        """Return the position of an instruction's note, by the number of the instruction."""
        return number - self._first if self._positions is None else self._positions[number]

    def life_of(self, storage: int) -> LiveRange | None:
        """Return the on-chip tensor in the storage with this number; None if there is none."""
        return next((life for life in self.lives if life.storage == storage), None)


class Launch(NamedTuple):
    """The notes of a launch.

    Attributes:
        cores: the cores with their notes.
        model: the hardware and assumptions that the times come from.
        stored_by_every_core: the tensors that all cores store, if they do the same work; see :mod:`..division`.
    """

    cores: Sequence[Core]
    model: Model
    stored_by_every_core: Sequence[str] = ()
