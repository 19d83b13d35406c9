"""``dma_copy``: the data movement between HBM and SBUF, with gather and scatter.

Sources: docstring of ``dma_copy``, ``nki/deep-dives/nki-dge.rst`` and ``nki/deep-dives/nki-aps.rst``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import enums
from ..casts import saturate_to_integer, store_float
from ..core import Core
from ..dtypes import DType, tfloat32
from ..enums import nc_version
from ..errors import NkiValidationError, OutOfRangeError, UninitializedReadError
from ..indirect import Indirect
from ..instruction import Call, instruction
from ..layout import Layout, extent
from ..memory import HBM
from ..operands import DMA_REACH, Operand, check_written, output, resolve_scalar_offset
from ..storage import sentinel
from ..tensor import NkiTensor

_LOWEST_PRIORITY = 3


@instruction(
    operands=(
        output("dst", regions=DMA_REACH, accepts_indirect=True, marks_itself=True),
        Operand("src", regions=DMA_REACH, accepts_indirect=True),
    ),
    on=(enums.engine.sync, enums.engine.scalar),
    choose_engine=lambda values: enums.engine.dma,
    is_lane_bound=False,
)
def dma_copy(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: enums.oob_mode = enums.oob_mode.error,
    dge_mode: enums.dge_mode = enums.dge_mode.unknown,
    engine: enums.engine = enums.engine.unknown,
) -> None:
    """Copy ``src`` to ``dst``; equal numbers of elements, any shapes; unlike types are cast through float32.

    A view with a scalar or a vector offset makes it a copy from or to an address that is read at run time. An index
    that is out of range raises, or with ``oob_mode=skip`` leaves what it would have moved untouched.

    Raises:
        OutOfRangeError: naming the partition and the index that is out of range.
    """
    _check_modes(call.core, (dst, src), priority, oob_mode, dge_mode, engine)
    if dst.size != src.size:
        raise NkiValidationError(f"operands 'dst' and 'src' must have equally many elements, got {dst} and {src}")
    skips = oob_mode is enums.oob_mode.skip
    source, target = _resolve("src", src, skips), _resolve("dst", dst, skips)
    if source is None or target is None:
        return
    if isinstance(source, NkiTensor) and isinstance(target, NkiTensor):
        check_written(call.core, "src", source)
        _store(target.array, source.array.reshape(target.shape), source.dtype, target.dtype)
        target.storage.written.mark(target.layout, target.array.itemsize)
        moved = source.size
    else:
        moved = _copy_rows(call.core, _as_rows(target), _as_rows(source))
    if src.buffer in HBM:
        call.core.record.hbm_read_bytes += moved * src.dtype.itemsize
    if dst.buffer in HBM:
        call.core.record.hbm_written_bytes += moved * dst.dtype.itemsize


class _Rows(NamedTuple):
    """Rows of a static view, in the order in which they are moved."""

    base: NkiTensor
    numbers: npt.NDArray[np.int64]
    in_range: npt.NDArray[np.bool_]


def _resolve(name: str, view: NkiTensor, skips: bool) -> NkiTensor | _Rows | None:
    """Where a view points now: a static view, rows of one, or None if it is out of range and may be skipped."""
    indirect = view.indirect_access
    if indirect is None:
        return view
    if indirect.kind == "scalar":
        try:
            return resolve_scalar_offset(name, view)
        except OutOfRangeError:
            if skips:
                return None
            raise
    base = _row_space(view, indirect)
    index = indirect.read()
    in_range = (index >= 0) & (index < base.shape[0])
    if not skips and not in_range.all():
        row = int(np.argmin(in_range))
        raise OutOfRangeError(f"operand {name!r}: {indirect.out_of_range(row, int(index[row]), base.shape[0])}")
    return _Rows(base, index, in_range)


def _row_space(view: NkiTensor, indirect: Indirect) -> NkiTensor:
    """The static view whose rows a vector offset chooses from: as many as the tensor has and the storage holds."""
    _, high = extent(Layout(view.shape[1:], view.strides[1:], view.offset))
    elements = view.storage.elements_of(view.dtype)
    rows = indirect.limit
    if indirect.stride > 0:
        rows = min(rows, max(0, (elements - 1 - high) // indirect.stride + 1))
    return view.with_layout(Layout((rows, *view.shape[1:]), (indirect.stride, *view.strides[1:]), view.offset))


def _as_rows(side: NkiTensor | _Rows) -> _Rows:
    if isinstance(side, _Rows):
        return side
    rows = side.shape[0]
    return _Rows(side, np.arange(rows), np.ones(rows, np.bool_))


def _copy_rows(core: Core, target: _Rows, source: _Rows) -> int:
    """Move row ``source.numbers[p]`` to row ``target.numbers[p]`` for all p in range; returns the elements moved."""
    if len(target.numbers) != len(source.numbers):
        raise NkiValidationError(
            f"with a vector offset 'dst' and 'src' must have equally many rows, got {len(target.numbers)} of "
            f"{target.base} and {len(source.numbers)} of {source.base}"
        )
    moves = target.in_range & source.in_range
    values = source.base.array[source.numbers[moves]]
    _check_rows_written(core, source.base, source.numbers[moves], values)
    to = target.numbers[moves]
    into = np.empty((len(to), *target.base.shape[1:]), target.base.array.dtype)
    _store(into, values.reshape(into.shape), source.base.dtype, target.base.dtype)
    target.base.array[to] = into
    written = target.base.storage.written
    if not written.is_full:
        written.mask_of(target.base.layout, into.itemsize)[to] = True
    return int(values.size)


def _check_rows_written(core: Core, base: NkiTensor, rows: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    written = base.storage.written
    if written.is_full:
        return
    missing = ~written.mask_of(base.layout, values.itemsize)[rows].all(axis=-1)
    if not missing.any():
        return
    if core.options.uninitialized == "error":
        raise UninitializedReadError(
            f"operand 'src': {int(missing.sum())} of the {values.size} elements gathered from {base} were never written"
        )
    values[missing] = sentinel(base.dtype)


def _store(destination: npt.NDArray[Any], values: npt.NDArray[Any], source: DType, dtype: DType) -> None:
    """Bits as they are between equal types, else by way of float32."""
    if source == dtype:
        destination[...] = values
    elif dtype.is_integer:
        destination[...] = saturate_to_integer(values.astype(np.float32), dtype)
    elif source.is_integer or dtype == tfloat32:
        store_float(destination, values.astype(np.float32), dtype)
    else:
        np.copyto(destination, values, casting="unsafe")


def _check_modes(
    core: Core,
    ends: tuple[NkiTensor, NkiTensor],
    priority: int | None,
    oob_mode: enums.oob_mode,
    dge_mode: enums.dge_mode,
    engine: enums.engine,
) -> None:
    version = core.generation.version
    is_vector = any(end.indirect_access is not None and end.indirect_access.kind == "vector" for end in ends)
    if not isinstance(oob_mode, enums.oob_mode) or not isinstance(dge_mode, enums.dge_mode):
        raise NkiValidationError(
            f"oob_mode and dge_mode are members of nki.isa.oob_mode and dge_mode, got {oob_mode!r}, {dge_mode!r}"
        )
    if priority is not None and (version is not nc_version.gen4 or not 0 <= priority <= _LOWEST_PRIORITY):
        raise NkiValidationError(
            f"priority is 0 to {_LOWEST_PRIORITY} and needs trn3, got {priority} on {core.generation.name}"
        )
    if is_vector and version is nc_version.gen2:
        raise NkiValidationError("a vector offset needs trn2 or newer")
    if is_vector and dge_mode not in (enums.dge_mode.unknown, enums.dge_mode.swdge):
        raise NkiValidationError(f"a vector offset needs dge_mode unknown or swdge, got {dge_mode.name}")
    if dge_mode is enums.dge_mode.hwdge and version is nc_version.gen2:
        raise NkiValidationError("dge_mode=hwdge needs trn2 or newer")
    if dge_mode is enums.dge_mode.hwdge and ends[0].dtype != ends[1].dtype:
        raise NkiValidationError(
            f"dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {ends[0]} and "
            f"{ends[1]}"
        )
    if engine is not enums.engine.unknown and dge_mode is not enums.dge_mode.hwdge:
        raise NkiValidationError(f"engine={engine.name} is valid with dge_mode=hwdge only")
