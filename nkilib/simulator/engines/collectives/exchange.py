# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The steps of every collective operation: checks of its tensors, the exchange of data among ranks, and reductions.

- :func:`checked_tensors` and the functions from :func:`check_pairs` to :func:`check_shape` check the arguments.
- :func:`reduction_key`, :func:`computed_in`, :func:`reduced`, :func:`store_reduced` reduce the data of the ranks.
- :func:`contents` returns the data of a rank, :func:`shape_terms` the shapes and types on which all ranks must agree.
- :class:`Operation` describes the call of an operation on one core. :func:`perform` runs it: the core gives its rank's
  data to the other ranks, receives the data of all ranks, and stores its *share* of the result.

Tensors in SBUF and in private HBM belong to a core: if a rank has two cores, the cores 0 of all ranks exchange data
among themselves, and so do the cores 1. If all tensors are in shared HBM, the operation belongs to the whole rank: both
cores reach the operation, core 0 performs it for both, and it orders accesses to its tensors like a ``core_barrier`` on
each tensor.

Source: ``nki/api/nki/collectives/__init__.py``; the 2.33 pages of ``all_reduce``, ``all_gather`` and ``all_to_all``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.definition import SBUF, Operand
from ...isa.operators import OPERATORS
from ...machine.core import Core
from ...machine.issue import REGISTRY, Call, check_operand
from ...machine.overlapping_copies import check_copy
from ...machine.partial_writes import PartialWrites
from ...machine.synchronisation import AgreedProperty, Participant
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ...terms.argument_checks import is_integer
from ...terms.dtypes import COMPUTABLE, MOVABLE, DType, bool_, float32, int32, uint32
from ...terms.enums import HBM, MemoryRegion
from ...terms.errors import BarrierError, NkiValidationError, kernel_location
from ..between_cores import synchronise_on
from ..dma_endpoints import read, write
from .groups import rank_of

HBM_OR_SBUF = HBM | SBUF

# Bits of any type but int64 are moved; reductions take the types that engines compute with, except bool.
REDUCIBLE = COMPUTABLE - {bool_}

# Dimensions of a tensor in SBUF: one of partitions and one free.
_SBUF_DIMENSIONS = 2

_REDUCTIONS = ("add", "minimum", "maximum")
# These are added exactly and wrap; all other types are computed with in float32.
_EXACT = frozenset({int32, uint32})

_CORE_BARRIER = "core_barrier"

Arrays = Sequence[npt.NDArray[Any]]


def _checked(call: Call, rule: Operand, tensor: Any) -> NkiTensor:
    view: NkiTensor = check_operand(call, rule, tensor, None)
    if view.is_indirect():
        raise NkiValidationError(
            f"operand {rule.name!r}: the ranks must know its address when they start, got a dynamic index in {view}; "
            f"nisa.dma_copy it to a tensor of its own"
        )
    return view


def checked_tensors(
    call: Call,
    name: str,
    values: Any,
    *,
    regions: frozenset[MemoryRegion] = HBM_OR_SBUF,
    dtypes: frozenset[DType] = MOVABLE,
    is_output: bool = False,
) -> tuple[NkiTensor, ...]:
    """Return the tensors of a list argument, after checking that the instruction may access them.

    Args:
        call: the running instruction.
        name: the name of the argument.
        values: the value of the argument.
        regions: the memory regions in which the tensors may be.
        dtypes: the types that the tensors may have.
        is_output: whether the instruction writes the tensors instead of reading them.

    Raises:
        NkiValidationError: the argument is no list of tensors, or a tensor may not be accessed.
    """
    if not isinstance(values, list | tuple) or not values:
        raise NkiValidationError(f"{name} must be a list of tensors, got {values!r}")
    checked = []
    for number, tensor in enumerate(values):
        rule = Operand(f"{name}[{number}]", is_output, regions, dtypes=dtypes, accepts_indirect=True, is_accessed=False)
        checked.append(_checked(call, rule, tensor))
        if is_output:
            call.keep(tensor)  # the ranks write it together: its old values may be needed until then
    return tuple(checked)


