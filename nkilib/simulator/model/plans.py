"""What instructions that are alike have in common: it is worked out once and kept from launch to launch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..enums import engine as engines
from ..hardware import Generation
from ..memory import ON_CHIP
from ..tensor import NkiTensor
from .busy_times import Work
from .costs import Call, filled
from .event import tensors_of
from .parameters import ModelParameters
from .transfers import Side, engine_times, queue_of

if TYPE_CHECKING:
    from ..instruction import Definition

# The parameters besides tensors on which a cost or a queue depends; no others are shown to it.
DECIDING = frozenset({"op", "value", "perf_mode", "reduce_cmd", "dge_mode", "dma_engine", "engine"})
# The parameters that take tensors and are no operands, for what holds of them is not said of one tensor.
_LISTS_OF_TENSORS = frozenset({"srcs"})

_KEPT = 16384
_KEPT_MODELS = 8


class Roles(NamedTuple):
    """The positions of an instruction's parameters: those that are read, written, and of :data:`DECIDING`."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    deciding: tuple[int, ...]


_ROLES: dict[str, Roles] = {}


def roles_of(definition: Definition) -> Roles:
    """What the parameters of an instruction are to the model."""
    roles = _ROLES.get(definition.name)
    if roles is None:
        inputs = {rule.name for rule in definition.operands if not rule.is_output} | _LISTS_OF_TENSORS
        wanted = (inputs, definition.output_names, DECIDING)
        positions = [tuple(at for at, name in enumerate(definition.names) if name in names) for names in wanted]
        roles = _ROLES[definition.name] = Roles(*positions)
    return roles


class Plan(NamedTuple):
    """Instructions of one name on tensors of one form each.

    Attributes:
        name, engine, operands, cycles: as in :class:`Event`.
        table: the activation table that it needs; empty if none.
        queue: that triggers it, if it is a transfer.
    """

    name: str
    engine: str
    operands: dict[str, tuple[tuple[int, ...], str]]
    cycles: float = 0.0
    table: str = ""
    queue: str = ""


class Plans:
    """The plans of one generation, under one set of assumptions."""

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self.generation = generation
        self.parameters = parameters
        self._known: dict[Hashable, Plan] = {}
        self._work: dict[tuple[tuple[Side, ...], int, bool], Work] = {}

    def plan(
        self, definition: Definition, engine: engines, values: list[Any], forms: list[Any], is_indirect: bool = False
    ) -> Plan:
        """The plan of a call.

        Args:
            definition: the instruction.
            engine: that runs it.
            values: its parameters.
            forms: of its tensors, those that it reads first; None where a parameter is no tensor.
            is_indirect: whether a vector offset names the rows of a transfer.
        """
        deciding = [values[at] for at in roles_of(definition).deciding]
        key = (definition.name, engine, is_indirect, *forms, *deciding)
        try:
            plan = self._known.get(key)
        except TypeError:  # a value without a hash
            return self._made(definition, engine, values, is_indirect)
        if plan is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            plan = self._known[key] = self._made(definition, engine, values, is_indirect)
        return plan

    def fill(self, dst: NkiTensor, value: Any) -> Plan:
        """The plan for making a tensor with a value."""
        operands = {"dst": (dst.shape, str(dst.dtype))}
        if not dst.is_on_chip():
            return Plan("dma_copy", "dma", operands, queue=queue_of({}, False, False, self.parameters))
        call = Call(engines.vector, {"dst": dst, "value": value}, self.generation, self.parameters)
        return Plan("memset", "vector", operands, filled(call))

    def work(self, sides: tuple[Side, ...], rows: int, is_transpose: bool) -> Work:
        """What a transfer asks of the DMA engines; see :func:`engine_times`."""
        key = sides, rows, is_transpose
        work = self._work.get(key)
        if work is None:
            if len(self._work) >= _KEPT:
                self._work.clear()
            dma = self.generation.timing.dma
            times = engine_times(sides, rows, is_transpose, dma, self.parameters)
            is_even = len(times) == dma.engines and len({duration for _, duration in times}) == 1
            work = self._work[key] = Work(times, is_even)
        return work

    def _made(self, definition: Definition, engine: engines, values: list[Any], is_indirect: bool) -> Plan:
        named = dict(zip(definition.names, values, strict=True))
        tensors = tensors_of(named)
        operands = {name: (tensor.shape, str(tensor.dtype)) for name, tensor in tensors.items()}
        seen = {rule.name: tensors.get(rule.name) for rule in definition.operands}
        seen |= {name: value for name, value in named.items() if name in DECIDING}
        if definition.is_transfer:
            queue = queue_of(seen, is_indirect, named["dst"].buffer in ON_CHIP, self.parameters)
            return Plan(definition.name, "dma", operands, queue=queue)
        cycles = 0.0
        if definition.cost is not None:
            cycles = definition.cost(Call(engine, seen, self.generation, self.parameters))
        return Plan(definition.name, engine.name, operands, cycles, self._table(engine, seen))

    def _table(self, engine: engines, values: dict[str, Any]) -> str:
        """The activation table that an instruction of the Scalar engine needs; empty if none."""
        if engine is not engines.scalar:
            return ""
        function = getattr(values.get("op"), "key", "")
        return self.parameters.table_of(function) if function else ""


_MODELS: list[Plans] = []


def plans_for(generation: Generation, parameters: ModelParameters) -> Plans:
    """The plans that launches with these share."""
    for plans in _MODELS:
        if plans.generation is generation and plans.parameters == parameters:
            return plans
    plans = Plans(generation, parameters)
    _MODELS.insert(0, plans)
    del _MODELS[_KEPT_MODELS:]
    return plans
