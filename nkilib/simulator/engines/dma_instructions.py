# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions of the DMA engines, with gather and scatter: ``dma_copy``, ``dma_compute`` and ``dma_transpose``.

- :func:`dma_copy`: copies and casts. Other modules also use :func:`as_oob_mode` and :func:`check_priority`.
- :func:`dma_compute`: adds tensors in transit.
- :func:`dma_transpose`: reverses the dimensions of a tensor on its way into SBUF.

A *vector offset* is an index for each row of a view, which makes a transfer a gather or a scatter.

Sources: the docstrings of the three instructions, ``nki/deep-dives/nki-dge.rst``, ``nki/deep-dives/nki-aps.rst`` and
``nki/migration/index.rst``. Where ``nki-dge.rst`` differs from the docstring of ``dma_transpose``, the docstring holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..hardware.generations import PARTITIONS
from ..isa.checks import no_cast_of_packed
from ..isa.definition import DMA_REACH, SBUF, Operand, output
from ..isa.operators import OPERATORS, Operator
from ..machine.core import Core
from ..machine.issue import Call, check_operand, instruction
from ..machine.overlapping_copies import check_copy
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import COPYABLE, MOVABLE, float32, int64, uint32
from ..terms.enums import Engine, MemoryRegion, is_hbm, nc_version
from ..terms.enums import dge_mode as DgeMode
from ..terms.enums import oob_mode as OobMode
from ..terms.errors import NkiValidationError
from ..terms.layout import Layout
from .dma_endpoints import (
    End,
    Rows,
    as_rows,
    index_tensor,
    move,
    pass_over,
    read,
    resolve,
    rows_in_range,
    rows_of,
    write,
)

_LOWEST_PRIORITY = 3
_Mode = TypeVar("_Mode", bound=Enum)


def _member(name: str, kind: type[_Mode], value: Any) -> _Mode:
    if type(value) is kind:
        return value
    for member in kind:
        if type(value) is int and value == member.value:
            return member
    raise NkiValidationError(f"{name} must be a member of nki.isa.{name}, got {value!r}")


def as_oob_mode(oob_mode: OobMode | int) -> OobMode:
    """Return ``oob_mode`` as a member of the enumeration; published kernels also pass the value of a member.

    Raises:
        NkiValidationError: ``oob_mode`` is anything else.
    """
    return _member("oob_mode", OobMode, oob_mode)


def _as_dge_mode(core: Core, dge_mode: DgeMode | int) -> DgeMode:
    """Return ``dge_mode`` as a member of the enumeration; published kernels also pass the value of a member.

    Raises:
        NkiValidationError: ``dge_mode`` is anything else, or the hardware generation does not have this mode.
    """
    mode = _member("dge_mode", DgeMode, dge_mode)
    if mode is DgeMode.hwdge and core.generation.version is nc_version.gen2:
        raise NkiValidationError("dge_mode=hwdge needs trn2 or newer")
    return mode


def check_priority(core: Core, priority: int | None) -> None:
    """Check that the core's hardware generation has this DMA priority; None is always allowed.

    Raises:
        NkiValidationError: the generation does not have it; the message names the range and the generation.
    """
    if priority is None:
        return
    is_known = isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= _LOWEST_PRIORITY
    if core.generation.version is not nc_version.gen4 or not is_known:
        raise NkiValidationError(
            f"priority is 0 to {_LOWEST_PRIORITY} and needs trn3, got {priority!r} on {core.generation.name}"
        )


def _has_vector_offset(view: NkiTensor) -> bool:
    indirect = view.indirect_access
    return indirect is not None and indirect.kind == "vector"


def _check_vector_offset(core: Core, dge_mode: DgeMode) -> None:
    """Check that a call may have a vector offset: on trn2 and newer, with ``dge_mode`` ``unknown`` or ``swdge``.

    Raises:
        NkiValidationError: the call may not have one; the message names the generation or the mode.
    """
    if core.generation.version is nc_version.gen2:
        raise NkiValidationError("a vector offset needs trn2 or newer")
    if dge_mode not in (DgeMode.unknown, DgeMode.swdge):
        raise NkiValidationError(f"a vector offset needs dge_mode unknown or swdge, got {dge_mode.name}")


