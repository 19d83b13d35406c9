# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The requirements of an instruction on its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..terms.dtypes import COMPUTABLE, DType
from ..terms.enums import Engine
from ..terms.regions import ON_CHIP, MemoryRegion

SBUF = frozenset({MemoryRegion.sbuf})
PSUM = frozenset({MemoryRegion.psum})
HBM_SHARED = frozenset({MemoryRegion.shared_hbm})
DMA_REACH = frozenset(MemoryRegion) - PSUM


# Partitions that share their offsets: one core of the GpSimd engine, or one row group of the Tensor engine.
_GROUP = 16
_TENSOR_ENGINE_GROUP = 32


class Indirection(NamedTuple):
    """The documented support of an instruction for views of ``NkiTensor.indirect``.

    Attributes:
        operands: the operands that may be indirect: first the output, then the inputs. Where the output is indirect,
            its index must start at the partition of the first of these inputs if that is in SBUF, else at the
            partition of that input's index if the input is indirect.
        engines: the engines that support it.
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
        is_output: whether the instruction writes it; else it reads it.
        regions: the memory regions in which it may be.
        is_optional: whether it may be None.
        accepts_scalar: whether it may be a Python number instead of a tensor.
        is_vector: whether it must have shape (partitions of ``like``, 1).
        like: the name of the operand whose partitions a vector must match.
        dtypes: the allowed types; by default those with which engines compute, which are all but the packed ones.
        accepts_indirect: whether the instruction itself resolves indirect views, vector offsets included (DMA only).
        marks_itself: whether the instruction itself records which elements of the output it wrote.
        may_leave: whether the instruction may leave elements of the output unchanged.
        is_accessed: whether its elements are read or written. Otherwise it only names something to wait for, or the
            instruction reads a part of it and checks that this part was written.
        indirection: the rule in ``indirection.RULES`` by which it may be a view of ``NkiTensor.indirect``; None if it
            may not.
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
    """Return an operand that the instruction writes."""
    return Operand(name, is_output=True, **rules)


def vector(name: str, like: str, **rules: Any) -> Operand:
    """Return an operand of one element a partition, matching the partitions of operand ``like``."""
    return Operand(name, is_vector=True, like=like, **rules)
