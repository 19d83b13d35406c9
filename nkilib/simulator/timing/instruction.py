# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions for the performance model: properties that many instructions share, and instructions without a time.

- :class:`InstructionKind`: the properties, such as engine, cycles and queue, that instructions share if they have the
  same name and tensors of the same forms; :class:`InstructionKinds` (by :func:`kinds_for`) computes each kind once;
- :class:`PendingInstruction`: one instruction that is not on the timeline yet, with its tensors (:data:`TensorAccess`,
  :data:`IndirectAccess`);
- :class:`Roles`, by :func:`roles_of`: which parameters of an instruction are tensors, and which decide its kind.

A *form* is the shape, strides, type and region of a tensor (:class:`~.footprints.Form`). No class here refers to a
tensor itself, because that would keep the tensor's data alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from ..hardware.generations import Generation
from ..isa.checks import engines_besides
from ..isa.definition import Definition
from ..terms.dtypes import DType
from ..terms.enums import Engine
from ..terms.layout import Layout
from .costs import CostInputs
from .dependencies import Tracked
from .dma import Address, DmaWork, Queue, Side, bytes_of, engine_times, queue_of, row_bytes_of
from .footprints import Form, Reach
from .parameters import ModelParameters

# The non-tensor parameters on which a cost, a queue or the rule for an engine depends; they get no others.
DECIDING = frozenset({"op", "op0", "op1", "value", "perf_mode", "reduce_cmd", "dge_mode", "dma_engine", "engine", "n"})
# A parameter that takes a list of tensors; these are no operands.
_LIST_OF_TENSORS = "srcs"

# How many kinds, pieces of work and sets of assumptions are remembered.
_KEPT = 16384
_KEPT_ASSUMPTIONS = 8


class Roles(NamedTuple):
    """The positions, among the parameters of an instruction, of the parameters that the performance model uses.

    Attributes:
        tensors: the parameters that may be tensors: first the written ones, then the read ones.
        writes: the parameters that are written.
        deciding: the parameters in :data:`DECIDING`.
    """

    tensors: tuple[int, ...]
    writes: tuple[int, ...]
    deciding: tuple[int, ...]


_ROLES: dict[str, Roles] = {}


def roles_of(definition: Definition) -> Roles:
    """Return the :class:`Roles` of the parameters of the instruction ``definition``."""
    roles = _ROLES.get(definition.name)
    if roles is None:
        inputs = {rule.name for rule in definition.operands if not rule.is_output} | {_LIST_OF_TENSORS}
        wanted = (definition.output_names, inputs, DECIDING)
        writes, reads, deciding = (
            tuple(at for at, name in enumerate(definition.names) if name in names) for names in wanted
        )
        roles = _ROLES[definition.name] = Roles(writes + reads, writes, deciding)
    return roles


class InstructionKind(NamedTuple):
    """The properties that instructions share if they have the same name and tensors of the same forms.

    Attributes:
        name: the name of the instruction, without ``nisa.``.
        engine: the name of its engine.
        operands: by parameter name, a pair (shape, name of the type) for each tensor.
        cycles: the cycles on its engine; 0 for a transfer.
        table: the activation table that the instruction needs; empty if none.
        queue: the queue that triggers the instruction, if it is a transfer.
        other_queue: the queue for the other kind of descriptors, if the compiler chooses the kind; else empty.
        work: the work for the DMA engines, if the instruction is a transfer.
        dropped_by: the pass that models that the device does not run the instruction; empty if the device runs it.
        others: the names of the other engines that can run the instruction.
        other_cycles: the cycles on each engine in ``others``.
    """

    name: str
    engine: str
    operands: dict[str, tuple[tuple[int, ...], str]]
    cycles: float = 0.0
    table: str = ""
    queue: str = ""
    other_queue: str = ""
    work: DmaWork | None = None
    dropped_by: str = ""
    others: tuple[str, ...] = ()
    other_cycles: tuple[float, ...] = ()