def _way_to_repeat(dst: NkiTensor, src: NkiTensor) -> str:
    """Return advice for an error message: how to copy a row ``src`` in HBM to all partitions of ``dst``.

    The result is empty if ``src`` is not a row in HBM with the size of a partition of ``dst``.
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
    """Check that a copy from or to a whole grid of tiles on chip keeps the order of the tiles.

    On chip the rows of tiles lie beside each other, in the free dimension. The other tensor must have them beside each
    other too, not one below the other: its first dimension must be the grid's number of partitions.
    """
    for tiles, other in ((dst, src), (src, dst)):
        if tiles.rows_of_tiles > 1 and other.shape[0] != tiles.shape[0]:
            raise NkiValidationError(
                f"{tiles} has {tiles.rows_of_tiles} rows of tiles one beside the other, and {other} one below the "
                f"other: move one row of tiles after the other, or a view of it with the partitions first: "
                f"rearrange((('row', 'p'), 'f'), ('p', 'row', 'f'), {{'p': {tiles.shape[0]}}})"
            )


def _check_hardware_descriptors(dst: NkiTensor, src: NkiTensor, dge_mode: DgeMode, engine: Engine) -> None:
    if dge_mode is DgeMode.hwdge:
        if dst.dtype != src.dtype:
            raise NkiValidationError(
                f"dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {dst} and {src}"
            )
    elif engine is not Engine.unknown:
        raise NkiValidationError(f"engine={engine.name} is valid with dge_mode=hwdge only")


@instruction(
    operands=(
        output("dst", regions=DMA_REACH, dtypes=COPYABLE, accepts_indirect=True, marks_itself=True),
        Operand("src", regions=DMA_REACH, dtypes=COPYABLE, accepts_indirect=True, is_accessed=False),
    ),
    on=(Engine.sync, Engine.scalar),
    default=Engine.dma,
    is_lane_bound=False,
    is_transfer=True,
)
def dma_copy(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: OobMode = OobMode.error,
    dge_mode: DgeMode = DgeMode.unknown,
    engine: Engine = Engine.unknown,
) -> None:
    """Copy ``src`` to ``dst``, which have equal numbers of elements and any shapes.

    Values are cast through float32 if the types differ. Packed types and int64 cannot be cast.

    If a view has a scalar or a vector offset, the address is read at run time. An index out of range raises an error.
    With ``oob_mode=skip`` there is no error. For a vector offset, the rows whose index is out of range are not copied.
    For a scalar offset of a view in HBM, the view is copied if all of it still lies inside the tensor; if the offset
    counts rows, the rows inside are copied. Otherwise nothing is copied.

    Raises:
        OutOfRangeError: an index is out of range; the message names the partition and the index.
    """
    oob_mode = as_oob_mode(oob_mode)
    dge_mode = _as_dge_mode(call.core, dge_mode)
    check_priority(call.core, priority)
    if _has_vector_offset(dst) or _has_vector_offset(src):
        _check_vector_offset(call.core, dge_mode)
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
    skips = oob_mode is OobMode.skip
    source, target = resolve("src", src, skips), resolve("dst", dst, skips)
    if source is None or target is None:
        call.keep(dst)
        return
    if isinstance(source, Rows) or isinstance(target, Rows):
        target, source = rows_in_range({"dst": target, "src": source})
        if isinstance(target, Rows) and len(target.numbers) < dst.shape[0]:
            call.keep(dst)
    move(call.core, target, source)


_SOURCES_MAX = 16
# With a vector offset: dst itself and the tensor that is added to it.
_SOURCES_OF_UPDATE = 2


def _sum(core: Core, ends: dict[str, End]) -> npt.NDArray[np.float32]:
    """Return the float32 sum of the sources of ``dma_compute``; the sum is flat if the shapes of the sources differ."""
    sources = [read(core, name, end) for name, end in ends.items()]
    shape = sources[0].shape if len({source.shape for source in sources}) == 1 else (-1,)
    first, second, *others = (source.reshape(shape).astype(np.float32, copy=False) for source in sources)
    total: npt.NDArray[np.float32] = np.add(first, second)
    for values in others:
        np.add(total, values, out=total)
    return total


def _check_sum(srcs: Any, reduce_op: Any, scales: Any) -> None:
    """Check that a call of ``dma_compute`` has supported arguments: 2 or more sources, ``nl.add``, and scales of 1."""
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


def _check_summands(call: Call, views: dict[str, NkiTensor]) -> None:
    dst = views["dst"]
    for name, view in views.items():
        if name != "dst":
            check_operand(call, Operand(name, regions=DMA_REACH, accepts_indirect=True, is_accessed=False), view, None)
        if view.is_indirect() and not _has_vector_offset(view):
            raise NkiValidationError(
                f"operand {name!r}: the address must be known at compile time, unless it has a vector offset; got a "
                f"dynamic index in {view}, nisa.dma_copy it first"
            )
        if view.size != dst.size:
            raise NkiValidationError(
                f"operands 'dst' and {name!r} must have equally many elements, got {dst} and {view}"
            )


def _is_same_view(view: NkiTensor, other: NkiTensor) -> bool:
    if view.storage is not other.storage or view.layout != other.layout or view.dtype != other.dtype:
        return False
    if not view.is_indirect() and not other.is_indirect():
        return True
    if not _has_vector_offset(view) or not _has_vector_offset(other):
        return False
    return _is_same_view(index_tensor(view), index_tensor(other))


def _check_update(dst: NkiTensor, srcs: Sequence[NkiTensor], unique_indices: bool) -> None:
    """Check a call of ``dma_compute`` with a vector offset.

    It must be a scatter that adds a tile to rows of HBM, or a gather that adds rows of HBM to a tile.
    """
    if unique_indices is not True:
        raise NkiValidationError(
            f"a vector offset needs unique_indices=True, others are not supported, got {unique_indices!r}"
        )
    others = [source for source in srcs if not _is_same_view(source, dst)]
    if _has_vector_offset(dst):
        fits = len(others) == 1 and others[0].buffer is MemoryRegion.sbuf
    else:
        fits = len(others) == 1 and _has_vector_offset(others[0]) and dst.buffer is MemoryRegion.sbuf
    if len(srcs) != _SOURCES_OF_UPDATE or not fits:
        raise NkiValidationError(
            "with a vector offset srcs must be 'dst' itself and one other tensor: a tile in sbuf to be added to rows "
            f"in HBM, or rows in HBM to be added to a 'dst' in sbuf; got dst {dst} and srcs {list(srcs)}"
        )


def _check_unique(dst: NkiTensor, target: End) -> None:
    """Check that the indices name no row of ``dst`` twice, as ``unique_indices`` promises.

    The sum in such a row would depend on the order of the two additions.
    """
    if not _has_vector_offset(dst) or not isinstance(target, Rows):
        return
    numbers, counts = np.unique(target.numbers, return_counts=True)
    if (counts > 1).any():
        raise NkiValidationError(
            f"operand 'dst': unique_indices=True, but index {int(numbers[counts > 1][0])} of {index_tensor(dst)} comes "
            "more than once; add the rows up first"
        )


@instruction(
    # A gather, which may leave rows of dst unchanged, reads dst too.
    operands=(output("dst", regions=DMA_REACH, accepts_indirect=True, marks_itself=True),),
    on=(Engine.dma,),
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
    oob_mode: OobMode = OobMode.error,
) -> None:
    """Compute ``dst = srcs[0] + srcs[1] + ...`` in float32, from left to right.

    The tensors have equal numbers of elements, and any shapes. ``reduce_op`` is ``nl.add``, and all ``scales`` are 1.
    With a vector offset, ``srcs`` is ``dst`` and one other tensor: a tile that is added to rows of HBM (scatter), or
    rows of HBM that are added to a tile (gather). An index out of range raises an error; with ``oob_mode=skip`` the row
    of ``dst`` stays unchanged.

    Raises:
        OutOfRangeError: an index is out of range; the message names the partition and the index.
    """
    oob_mode = as_oob_mode(oob_mode)
    _check_sum(srcs, reduce_op, scales)
    views = {"dst": dst, **{f"srcs[{number}]": source for number, source in enumerate(srcs)}}
    _check_summands(call, views)
    is_update = any(_has_vector_offset(view) for view in views.values())
    check_copy(call.core, dst, {name: view for name, view in views.items() if name != "dst"}, dst.layout)
    if is_update:
        _check_vector_offset(call.core, DgeMode.unknown)
        _check_update(dst, srcs, unique_indices)
    ends: dict[str, End] = {}
    for name, view in views.items():
        end = resolve(name, view, oob_mode is OobMode.skip)
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


# The order of the dimensions of ``dma_transpose``, by their number. Each is its own inverse.
TRANSPOSED_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
# Elements of 2 bytes are transposed in blocks of 16 rows and up to 128 columns, the partitions that dst can have.
_BLOCK_ROWS = 16
_DIVISORS_OF_BLOCK_ROWS = (1, 2, 4, 8, 16)
_BLOCK_ITEMSIZE = 2


def _permuted(layout: Layout, order: Sequence[int]) -> Layout:
    return Layout(tuple(layout.shape[k] for k in order), tuple(layout.strides[k] for k in order), layout.offset)


def _move_transposed(core: Core, dst: NkiTensor, source: End, order: tuple[int, ...]) -> None:
    if isinstance(source, NkiTensor) or source.in_range.all():
        if dst.storage.is_abstract:
            pass_over(core, dst, {"src": source})
        else:
            write(core, dst, read(core, "src", source).transpose(order), dst.dtype)
        return
    # Row r belongs into index r of the last dimension of dst; as dimension 0, some of them can be left out.
    columns = as_rows(dst.with_layout(_permuted(dst.layout, order))).only(source.in_range)
    move(core, columns, source.only(source.in_range))


def _check_transposed_shape(dst: NkiTensor, src: NkiTensor, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Check shapes, types and ``axes`` of a transpose, and return the order in which ``dst`` has the dimensions of
    ``src``.
    """
    order = TRANSPOSED_AXES.get(src.ndim)
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


