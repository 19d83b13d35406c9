# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The steps of every instruction: bind arguments, check operands, choose the engine, run, mark outputs, notify
observers.

- :func:`check_scope`, :func:`check_written`, :func:`check_operand`: checks of one operand, also for instructions that
  take lists of tensors;
- :func:`issue`: runs an instruction, as a :class:`Call`;
- :func:`instruction`: the decorator of the function of an instruction. It enters the definition in :data:`REGISTRY` and
  returns the public function with the documented signature;
- :func:`report`: notifies the observers of an instruction whose work was not done by :func:`issue`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..hardware.generations import PARTITIONS
from ..hardware.options import refuse
from ..isa.checks import check_engine, check_engine_access
from ..isa.definition import Cost, Definition, EngineRule, NkiInstruction, Operand
from ..isa.indirection import check_indirect_operands, gather, resolve_scalar_offset, with_indirection
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.argument_checks import PLAIN_ERRORS, wrong_argument
from ..terms.descriptions import describe_foreign_value
from ..terms.dtypes import COMPUTABLE, int64
from ..terms.enums import ON_CHIP, Engine, MemoryRegion, nc_version
from ..terms.errors import (
    ArgumentTypeError,
    CoreAbortedError,
    NkiValidationError,
    UninitializedReadError,
    add_location,
    kernel_location,
)
from ..terms.scopes import is_around, why_apart
from ..terms.spec import DataNeeded, ValuesWanted
from .core import Core, current_core
from .observer import Issued
from .overlapping_copies import check_destination
from .partial_writes import PartialWrites, where_unwritten

# The definitions of all instructions of ``nki.isa``, by name.
REGISTRY: dict[str, Definition] = {}

# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every call.
_GPSIMD = Engine.gpsimd

_MADE_IN_LOOP = (
    "was made in the body of a dynamic loop, or in another iteration of it, and cannot be used here; make it before "
    "the loop"
)


class Call(Issued):
    """One call of an instruction on a core. The function of the instruction gets this object as its first argument.

    Attributes:
        core: the core that runs the instruction.
    """

    __slots__ = ("core",)

    def __init__(self, core: Core, definition: Definition, values: list[Any]) -> None:
        self.core = core
        self.definition = definition
        self.values = values
        core.issued += 1
        self.number = core.issued
        self.engine = definition.default_engine
        self.function = core.language_function
        self.reads = []
        self.indirect = []
        self.offsets = []
        self.register = 0

    def keep(self, view: View) -> None:
        """Record that the instruction leaves some elements of the output ``view`` unchanged, and so needs their old
        values.
        """
        self.reads.append(view)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())


def _way_there(rule: Operand, value: NkiTensor) -> str:
    """Return the end of an error message that says how to copy ``value`` to SBUF; empty if that would not help."""
    if rule.is_output or MemoryRegion.sbuf not in rule.regions:
        return ""
    if value.buffer is MemoryRegion.psum:
        return "; copy it to sbuf first, with nisa.tensor_copy"
    return "; load it to sbuf first, with nisa.dma_copy"


def _refuse_type(rule: Operand, value: NkiTensor) -> NoReturn:
    if value.dtype.is_packed and rule.dtypes is COMPUTABLE:
        raise NkiValidationError(
            f"operand {rule.name!r}: engines compute with {value.dtype} in nisa.nc_matmul_mx only, got {value}; "
            f"view it as nl.{value.dtype.numpy} to work on its bits"
        )
    if value.dtype == int64:
        raise NkiValidationError(
            f"operand {rule.name!r}: engines have 32 bits for an element and take no int64, got {value}; "
            f"nisa.dma_copy copies it, nisa.scalar_load reads one element, and viewed as nl.int32 its halves are tiles"
        )
    allowed = ", ".join(sorted(rule.dtypes))
    raise NkiValidationError(f"operand {rule.name!r} must have one of the types {allowed}, got {value}")


def check_scope(core: Core, what: str, value: View) -> None:
    """Check that a tensor exists for the current instruction: on this core, in this launch and in this iteration of
    loops.

    Args:
        core: the core.
        what: the use of the tensor, for the message.
        value: the tensor.

    Raises:
        NkiValidationError: the tensor belongs to another core, another launch, or a loop iteration that has ended.
    """
    scope, here = core.scope_of(value.storage), core.loops.scope
    if not is_around(scope, here):
        raise NkiValidationError(f"{what}: {value} {why_apart(scope, here, _MADE_IN_LOOP)}")


def _check_vector(rule: Operand, value: NkiTensor, like: NkiTensor) -> None:
    if value.shape[0] != like.shape[0] or value.free_size != 1:
        raise NkiValidationError(
            f"operand {rule.name!r} must have shape ({like.shape[0]}, 1), one element for each partition of "
            f"{rule.like!r}, got {value}"
        )


