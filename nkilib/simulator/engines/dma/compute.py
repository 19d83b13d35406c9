# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``dma_compute``: sums of tensors that the DMA engines compute in transit, with gather-add and scatter-add.

Sources: docstring of ``dma_compute``, ``nki/migration/index.rst``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.operand import DMA_REACH, Operand, output
from ...isa.operators import OPERATORS, Operator
from ...machine.call import Call
from ...machine.core import Core
from ...machine.issue import instruction
from ...machine.operands import check_operand
from ...machine.overlapping_copies import check_copy
from ...tensors.tensor import NkiTensor
from ...terms import enums
from ...terms.dtypes import float32
from ...terms.errors import NkiValidationError
from ...terms.regions import MemoryRegion
from .modes import as_oob_mode, check_vector_offset, has_vector_offset
from .rows import End, Rows, index_tensor, pass_over, read, resolve, rows_in_range, write

_SOURCES_MAX = 16
# With a vector offset: dst itself and the tensor that is added to it.
_SOURCES_OF_UPDATE = 2


@instruction(
    # A gather, which may leave rows of dst unchanged, reads dst too.
    operands=(output("dst", regions=DMA_REACH, accepts_indirect=True, marks_itself=True),),
    on=(enums.Engine.dma,),
    is_lane_bound=False,
    is_transfer=True,
)
def dma_compute(
    call: Call,
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Operator,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: enums.oob_mode = enums.oob_mode.error,
) -> None:
    """Compute ``dst = srcs[0] + srcs[1] + ...``, added from left to right in float32.

    The tensors have equal numbers of elements, and any shapes. ``reduce_op`` is ``nl.add``, and all ``scales`` are 1.
    With a vector offset the instruction adds one tensor to ``dst``, which is the other of two sources: a tile to rows
    of HBM (scatter), or rows of HBM to a tile (gather). An index that is out of range raises an error, or with
    ``oob_mode=skip`` leaves its row of ``dst`` unchanged.

    Raises:
        OutOfRangeError: naming the partition and the index that is out of range.
    """
    oob_mode = as_oob_mode(oob_mode)
    _check_sum(srcs, reduce_op, scales)
    views = {"dst": dst, **{f"srcs[{number}]": source for number, source in enumerate(srcs)}}
    _check_operands(call, views)
    is_update = any(has_vector_offset(view) for view in views.values())
    check_copy(call.core, dst, {name: view for name, view in views.items() if name != "dst"}, dst.layout)
    if is_update:
        check_vector_offset(call.core, enums.dge_mode.unknown)
        _check_update(dst, srcs, unique_indices)
    ends: dict[str, End] = {}
    for name, view in views.items():
        end = resolve(name, view, oob_mode is enums.oob_mode.skip)
        assert end is not None  # a scalar offset, which alone is skipped as a whole, was refused
        ends[name] = end
    if is_update:
        ends = dict(zip(ends, rows_in_range(ends), strict=True))
        _check_unique(dst, ends["dst"])
    target = ends.pop("dst")
    if dst.storage.is_abstract:
        pass_over(call.core, target, ends)
        return
    write(call.core, target, _sum(call.core, ends), float32)


def _sum(core: Core, ends: dict[str, End]) -> npt.NDArray[np.float32]:
    """Return the float32 sum of the sources, in their shape, or flat if their shapes differ."""
    sources = [read(core, name, end) for name, end in ends.items()]
    shape = sources[0].shape if len({source.shape for source in sources}) == 1 else (-1,)
    first, second, *others = (source.reshape(shape).astype(np.float32, copy=False) for source in sources)
    total: npt.NDArray[np.float32] = np.add(first, second)
    for values in others:
        np.add(total, values, out=total)
    return total


def _check_sum(srcs: Any, reduce_op: Any, scales: Any) -> None:
    """Check that the call uses only the features that the documentation names as supported at present."""
    if not isinstance(srcs, list | tuple) or not 2 <= len(srcs) <= _SOURCES_MAX:
        raise NkiValidationError(
            f"srcs must be a list of 2 to {_SOURCES_MAX} tensors, got {srcs!r}; to add a tensor to 'dst' give both, "
            "srcs=[dst, src], and to copy it use nisa.dma_copy"
        )
    if reduce_op is not OPERATORS["add"]:
        raise NkiValidationError(f"reduce_op must be nl.add, the only one supported, got {reduce_op!r}")
    if scales is None:
        return
    if not isinstance(scales, list | tuple) or len(scales) != len(srcs):
        raise NkiValidationError(f"scales must be None or a list of {len(srcs)} numbers, one a source, got {scales!r}")
    if any(not isinstance(scale, int | float | np.number) or scale != 1 for scale in scales):
        raise NkiValidationError(f"scales must all be 1.0, the only value supported, got {scales!r}")


def _check_operands(call: Call, views: dict[str, NkiTensor]) -> None:
    dst = views["dst"]
    for name, view in views.items():
        if name != "dst":
            check_operand(call, Operand(name, regions=DMA_REACH, accepts_indirect=True, is_accessed=False), view, None)
        if view.is_indirect() and not has_vector_offset(view):
            raise NkiValidationError(
                f"operand {name!r}: the address must be known at compile time, unless it has a vector offset; got a "
                f"dynamic index in {view}, nisa.dma_copy it first"
            )
        if view.size != dst.size:
            raise NkiValidationError(
                f"operands 'dst' and {name!r} must have equally many elements, got {dst} and {view}"
            )


def _check_update(dst: NkiTensor, srcs: Sequence[NkiTensor], unique_indices: bool) -> None:
    """Check that a call with a vector offset has one of its two forms.

    They are a scatter that adds a tile to rows of HBM, and a gather that adds rows of HBM to a tile.
    """
    if unique_indices is not True:
        raise NkiValidationError(
            f"a vector offset needs unique_indices=True, others are not supported, got {unique_indices!r}"
        )
    others = [source for source in srcs if not _is_same_view(source, dst)]
    if has_vector_offset(dst):
        fits = len(others) == 1 and others[0].buffer is MemoryRegion.sbuf
    else:
        fits = len(others) == 1 and has_vector_offset(others[0]) and dst.buffer is MemoryRegion.sbuf
    if len(srcs) != _SOURCES_OF_UPDATE or not fits:
        raise NkiValidationError(
            "with a vector offset srcs must be 'dst' itself and one other tensor: a tile in sbuf to be added to rows "
            f"in HBM, or rows in HBM to be added to a 'dst' in sbuf; got dst {dst} and srcs {list(srcs)}"
        )


def _is_same_view(view: NkiTensor, other: NkiTensor) -> bool:
    """Return whether two views select the same elements; index tensors are compared by place, not by content."""
    if view.storage is not other.storage or view.layout != other.layout or view.dtype != other.dtype:
        return False
    if not view.is_indirect() and not other.is_indirect():
        return True
    if not has_vector_offset(view) or not has_vector_offset(other):
        return False
    return _is_same_view(index_tensor(view), index_tensor(other))


def _check_unique(dst: NkiTensor, target: End) -> None:
    """Check the promise ``unique_indices``: no row of ``dst`` is named twice.

    The sum in such a row would depend on the order of the two additions.
    """
    if not has_vector_offset(dst) or not isinstance(target, Rows):
        return
    numbers, counts = np.unique(target.numbers, return_counts=True)
    if (counts > 1).any():
        raise NkiValidationError(
            f"operand 'dst': unique_indices=True, but index {int(numbers[counts > 1][0])} of {index_tensor(dst)} comes "
            "more than once; add the rows up first"
        )