def _check_transposed_type(what: str, src: NkiTensor) -> None:
    if src.dtype.itemsize != _BLOCK_ITEMSIZE:
        raise NkiValidationError(f"{what} needs a type of {_BLOCK_ITEMSIZE} bytes, got {src}")


def _check_direct_transpose(src: NkiTensor, dge_mode: DgeMode) -> None:
    if dge_mode is DgeMode.swdge:
        raise NkiValidationError("a transpose without a vector offset needs dge_mode unknown, hwdge or none, got swdge")
    if dge_mode is not DgeMode.hwdge:
        return  # the documentation does not have "none"; published kernels ask for it
    _check_transposed_type("dge_mode=hwdge", src)
    rows = src.shape[0]
    if src.ndim == 2:
        if rows != _BLOCK_ROWS:
            raise NkiValidationError(f"dge_mode=hwdge needs src.shape[0] == {_BLOCK_ROWS} in two dimensions, got {src}")
    elif rows not in _DIVISORS_OF_BLOCK_ROWS or rows * src.shape[-2] % _BLOCK_ROWS:
        raise NkiValidationError(
            f"dge_mode=hwdge needs src.shape[0] in {_DIVISORS_OF_BLOCK_ROWS} and src.shape[0] * src.shape[-2] "
            f"divisible by {_BLOCK_ROWS}, got {src}"
        )


