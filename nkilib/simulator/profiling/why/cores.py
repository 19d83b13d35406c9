# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the analysis knows of a launch: the notes of its cores, and what the model of time assumed."""

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

# So many instructions of a core are looked at, the last ones: a path of more of them says the same again.
MOST_ANALYSED = 200_000

# The engines by the names that plans have for them.
ENGINES = {engine.name: engine for engine in Engine}


class Model(NamedTuple):
    """What the times come from."""

    generation: Generation
    parameters: ModelParameters

    def trigger_ns(self, queue: str) -> float:
        """From one trigger of a DMA queue to the next."""
        return between_triggers_ns(queue, self.generation.timing.dma, self.parameters)

    def issue_ns(self, engine: Engine) -> float:
        """Between two instructions of an engine that computes."""
        timing = self.generation.timing
        return 0.0 if engine is Engine.tensor else self.parameters.issue_cycles_of(timing) / timing.clock_ghz[engine]

    @property
    def barrier_ns(self) -> float:
        """From when the last core comes to a meeting until both go on."""
        return self.parameters.barrier_us * _NS_PER_US

    @property
    def descriptors_ns(self) -> float:
        """What GpSimd needs for the descriptors of a gather or a scatter."""
        return self.parameters.indirect_gpsimd_us * _NS_PER_US

    def fixed_ns(self, plan: Plan) -> float:
        """What a transfer takes before its rows."""
        if plan.work is not None and plan.work.is_gathered:
            return self.parameters.indirect_base_us * _NS_PER_US
        return self.generation.timing.dma.fixed_ns

    def finish_ns(self, note: Note) -> float:
        """When others can use what an instruction leaves."""
        _, plan, _, span, *_ = note
        timing = self.generation.timing
        if plan.work is not None:
            return span.end_ns + timing.dma.to_consumer_ns
        return span.end_ns + (timing.result_ns[ENGINES[plan.engine]] if plan.cycles else 0.0)


class Core:
    """One core of a launch.

    Attributes:
        number: of the core.
        is_whole: whether ``notes`` are all; else they are the last ones.
        notes: its instructions, in program order.
        lives: its on-chip tensors.
        end_ns: when it is done.
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
        """The number of the first note."""
        return self.notes[0][0] if self.notes else 0

    @cached_property
    def _positions(self) -> dict[int, int] | None:
        """Where the note of an instruction is, if not every instruction left one."""
        if all(note[0] == position for position, note in enumerate(self.notes, self._first)):
            return None
        return {note[0]: position for position, note in enumerate(self.notes)}

    def at(self, number: int) -> Note:
        """The note of an instruction."""
        return self.notes[self.position(number)]

    def has(self, number: int) -> bool:
        """Whether the note of an instruction is among those that are looked at."""
        return number >= self._first

    def place(self, number: int) -> str:
        """``file:line`` of an instruction in the kernel."""
        *_, code, position = self.at(number)
        key = id(code), position
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._lines.place(code, position)
        return place

    @cached_property
    def meetings(self) -> list[int]:
        """The instructions that are meetings with the other core."""
        return [note[0] for note in self.notes if note[3].cause.meets]

    @cached_property
    def table_loads(self) -> frozenset[int]:
        """The instructions for which Scalar loads another activation table."""
        loaded: list[int] = []
        table = "" if self.is_whole else None  # of which nothing is known
        for number, plan, *_ in self.notes:
            if plan.table and plan.table != table:
                if table is not None:
                    loaded.append(number)
                table = plan.table
        return frozenset(loaded)

    def last_done(self, model: Model) -> Sequence[int]:
        """By position, which instruction up to there is done last."""
        if not self._last_done:
            latest_ns, latest = -1.0, 0
            for note in self.notes:
                finish = model.finish_ns(note)
                if finish > latest_ns:
                    latest_ns, latest = finish, note[0]
                self._last_done.append(latest)
        return self._last_done

    def position(self, number: int) -> int:
        """Where the note of an instruction is."""
        return number - self._first if self._positions is None else self._positions[number]

    def life_of(self, storage: int) -> LiveRange | None:
        """The on-chip tensor in a storage."""
        return next((life for life in self.lives if life.storage == storage), None)


class Launch(NamedTuple):
    """What a launch left.

    Attributes:
        cores: what each of them noted.
        model: what the times come from.
        stored_by_every_core: what all cores store, if they do the same work; see :mod:`..division`.
    """

    cores: Sequence[Core]
    model: Model
    stored_by_every_core: Sequence[str] = ()
