"""What the analysis knows of a launch: the notes of its cores, and what the model of time assumed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from ...memory.lives import LiveRange
from ...target.generation import Generation
from ...terms.enums import Engine
from ...timing.event import Lines, Note
from ...timing.parameters import ModelParameters
from ...timing.plans import Plan

_NS_PER_US = 1000.0

# The engines by the names that plans have for them.
ENGINES = {engine.name: engine for engine in Engine}


class Model(NamedTuple):
    """What the times come from."""

    generation: Generation
    parameters: ModelParameters

    @property
    def trigger_ns(self) -> float:
        """From one trigger of a DMA queue to the next."""
        asked = self.parameters.trigger_us
        return self.generation.timing.dma.trigger_ns if asked is None else asked * _NS_PER_US

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


class Core:
    """One core of a launch.

    Attributes:
        number: of the core.
        notes: its instructions, in program order.
        lives: its on-chip tensors.
    """

    def __init__(self, number: int, notes: Sequence[Note], lives: Sequence[LiveRange]) -> None:
        self.number = number
        self.notes = notes
        self.lives = lives
        self._lines = Lines()

    @cached_property
    def _positions(self) -> dict[int, int] | None:
        """Where the note of an instruction is, if not every instruction left one."""
        if all(note[0] == position for position, note in enumerate(self.notes, 1)):
            return None
        return {note[0]: position for position, note in enumerate(self.notes)}

    def at(self, number: int) -> Note:
        """The note of an instruction."""
        positions = self._positions
        return self.notes[number - 1 if positions is None else positions[number]]

    def place(self, number: int) -> str:
        """``file:line`` of an instruction in the kernel."""
        *_, code, position = self.at(number)
        return self._lines.place(code, position)

    @cached_property
    def meetings(self) -> list[int]:
        """The instructions that are meetings with the other core."""
        return [note[0] for note in self.notes if note[3].cause.meets]

    @cached_property
    def table_loads(self) -> frozenset[int]:
        """The instructions for which Scalar loads another activation table."""
        loaded, table = [], ""
        for number, plan, *_ in self.notes:
            if plan.table and plan.table != table:
                table = plan.table
                loaded.append(number)
        return frozenset(loaded)

    def life_of(self, storage: int) -> LiveRange | None:
        """The on-chip tensor in a storage."""
        return next((life for life in self.lives if life.storage == storage), None)


class Launch(NamedTuple):
    """What a launch left."""

    cores: Sequence[Core]
    model: Model