def _named(definition: Definition, roles: Roles, forms: Sequence[Form | None]) -> dict[str, Any]:
    """Return the forms of the tensors by parameter name, in the order of the parameters.

    Tensors in a list have names with an index, such as ``srcs[0]``.
    """
    positions = [*roles.tensors]
    positions += positions[-1:] * (len(forms) - len(positions))
    named: dict[str, Form | None] = {}
    for number, (at, form) in enumerate(sorted(zip(positions, forms, strict=True), key=lambda item: item[0])):
        name = definition.names[at]
        named[f"{name}[{number - positions.index(at)}]" if name == _LIST_OF_TENSORS else name] = form
    return named


def _shown(forms: dict[str, Form]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (form.shape, str(form.dtype)) for name, form in forms.items()}


class InstructionKinds:
    """A cache of :class:`InstructionKind` for one generation and one set of assumptions (``ModelParameters``)."""

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self.generation = generation
        self.parameters = parameters
        self._known: dict[Hashable, InstructionKind] = {}
        self._work: dict[tuple[tuple[Side, ...], int, bool], DmaWork] = {}
        self._moving: dict[tuple[int, int], InstructionKind] = {}

    def kind(
        self,
        definition: Definition,
        engine: Engine,
        forms: Sequence[Form | None],
        deciding: Sequence[Any],
        address: Address = Address.known,
        indirect: tuple[str, ...] = (),
    ) -> InstructionKind:
        """Return the kind of an instruction.

        Args:
            definition: the definition of the instruction.
            engine: the engine that runs it.
            forms: the forms of its tensors, in the order of ``Roles.tensors``; None where a parameter is no tensor.
            deciding: the values of its parameters in :data:`DECIDING`, in the order of ``Roles.deciding``.
            address: where a transfer gets its address from; ignored for other instructions.
            indirect: the names of the operands with tensor indirection.
        """
        key = (definition.name, engine, address, indirect, *forms, *deciding)
        try:
            kind = self._known.get(key)
        except TypeError:  # a value without a hash
            return self._worked_out(definition, engine, forms, deciding, address, indirect)
        if kind is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            kind = self._known[key] = self._worked_out(definition, engine, forms, deciding, address, indirect)
        return kind

    def queue(self, values: Mapping[str, Any], address: Address, to_chip: bool, is_transpose: bool = False) -> Queue:
        """Return the queue that triggers a transfer; see :func:`queue_of`."""
        return queue_of(values, address, to_chip, self.generation.timing.dma, self.parameters, is_transpose)

    def work(self, sides: tuple[Side, ...], rows: int, is_transpose: bool) -> DmaWork:
        """Return the work of a transfer for the DMA engines; see :func:`engine_times`."""
        key = sides, rows, is_transpose
        work = self._work.get(key)
        if work is None:
            if len(self._work) >= _KEPT:
                self._work.clear()
            dma = self.generation.timing.dma
            times = engine_times(sides, rows, is_transpose, dma, self.parameters)
            is_even = len(times) == dma.engines and len({duration for _, duration in times}) == 1
            moved = bytes_of(sides)
            work = self._work[key] = DmaWork(times, is_even, moved, row_bytes_of(sides, rows, is_transpose), rows > 0)
        return work

    def moving(self, kind: InstructionKind, work: DmaWork) -> InstructionKind:
        """Return a copy of ``kind``, the kind of a transfer, with ``work`` as its attribute ``work``."""
        key = id(kind), id(work)
        moving = self._moving.get(key)
        # Other objects get the ids of objects that are deleted.
        if moving is None or moving.work is not work or moving.operands is not kind.operands:
            if len(self._moving) >= _KEPT:
                self._moving.clear()
            moving = self._moving[key] = kind._replace(work=work)
        return moving

    def _worked_out(
        self,
        definition: Definition,
        engine: Engine,
        forms: Sequence[Form | None],
        deciding: Sequence[Any],
        address: Address,
        indirect: tuple[str, ...],
    ) -> InstructionKind:
        roles = roles_of(definition)
        named = _named(definition, roles, forms)
        operands = _shown({name: form for name, form in named.items() if form is not None})
        values = named | {definition.names[at]: value for at, value in zip(roles.deciding, deciding, strict=True)}
        if definition.is_transfer:
            queue = self.queue(values, address, values["dst"].is_on_chip, definition.name == "dma_transpose")
            return InstructionKind(definition.name, "dma", operands, queue=queue.name, other_queue=queue.otherwise)
        others = engines_besides(definition, engine, self.generation, values, indirect)
        cost = definition.cost
        cycles, *other_cycles = (
            0.0 if cost is None else cost(CostInputs(each, values, self.generation, self.parameters))
            for each in (engine, *others)
        )
        return InstructionKind(
            definition.name,
            engine.name,
            operands,
            cycles,
            self._table(engine, values),
            others=tuple(other.name for other in others),
            other_cycles=tuple(other_cycles),
        )

    def _table(self, engine: Engine, values: dict[str, Any]) -> str:
        # Empty if the engine is not Scalar or the instruction computes no activation function.
        if engine is not Engine.scalar:
            return ""
        function = getattr(values.get("op"), "key", "")
        return self.parameters.table_of(function) if function else ""


