# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Definition``: the static properties of an instruction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

from ..hardware.generation import Generation
from ..terms.enums import Engine, nc_version
from ..terms.errors import NkiValidationError
from ..terms.signatures import call_error
from .operand import Operand

# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every call.
_UNKNOWN = Engine.unknown


class Cost(Protocol):
    """A function that returns the cycles that a call of an instruction takes in the model of time.

    Its argument describes the call; it is a ``CostInputs`` of ``timing/costs.py``, which this package does not import.
    """

    def __call__(self, call: Any, /) -> float: ...


class EngineRule(Protocol):
    """A function that checks whether an engine can run a call of an instruction on a generation of the hardware.

    Its last argument holds the parameters by name. The simulator passes all of them. The model of time passes
    descriptions of the tensors, with ``shape``, ``free_size``, ``dtype`` and ``buffer``, and of the other parameters
    only those of ``DECIDING`` in ``timing/plans.py``.
    """

    def __call__(self, engine: Engine, generation: Generation, values: Mapping[str, Any], /) -> None:
        """Return if the engine can run the call.

        Raises:
            NkiValidationError: if it cannot.
        """


@dataclass(frozen=True)
class Definition:
    """A registered instruction.

    Attributes:
        name: the name of the instruction without its module.
        function: ``function(call, **parameters)``, which makes the checks special to the instruction, computes and
            stores.
        operands: the requirements on each tensor parameter.
        engines: the engines that a caller may ask for.
        default_engine: the engine that runs it if the caller leaves that open.
        since: the first hardware generation that has it.
        choose_engine: a function that picks the engine from the parameters where the caller leaves that open; None if
            this is always the default.
        signature: the public signature, ``name=`` included.
        is_lane_bound: whether the rules for the partitions that an engine may access hold for its operands (not for
            DMA).
        is_matmul: whether a later matmul may add to its result in PSUM.
        cost: the function that gives the cycles of a call in the model of time; None for instructions that take none,
            and for transfers.
        is_transfer: whether the DMA engines do the work.
        is_untimed: whether it takes no time in the model of time because nothing is known of its duration.
        module: the module in which kernels find it, ``nisa`` for instance.
        engine_rule: the function that checks whether an engine can run a call; None if each of ``engines`` can, apart
            from what holds for all instructions (see :func:`check_engine`).
        names: the names of the parameters of ``signature``.
        checks: each of ``operands``, with its position in ``names`` and the position of its ``like`` (0 if it has
            none).
        outputs: the operands that the instruction writes, each with its position in ``names``.
        output_names: the names of these operands.
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
            ArgumentTypeError: if the arguments do not fit the signature; the message lacks the name of the instruction.
        """
        # The calls of a program are written in a few ways; each is checked when it comes for the first time.
        way = (len(args), *kwargs)
        order = self._orders.get(way)
        if order is None:
            order = self._orders[way] = itemgetter(*self._order_of(args, kwargs))
        values = (*args, *kwargs.values(), *self._defaults)
        return list(order(values))

    def _order_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """Return, for each parameter, the position of its value in ``(*args, *kwargs.values(), *self._defaults)``."""
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
