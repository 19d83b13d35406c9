# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The static properties of an instruction, its :class:`Definition`, and the handle that a call of it returns.

- :class:`Definition`: an instruction, with its :class:`Cost` and :class:`EngineRule`.
- :class:`Operand`: the requirements on a tensor parameter, with its :class:`Indirection`. :func:`output` and
  :func:`vector` make operands too.
- :class:`NkiInstruction`: the handle, whose ``depends_on`` orders instructions. :func:`check_kind` checks an argument
  of ``depends_on``.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from ..hardware.generations import Generation
from ..terms.calls import call_error
from ..terms.dtypes import COMPUTABLE, DType
from ..terms.enums import ON_CHIP, Engine, MemoryRegion, dependency, nc_version
from ..terms.errors import NkiValidationError, add_location
from ..terms.nki_object import NKIObject
from ..terms.scopes import CORE, Scope, is_around, why_apart

SBUF = frozenset({MemoryRegion.sbuf})
PSUM = frozenset({MemoryRegion.psum})
HBM_SHARED = frozenset({MemoryRegion.shared_hbm})
DMA_REACH = frozenset(MemoryRegion) - PSUM


# Partitions that share their offsets: one core of the GpSimd engine, or one row group of the Tensor engine.
_GROUP = 16
_TENSOR_ENGINE_GROUP = 32


class Indirection(NamedTuple):
    """The operands of an instruction that may be views of ``NkiTensor.indirect``, according to the documentation.

    Attributes:
        operands: the names of these operands: the output, then the inputs. If the output is such a view, its index must
            start at the same partition as the first input (or the base of this input, if it is such a view too) if that
            is in SBUF. If the first input is such a view outside SBUF, both indices must start at the same partition.
        engines: the engines that support such views.
    """

    operands: tuple[str, ...]
    engines: frozenset[Engine]

    @property
    def group(self) -> int:
        return _TENSOR_ENGINE_GROUP if Engine.tensor in self.engines else _GROUP


@dataclass(frozen=True)
class Operand:
    """The requirements of an instruction on one of its tensor parameters.

    Attributes:
        name: the name of the parameter.
        is_output: whether the instruction writes the operand; otherwise it reads the operand.
        regions: the memory regions in which the operand may be.
        is_optional: whether the operand may be None.
        accepts_scalar: whether the operand may be a Python number instead of a tensor.
        is_vector: whether the operand must have shape (partitions of ``like``, 1).
        like: the name of the operand whose partitions a vector must match.
        dtypes: the allowed types; by default all except the packed types.
        accepts_indirect: whether the instruction itself resolves views with dynamic offsets, vector offsets included
            (DMA only).
        marks_itself: whether the instruction itself records which elements of the output it wrote.
        may_leave: whether the instruction may leave elements of the output unchanged.
        is_accessed: whether the instruction reads all elements of an input, so that the core checks that they were
            written. Otherwise the parameter only names a tensor to wait for, or the instruction itself checks the
            elements that it reads.
        indirection: the rule in ``indirection.RULES`` for an operand that may be a view of ``NkiTensor.indirect``; None
            for other operands.
    """

    name: str
    is_output: bool = False
    regions: frozenset[MemoryRegion] = ON_CHIP
    is_optional: bool = False
    accepts_scalar: bool = False
    is_vector: bool = False
    like: str = ""
    dtypes: frozenset[DType] = COMPUTABLE
    accepts_indirect: bool = False
    is_accessed: bool = True
    marks_itself: bool = False
    may_leave: bool = False
    indirection: Indirection | None = None


def output(name: str, **rules: Any) -> Operand:
    """Return the requirements on an operand that the instruction writes.

    Args:
        name: the name of the parameter.
        **rules: other fields of :class:`Operand`.
    """
    return Operand(name, is_output=True, **rules)


def vector(name: str, like: str, **rules: Any) -> Operand:
    """Return the requirements on an operand of shape (partitions of operand ``like``, 1).

    Args:
        name: the name of the parameter.
        like: the name of the operand with as many partitions.
        **rules: other fields of :class:`Operand`.
    """
    return Operand(name, is_vector=True, like=like, **rules)


# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every call.
_UNKNOWN = Engine.unknown


class Cost(Protocol):
    """A function that returns the cycles that a call of an instruction takes in the performance model.

    Its argument is a ``CostInputs`` of ``timing/costs.py``, which describes the call. This package does not import it.
    """

    def __call__(self, call: Any, /) -> float: ...


class EngineRule(Protocol):
    """A function that checks whether an engine can run a call of an instruction on a hardware generation.

    Its last argument holds the parameters by name. The simulator passes all parameters. The performance model passes
    descriptions of the tensors, with ``shape``, ``free_size``, ``dtype`` and ``buffer``, and of the other parameters
    only those named in ``DECIDING`` in ``timing/instruction.py``.
    """

    def __call__(self, engine: Engine, generation: Generation, values: Mapping[str, Any], /) -> None:
        """Check that the engine can run the call.

        Raises:
            NkiValidationError: the engine cannot run the call.
        """


