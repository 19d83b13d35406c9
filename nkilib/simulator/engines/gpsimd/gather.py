# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions of the GpSimd engine that gather elements of SBUF; the indices are in SBUF too.

:func:`local_gather` takes a list of indices for each group of 16 partitions, :func:`nc_n_gather` an index for each
element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import same_partitions, same_tile_size
from ...isa.definition import SBUF, Operand, output
from ...machine.core import Core
from ...machine.issue import Call, check_written, instruction
from ...tensors.tensor import NkiTensor
from ...tensors.view import possible_starts
from ...terms.argument_checks import is_integer
from ...terms.dtypes import MOVABLE, uint16, uint32
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError, OutOfRangeError, UninitializedReadError
from ...timing import costs
from ..actions import act

# Partitions to which one of the eight cores of GpSimd is connected.
_CORE_PARTITIONS = 16
_ELEMENTS_PER_INDEX = (1, 2, 4, 8, 16, 32)
_INDICES_MAX = 4096

Indices = npt.NDArray[np.int64]
# Which free elements of each partition the elements of a tensor of indices name.
FindElements = Callable[[npt.NDArray[Any]], Indices]


def _require_same_type(dst: NkiTensor, name: str, source: NkiTensor) -> None:
    if dst.dtype != source.dtype:
        raise NkiValidationError(
            f"operand 'dst' must have the type of {name!r}, because a gather casts nothing; got {dst} and {source}"
        )


def _check_groups(src_buffer: NkiTensor, index: NkiTensor) -> None:
    if src_buffer.shape[0] % _CORE_PARTITIONS:
        raise NkiValidationError(
            f"operand 'src_buffer' must have a multiple of {_CORE_PARTITIONS} partitions, the number that each core of "
            f"GpSimd is connected to, got {src_buffer}"
        )
    starts, index_starts = possible_starts(src_buffer), possible_starts(index)
    if set(starts).isdisjoint(index_starts):
        got = " and ".join(" or ".join(map(str, partitions)) for partitions in (starts, index_starts))
        raise NkiValidationError(
            f"operands 'src_buffer' and 'index' must start at the same partition, because a core of GpSimd takes its "
            f"indices from the partitions that it gathers in; got {got}"
        )


def _check_counts(index: NkiTensor, num_elem_per_idx: Any, num_valid_indices: Any) -> int:
    """Check ``num_elem_per_idx`` and ``num_valid_indices``, and return the number of indices in each group's list."""
    if not is_integer(num_elem_per_idx) or num_elem_per_idx not in _ELEMENTS_PER_INDEX:
        raise NkiValidationError(f"num_elem_per_idx must be one of {_ELEMENTS_PER_INDEX}, got {num_elem_per_idx!r}")
    total = _CORE_PARTITIONS * index.free_size
    count = total if num_valid_indices is None else num_valid_indices
    if not is_integer(count) or not 1 <= count <= total:
        raise NkiValidationError(
            f"num_valid_indices must be 1 to {total}, the indices of {_CORE_PARTITIONS} partitions of {index}, got "
            f"{count!r}"
        )
    if count > _INDICES_MAX:
        raise NkiValidationError(
            f"each core of GpSimd takes at most {_INDICES_MAX} indices, got {count} of {index}: gather in several calls"
        )
    return int(count)