def check_pairs(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    """Check that there are as many sources as results, and that all of them are in HBM, or all in SBUF.

    In SBUF, also check that there is one source and one result, and that both have two dimensions.

    Raises:
        NkiValidationError: a rule is broken; the message names the list or the tensor.
    """
    if len(srcs) != len(dsts):
        raise NkiValidationError(f"srcs and dsts must be lists of one length, got {len(srcs)} and {len(dsts)} tensors")
    in_hbm = {tensor.buffer in HBM for tensor in (*srcs, *dsts)}
    if len(in_hbm) > 1:
        raise NkiValidationError(
            f"srcs and dsts must all be in HBM or all in sbuf, got {srcs[0]} and {dsts[0]}; nisa.dma_copy one of them"
        )
    if in_hbm == {True}:
        return
    if len(srcs) > 1:
        raise NkiValidationError(f"srcs and dsts in sbuf must be lists of one tensor, got {len(srcs)}")
    for tensor in (*srcs, *dsts):
        if tensor.ndim != _SBUF_DIMENSIONS:
            raise NkiValidationError(f"a tensor in sbuf must have two dimensions here, got {tensor}")


def check_memory(call: Call, srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    """Check the rules of NKI 0.7 on private and shared HBM for the tensors of ``all_reduce`` and ``all_gather``.

    Raises:
        NkiValidationError: a rule is broken; the message names the tensor and the rule.
    """
    for name, group in (("srcs", srcs), ("dsts", dsts)):
        if len({tensor.buffer for tensor in group}) > 1:
            raise NkiValidationError(
                f"{name} must be all in private_hbm or all in shared_hbm, got {', '.join(map(str, group))}"
            )
    if call.core.launch.cores > 1 or not call.core.is_traced:
        return
    remedy = "kernels for NKI 0.6, which had no such rule, run with NKI_COMPILER_FRONTEND=custom"
    if srcs[0].buffer is MemoryRegion.shared_hbm:
        raise NkiValidationError(
            f"srcs must be in private_hbm where a rank is one core, got {srcs[0]}; make it in nl.private_hbm, or "
            f"launch on two cores, kernel[2]; {remedy}"
        )
    if dsts[0].buffer is MemoryRegion.shared_hbm and os.environ.get("NKI_LNC1_SHARED_HBM") != "1":
        raise NkiValidationError(
            f"dsts must be in private_hbm where a rank is one core, unless NKI_LNC1_SHARED_HBM=1 is set, got "
            f"{dsts[0]}; {remedy}"
        )


def check_same_types(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    """Check that each source has the type of its result, because collective operations cast nothing.

    Raises:
        NkiValidationError: if the types differ; the message names both tensors.
    """
    for number, (src, dst) in enumerate(zip(srcs, dsts, strict=True)):
        if src.dtype != dst.dtype:
            raise NkiValidationError(
                f"srcs[{number}] and dsts[{number}] must have one type, got {src} and {dst}; cast with "
                f"nisa.tensor_copy or nisa.dma_copy"
            )


def check_dimension(collective_dim: Any, allowed: Sequence[int], why: str) -> int:
    """Return ``collective_dim``, along which tensors are split or concatenated, after checking that it is allowed.

    Raises:
        NkiValidationError: the dimension is not allowed; the message has the allowed ones, and ``why`` as the reason.
    """
    if not is_integer(collective_dim) or collective_dim not in allowed:
        raise NkiValidationError(
            f"collective_dim must be {' or '.join(map(str, allowed))} {why}, got {collective_dim!r}"
        )
    return int(collective_dim)


def check_shape(what: str, tensor: NkiTensor, expected: tuple[int, ...], why: str) -> None:
    """Check that a tensor has the expected shape.

    Raises:
        NkiValidationError: the shape is different; the message has ``what``, the name of the tensor, the expected
            shape, and ``why``, the reason for this shape.
    """
    if tensor.shape != expected:
        raise NkiValidationError(f"{what} must have shape {list(expected)}, {why}; got {tensor}")


def reduction_key(op: Any) -> str:
    """Return the name of the reduction operator ``op``, which must be add, minimum or maximum.

    Raises:
        NkiValidationError: ``op`` is anything else.
    """
    for key in _REDUCTIONS:
        if op is OPERATORS[key]:
            return key
    raise NkiValidationError(f"op must be nl.add, nl.minimum or nl.maximum, got {op!r}")


def computed_in(dtype: DType) -> DType:
    """Return the type in which elements of ``dtype`` are reduced, before results are rounded to ``dtype``."""
    return dtype if dtype in _EXACT else float32


def reduced(key: str, dtype: DType, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the element-wise reduction of arrays, from the first to the last, not yet rounded to ``dtype``.

    Args:
        key: the name of the operator.
        dtype: the type of the result.
        parts: the arrays.
    """
    kind = computed_in(dtype).numpy
    total = np.array(parts[0], kind)
    for part in parts[1:]:
        ARITHMETIC[key](total, part.astype(kind, copy=False), total)
    return total


def store_reduced(core: Core, dst: NkiTensor, key: str, parts: Sequence[npt.NDArray[Any]]) -> None:
    """Reduce the arrays ``parts`` from the first to the last, and store the result in ``dst``, rounded once.

    Args:
        core: the core that stores the result.
        dst: the tensor to write.
        key: the name of the operator, from :func:`reduction_key`.
        parts: one array per rank, of the shape of ``dst``.
    """
    write(core, dst, reduced(key, dst.dtype, parts), computed_in(dst.dtype))


def contents(core: Core, name: str, tensors: Sequence[NkiTensor]) -> list[npt.NDArray[Any]]:
    """Return copies of the contents of tensors; other ranks may read the copies after this rank has gone on.

    Raises:
        UninitializedReadError: an element was never written, with ``uninitialized="error"``.
    """
    return [np.array(read(core, f"{name}[{number}]", tensor)) for number, tensor in enumerate(tensors)]


def shape_terms(name: str, tensors: Sequence[NkiTensor]) -> tuple[AgreedProperty, ...]:
    """Return the shapes and types of tensors as properties on which all ranks must agree; ``name`` is their name in
    errors.
    """
    return tuple(
        AgreedProperty(f"{name}[{number}]", f"{list(tensor.shape)} {tensor.dtype}")
        for number, tensor in enumerate(tensors)
    )


@dataclass(frozen=True)
class Operation:
    """The call of one collective operation on one core.

    Attributes:
        what: the name of the operation, on which the ranks must agree.
        members: the ranks that take part.
        srcs: the tensors that are read.
        dsts: the tensors that are written.
        terms: further values on which the ranks must agree.
        bring: the function that returns the data of this rank for the other ranks; not called in a launch without data.
        store: the function that takes the data of all ranks, by rank, and stores this rank's share; not called in a
            launch without data.
        other_tensors: further tensors in shared HBM that the operation reads or writes.
        core_terms: values besides ``terms`` on which the two cores of a rank must agree.
    """

    what: str
    members: tuple[int, ...]
    srcs: tuple[NkiTensor, ...]
    dsts: tuple[NkiTensor, ...]
    terms: tuple[AgreedProperty, ...]
    bring: Callable[[], Any]
    store: Callable[[Mapping[int, Any]], None]
    other_tensors: tuple[NkiTensor, ...] = ()
    core_terms: tuple[object, ...] = ()

    @property
    def tensors(self) -> tuple[NkiTensor, ...]:
        return *self.srcs, *self.dsts


def belongs_to_rank(core: Core, tensors: Sequence[NkiTensor]) -> bool:
    """Return whether an operation on ``tensors`` belongs to a whole rank of two cores, not to a single core."""
    return core.launch.cores > 1 and all(tensor.buffer is MemoryRegion.shared_hbm for tensor in tensors)


def _terms_of(tensors: Sequence[NkiTensor]) -> tuple[AgreedProperty, ...]:
    memories = sorted({str(tensor.buffer) for tensor in tensors})
    return (AgreedProperty("the memory of the tensors", " and ".join(memories)),)


def _exchange(core: Core, operation: Operation, number: int | None) -> None:
    item = None if core.is_abstract else operation.bring()
    seat = core.launch.seat
    if seat is None:  # a launch by itself: rank 0 of one
        brought: Mapping[int, Any] = {rank_of(core): item}
    else:
        what = AgreedProperty("the collective", operation.what)
        terms = (what, *operation.terms, *_terms_of(operation.tensors))
        place = kernel_location()
        core.meetings += 1
        brought = seat.world.meet(Participant(seat.rank, number, operation.members, operation.what, place, terms, item))
    if core.is_abstract:
        return
    operation.store(brought)
    writes = core.observers.find(PartialWrites)
    for dst in operation.dsts:
        if writes is not None and not dst.storage.written.is_full:
            writes.note(dst)


def _agree(core: Core, operation: Operation) -> None:
    """Check that both cores of a rank reach the same operation.

    Raises:
        BarrierError: the cores reach different operations; the message names both.
    """
    own = [*(term.value for term in operation.terms), *operation.core_terms]
    (others,) = core.launch.barrier.meet(operation.what, own)
    if own != others:
        raise BarrierError(
            f"both cores of a rank must come to the same {operation.what}, got {own} on core {core.number} and "
            f"{others} on core {1 - core.number}"
        )


def _order(core: Core, tensors: Sequence[NkiTensor]) -> None:
    definition = REGISTRY[_CORE_BARRIER]
    for tensor in tensors:
        synchronise_on(Call(core, definition, definition.bind((tensor, (0, 1)), {})), tensor)


def perform(call: Call, operation: Operation) -> None:
    """Run a collective operation on this core: exchange data with the other ranks, and store the share of this rank.

    Raises:
        BarrierError: another rank, or the other core of this rank, reaches a different operation or none.
    """
    core = call.core
    others = {f"srcs[{number}]": src for number, src in enumerate(operation.srcs)}
    for number, dst in enumerate(operation.dsts):
        name = f"dsts[{number}]"
        check_copy(core, dst, others, None, name)
        others[name] = dst
    if not belongs_to_rank(core, operation.tensors):
        core.loads.settle()
        _exchange(core, operation, core.number)
        return
    ordered = list({tensor.storage: tensor for tensor in (*operation.tensors, *operation.other_tensors)}.values())
    _agree(core, operation)
    _order(core, ordered)
    if core.number == 0:
        _exchange(core, operation, None)
    _order(core, ordered)
