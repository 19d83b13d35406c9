# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The requirements of the collective operations on their tensors.

Source: ``nki/api/nki/collectives/__init__.py``; the 2.33 pages of ``all_reduce``, ``all_gather`` and ``all_to_all``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...isa.operand import SBUF, Operand
from ...isa.operators import OPERATORS
from ...machine.call import Call
from ...machine.operands import check_operand
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import COMPUTABLE, MOVABLE, DType, bool_
from ...terms.errors import NkiValidationError
from ...terms.integers import is_integer
from ...terms.regions import HBM, MemoryRegion

HBM_OR_SBUF = HBM | SBUF
# Bits of any type but int64 are moved; reductions take the types that engines compute with, except bool.
REDUCIBLE = COMPUTABLE - {bool_}
# Dimensions of a tensor in SBUF: one of partitions and one free.
_SBUF_DIMENSIONS = 2
_REDUCTIONS = ("add", "minimum", "maximum")


def tensors(
    call: Call,
    name: str,
    values: Any,
    *,
    regions: frozenset[MemoryRegion] = HBM_OR_SBUF,
    dtypes: frozenset[DType] = MOVABLE,
    is_output: bool = False,
) -> tuple[NkiTensor, ...]:
    """Return the tensors of a list, after checking that the instruction may read each of them, or write it.

    Raises:
        NkiValidationError: naming the tensor that it may not, and why.
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


def _checked(call: Call, rule: Operand, tensor: Any) -> NkiTensor:
    view: NkiTensor = check_operand(call, rule, tensor, None)
    if view.is_indirect():
        raise NkiValidationError(
            f"operand {rule.name!r}: the ranks must know its address when they start, got a dynamic index in {view}; "
            f"nisa.dma_copy it to a tensor of its own"
        )
    return view


def check_pairs(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    """Check that there are as many sources as results, and that all are in HBM or all in SBUF.

    Only HBM allows several sources, and tensors of more than two dimensions.

    Raises:
        NkiValidationError: naming the list or the tensor.
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
        NkiValidationError: naming the tensor and the rule.
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
    """Check that each source has the type of its result, so that nothing is cast.

    Raises:
        NkiValidationError: naming both tensors.
    """
    for number, (src, dst) in enumerate(zip(srcs, dsts, strict=True)):
        if src.dtype != dst.dtype:
            raise NkiValidationError(
                f"srcs[{number}] and dsts[{number}] must have one type, got {src} and {dst}; cast with "
                f"nisa.tensor_copy or nisa.dma_copy"
            )


def check_dimension(collective_dim: Any, allowed: Sequence[int], why: str) -> int:
    """Return the dimension along which tensors are split or concatenated, after checking that it is allowed.

    Raises:
        NkiValidationError: naming the allowed dimensions.
    """
    if not is_integer(collective_dim) or collective_dim not in allowed:
        raise NkiValidationError(
            f"collective_dim must be {' or '.join(map(str, allowed))} {why}, got {collective_dim!r}"
        )
    return int(collective_dim)


def check_shape(what: str, tensor: NkiTensor, expected: tuple[int, ...], why: str) -> None:
    """Check that a tensor has the expected shape.

    Raises:
        NkiValidationError: naming the tensor, the shape and its origin.
    """
    if tensor.shape != expected:
        raise NkiValidationError(f"{what} must have shape {list(expected)}, {why}; got {tensor}")


def reduction_key(op: Any) -> str:
    """Return the name of a reduction that ranks can perform.

    Raises:
        NkiValidationError: for any other operator.
    """
    for key in _REDUCTIONS:
        if op is OPERATORS[key]:
            return key
    raise NkiValidationError(f"op must be nl.add, nl.minimum or nl.maximum, got {op!r}")
