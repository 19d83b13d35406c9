"""The one way of an instruction: bind, validate operands, choose the engine, execute, mark written, record.

An instruction is a function decorated with :func:`instruction`. The decorator enters its definition in ``REGISTRY`` and
returns the public function with the documented signature.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ..machine.core import Core, current_core
from ..memory.lives import touch_output
from ..tensors.tensor import NkiTensor
from ..terms.enums import engine as Engine
from ..terms.enums import nc_version
from ..terms.errors import CoreAbortedError, NkiValidationError, add_location
from ..terms.objects import NKIObject
from ..terms.regions import MemoryRegion
from ..terms.signatures import call_error
from ..terms.spec import DataNeeded
from ..timing.costs import Cost
from .indirection import check_indirect_operands, with_indirection
from .operands import Operand, check_engine_access, check_operand

# Numbers instructions in the order in which they are issued.
_NUMBERS = itertools.count()


# Members of an Enum are looked up by a Python function before 3.12; these are asked for in every call.
_UNKNOWN, _GPSIMD, _PSUM = Engine.unknown, Engine.gpsimd, MemoryRegion.psum


class Call(NamedTuple):
    """What an instruction's function is given besides its operands."""

    core: Core
    engine: Engine


class NkiInstruction(NKIObject):
    """The handle that every instruction returns; orders it after others with :meth:`depends_on`."""

    # The dynamic loops around the instruction; see loops.py.
    _scope: tuple[int, ...] = ()

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.producers: tuple[NkiInstruction, ...] = ()
        self._number = next(_NUMBERS)

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run after every producer. Here instructions run in program order, so this only checks and remembers.

        Returns:
            This instruction, so that calls chain.

        Raises:
            NkiValidationError: if a producer is no instruction, was not issued before this one, so that the simulator
                has run the two the other way round, or is in a dynamic loop, or an iteration of one, that this one is
                not in.
        """
        try:
            for producer in producers:
                self._check_producer(producer)
        except NkiValidationError as error:
            add_location(error, "NkiInstruction.depends_on")
            raise
        self.producers += producers
        return self

    def _check_producer(self, producer: Any) -> None:
        if not isinstance(producer, NkiInstruction):
            raise NkiValidationError(f"a producer must be an instruction, got {producer!r}")
        if producer._number >= self._number:
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is not issued before it: the simulator runs instructions in "
                f"program order"
            )
        if self._scope[: len(producer._scope)] != producer._scope:
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is in a dynamic loop, or an iteration of one, that {self} "
                f"is not in; both must be in the same iteration, or the producer in an enclosing scope"
            )

    def __repr__(self) -> str:
        return f"<{self.handle}>"


@dataclass(frozen=True)
class Definition:
    """A registered instruction.

    Attributes:
        name: without ``nisa.``.
        function: ``function(call, **parameters)``: checks what is special to it, computes and stores.
        operands: its tensor parameters.
        engines: engines that a caller may ask for.
        default_engine: runs it where the caller leaves that open.
        since: first generation that has it.
        choose_engine: picks the engine in place of the default, from the parameters; None if nothing depends on them.
        signature: the public one, ``name=`` included.
        is_lane_bound: whether the rules which partitions an engine may access hold for its operands (not for DMA).
        is_matmul: whether a later matmul may add to what it leaves in PSUM.
        cost: the cycles that it is modelled to take; None for what takes none, and for transfers.
        is_transfer: whether the DMA engines do the work.
        names: the parameters of ``signature``.
    """

    name: str
    function: Callable[..., None]
    operands: tuple[Operand, ...]
    engines: tuple[Engine, ...]
    default_engine: Engine
    since: nc_version
    choose_engine: Callable[[dict[str, Any]], Engine] | None
    signature: inspect.Signature
    is_lane_bound: bool
    is_matmul: bool
    cost: Cost | None
    is_transfer: bool
    names: tuple[str, ...] = field(init=False)
    # Worked out once, because every call needs them: defaults, and positions in ``names``.
    _defaults: tuple[Any, ...] = field(init=False)
    # By how a call gives its parameters: what picks them from the arguments and the defaults; see ``bind``.
    _orders: dict[tuple[Any, ...], itemgetter[Any]] = field(init=False)
    _engine_position: int | None = field(init=False)
    checks: tuple[tuple[Operand, int, int], ...] = field(init=False)
    outputs: tuple[tuple[Operand, int], ...] = field(init=False)
    output_names: frozenset[str] = field(init=False)
    label: str = field(init=False)
    since_number: int = field(init=False)

    def __post_init__(self) -> None:
        parameters = self.signature.parameters
        positions = {name: position for position, name in enumerate(parameters)}
        known: dict[str, Any] = {
            "since_number": self.since.value,
            "label": f"nisa.{self.name}",
            "names": tuple(parameters),
            "_defaults": tuple(item.default for item in parameters.values()),
            "_orders": {},
            "_engine_position": positions.get("engine"),
            "checks": tuple((rule, positions[rule.name], positions.get(rule.like, 0)) for rule in self.operands),
            "output_names": frozenset(rule.name for rule in self.operands if rule.is_output),
            "outputs": tuple((rule, positions[rule.name]) for rule in self.operands if rule.is_output),
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The values of all parameters, in the order of ``names``.

        Raises:
            TypeError: as Python would for a wrong call.
        """
        # The calls of a program are written in a few ways; each is checked when it comes for the first time.
        way = (len(args), *kwargs)
        order = self._orders.get(way)
        if order is None:
            order = self._orders[way] = itemgetter(*self._order_of(args, kwargs))
        given = (*args, *kwargs.values(), *self._defaults)
        return list(order(given))

    def _order_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """Where each parameter is among the arguments, those by keyword, and the defaults, one after the other."""
        error = call_error(self.label, self.signature, args, kwargs)
        if error is not None:
            raise error
        keywords = {name: len(args) + place for place, name in enumerate(kwargs)}
        defaults = len(args) + len(kwargs)
        by_name = [keywords.get(name, defaults + place) for place, name in enumerate(self.names)]
        return (*range(len(args)), *by_name[len(args) :])

    def pick_engine(self, values: list[Any]) -> Engine:
        """The engine that runs this call.

        Raises:
            NkiValidationError: if the caller asks for one that cannot run it.
        """
        asked = _UNKNOWN if self._engine_position is None else values[self._engine_position]
        if asked is _UNKNOWN:
            if self.choose_engine is None:
                return self.default_engine
            return self.choose_engine(dict(zip(self.names, values, strict=True)))
        if not isinstance(asked, Engine):
            raise NkiValidationError(f"engine must be a member of nki.isa.engine, got {asked!r}")
        if asked not in self.engines:
            allowed = ", ".join(f"nki.isa.engine.{allowed.name}" for allowed in self.engines)
            raise NkiValidationError(f"engine must be one of {allowed}, got nki.isa.engine.{asked.name}")
        return asked


