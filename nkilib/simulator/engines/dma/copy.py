# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``dma_copy``: data movement between HBM and SBUF, with gather and scatter.

Sources: docstring of ``dma_copy``, ``nki/deep-dives/nki-dge.rst`` and ``nki/deep-dives/nki-aps.rst``.
"""

from __future__ import annotations

from ...isa.checks import no_cast_of_packed
from ...isa.operand import DMA_REACH, Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...machine.overlapping_copies import check_copy
from ...tensors.tensor import NkiTensor
from ...terms import enums
from ...terms.dtypes import COPYABLE, int64
from ...terms.errors import NkiValidationError
from ...terms.regions import is_hbm
from .modes import as_dge_mode, as_oob_mode, check_priority, check_vector_offset, has_vector_offset
from .rows import Rows, move, resolve, rows_in_range


@instruction(
    operands=(
        output("dst", regions=DMA_REACH, dtypes=COPYABLE, accepts_indirect=True, marks_itself=True),
        Operand("src", regions=DMA_REACH, dtypes=COPYABLE, accepts_indirect=True, is_accessed=False),
    ),
    on=(enums.Engine.sync, enums.Engine.scalar),
    default=enums.Engine.dma,
    is_lane_bound=False,
    is_transfer=True,
)
def dma_copy(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: enums.oob_mode = enums.oob_mode.error,
    dge_mode: enums.dge_mode = enums.dge_mode.unknown,
    engine: enums.Engine = enums.Engine.unknown,
) -> None:
    """Copy ``src`` to ``dst``, tensors with equal numbers of elements and any shapes.

    Different types are cast through float32. Packed types and int64 are not cast.

    A view with a scalar or a vector offset makes it a copy from or to an address that is read at run time. An index
    that is out of range raises an error, or with ``oob_mode=skip`` leaves the elements that it would move untouched. If
    a scalar offset moves some of the rows in HBM over an end of their tensor, the other rows are still moved.

    Raises:
        OutOfRangeError: naming the partition and the index that is out of range.
    """
    oob_mode = as_oob_mode(oob_mode)
    dge_mode = as_dge_mode(call.core, dge_mode)
    check_priority(call.core, priority)
    if has_vector_offset(dst) or has_vector_offset(src):
        check_vector_offset(call.core, dge_mode)
    _check_hardware_descriptors(dst, src, dge_mode, engine)
    if dst.size != src.size:
        raise NkiValidationError(
            f"operands 'dst' and 'src' must have equally many elements, got {dst} and {src}{_way_to_repeat(dst, src)}"
        )
    if dst.shape != src.shape:
        _check_order_of_tiles(dst, src)
    no_cast_of_packed(dst, src)
    _no_cast_of_int64(dst, src)
    if dst.indirect_access is None and src.indirect_access is None:
        check_copy(call.core, dst, {"src": src}, dst.layout)
        move(call.core, dst, src)
        return
    skips = oob_mode is enums.oob_mode.skip
    source, target = resolve("src", src, skips), resolve("dst", dst, skips)
    if source is None or target is None:
        call.keep(dst)
        return
    if isinstance(source, Rows) or isinstance(target, Rows):
        target, source = rows_in_range({"dst": target, "src": source})
        if isinstance(target, Rows) and len(target.numbers) < dst.shape[0]:
            call.keep(dst)
    move(call.core, target, source)


def _way_to_repeat(dst: NkiTensor, src: NkiTensor) -> str:
    """Return advice for an error: how to repeat ``src``, if it is one row in HBM, over the partitions of ``dst``.

    It is empty otherwise. A row on chip cannot be repeated: its partition dimension has no stride of 0.
    """
    if not is_hbm(src.buffer) or src.indirect_access is not None:
        return ""
    count, row = dst.shape[0], dst.shape[1:]
    if src.shape == row:
        row_view = "src.expand_dim(0)"
    elif src.shape == (1, *row):
        row_view = "src"
    else:
        return ""
    return f"; to copy this row to all {count} partitions, pass src={row_view}.broadcast(0, {count})"


def _no_cast_of_int64(dst: NkiTensor, src: NkiTensor) -> None:
    if dst.dtype != src.dtype and int64 in (dst.dtype, src.dtype):
        raise NkiValidationError(
            f"int64 is copied and never cast: 'dst' and 'src' must have one type, got {dst} and {src}; view it as "
            f"nl.int32, of whose pairs the first one is the low half"
        )


def _check_order_of_tiles(dst: NkiTensor, src: NkiTensor) -> None:
    """Check that the tiles of a grid on chip are moved at once only if the other tensor has them in the same order.

    A grid on chip has rows of tiles beside each other, and another tensor may have them below each other.
    """
    for tiles, other in ((dst, src), (src, dst)):
        if tiles.rows_of_tiles > 1 and other.shape[0] != tiles.shape[0]:
            raise NkiValidationError(
                f"{tiles} has {tiles.rows_of_tiles} rows of tiles one beside the other, and {other} one below the "
                f"other: move one row of tiles after the other, or a view of it with the partitions first: "
                f"rearrange((('row', 'p'), 'f'), ('p', 'row', 'f'), {{'p': {tiles.shape[0]}}})"
            )


def _check_hardware_descriptors(dst: NkiTensor, src: NkiTensor, dge_mode: enums.dge_mode, engine: enums.Engine) -> None:
    if dge_mode is enums.dge_mode.hwdge:
        if dst.dtype != src.dtype:
            raise NkiValidationError(
                f"dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {dst} and {src}"
            )
    elif engine is not enums.Engine.unknown:
        raise NkiValidationError(f"engine={engine.name} is valid with dge_mode=hwdge only")