def _resolve_indirect(call: Call, rule: Operand, view: NkiTensor) -> View:
    """Return the static view to which a view with a run-time address points now.

    If the instruction handles run-time addresses itself (``rule.accepts_indirect``), ``view`` is returned unchanged.

    Raises:
        OutOfRangeError: the address leads outside the tensor.
        NkiValidationError: the instruction does not accept a view of this kind, or the index does not exist in this
            scope.
    """
    indirect = view.indirect_access
    assert indirect is not None
    if isinstance(indirect.index, View):
        check_scope(call.core, f"the index of operand {rule.name!r}", indirect.index)
        call.reads.append(indirect.index)
    else:
        call.register = max(call.register, indirect.index.loaded_by)
    if indirect.kind != "tensor":
        if rule.accepts_indirect:
            return view
        call.offsets.append(indirect)
        return resolve_scalar_offset(rule.name, view)
    if rule.indirection is None or indirect.base is None:
        raise NkiValidationError(f"operand {rule.name!r} must not be a view of indirect(), got {view}; copy it first")
    check_engine_access(rule.name, indirect.base)
    call.reads.append(indirect.base)
    operand = gather(rule.name, view, indirect, rule.indirection, rule.is_output)
    call.indirect.append(operand)
    return operand.gathered


def check_written(core: Core, name: str, tensor: NkiTensor, is_read: npt.NDArray[np.bool_] | None = None) -> None:
    """Handle a read of unwritten elements as the option ``uninitialized`` says: raise, warn, or write the sentinel
    value.

    Args:
        core: the core that reads.
        name: the name of the operand, for the message.
        tensor: the operand.
        is_read: a mask of the elements that are read, in the tensor's shape; None for all.

    Raises:
        UninitializedReadError: an element was never written, with ``uninitialized="error"``.
    """
    storage = tensor.storage
    if storage.written.is_full:
        return
    missing = storage.count_unwritten(tensor.layout, tensor.dtype, is_read)
    if not missing:
        return
    if core.options.uninitialized != "ignore":
        where = where_unwritten(core.observers.find(PartialWrites), tensor, is_read)
        what = f"operand {name!r}: {missing} of the {tensor.size} elements of {tensor} were never written: {where}"
        refuse(core.options.uninitialized, UninitializedReadError(what), kernel_location())
    storage.fill_unwritten(tensor.layout, tensor.dtype)


def check_operand(call: Call, rule: Operand, value: Any, like: Any) -> Any:
    """Check that an operand satisfies ``rule``, and return it; :func:`_resolve_indirect` converts a run-time address.

    Args:
        call: the instruction.
        rule: the instruction's requirements on the operand.
        value: the caller's argument; not None.
        like: the operand whose partitions a vector must match; not used for other operands.

    Raises:
        NkiValidationError: a requirement is not met; the message names the operand, the limit and the value.
    """
    if not isinstance(value, NkiTensor):
        if rule.accepts_scalar and (type(value) is float or _is_number(value)):
            return value
        kinds = "a tensor or a number" if rule.accepts_scalar else "a tensor"
        raise NkiValidationError(f"operand {rule.name!r} must be {kinds}, got {describe_foreign_value(value)}")
    if value.buffer not in rule.regions:
        allowed = " or ".join(sorted(region.value for region in rule.regions))
        raise NkiValidationError(f"operand {rule.name!r} must be in {allowed}, got {value}{_way_there(rule, value)}")
    if value.dtype not in rule.dtypes:
        _refuse_type(rule, value)
    storage = value.storage
    scope, here = storage.scope, call.core.loops.scope
    if scope is not here and here[: len(scope)] != scope:
        check_scope(call.core, f"operand {rule.name!r}", value)
    if value.indirect_access is not None:
        value = _resolve_indirect(call, rule, value)
        storage = value.storage
    if storage.region in ON_CHIP and value.shape[0] > PARTITIONS:
        raise NkiValidationError(
            f"operand {rule.name!r}: the partition dimension must be at most {PARTITIONS} (nl.tile_size.pmax), got "
            f"{value}"
        )
    if rule.is_vector:
        _check_vector(rule, value, like)
    if rule.is_output:
        if storage.is_read_only:
            is_alone = call.core.launch.seat is None
            several = "" if is_alone else "; an array of several ranks is one, give each rank its own"
            raise NkiValidationError(
                f"operand {rule.name!r}: {value} is a read-only input and cannot be written: pass a writable array, or "
                f"a torch tensor that does not require grad (.detach()){several}"
            )
        if storage.derived is not None:
            storage.change()
        return value
    call.reads.append(value)
    if not storage.written.is_full and rule.is_accessed and value.indirect_access is None:
        check_written(call.core, rule.name, value)
    return value


def _public_signature(function: Callable[..., None]) -> inspect.Signature:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    name = inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return inspect.Signature([*parameters, name])


def _label(core: Core, definition: Definition, name: Any) -> str:
    named = f" (name={name!r})" if type(name) is str and name else ""
    return f"{definition.label}{named}{f' on {core.name}' if core.name else ''}"


def _validate(call: Call) -> None:
    """Check the operands of a call, replace them by their resolved values, and choose the engine."""
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


def issue(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NkiInstruction:
    """Run one instruction on the core of this thread, and return its handle.

    Args:
        definition: the instruction.
        args, kwargs: the arguments of the kernel's call.
    """
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
    """Return a decorator that registers ``function(call, <documented parameters>)`` as the instruction of the same
    name.

    The decorator returns the public function. If ``default`` is None, the first engine of ``on`` is the default engine.
    Instructions of another ``module`` than ``nisa`` are not entered in ``REGISTRY``. The other arguments are attributes
    of :class:`Definition`.
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


def report(core: Core, instruction: Callable[..., NkiInstruction], *args: Any) -> None:
    """Notify the observers that ``instruction(*args)`` has run. Code that does its work without :func:`issue` calls
    this.
    """
    definition = REGISTRY[instruction.__name__]
    call = Call(core, definition, definition.bind(args, {}))
    for tell in core.observers.issued:
        tell(call)