REGISTRY: dict[str, Definition] = {}


def instruction(
    *,
    operands: tuple[Operand, ...],
    on: tuple[Engine, ...],
    default: Engine | None = None,
    since: nc_version = nc_version.gen2,
    choose_engine: Callable[[dict[str, Any]], Engine] | None = None,
    is_lane_bound: bool = True,
    is_matmul: bool = False,
    cost: Cost | None = None,
    is_transfer: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., NkiInstruction]]:
    """Register ``function(call, <documented parameters>)`` as the instruction of its name.

    Unless there is another ``default``, the first engine of ``on`` runs it where the caller leaves that open.
    """

    def register(function: Callable[..., None]) -> Callable[..., NkiInstruction]:
        signature = _public_signature(function)
        definition = Definition(
            function.__name__,
            function,
            with_indirection(function.__name__, operands),
            on,
            default or on[0],
            since,
            choose_engine,
            signature,
            is_lane_bound,
            is_matmul,
            cost,
            is_transfer,
        )
        REGISTRY[definition.name] = definition

        def public(*args: Any, **kwargs: Any) -> NkiInstruction:
            return issue(definition, args, kwargs)

        public.__name__ = public.__qualname__ = definition.name
        public.__doc__ = function.__doc__
        public.__module__ = function.__module__
        public.__signature__ = signature  # type: ignore[attr-defined]
        return public

    return register


