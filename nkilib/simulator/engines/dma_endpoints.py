# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The source and the destination of a DMA transfer: the elements that a view selects, and reads and writes of them.

An *end* (:data:`End`) of a transfer is a static view, or :class:`Rows` of one. Every access of a DMA instruction to
memory goes through this module, which also counts the bytes that cross HBM.

- :func:`resolve`, :func:`rows_of`: the end that a view with a dynamic address selects when the DMA runs.
- :func:`rows_in_range`: both ends without the rows that are out of range in one of them.
- :func:`read`, :func:`write`, :func:`move`, with :func:`cast_into`: access to the elements.
- :func:`pass_over`, :func:`pass_over_read`: record the same accesses in a launch that computes no values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..hardware.options import refuse
from ..isa.indirection import resolve_scalar_offset
from ..machine.core import Core
from ..machine.issue import check_written
from ..machine.partial_writes import PartialWrites, where_unwritten
from ..memory.deferred import Part, Rectangle, deferred_copy
from ..memory.storage import may_share, sentinel
from ..numerics.casts import saturate_to_integer, store_float
from ..numerics.copies import copy_in_order
from ..tensors.tensor import NkiTensor
from ..tensors.view import Indirect
from ..terms.dtypes import DType, tfloat32
from ..terms.enums import HBM
from ..terms.errors import NkiValidationError, OutOfRangeError, UninitializedReadError, kernel_location
from ..terms.layout import Layout, extent, is_dense, reshape_strides
from .rowwise import is_worth_deferring