def _check_gathered_transpose(src: NkiTensor) -> None:
    _check_transposed_type("a vector offset", src)
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


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=MOVABLE, marks_itself=True),
        Operand("src", regions=DMA_REACH, dtypes=MOVABLE, accepts_indirect=True, is_accessed=False),
    ),
    on=(Engine.dma,),
    is_lane_bound=False,
    is_transfer=True,
)
def dma_transpose(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: DgeMode = DgeMode.unknown,
    oob_mode: OobMode = OobMode.error,
) -> None:
    """Copy ``src`` to ``dst`` with its dimensions in the order (1, 0), (2, 1, 0) or (3, 1, 2, 0).

    The number of dimensions determines the order; ``axes`` may state it. ``dst`` is in SBUF and has the type of ``src``
    and exactly the transposed shape. If ``src`` has a vector offset of shape (P, N), its rows are gathered first:
    element r of the offset, read column by column, is the index of row r.

    Raises:
        OutOfRangeError: an index is out of range; the message names the partition and the index.
    """
    oob_mode = as_oob_mode(oob_mode)
    dge_mode = _as_dge_mode(call.core, dge_mode)
    check_priority(call.core, priority)
    order = _check_transposed_shape(dst, src, axes)
    skips = oob_mode is OobMode.skip
    if skips and not src.is_indirect():
        raise NkiValidationError(f"oob_mode=skip is valid with an indirect 'src' only, got {src}")
    source: End | None
    if _has_vector_offset(src):
        _check_vector_offset(call.core, dge_mode)
        _check_gathered_transpose(src)
        source = rows_of("src", src, skips)
    else:
        _check_direct_transpose(src, dge_mode)
        check_copy(call.core, dst, {"src": src}, _permuted(dst.layout, order))
        source = resolve("src", src, skips)
    if source is not None:
        _move_transposed(call.core, dst, source, order)
