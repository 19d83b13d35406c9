# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the operations demand of their tensors.

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
# Bits of any type but int64 are moved; computed with is what engines compute with, but for truth values.
REDUCIBLE = COMPUTABLE - {bool_}
# Dimensions of a tensor in SBUF: one of partitions and one free.
_SBUF_DIMENSIONS = 2
_REDUCTIONS = ("add", "minimum", "maximum")


def tensors(
    call: Call,
    name: str,
    given: Any,
    *,
    regions: frozenset[MemoryRegion] = HBM_OR_SBUF,
    dtypes: frozenset[DType] = MOVABLE,
    is_output: bool = False,
) -> tuple[NkiTensor, ...]:
    """The tensors of a list, each of which an instruction may read, or write.

    Raises:
        NkiValidationError: naming the one that it may not, and why.
    """
    if not isinstance(given, list | tuple) or not given:
        raise NkiValidationError(f"{name} must be a list of tensors, got {given!r}")
    checked = []
    for number, tensor in enumerate(given):
        rule = Operand(f"{name}[{number}]", is_output, regions, dtypes=dtypes, accepts_indirect=True, is_accessed=False)
        checked.append(_checked(call, rule, tensor))
        if is_output:
            call.keep(tensor)  # the ranks write it together: what it held before may be needed till then
    return tuple(checked)


def _checked(call: Call, rule: Operand, tensor: Any) -> NkiTensor:
    found: NkiTensor = check_operand(call, rule, tensor, None)
    if found.is_indirect():
        raise NkiValidationError(
            f"operand {rule.name!r}: the ranks must know its address when they start, got a dynamic index in {found}; "
            f"nisa.dma_copy it to a tensor of its own"
        )
    return found


def check_pairs(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    """Require as many sources as results, in one kind of memory; several of them, and more dimensions, in HBM only.

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
    """The rules of 0.7 which HBM the tensors of ``all_reduce`` and ``all_gather`` may be in.

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
    """Require that nothing is cast.

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
    """The dimension along which tensors are split or put together.

    Raises:
        NkiValidationError: naming the allowed ones.
    """
    if not is_integer(collective_dim) or collective_dim not in allowed:
        raise NkiValidationError(
            f"collective_dim must be {' or '.join(map(str, allowed))} {why}, got {collective_dim!r}"
        )
    return int(collective_dim)


def check_shape(what: str, tensor: NkiTensor, expected: tuple[int, ...], why: str) -> None:
    """Require a shape.

    Raises:
        NkiValidationError: naming the tensor, the shape and where it comes from.
    """
    if tensor.shape != expected:
        raise NkiValidationError(f"{what} must have shape {list(expected)}, {why}; got {tensor}")


def reduction_key(op: Any) -> str:
    """The name of a reduction that ranks can do.

    Raises:
        NkiValidationError: for any other operator.
    """
    for key in _REDUCTIONS:
        if op is OPERATORS[key]:
            return key
    raise NkiValidationError(f"op must be nl.add, nl.minimum or nl.maximum, got {op!r}")