class Rows(NamedTuple):
    """Rows of a static view, in the order in which a gather or a scatter moves them.

    Attributes:
        base: the view; a row is an index of its dimension 0.
        numbers: the indices of the rows in ``base``.
        in_range: for each row, whether ``base`` has it; ``read`` and ``write`` require that all are True.
    """

    base: NkiTensor
    numbers: npt.NDArray[np.int64]
    in_range: npt.NDArray[np.bool_]

    def only(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows where the mask ``chosen`` is true."""
        return Rows(self.base, self.numbers[chosen], self.in_range[chosen])


# One end of a transfer at the time when it runs: a static view or rows of one.
End = NkiTensor | Rows


def _rows_inside(view: NkiTensor, indirect: Indirect) -> End | None:
    """Return the part of a view with a scalar offset that lies inside the view's storage.

    Public kernels use an index that is out of range in two ways:

    - The moved view lies inside the storage, although the index exceeds the size of its dimension: an index that
      counts the slots of all blocks of a cache, for instance. The result is the static view.
    - The index counts rows of the view, and only some rows lie inside the storage. The result is :class:`Rows`.

    In all other cases, and for a view on chip, the result is None.
    """
    if view.is_on_chip():
        return None
    elements = view.storage.elements_of(view.dtype)
    (index,) = indirect.read()
    whole = Layout(view.shape, view.strides, view.offset + int(index) * indirect.stride)
    low, high = extent(whole)
    if index >= 0 and low >= 0 and high < elements:
        return view.with_layout(whole)
    if indirect.stride != view.strides[0]:
        return None
    rows = np.arange(view.shape[0])
    starts = view.offset + (index + rows) * indirect.stride
    low, high = extent(Layout(view.shape[1:], view.strides[1:], 0))
    in_range = (starts + low >= 0) & (starts + high < elements)
    if not in_range.any():
        return None
    first = int(np.argmax(in_range))
    layout = Layout((int(in_range.sum()), *view.shape[1:]), view.strides, int(starts[first]))
    return Rows(view.with_layout(layout), rows - first, in_range)


def index_tensor(view: NkiTensor) -> NkiTensor:
    """Return the tensor of shape (P, N) that holds the vector offset of ``view``."""
    indirect = view.indirect_access
    assert indirect is not None and isinstance(indirect.index, NkiTensor)
    return indirect.index


def _check_one_index_a_row(name: str, view: NkiTensor) -> None:
    index = index_tensor(view)
    if index.shape != (view.shape[0], 1):
        raise NkiValidationError(
            f"operand {name!r}: the vector offset must have shape ({view.shape[0]}, 1), one index for each row of "
            f"{view}, got {index}"
        )


def row_space(view: NkiTensor, indirect: Indirect) -> NkiTensor:
    """Return the static view of all rows that a vector offset can select: up to its limit or the end of the storage."""
    _, high = extent(Layout(view.shape[1:], view.strides[1:], view.offset))
    elements = view.storage.elements_of(view.dtype)
    rows = indirect.limit
    if indirect.stride > 0:
        rows = min(rows, max(0, (elements - 1 - high) // indirect.stride + 1))
    return view.with_layout(Layout((rows, *view.shape[1:]), (indirect.stride, *view.strides[1:]), view.offset))


def rows_of(name: str, view: NkiTensor, skips: bool) -> Rows:
    """Return the rows that the vector offset of ``view`` selects, with the present values of the offset.

    There are as many rows as ``view`` has; the values of the offset are read column by column.

    Args:
        name: the name of the operand.
        view: a view with a vector offset.
        skips: whether rows out of range are marked in ``in_range`` instead of raising an error.

    Raises:
        OutOfRangeError: an index is out of range and ``skips`` is False; the message names the partition and the index.
    """
    indirect = view.indirect_access
    assert indirect is not None
    base = row_space(view, indirect)
    index = indirect.read().reshape(index_tensor(view).shape).T.reshape(-1)[: view.shape[0]]
    in_range = (index >= 0) & (index < base.shape[0])
    if not skips and not in_range.all():
        row = int(np.argmin(in_range))
        raise OutOfRangeError(f"operand {name!r}: {indirect.out_of_range(row, int(index[row]), base.shape[0])}")
    return Rows(base, index, in_range)


def resolve(name: str, view: NkiTensor, skips: bool) -> End | None:
    """Return the elements that ``view`` selects, with the present value of its dynamic address.

    Args:
        name: the name of the operand.
        view: a view with a static or a dynamic address.
        skips: whether elements out of range are left out instead of raising an error.

    Returns:
        A static view, or rows of one. None if ``skips`` is set, and a scalar offset leads to no element of its tensor.

    Raises:
        OutOfRangeError: an index is out of range and ``skips`` is False; the message names the partition and the index.
        NkiValidationError: a vector offset does not have one index for each row.
    """
    indirect = view.indirect_access
    if indirect is None:
        return view
    if indirect.kind == "vector":
        _check_one_index_a_row(name, view)
        return rows_of(name, view, skips)
    try:
        return resolve_scalar_offset(name, view)
    except OutOfRangeError:
        if skips:
            return _rows_inside(view, indirect)
        raise


def as_rows(end: End) -> Rows:
    """Return an end of a transfer as rows: all rows of a static view, in order; :class:`Rows` are returned
    unchanged.
    """
    if isinstance(end, Rows):
        return end
    rows = end.shape[0]
    return Rows(end, np.arange(rows), np.ones(rows, np.bool_))


def _row_count(end: End) -> int:
    return len(end.numbers) if isinstance(end, Rows) else end.shape[0]


def _base(end: End) -> NkiTensor:
    return end.base if isinstance(end, Rows) else end


def rows_in_range(ends: dict[str, End]) -> list[End]:
    """Return the ends of a transfer, restricted to the rows that are in range at all ends.

    Row p of one end corresponds to row p of another end.

    Args:
        ends: the ends by the name of the operand.

    Raises:
        NkiValidationError: the numbers of rows differ between the ends.
    """
    (first_name, first), *others = ends.items()
    for name, other in others:
        if _row_count(first) != _row_count(other):
            raise NkiValidationError(
                f"where rows are chosen or skipped {first_name!r} and {name!r} must have equally many of them, got "
                f"{_row_count(first)} of {_base(first)} and {_row_count(other)} of {_base(other)}"
            )
    masks = [end.in_range for end in ends.values() if isinstance(end, Rows)]
    if all(mask.all() for mask in masks):
        return [*ends.values()]
    moves = np.logical_and.reduce(masks)
    return [as_rows(end).only(moves) for end in ends.values()]


def _within(block: Rectangle, part: Rectangle, width: int) -> tuple[slice, slice]:
    """Return the rows and columns of the elements of ``part`` in a matrix that holds the elements of ``block``.

    ``width`` is the size of an element in bytes. ``top`` and ``bottom`` of a rectangle count rows, ``left`` and
    ``right`` bytes.
    """
    columns = slice((part.left - block.left) // width, (part.right - block.left) // width)
    return slice(part.top - block.top, part.bottom - block.top), columns


def _shares(part: Part, memory: npt.NDArray[Any]) -> bool:
    return any(may_share(source, memory) for source in part.sources_within(part.block))


def _is_same_memory(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    if (first.dtype, first.shape, first.strides) != (second.dtype, second.shape, second.strides):
        return False
    return bool(first.ctypes.data == second.ctypes.data)


def _can_compute_in(matrix: npt.NDArray[Any], part: Part, block: Rectangle) -> bool:
    """Return whether a deferred part stays computable if the tile elements in ``block`` are stored in ``matrix``.

    It does if its sources are not in the memory of ``matrix``. It also does if ``block`` contains the part, and each
    element of the part is stored exactly where its source is.
    """
    if not _shares(part, matrix):
        return True
    if not block.contains(part.block):
        return False
    into = matrix[_within(block, part.block, part.width)]
    return all(
        _is_same_memory(source, into) or not may_share(source, matrix) for source in part.sources_within(part.block)
    )


def _as_matrix(elements: npt.NDArray[Any], like: NkiTensor) -> npt.NDArray[Any]:
    return elements.reshape(like.shape[0], like.free_size)


def _note_written(core: Core, end: End, values: npt.NDArray[Any] | None) -> None:
    view, rows = (end.base, end.numbers) if isinstance(end, Rows) else (end, None)
    if not view.storage.written.is_full:
        view.storage.written.mark(view.layout, view.storage.width_of(view.dtype), rows)
    if view.buffer in HBM:
        view.storage.is_changed = True
        for tell in core.observers.moved:
            tell(view, True, rows, values)


def _store_deferred(core: Core, target: NkiTensor, source: NkiTensor) -> bool:
    """Compute the deferred elements of the tile ``source`` directly in ``target``, the destination of a store, if
    possible.

    Returns:
        Whether ``source`` has been stored.
    """
    storage = source.storage
    block = storage.block_of(source.layout, source.dtype)
    if block is None or target.storage is storage:
        return False
    parts = [part for part in storage.parts if part.block.meets(block)]
    matrix = _as_matrix(target.array, source)
    if not all(part.content.dtype == source.dtype and part.divides(part.block.common(block)) for part in parts):
        return False
    if not all(_can_compute_in(matrix, part, block) for part in storage.parts):
        return False
    overwritten = [part for part in parts if not part.content.is_copy and _shares(part, matrix)]
    # Other contents may be computed from one that reads the memory of its tile: they wait for a change of that memory.
    if any(part.content.reads_itself for part in overwritten):
        return False
    check_written(core, "src", source)
    core.loads.settle_readers(matrix, storage)
    remaining = [block]
    for part in parts:
        common = part.block.common(block)
        part.content.write(matrix[_within(block, common, part.width)], *part.within(common))
        remaining = [smaller for larger in remaining for smaller in larger.outside(part.block)]
    for missing in remaining:
        width = storage.width_of(source.dtype)
        matrix[_within(block, missing, width)] = storage.rows_of(missing, source.dtype)
    _note_written(core, target, target.array)
    if overwritten:
        # Their sources are overwritten: from here on they are copies of the stored elements.
        storage.defer(deferred_copy(source.layout, source.dtype, matrix))
        core.loads.add(storage)
    return True


def _has_dense_rows(view: NkiTensor, like: NkiTensor) -> bool:
    """Return whether a view can be reshaped, without a copy, to a matrix whose rows are contiguous in memory.

    The matrix has the shape (partitions, elements per partition) of ``like``, which has as many elements as the view.
    """
    strides = reshape_strides(view.shape, view.strides, (like.shape[0], like.free_size))
    return strides is not None and (like.free_size == 1 or strides[1] == 1)


def _are_large_and_alike(target: NkiTensor, source: NkiTensor) -> bool:
    """Return whether a copy between two tensors may be deferred.

    The copy must be large, one tensor on chip, and the types equal. Both tensors must be readable without a copy as
    contiguous rows, one for each partition of the tensor on chip.
    """
    on_chip, other = (target, source) if target.is_on_chip() else (source, target)
    return (
        is_worth_deferring(target)
        and on_chip.is_on_chip()
        and target.dtype == source.dtype
        and target.storage.is_widened == source.storage.is_widened
        and is_dense(on_chip.shape[1:], on_chip.strides[1:])
        and _has_dense_rows(other, on_chip)
    )


def _note_read(core: Core, end: End) -> None:
    view, rows = (end.base, end.numbers) if isinstance(end, Rows) else (end, None)
    if view.buffer in HBM:
        for tell in core.observers.moved:
            tell(view, False, rows, None)


def _unwritten_of_rows(core: Core, name: str, rows: Rows) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the elements of ``rows`` that were never written; None if all were written.

    Raises:
        UninitializedReadError: an element was never written, with ``uninitialized="error"``.
    """
    base = rows.base
    written = base.storage.written
    if written.is_full:
        return None
    missing = ~written.mask_of(base.layout, base.storage.width_of(base.dtype))[rows.numbers].all(axis=-1)
    if not missing.any():
        return None
    if core.options.uninitialized != "ignore":
        is_read = np.zeros(base.shape, np.bool_)
        is_read[rows.numbers] = True
        where = where_unwritten(core.observers.find(PartialWrites), base, is_read)
        message = (
            f"operand {name!r}: {int(missing.sum())} of the {missing.size} elements gathered from {base} were never "
            f"written: {where}"
        )
        refuse(core.options.uninitialized, UninitializedReadError(message), kernel_location())
    return np.asarray(missing)


def pass_over_read(core: Core, name: str, end: End) -> None:
    """Check and record the read that :func:`read` makes, in a launch that computes no values."""
    if _base(end).storage.is_shape_only:
        return
    if isinstance(end, Rows):
        _unwritten_of_rows(core, name, end)
    else:
        check_written(core, name, end)
    _note_read(core, end)


def pass_over(core: Core, target: End, sources: Mapping[str, End]) -> None:
    """Check and record the reads and the write of a transfer, in a launch that computes no values.

    Raises:
        UninitializedReadError: see :func:`read`.
    """
    for name, source in sources.items():
        pass_over_read(core, name, source)
    if not _base(target).storage.is_shape_only:
        _note_written(core, target, None)


def read(core: Core, name: str, end: End) -> npt.NDArray[Any]:
    """Return the elements at ``end``: the memory itself for a static view, a copy for :class:`Rows`.

    Args:
        core: the core that runs the transfer.
        name: the name of the operand.
        end: the elements to read.

    Raises:
        UninitializedReadError: an element was never written, with ``uninitialized="error"``.
    """
    if isinstance(end, Rows):
        values = end.base.array[end.numbers]
        missing = _unwritten_of_rows(core, name, end)
        if missing is not None:
            values[missing] = sentinel(end.base.dtype)
    else:
        values = end.array
        check_written(core, name, end)
    _note_read(core, end)
    return values


def _memory_at(end: End) -> npt.NDArray[Any]:
    if not isinstance(end, Rows):
        return end.array
    if not len(end.numbers):
        return end.base.array[:0]
    return end.base.array[end.numbers.min() : end.numbers.max() + 1]


def cast_into(destination: npt.NDArray[Any], values: npt.NDArray[Any], source: DType, dtype: DType) -> None:
    """Copy ``values`` of type ``source`` into ``destination`` of type ``dtype``.

    Equal types are copied bit by bit, different types are cast through float32.
    """
    if source == dtype:
        copy_in_order(destination, values)
    elif dtype.is_integer:
        destination[...] = saturate_to_integer(values.astype(np.float32), dtype)
    elif source.is_integer or dtype == tfloat32:
        store_float(destination, values.astype(np.float32), dtype)
    else:
        np.copyto(destination, values, casting="unsafe")


def write(core: Core, end: End, values: npt.NDArray[Any], source: DType) -> None:
    """Store values at ``end``, cast to its type, and mark the elements as written.

    Args:
        core: the core that runs the transfer.
        end: the elements to write. If it names a row twice, the last values stay.
        values: the values in row-major order.
        source: the type of ``values``.
    """
    if _base(end).storage.is_abstract:
        if not _base(end).storage.is_shape_only:
            _note_written(core, end, values)
        return
    if _base(end).buffer in HBM:
        core.loads.settle_readers(_memory_at(end))
    if isinstance(end, Rows):
        view = end.base
        into = np.empty((len(end.numbers), *view.shape[1:]), view.array.dtype)
        cast_into(into, values.reshape(into.shape), source, view.dtype)
        view.array[end.numbers] = into
    else:
        view = end
        cast_into(view.array, values.reshape(view.shape), source, view.dtype)
    _note_written(core, end, values)


def move(core: Core, target: End, source: End) -> None:
    """Copy the elements at ``source`` to ``target``.

    A large load of a whole block without a cast may be deferred until an instruction reads the elements.

    Raises:
        UninitializedReadError: see :func:`read`.
    """
    if _base(target).storage.is_abstract:
        pass_over(core, target, {"src": source})
        return
    if core.emitter is not None and isinstance(target, NkiTensor) and isinstance(source, NkiTensor):
        core.emitter.move(target, source)
        target.storage.written.mark(target.layout, target.storage.width_of(target.dtype))
        return
    if isinstance(target, NkiTensor) and isinstance(source, NkiTensor) and _are_large_and_alike(target, source):
        if source.buffer in HBM and target.is_on_chip():
            if target.storage.block_of(target.layout, target.dtype) is not None:
                elements = _as_matrix(read(core, "src", source), target)
                target.storage.defer(deferred_copy(target.layout, target.dtype, elements))
                target.storage.written.mark(target.layout, target.storage.width_of(target.dtype))
                core.loads.add(target.storage)
                return
        elif source.storage.parts and _store_deferred(core, target, source):
            return
    write(core, target, read(core, "src", source), _base(source).dtype)