_KINDS: list[InstructionKinds] = []


def kinds_for(generation: Generation, parameters: ModelParameters) -> InstructionKinds:
    """Return the cache of kinds for a generation and assumptions; equal arguments return the same object."""
    for kinds in _KINDS:
        if kinds.generation is generation and kinds.parameters == parameters:
            return kinds
    kinds = InstructionKinds(generation, parameters)
    _KINDS.insert(0, kinds)
    del _KINDS[_KEPT_ASSUMPTIONS:]
    return kinds


# A tensor: its storage, its layout and its type; and if its address is read at run time, the range of the address and
# the tensor that it is read from.
TensorAccess = tuple[Tracked, Layout, DType, Reach | None, "TensorAccess | None"]

# Tensor indirection: the index that it reads, the tensor that it chooses from, whether it writes there, and the name of
# the operand.
IndirectAccess = tuple[TensorAccess, TensorAccess, bool, str]


class PendingInstruction:
    """An issued instruction that is not on the timeline yet. Passes may change it (see :mod:`.passes`).

    Attributes:
        number: its number on its core, from 1.
        definition: the definition of the instruction.
        roles: the positions of its tensors and deciding parameters among its parameters.
        engine: the engine that runs it.
        label: the argument ``name=`` of the call.
        operands: the tensors, in the order of ``roles.tensors``; None where a parameter is no tensor.
        deciding: the values of the parameters in :data:`DECIDING`, in the order of ``roles.deciding``.
        besides: an :data:`IndirectAccess` for each operand with tensor indirection.
        met_ns: for a barrier or an exchange, the time at which the last core arrived; else None.
        code: the code object of the kernel that issued it.
        position: the bytecode offset in ``code``.
        constants: the values of its non-tensor parameters, if a pass or the recording needs them; else empty.
        register: the number of the instruction that loaded the register with the address of an operand; 0 if none.
        function: the function of ``nki.language`` that issued it; empty if the kernel issued it directly.
        dropped_by: the pass that models that the device does not run it; empty if the device runs it.
    """

    __slots__ = (
        "besides",
        "code",
        "constants",
        "deciding",
        "definition",
        "dropped_by",
        "engine",
        "function",
        "label",
        "met_ns",
        "number",
        "operands",
        "position",
        "register",
        "roles",
    )

    def __init__(
        self,
        number: int,
        definition: Definition,
        roles: Roles,
        engine: Engine,
        label: str | None,
        operands: Sequence[TensorAccess | None],
        deciding: Sequence[Any],
        besides: Sequence[IndirectAccess],
        met_ns: float | None,
        code: CodeType | None,
        position: int,
        function: str,
        constants: tuple[Any, ...] = (),
        register: int = 0,
    ) -> None:
        self.number = number
        self.definition = definition
        self.roles = roles
        self.engine = engine
        self.label = label
        self.operands = operands
        self.deciding = deciding
        self.besides = besides
        self.met_ns = met_ns
        self.code = code
        self.position = position
        self.function = function
        self.constants = constants
        self.register = register
        self.dropped_by = ""

    def decided(self, name: str) -> Any:
        """Return the value of the parameter ``name``, one of :data:`DECIDING`; None if the instruction lacks it."""
        names = self.definition.names
        return next(
            (value for at, value in zip(self.roles.deciding, self.deciding, strict=True) if names[at] == name), None
        )