def _gather(core: Core, dst: NkiTensor, name: str, source: NkiTensor, indices: NkiTensor, find: FindElements) -> None:
    """Copy elements of each partition of ``source`` to ``dst``.

    Args:
        core: the core that runs the instruction.
        dst: the tile of the results.
        name: the name of the operand ``source``.
        source: the tile that is gathered from. Only the elements that are copied must have been written.
        indices: the tile of indices.
        find: a function from the contents of ``indices`` to the free positions in ``source`` of the elements to copy,
            an array (partitions, elements per partition of ``dst``).
    """
    if dst.storage.is_abstract:
        indices.storage.need_values(indices)
    shape = (source.shape[0], source.free_size)

    is_written = source.storage.written.is_written(source.layout, source.storage.width_of(source.dtype))
    unwritten = None
    if not is_written and core.emitter is not None:
        unwritten = source.storage.unwritten(source.layout, source.dtype).reshape(shape)

    def gather(into: npt.NDArray[Any], values: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        positions = find(values)
        if unwritten is not None and np.take_along_axis(unwritten, positions, axis=1).any():
            raise UninitializedReadError(f"operand {name!r}: elements gathered from {source} were never written")
        into[...] = np.take_along_axis(elements.reshape(shape), positions, axis=1).reshape(into.shape)

    # In a launch that is not replayed, the options decide what a read of unwritten elements does.
    if not dst.storage.is_abstract and (is_written or unwritten is not None):
        act(core, gather, writes=(dst,), reads=(indices,), chosen=(source,), may_refuse=True)
        return
    positions = find(indices.array)
    is_read = np.zeros(shape, np.bool_)
    np.put_along_axis(is_read, positions, True, axis=1)
    check_written(core, name, source, is_read.reshape(source.shape))
    if not dst.storage.is_abstract:
        dst.array[...] = np.take_along_axis(source.array.reshape(shape), positions, axis=1).reshape(dst.shape)


def _list_finder(src_buffer: NkiTensor, index: NkiTensor, count: int, length: int) -> FindElements:
    """Return a function from the contents of ``index`` to the positions of the elements that :func:`local_gather`
    copies.

    A group's list has ``count`` indices, and an index stands for ``length`` elements.
    """
    cores, width = index.shape[0] // _CORE_PARTITIONS, index.free_size
    following, limit = np.arange(length), src_buffer.free_size

    def find(indices: npt.NDArray[Any]) -> Indices:
        groups = indices.astype(np.int64).reshape(cores, _CORE_PARTITIONS, width)
        lists = groups.swapaxes(1, 2).reshape(cores, width * _CORE_PARTITIONS)[:, :count]
        elements = (lists[:, :, np.newaxis] + following).reshape(cores, count * length)
        is_outside = elements >= limit
        if is_outside.any():
            group, position = np.argwhere(is_outside)[0] // (1, length)
            first = lists[group, position]
            raise OutOfRangeError(
                f"operand 'index': element {position} of the list of partitions {group * _CORE_PARTITIONS} to "
                f"{(group + 1) * _CORE_PARTITIONS - 1} takes elements {first} to {first + length - 1} of the "
                f"{limit} per partition of {src_buffer}"
            )
        return np.repeat(elements, _CORE_PARTITIONS, axis=0)

    return find


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=MOVABLE),
        Operand("src_buffer", regions=SBUF, dtypes=MOVABLE, is_accessed=False),
        Operand("index", regions=SBUF, dtypes=frozenset({uint16}), is_accessed=False),
    ),
    on=(Engine.gpsimd,),
    cost=costs.assumed("dst"),
)
def local_gather(
    call: Call,
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
) -> None:
    """Gather elements by lists of indices, one list for each group of 16 partitions.

    The list of a group is the first ``num_valid_indices`` elements of its partitions of ``index``, column by column:
    element k is in partition k % 16, column k // 16. With n = ``num_elem_per_idx``, every partition p of the group
    receives ``dst[p, k * n + j] = src_buffer[p, list[k] + j]`` for j < n. The free dimensions of all tiles are
    flattened. Bits are moved, nothing is cast.

    Raises:
        OutOfRangeError: an index leads outside a partition of ``src_buffer``.
    """
    same_partitions({"src_buffer": src_buffer, "index": index, "dst": dst}, "src_buffer", "index", "dst")
    _require_same_type(dst, "src_buffer", src_buffer)
    _check_groups(src_buffer, index)
    count = _check_counts(index, num_elem_per_idx, num_valid_indices)
    if dst.free_size != count * num_elem_per_idx:
        raise NkiValidationError(
            f"operand 'dst' must have {count * num_elem_per_idx} elements per partition ({count} indices of "
            f"{num_elem_per_idx} elements), got {dst}"
        )
    columns = np.arange(index.free_size)[np.newaxis, :]
    lanes = np.arange(index.shape[0])[:, np.newaxis] % _CORE_PARTITIONS
    is_valid = columns * _CORE_PARTITIONS + lanes < count
    check_written(call.core, "index", index, is_valid.reshape(index.shape))
    _gather(call.core, dst, "src_buffer", src_buffer, index, _list_finder(src_buffer, index, count, num_elem_per_idx))


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=MOVABLE),
        Operand("data", regions=SBUF, dtypes=MOVABLE, is_accessed=False),
        Operand("indices", regions=SBUF, dtypes=frozenset({uint32})),
    ),
    on=(Engine.gpsimd,),
    cost=costs.assumed("dst"),
)
def nc_n_gather(call: Call, dst: NkiTensor, data: NkiTensor, indices: NkiTensor) -> None:
    """Gather ``dst[p, k] = data[p, indices[p, k]]`` in every partition p.

    The free dimensions of all tiles are flattened. Bits are moved, nothing is cast.

    Raises:
        OutOfRangeError: an index leads outside a partition of ``data``.
    """
    same_tile_size({"dst": dst, "indices": indices}, "indices", "dst")
    same_partitions({"data": data, "indices": indices}, "data", "indices")
    _require_same_type(dst, "data", data)
    limit, shape = data.free_size, (indices.shape[0], indices.free_size)

    def find(values: npt.NDArray[Any]) -> Indices:
        elements = values.astype(np.int64).reshape(shape)
        is_outside = elements >= limit
        if is_outside.any():
            partition, position = np.argwhere(is_outside)[0]
            raise OutOfRangeError(
                f"operand 'indices': element {position} of partition {partition} is {elements[partition, position]}, "
                f"outside the {limit} elements per partition of {data}"
            )
        return elements

    _gather(call.core, dst, "data", data, indices, find)
