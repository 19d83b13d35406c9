# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What an instruction demands of its tensors."""

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


# Partitions that share their offsets: those of one core of the GpSimd engine, or one row group of the Tensor engine.
_GROUP = 16
_TENSOR_ENGINE_GROUP = 32


class Indirection(NamedTuple):
    """What an instruction documents of views of ``NkiTensor.indirect``.

    Attributes:
        operands: those that may be indirect; the second one is the input that decides where the first one's index is.
        engines: those that can follow them.
    """

    operands: tuple[str, ...]
    engines: frozenset[Engine]

    @property
    def group(self) -> int:
        return _TENSOR_ENGINE_GROUP if Engine.tensor in self.engines else _GROUP


@dataclass(frozen=True)
class Operand:
    """A tensor parameter of an instruction.

    Attributes:
        name: the parameter.
        is_output: written by the instruction; else read.
        regions: memory regions in which it may be.
        is_optional: may be None.
        accepts_scalar: may be a Python number instead of a tensor.
        is_vector: must have shape (partitions of ``like``, 1).
        like: the operand whose partitions a vector must match.
        dtypes: allowed types; by default those with which engines compute: all but the packed ones.
        accepts_indirect: the instruction itself resolves indirect views, vector offsets included (DMA only).
        marks_itself: the instruction itself marks what it wrote.
        may_leave: it may leave elements of the view as they were.
        is_accessed: its elements are read or written; else it only names something to wait for, or the instruction
            reads a part of it and checks that this was written.
        indirection: may be a view of ``NkiTensor.indirect``, as ``indirection.RULES`` says for the instruction.
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
    """An operand that the instruction writes."""
    return Operand(name, is_output=True, **rules)


def vector(name: str, like: str, **rules: Any) -> Operand:
    """An operand of one element a partition, matching the partitions of operand ``like``."""
    return Operand(name, is_vector=True, like=like, **rules)
