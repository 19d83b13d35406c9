# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``dma_transpose``: a copy into SBUF that reverses the dimensions of a tensor, with or without a gather.

Sources: docstring of ``dma_transpose`` (it wins where ``nki/deep-dives/nki-dge.rst`` differs) and
``nki/migration/index.rst`` (shape of ``dst``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...hardware.limits import PARTITIONS
from ...isa.operand import DMA_REACH, SBUF, Operand, output
from ...machine.call import Call
from ...machine.core import Core
from ...machine.issue import instruction
from ...machine.overlapping_copies import check_copy
from ...tensors.tensor import NkiTensor
from ...terms import enums
from ...terms.dtypes import MOVABLE, uint32
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout
from .modes import as_dge_mode, as_oob_mode, check_priority, check_vector_offset, has_vector_offset
from .rows import End, as_rows, index_tensor, move, pass_over, read, resolve, rows_of, write

# By the number of dimensions. Each is its own inverse.
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
# Elements of 2 bytes are transposed in blocks of 16 rows and up to 128 columns, the partitions that dst can have.
_BLOCK_ROWS = 16
_DIVISORS_OF_BLOCK_ROWS = (1, 2, 4, 8, 16)
_BLOCK_ITEMSIZE = 2


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=MOVABLE, marks_itself=True),
        Operand("src", regions=DMA_REACH, dtypes=MOVABLE, accepts_indirect=True, is_accessed=False),
    ),
    on=(enums.Engine.dma,),
    is_lane_bound=False,
    is_transfer=True,
)
def dma_transpose(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: enums.dge_mode = enums.dge_mode.unknown,
    oob_mode: enums.oob_mode = enums.oob_mode.error,
) -> None:
    """Copy ``src`` to ``dst`` with its dimensions in the order (1, 0), (2, 1, 0) or (3, 1, 2, 0).

    ``axes`` may repeat that order. ``dst`` is in SBUF and has the type of ``src`` and exactly the transposed shape. A
    vector offset of ``src``, of shape (P, N), gathers first: element r of the offset, read column by column, names
    row r of ``src``.

    Raises:
        OutOfRangeError: naming the partition and the index that is out of range.
    """
    oob_mode = as_oob_mode(oob_mode)
    dge_mode = as_dge_mode(call.core, dge_mode)
    check_priority(call.core, priority)
    order = _check_shapes(dst, src, axes)
    skips = oob_mode is enums.oob_mode.skip
    if skips and not src.is_indirect():
        raise NkiValidationError(f"oob_mode=skip is valid with an indirect 'src' only, got {src}")
    source: End | None
    if has_vector_offset(src):
        check_vector_offset(call.core, dge_mode)
        _check_gather(src)
        source = rows_of("src", src, skips)
    else:
        _check_direct(src, dge_mode)
        check_copy(call.core, dst, {"src": src}, _permuted(dst.layout, order))
        source = resolve("src", src, skips)
    if source is not None:
        _move(call.core, dst, source, order)


def _move(core: Core, dst: NkiTensor, source: End, order: tuple[int, ...]) -> None:
    if isinstance(source, NkiTensor) or source.in_range.all():
        if dst.storage.is_abstract:
            pass_over(core, dst, {"src": source})
        else:
            write(core, dst, read(core, "src", source).transpose(order), dst.dtype)
        return
    # Row r belongs into index r of the last dimension of dst; as dimension 0, some of them can be left out.
    columns = as_rows(dst.with_layout(_permuted(dst.layout, order))).only(source.in_range)
    move(core, columns, source.only(source.in_range))


def _permuted(layout: Layout, order: Sequence[int]) -> Layout:
    return Layout(tuple(layout.shape[k] for k in order), tuple(layout.strides[k] for k in order), layout.offset)


def _check_shapes(dst: NkiTensor, src: NkiTensor, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Return the order in which ``dst`` has the dimensions of ``src``, after checking shapes, types and ``axes``."""
    order = _AXES.get(src.ndim)
    if order is None:
        raise NkiValidationError(f"operand 'src' must have 2, 3 or 4 dimensions, got {src}")
    if axes is not None and (not isinstance(axes, tuple | list) or tuple(axes) != order):
        raise NkiValidationError(f"axes must be {order} for a source of {src.ndim} dimensions, got {axes!r}")
    if dst.dtype != src.dtype:
        raise NkiValidationError(f"'dst' and 'src' must have one type, got {dst} and {src}")
    transposed = tuple(src.shape[k] for k in order)
    if dst.shape != transposed:
        raise NkiValidationError(
            f"operand 'dst' must have the shape {list(transposed)}, which is that of 'src' in the order {order}, got "
            f"{dst} and {src}"
        )
    return order


def _check_direct(src: NkiTensor, dge_mode: enums.dge_mode) -> None:
    if dge_mode is enums.dge_mode.swdge:
        raise NkiValidationError("a transpose without a vector offset needs dge_mode unknown, hwdge or none, got swdge")
    if dge_mode is not enums.dge_mode.hwdge:
        return  # the documentation does not have "none"; published kernels ask for it
    _check_type("dge_mode=hwdge", src)
    rows = src.shape[0]
    if src.ndim == 2:
        if rows != _BLOCK_ROWS:
            raise NkiValidationError(f"dge_mode=hwdge needs src.shape[0] == {_BLOCK_ROWS} in two dimensions, got {src}")
    elif rows not in _DIVISORS_OF_BLOCK_ROWS or rows * src.shape[-2] % _BLOCK_ROWS:
        raise NkiValidationError(
            f"dge_mode=hwdge needs src.shape[0] in {_DIVISORS_OF_BLOCK_ROWS} and src.shape[0] * src.shape[-2] "
            f"divisible by {_BLOCK_ROWS}, got {src}"
        )


def _check_type(what: str, src: NkiTensor) -> None:
    if src.dtype.itemsize != _BLOCK_ITEMSIZE:
        raise NkiValidationError(f"{what} needs a type of {_BLOCK_ITEMSIZE} bytes, got {src}")


def _check_gather(src: NkiTensor) -> None:
    _check_type("a vector offset", src)
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        raise NkiValidationError(
            f"a vector offset needs src.shape[1] or src.shape[2] to be 1 in four dimensions, got {src}"
        )
    if src.shape[0] % _BLOCK_ROWS:
        raise NkiValidationError(f"a vector offset needs src.shape[0] divisible by {_BLOCK_ROWS}, got {src}")
    index = index_tensor(src)
    partitions, columns = index.shape
    if index.dtype != uint32:
        raise NkiValidationError(f"the vector offset of a transpose must be uint32, got {index}")
    if partitions % _BLOCK_ROWS or (columns > 1 and partitions != PARTITIONS):
        raise NkiValidationError(
            f"the vector offset of a transpose must have {_BLOCK_ROWS} to {PARTITIONS} partitions, a multiple of "
            f"{_BLOCK_ROWS}, and {PARTITIONS} if it has several columns, got {index}"
        )
