"""The one way of an instruction: bind, validate operands, choose the engine, execute, mark written, record.

An instruction is a function decorated with :func:`instruction`. The decorator enters its definition in ``REGISTRY`` and
returns the public function with the documented signature.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .core import Core, current_core
from .enums import engine as Engine
from .enums import nc_version
from .errors import CoreAbortedError, NkiValidationError, add_location
from .memory import MemoryRegion
from .objects import NKIObject
from .operands import Operand, check_engine_access, check_operand
from .tensor import NkiTensor

# Numbers instructions in the order in which they are issued.
_NUMBERS = itertools.count()


class Call(NamedTuple):
    """What an instruction's function is given besides its operands."""

    core: Core
    engine: Engine


class NkiInstruction(NKIObject):
    """The handle that every instruction returns; orders it after others with :meth:`depends_on`."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.producers: tuple[NkiInstruction, ...] = ()
        self._number = next(_NUMBERS)

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run after every producer. Here instructions run in program order, so this only checks and remembers.

        Returns:
            This instruction, so that calls chain.

        Raises:
            NkiValidationError: if a producer is no instruction, or was not issued before this one, so that the
                simulator has run the two the other way round.
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

    def __repr__(self) -> str:
        return f"<{self.handle}>"


@dataclass(frozen=True)
class Definition:
    """A registered instruction.

    Attributes:
        name: without ``nisa.``.
        function: ``function(call, **parameters)``: checks what is special to it, computes and stores.
        operands: its tensor parameters.
        engines: engines that can run it; the first is the default.
        since: first generation that has it.
        choose_engine: picks the engine from the parameters where the caller leaves it open; None for the default.
        signature: the public one, ``name=`` included.
        is_lane_bound: whether the rules which partitions an engine may access hold for its operands (not for DMA).
        is_matmul: whether a later matmul may add to what it leaves in PSUM.
        names, defaults: the parameters of ``signature``.
    """

    name: str
    function: Callable[..., None]
    operands: tuple[Operand, ...]
    engines: tuple[Engine, ...]
    since: nc_version
    choose_engine: Callable[[dict[str, Any]], Engine] | None
    signature: inspect.Signature
    is_lane_bound: bool
    is_matmul: bool
    names: tuple[str, ...] = field(default=())
    defaults: dict[str, Any] = field(default_factory=dict)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Parameters by name.

        Raises:
            TypeError: as Python would for a wrong call.
        """
        values = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        is_complete = len(args) <= len(self.names) and values.keys() == self.signature.parameters.keys()
        if not is_complete or not kwargs.keys().isdisjoint(self.names[: len(args)]):
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"nisa.{self.name}: {error}") from None
        return values

    def pick_engine(self, core: Core, values: dict[str, Any]) -> Engine:
        """The engine that runs this call.

        Raises:
            NkiValidationError: if the caller asks for one that cannot run it.
        """
        asked = values.get("engine", Engine.unknown)
        if not isinstance(asked, Engine):
            raise NkiValidationError(f"engine must be a member of nki.isa.engine, got {asked!r}")
        if asked is Engine.unknown:
            return self.choose_engine(values) if self.choose_engine is not None else self.engines[0]
        if asked not in self.engines:
            allowed = ", ".join(f"nki.isa.engine.{allowed.name}" for allowed in self.engines)
            raise NkiValidationError(f"engine must be one of {allowed}, got nki.isa.engine.{asked.name}")
        return asked


REGISTRY: dict[str, Definition] = {}


def instruction(
    *,
    operands: tuple[Operand, ...],
    on: tuple[Engine, ...],
    since: nc_version = nc_version.gen2,
    choose_engine: Callable[[dict[str, Any]], Engine] | None = None,
    is_lane_bound: bool = True,
    is_matmul: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., NkiInstruction]]:
    """Register ``function(call, <documented parameters>)`` as the instruction of its name."""

    def register(function: Callable[..., None]) -> Callable[..., NkiInstruction]:
        signature = _public_signature(function)
        names = tuple(signature.parameters)
        defaults = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        definition = Definition(
            function.__name__,
            function,
            operands,
            on,
            since,
            choose_engine,
            signature,
            is_lane_bound,
            is_matmul,
            names,
            defaults,
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
    core = current_core(f"nisa.{definition.name}")
    if core.launch.barrier.is_aborted:
        raise CoreAbortedError
    values = definition.bind(args, kwargs)
    name = values.pop("name")
    try:
        engine = _validate(core, definition, values)
        definition.function(Call(core, engine), **values)
        for operand in definition.operands:
            if operand.is_output and not operand.marks_itself:
                _mark_written(values[operand.name], definition.is_matmul)
    except NkiValidationError as error:
        label = f" (name={name!r})" if name else ""
        cores = f" on core {core.number}" if core.launch.cores > 1 else ""
        add_location(error, f"nisa.{definition.name}{label}{cores}")
        raise
    core.record.add(definition.name, engine.name)
    return NkiInstruction(f"nisa.{definition.name}" + (f" {name}" if name else ""))


def _validate(core: Core, definition: Definition, values: dict[str, Any]) -> Engine:
    if core.generation.version.value < definition.since.value:
        raise NkiValidationError(
            f"needs {definition.since.name} or newer; the target is {core.generation.name} "
            f"({core.generation.version.name}), set NEURON_PLATFORM_TARGET_OVERRIDE to change it"
        )
    for operand in definition.operands:
        values[operand.name] = check_operand(core, operand, values[operand.name], values)
    engine = definition.pick_engine(core, values)
    if definition.is_lane_bound:
        for operand in definition.operands:
            value = values[operand.name]
            if isinstance(value, NkiTensor):
                check_engine_access(operand.name, value)
                if engine is Engine.gpsimd and value.buffer is MemoryRegion.psum:
                    raise NkiValidationError(
                        f"operand {operand.name!r}: the GpSimd engine cannot access psum, got {value}"
                    )
    return engine


def _mark_written(value: Any, is_matmul: bool) -> None:
    if isinstance(value, NkiTensor):
        storage = value.storage
        storage.written.mark(value.layout, storage.width_of(value.dtype))
        if value.buffer is MemoryRegion.psum and not is_matmul:
            storage.accumulated.clear(value.layout, storage.width_of(value.dtype))
