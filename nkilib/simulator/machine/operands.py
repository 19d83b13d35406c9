# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operand checks that all instructions share."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..hardware.limits import PARTITIONS
from ..isa.access import check_engine_access
from ..isa.indirection import gather
from ..isa.offsets import resolve_scalar_offset
from ..isa.operand import Operand
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.description import describe_foreign_value
from ..terms.dtypes import COMPUTABLE, int64
from ..terms.errors import NkiValidationError, UninitializedReadError, kernel_location
from ..terms.regions import ON_CHIP, MemoryRegion
from ..terms.scopes import is_around, why_apart
from .call import Call
from .core import Core
from .levels import refuse
from .partial_writes import PartialWrites, where_unwritten

_MADE_IN_LOOP = (
    "was made in the body of a dynamic loop, or in another iteration of it, and cannot be used here; make it before "
    "the loop"
)


def check_operand(call: Call, rule: Operand, value: Any, like: Any) -> Any:
    """Return ``value`` if it satisfies ``rule``; a scalar-indirect view is returned resolved to its target.

    Args:
        call: the instruction.
        rule: the instruction's requirements on the operand.
        value: the caller's argument; not None where the operand is optional.
        like: the operand whose partitions a vector must match; not used for other operands.

    Raises:
        NkiValidationError: if it does not satisfy them; the message names the operand, the limit and the value.
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
        value = resolve_indirect(call, rule, value)
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())


def _way_there(rule: Operand, value: NkiTensor) -> str:
    """Return advice how to move an input to a place where the instruction can read it."""
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
    """Check that a tensor exists where the core is: on this core, in this launch and in this iteration of its loops.

    Args:
        core: the core.
        what: the use of the tensor, for the message.
        value: the tensor.

    Raises:
        NkiValidationError: if it belongs to another core, another launch, or an iteration of a loop that has ended.
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


def resolve_indirect(call: Call, rule: Operand, view: NkiTensor) -> View:
    """Return the tensor that an indirect view refers to, or the view itself if the instruction resolves it.

    Raises:
        OutOfRangeError: if it points outside the tensor.
        NkiValidationError: if the instruction does not accept a view of this kind, or the index does not exist here.
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
    """Report a read of unwritten elements, or give them the sentinel value, depending on the options.

    Args:
        core: the core that reads.
        name: the name of the operand, for the message.
        tensor: the operand.
        is_read: a mask of the elements that are read, in the tensor's shape; None for all.

    Raises:
        UninitializedReadError: with ``uninitialized="error"``.
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
