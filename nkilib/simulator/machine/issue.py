# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The steps of every instruction: bind, validate operands, choose the engine, execute, mark written, notify observers.

An instruction is a function decorated with :func:`instruction`. The decorator enters its definition in ``REGISTRY`` and
returns the public function with the documented signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from ..isa.access import check_engine_access
from ..isa.definition import Cost, Definition, EngineRule
from ..isa.engine_rules import check_engine
from ..isa.handle import NkiInstruction
from ..isa.indirection import check_indirect_operands, with_indirection
from ..isa.operand import Operand
from ..tensors.tensor import NkiTensor
from ..terms.enums import Engine, nc_version
from ..terms.errors import ArgumentTypeError, CoreAbortedError, NkiValidationError, add_location
from ..terms.signatures import PLAIN_ERRORS, wrong_argument
from ..terms.spec import DataNeeded, ValuesWanted
from .call import Call
from .core import Core, current_core
from .operands import check_operand
from .overlapping_copies import check_destination

# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every call.
_GPSIMD = Engine.gpsimd

REGISTRY: dict[str, Definition] = {}


def instruction(
    *,
    operands: tuple[Operand, ...],
    on: tuple[Engine, ...],
    default: Engine | None = None,
    since: nc_version = nc_version.gen2,
    choose_engine: Callable[[dict[str, Any]], Engine] | None = None,
    engine_rule: EngineRule | None = None,
    is_lane_bound: bool = True,
    is_matmul: bool = False,
    cost: Cost | None = None,
    is_transfer: bool = False,
    is_untimed: bool = False,
    module: str = "nisa",
) -> Callable[[Callable[..., None]], Callable[..., NkiInstruction]]:
    """Register ``function(call, <documented parameters>)`` as the instruction of its name.

    Unless another ``default`` is given, the first engine of ``on`` runs it if the caller does not choose one.
    Instructions of another ``module`` than ``nki.isa`` are not entered in ``REGISTRY``. The other arguments are
    attributes of :class:`Definition`.
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
            is_untimed,
            module,
            engine_rule,
        )
        if module == "nisa":
            REGISTRY[definition.name] = definition

        def public(*args: Any, **kwargs: Any) -> NkiInstruction:
            return issue(definition, args, kwargs)

        update_wrapper(public, function)
        public.__signature__ = signature  # type: ignore[attr-defined]
        return public

    return register


def _public_signature(function: Callable[..., None]) -> inspect.Signature:
    """Return the documented signature: without ``call``, and with ``name=None`` at the end."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    name = inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return inspect.Signature([*parameters, name])


def issue(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NkiInstruction:
    """Run one instruction on the core of this thread."""
    core = current_core(definition.label)
    if core.launch.barrier.is_aborted and not core.launch.barrier.may_go_on(core.issued):
        raise CoreAbortedError
    name = kwargs.get("name")
    try:
        values = definition.bind(args, kwargs)
        name = values[-1]
        if name is not None and type(name) is not str:
            raise ArgumentTypeError(f"name must be a string, got {name!r}")
        call = Call(core, definition, values)
        _validate(call)
        _execute(call)
    except ValuesWanted as wanted:
        if core.launch.left_out is not None:  # remembered, should the kernel catch it
            core.launch.left_out.want(wanted.origin)
        raise
    except NkiValidationError as error:
        add_location(error, _label(core, definition, name))
        raise
    except PLAIN_ERRORS as error:
        wrong = wrong_argument(definition.signature, args, kwargs)
        if wrong is None:
            raise
        add_location(wrong, _label(core, definition, name))
        raise wrong from error
    for tell in core.observers.issued:
        tell(call)
    handle = NkiInstruction(f"{definition.label} {name}" if name else definition.label)
    if name:
        core.add_name(name)
    loops = core.loops
    if loops.depth:
        loops.ran.append(definition.label)
    handle.scope = loops.scope
    return handle


def _label(core: Core, definition: Definition, name: Any) -> str:
    """Return the text by which messages call an instruction: its label, its ``name=`` and the core."""
    named = f" (name={name!r})" if type(name) is str and name else ""
    return f"{definition.label}{named}{f' on {core.name}' if core.name else ''}"


def report(core: Core, instruction: Callable[..., NkiInstruction], *args: Any) -> None:
    """Tell the observers that ``instruction(*args)`` has run, although its work was done in another way."""
    definition = REGISTRY[instruction.__name__]
    call = Call(core, definition, definition.bind(args, {}))
    for tell in core.observers.issued:
        tell(call)


def _validate(call: Call) -> None:
    """Check the operands, replace them by their resolved values, and choose the engine."""
    definition, values, core = call.definition, call.values, call.core
    if core.version_number < definition.since_number:
        raise NkiValidationError(
            f"needs {definition.since.name} or newer; the target is {core.generation.name} "
            f"({core.generation.version.name}), set NEURON_PLATFORM_TARGET_OVERRIDE to change it"
        )
    for rule, position, like in definition.checks:
        value = values[position]
        if value is not None or not rule.is_optional:
            values[position] = check_operand(call, rule, value, values[like])
    call.engine = engine = definition.pick_engine(values)
    if definition.engine_rule is not None or engine is _GPSIMD or call.indirect:
        parameters = dict(zip(definition.names, values, strict=True))
        check_engine(definition, engine, core.generation, parameters, [operand.name for operand in call.indirect])
        if call.indirect:
            check_indirect_operands(definition.name, engine, parameters, call.indirect)
    if definition.is_lane_bound:
        for rule, position, _ in definition.checks:
            value = values[position]
            if type(value) is NkiTensor and not value.may_be_accessed:
                check_engine_access(rule.name, value)
                # Other engines' results come one after the other; a matmul adds to elements while it writes others.
                if definition.is_matmul and rule.is_output and not value.may_be_accessed:
                    check_destination(core, rule.name, value)


def _execute(call: Call) -> None:
    """Compute and store the results, and mark the outputs as written."""
    definition, values, left_out = call.definition, call.values, call.core.launch.left_out
    try:
        if left_out is None:
            definition.function(call, *values[:-1])
        else:
            left_out.run(call)
    except DataNeeded:  # a tensor without data: the checks before the computation have run
        assert call.core.is_abstract
    for rule, position in definition.outputs:
        written = values[position]
        if written is not None and not rule.marks_itself:
            written.mark_written(definition.is_matmul)
    for operand in call.indirect:
        operand.finish()