def _public_signature(function: Callable[..., None]) -> inspect.Signature:
    """The documented signature: without ``call``, and with ``name=None`` at the end."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    name = inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return inspect.Signature([*parameters, name])


def issue(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NkiInstruction:
    """Run one instruction on the core of this thread."""
    core = current_core(definition.label)
    if core.launch.barrier.is_aborted:
        raise CoreAbortedError
    values = definition.bind(args, kwargs)
    name = values[-1]
    core.instruction_number += 1
    try:
        engine = _validate(core, definition, values)
        try:
            definition.function(Call(core, engine), *values[:-1])
        except DataNeeded:  # of a tensor without data: what the instruction checks before it computes is checked
            assert core.launch.is_abstract
        for rule, position in definition.outputs:
            written = values[position]
            if written is not None:
                if not rule.marks_itself:
                    mark_written(written, definition.is_matmul)
                touch_output(written, core.instruction_number, definition.is_matmul or rule.may_leave)
        indirect = core.indirect_operands
        for operand in indirect:
            operand.finish()
    except NkiValidationError as error:
        label = f" (name={name!r})" if name else ""
        cores = f" on core {core.number}" if core.launch.cores > 1 else ""
        add_location(error, f"nisa.{definition.name}{label}{cores}")
        raise
    finally:
        if core.indirect_operands:
            core.indirect_operands = []
    if core.trace is not None:
        core.trace.add(core.instruction_number, definition, engine, name, values, indirect)
    core.record.add(definition.name, engine._name_)  # `name` is a property, ten times as slow
    handle = NkiInstruction(f"{definition.label} {name}" if name else definition.label)
    if name:
        core.names.add(name)
    if core.loops.scope:
        handle._scope = core.loops.scope
    return handle


def _validate(core: Core, definition: Definition, values: list[Any]) -> Engine:
    if core.version_number < definition.since_number:
        raise NkiValidationError(
            f"needs {definition.since.name} or newer; the target is {core.generation.name} "
            f"({core.generation.version.name}), set NEURON_PLATFORM_TARGET_OVERRIDE to change it"
        )
    for rule, position, like in definition.checks:
        value = values[position]
        if value is not None or not rule.is_optional:
            values[position] = check_operand(core, rule, value, values[like])
    engine = definition.pick_engine(values)
    if core.indirect_operands:
        parameters = dict(zip(definition.names, values, strict=True))
        check_indirect_operands(definition.name, engine, parameters, core.indirect_operands)
    if definition.is_lane_bound:
        for rule, position, _ in definition.checks:
            value = values[position]
            if type(value) is NkiTensor and not value._passed_engine_checks:
                check_engine_access(rule.name, value)
        if engine is _GPSIMD:
            _refuse_psum(definition, values)
    return engine


def _refuse_psum(definition: Definition, values: list[Any]) -> None:
    for rule, position, _ in definition.checks:
        value = values[position]
        if isinstance(value, NkiTensor) and value.buffer is MemoryRegion.psum:
            raise NkiValidationError(f"operand {rule.name!r}: the GpSimd engine cannot access psum, got {value}")


def mark_written(tensor: NkiTensor, is_matmul: bool = False) -> None:
    """Record that an instruction has written all of ``tensor``, and what that means for a later matmul in PSUM."""
    storage = tensor.storage
    if tensor.is_whole:
        storage.written.is_full = True
    elif not storage.written.is_full:
        storage.written.mark(tensor.layout, storage.width_of(tensor.dtype))
    if tensor.buffer is _PSUM and not is_matmul:
        storage.accumulated.clear(tensor.layout, storage.width_of(tensor.dtype))