@dataclass(frozen=True)
class Definition:
    """A registered instruction.

    Attributes:
        name: the name of the instruction without its module.
        function: ``function(call, **parameters)``, which makes the checks that only this instruction needs, computes
            the result and stores it.
        operands: the requirements on each tensor parameter.
        engines: the engines that a caller may ask for.
        default_engine: the engine that runs a call that names no engine.
        since: the first hardware generation that has the instruction.
        choose_engine: a function that chooses the engine from the parameters of a call that names no engine; None: the
            default engine runs every such call.
        signature: the public signature, ``name=`` included.
        is_lane_bound: whether the operands must obey the rules for the partitions that an engine may access, which do
            not hold for DMA.
        is_matmul: whether a later matmul may add to the result in PSUM.
        cost: the function that returns the cycles of a call in the performance model; None for transfers, and for
            instructions that take no cycles.
        is_transfer: whether the DMA engines do the work.
        is_untimed: whether the instruction takes no time in the performance model because its duration is unknown.
        module: the module in which kernels find the instruction, ``nisa`` for instance.
        engine_rule: the function that checks whether an engine can run a call; None if only the rules for all
            instructions apply (see :func:`check_engine`).
        names: the names of the parameters of ``signature``.
        checks: the operands, each with its position in ``names`` and the position of its ``like`` operand (0 without
            one).
        outputs: the operands that the instruction writes, each with its position in ``names``.
        output_names: the names of the operands that the instruction writes.
        label: the name of the instruction in messages, with its module.
        since_number: ``since`` as a number.
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
    is_untimed: bool
    module: str
    engine_rule: EngineRule | None
    names: tuple[str, ...] = field(init=False)
    # Worked out once, because every call needs them: defaults, and positions in ``names``.
    _defaults: tuple[Any, ...] = field(init=False)
    # By the form of a call: the getter that picks the parameters from the arguments and the defaults; see ``bind``.
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
            "label": f"{self.module}.{self.name}",
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
        """Return the values of all parameters for the arguments of a call, in the order of ``names``.

        Raises:
            ArgumentTypeError: the arguments do not fit the signature; the caller adds the instruction's name to the
                message.
        """
        # The calls of a program are written in a few ways; each is checked when it comes for the first time.
        way = (len(args), *kwargs)
        order = self._orders.get(way)
        if order is None:
            order = self._orders[way] = itemgetter(*self._order_of(args, kwargs))
        values = (*args, *kwargs.values(), *self._defaults)
        return list(order(values))

    def _order_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """Return the index of each parameter's value in ``(*args, *kwargs.values(), *self._defaults)``."""
        error = call_error(self.label, self.signature, args, kwargs, is_named=False)
        if error is not None:
            raise error
        keywords = {name: len(args) + place for place, name in enumerate(kwargs)}
        defaults = len(args) + len(kwargs)
        by_name = [keywords.get(name, defaults + place) for place, name in enumerate(self.names)]
        return (*range(len(args)), *by_name[len(args) :])

    def pick_engine(self, values: list[Any]) -> Engine:
        """Return the engine that runs a call with these parameter values.

        Raises:
            NkiValidationError: the caller asks for an engine that is not in ``engines``.
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


# Numbers instructions in the order in which they are issued.
_NUMBERS = itertools.count()

_NO_KIND = (
    "depends_on() without kind= is deprecated since NKI 0.7, and a later release will require it: pass "
    "kind=nki.isa.dependency.runtime for what it has meant so far, or kind=nki.isa.dependency.schedule"
)


def check_kind(kind: Any) -> None:
    """Check that ``kind`` is a member of ``nki.isa.dependency``, or None.

    Raises:
        NkiValidationError: ``kind`` is anything else.
    """
    if kind is not None and not isinstance(kind, dependency):
        raise NkiValidationError(f"kind must be a member of nki.isa.dependency, got {kind!r}")


class NkiInstruction(NKIObject):
    """The handle that every instruction returns; :meth:`depends_on` orders the instruction after others.

    Attributes:
        scope: the scope (core, loops and iterations) in which the instruction was issued; only the simulator uses it.
    """

    scope: Scope = ()

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.producers: tuple[NkiInstruction, ...] = ()
        self._number = next(_NUMBERS)

    def depends_on(self, *producers: NkiInstruction, kind: dependency | None = None) -> NkiInstruction:
        """Run this instruction after every producer.

        The simulator runs instructions in program order, so the method only checks and records the producers.

        Args:
            producers: instructions that were issued before.
            kind: ``runtime`` makes the hardware wait, ``schedule`` only keeps the compiler from issuing them in the
                opposite order. None means ``runtime`` and is deprecated since NKI 0.7.

        Returns:
            This instruction, so that calls can be chained.

        Raises:
            NkiValidationError: a producer is not an instruction; it belongs to another core or launch; it was not
                issued before this instruction; it is in another dynamic loop, or another iteration, than this
                instruction (allowed if ``kind`` is ``schedule``); or ``kind`` is neither None nor a ``dependency``.
        """
        if kind is None:
            warnings.warn(_NO_KIND, DeprecationWarning, stacklevel=2)
        try:
            check_kind(kind)
            for producer in producers:
                self._check_producer(producer, kind)
        except NkiValidationError as error:
            add_location(error, "NkiInstruction.depends_on")
            raise
        self.producers += producers
        return self

    def _check_producer(self, producer: Any, kind: dependency | None) -> None:
        if not isinstance(producer, NkiInstruction):
            raise NkiValidationError(f"a producer must be an instruction, got {producer!r}")
        if not is_around(producer.scope[:CORE], self.scope):
            apart = why_apart(producer.scope, self.scope, "")
            raise NkiValidationError(f"{self} cannot wait for {producer}, which {apart}")
        if producer._number >= self._number:
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is not issued before it: the simulator runs instructions in "
                f"program order"
            )
        # The order that a compiler keeps waits for nothing on the device.
        if kind is not dependency.schedule and not is_around(producer.scope, self.scope):
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is in a dynamic loop, or an iteration of one, that {self} "
                f"is not in; both must be in the same iteration, or the producer in an enclosing scope"
            )

    def __repr__(self) -> str:
        return f"<{self.handle}>"
