# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""GpSimd instructions that combine or order elements across partitions.

``topk`` and ``nonzero_with_count`` work on the 16 partitions of each GpSimd core, ``sequence_bounds`` on the segments
of a sequence, and ``tensor_partition_reduce`` on all partitions.

A *snake* is the order in which ``topk`` stores a sequence in the 16 partitions of a GpSimd core: element i is in
partition i % 16 and column i // 16. Every 16 partitions of a tile hold a separate snake, in the source and in the
results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.generations import GPSIMD_CORE_PARTITIONS
from ...isa.checks import same_partitions
from ...isa.definition import SBUF, Operand, output
from ...isa.operators import MEAN, operator_key
from ...machine.issue import Call, check_written, instruction
from ...numerics.casts import store_float
from ...numerics.operators import BITWISE_REDUCTIONS
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import bfloat16, float32, int32, uint32
from ...terms.enums import Engine, nc_version
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout
from ...timing import costs
from ..actions import act
from ..vector.scalar_operand import require_bit_patterns

_N_MIN, _N_END = 8, 65536
_K_END = 32768
# What published kernels of NKI 0.7 know of the sorted mode.
_SORTED_K_MAX = 8192


def _snake(tensor: NkiTensor, elements: int) -> list[Layout]:
    """Return layouts that together select the first ``elements`` elements of all snakes of a tile.

    One layout selects the full columns; another one selects the elements in the last column, if it is not full.
    """
    columns, rest = divmod(elements, GPSIMD_CORE_PARTITIONS)
    (partitions, _), (lane, step) = tensor.shape, tensor.strides
    whole = Layout((partitions, columns), tensor.strides, tensor.offset)
    part = Layout(
        (partitions // GPSIMD_CORE_PARTITIONS, rest, 1),
        (GPSIMD_CORE_PARTITIONS * lane, lane, step),
        tensor.offset + columns * step,
    )
    return [layout for layout in (whole, part) if 0 not in layout.shape]


def _rest_of_column(tensor: NkiTensor, elements: int) -> Layout | None:
    """Return the layout of the places after the first ``elements`` elements of each snake, to the end of their last
    column; None if that column is full.
    """
    column, used = divmod(elements, GPSIMD_CORE_PARTITIONS)
    if not used:
        return None
    (partitions, _), (lane, step) = tensor.shape, tensor.strides
    shape = (partitions // GPSIMD_CORE_PARTITIONS, GPSIMD_CORE_PARTITIONS - used, 1)
    strides = (GPSIMD_CORE_PARTITIONS * lane, lane, step)
    return Layout(shape, strides, tensor.offset + column * step + used * lane)


def _mark_found(destination: NkiTensor, k: int) -> None:
    """Mark the first ``k`` elements of each snake as written, and the unused places of the last column as unwritten."""
    written, width = destination.storage.written, destination.storage.width_of(destination.dtype)
    for part in _snake(destination, k):
        written.mark(part, width)
    rest = _rest_of_column(destination, k)
    if rest is not None:
        written.clear(rest, width)


def _check_snakes(name: str, tensor: NkiTensor) -> None:
    if tensor.ndim != 2 or tensor.shape[0] % GPSIMD_CORE_PARTITIONS:
        raise NkiValidationError(
            f"operand {name!r} must have two dimensions, the first a multiple of {GPSIMD_CORE_PARTITIONS}, got {tensor}"
        )


def _check_topk_sizes(tiles: dict[str, NkiTensor], n: Any, k: int, is_sorted: Any) -> None:
    if not isinstance(is_sorted, bool):
        raise NkiValidationError(f"sorted must be True or False, got {is_sorted!r}")
    if not isinstance(n, int | np.integer) or not _N_MIN <= n < _N_END:
        raise NkiValidationError(f"n must be an integer of {_N_MIN} to {_N_END - 1}, got {n!r}")
    columns = -(-int(n) // GPSIMD_CORE_PARTITIONS)
    if tiles["src"].shape[1] < columns:
        raise NkiValidationError(f"operand 'src' needs {columns} columns for n={n} elements, got {tiles['src']}")
    if not 1 <= k < _K_END or k > n:
        raise NkiValidationError(
            f"operand 'val_dst' must have K columns, 1 <= K < {_K_END} and K <= n, got {tiles['val_dst']} with n={n}"
        )
    if is_sorted and k > _SORTED_K_MAX:
        raise NkiValidationError(
            f"operand 'val_dst' must have at most {_SORTED_K_MAX} columns with sorted=True, got {tiles['val_dst']}"
        )
    if tiles["idx_dst"].shape != tiles["val_dst"].shape:
        raise NkiValidationError(
            f"operand 'idx_dst' must have the shape of 'val_dst', got {tiles['idx_dst']} and {tiles['val_dst']}"
        )


def _cores(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.reshape(array.shape[0] // GPSIMD_CORE_PARTITIONS, GPSIMD_CORE_PARTITIONS, array.shape[1])


def _unwind(array: npt.NDArray[Any], n: int) -> npt.NDArray[np.float32]:
    """Return the first ``n`` elements of each snake, one row per GpSimd core."""
    columns = -(-n // GPSIMD_CORE_PARTITIONS)
    snakes = _cores(array)[:, :, :columns].transpose(0, 2, 1).astype(np.float32)
    return snakes.reshape(snakes.shape[0], columns * GPSIMD_CORE_PARTITIONS)[:, :n]


def _wind(array: npt.NDArray[Any], results: npt.NDArray[Any]) -> None:
    """Store each row of ``results``, one per GpSimd core, as the first elements of that core's snake in ``array``."""
    columns, rest = divmod(results.shape[1], GPSIMD_CORE_PARTITIONS)
    whole = results.shape[1] - rest
    snakes = _cores(array)
    blocks = results[:, :whole].reshape(results.shape[0], columns, GPSIMD_CORE_PARTITIONS)
    np.copyto(snakes[:, :, :columns], blocks.transpose(0, 2, 1), casting="unsafe")
    if rest:
        np.copyto(snakes[:, :rest, columns], results[:, whole:], casting="unsafe")


@instruction(
    operands=(
        output("val_dst", regions=SBUF, dtypes=frozenset({bfloat16}), marks_itself=True, may_leave=True),
        output("idx_dst", regions=SBUF, dtypes=frozenset({uint32}), marks_itself=True, may_leave=True),
        Operand("src", regions=SBUF, dtypes=frozenset({bfloat16}), is_accessed=False),
    ),
    on=(Engine.gpsimd,),
    cost=costs.sorted_out,
)
def topk(call: Call, val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, sorted: bool = False) -> None:
    """Store the K largest of the first ``n`` elements of each snake of ``src``, and the positions of these elements.

    A snake is a sequence in 16 partitions: element i is in partition i % 16 and column i // 16. A position is an index
    i of a snake. K is the number of columns of ``val_dst`` and ``idx_dst``.

    The results are snakes too, in the first ceil(K / 16) columns. The places after the K-th result in the last of these
    columns are undefined afterwards; the other columns stay unchanged. With ``sorted`` the largest element comes first,
    and K is at most 8192. Without ``sorted`` NKI 0.7 names no order, and the simulator uses the ascending order of 0.6.
    Of two equal elements, the one with the lower position counts as larger; NaN counts as the largest.
    """
    tiles = {"val_dst": val_dst, "idx_dst": idx_dst, "src": src}
    same_partitions(tiles, "src", "val_dst", "idx_dst")
    for name, tensor in tiles.items():
        _check_snakes(name, tensor)
    k = val_dst.shape[1]
    _check_topk_sizes(tiles, n, k, sorted)
    for part in _snake(src, n):
        check_written(call.core, "src", src.with_layout(part))

    def find(largest: npt.NDArray[Any], positions: npt.NDArray[Any], snakes: npt.NDArray[Any]) -> None:
        elements = _unwind(snakes, n)
        # Backwards, a stable sort puts the lowest of equal positions last; NaN sorts behind everything.
        order = n - 1 - np.argsort(elements[:, ::-1], axis=1, kind="stable")[:, n - k :]
        if sorted:
            order = order[:, ::-1]
        _wind(largest, np.take_along_axis(elements, order, axis=1))
        _wind(positions, order)

    act(call.core, find, updates=(val_dst, idx_dst), reads=(src,))
    _mark_found(val_dst, k)
    _mark_found(idx_dst, k)


_INT32 = np.iinfo(np.int32)


def _first_partitions(tensor: NkiTensor) -> NkiTensor:
    cores = -(-tensor.shape[0] // GPSIMD_CORE_PARTITIONS)
    strides = (GPSIMD_CORE_PARTITIONS * tensor.strides[0], *tensor.strides[1:])
    return tensor.with_layout(Layout((cores, *tensor.shape[1:]), strides, tensor.offset))


def _require_int32(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or not _INT32.min <= value <= _INT32.max:
        raise NkiValidationError(f"{name} must be an int32, got {value!r}")


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=frozenset({int32}), marks_itself=True, may_leave=True),
        Operand("src", regions=SBUF, dtypes=frozenset({float32, int32}), is_accessed=False),
    ),
    on=(Engine.gpsimd,),
    since=nc_version.gen3,
    cost=costs.assumed("src"),
)
def nonzero_with_count(
    call: Call, dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1
) -> None:
    """Store the indices of the nonzero elements of partitions 0, 16, 32, ..., and the number of these elements.

    A partition of ``dst`` has one element more than a partition of ``src``: first the indices, counted from
    ``index_offset``, then ``padding_val``, and in the last element the number of indices. The other partitions are
    neither read nor written. The instruction needs trn2 or newer.
    """
    same_partitions({"dst": dst, "src": src}, "src", "dst")
    width = src.free_size
    if dst.free_size != width + 1:
        raise NkiValidationError(
            f"operand 'dst' must have {width + 1} elements per partition, one more than 'src', got {dst}"
        )
    _require_int32("index_offset", index_offset)
    _require_int32("padding_val", padding_val)
    read, written = _first_partitions(src), _first_partitions(dst)
    check_written(call.core, "src", read)
    cores, columns = read.shape[0], np.arange(width)

    def list_nonzero(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        is_nonzero = elements.reshape(cores, width) != 0
        counts = is_nonzero.sum(axis=1, keepdims=True)
        # Zeros sort behind the nonzero elements, which stay in order.
        indices = np.argsort(~is_nonzero, axis=1, kind="stable") + index_offset
        listed = np.where(columns < counts, indices, padding_val)
        np.copyto(into, np.concatenate([listed, counts], axis=1).reshape(into.shape), casting="unsafe")

    act(call.core, list_nonzero, writes=(written,), reads=(read,))
    written.storage.written.mark(written.layout, written.storage.width_of(written.dtype))


_SEGMENT_TYPES = frozenset({float32, int32})
_NO_END = -1


def _check_ids(ids: npt.NDArray[Any]) -> None:
    is_wrong = ~(ids >= 0) | (ids != np.floor(ids)) | ~np.isfinite(ids)
    if is_wrong.any():
        position = int(is_wrong.argmax())
        raise NkiValidationError(
            f"operand 'segment_ids' must hold non-negative integers, got {ids[position]} at index {position}"
        )


def _bound(into: npt.NDArray[Any], segment_ids: npt.NDArray[Any]) -> None:
    ids = segment_ids[0]
    _check_ids(ids)
    length = len(ids)
    begins = np.ones(length, np.bool_)
    begins[1:] = ids[1:] != ids[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], length)
    run = np.cumsum(begins) - 1
    bounds = np.where(ids == 0, [[length], [_NO_END]], [starts[run], ends[run]])
    np.copyto(into, bounds[None], casting="unsafe")


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=_SEGMENT_TYPES),
        Operand("segment_ids", regions=SBUF, dtypes=_SEGMENT_TYPES),
    ),
    on=(Engine.gpsimd,),
    cost=costs.assumed("dst"),
)
def sequence_bounds(call: Call, dst: NkiTensor, segment_ids: NkiTensor) -> None:
    """Store, for each of n elements, the begin of its segment in ``dst[0, 0]`` and the end in ``dst[0, 1]``.

    A segment is a series of adjacent equal ids; its end is the index of the first element after it. Elements with id 0
    are padding, with begin n and end -1. ``segment_ids`` has shape (1, n), ``dst`` shape (1, 2, n).

    Raises:
        NkiValidationError: a shape does not fit, or an id is negative or not an integer.
    """
    if segment_ids.ndim != 2 or segment_ids.shape[0] != 1:
        raise NkiValidationError(f"operand 'segment_ids' must have shape (1, n), got {segment_ids}")
    length = segment_ids.shape[1]
    if dst.shape != (1, 2, length):
        raise NkiValidationError(f"operand 'dst' must have shape (1, 2, {length}), got {dst}")
    if dst.storage.is_abstract:
        segment_ids.storage.need_values(segment_ids)
        _check_ids(segment_ids.array[0])
    act(call.core, _bound, writes=(dst,), reads=(segment_ids,))


_ARITHMETIC = {"add": np.add, MEAN: np.add, "maximum": np.maximum}
_BITWISE = ("bitwise_or", "bitwise_and", "bitwise_xor")


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.gpsimd,),
    cost=costs.assumed("data"),
)
def tensor_partition_reduce(call: Call, dst: NkiTensor, op: Any, data: NkiTensor) -> None:
    """Reduce the partitions of ``data`` to the single partition of ``dst``, for every element of the free dimensions.

    ``op`` is ``nl.add``, ``nl.mean`` or ``nl.max``, in float32, or ``nl.bitwise_or``, ``nl.bitwise_and`` or
    ``nl.bitwise_xor`` on integers of one width. ``nl.average``, the name of the mean in NKI 0.6, is still accepted.
    """
    if dst.shape[0] != 1 or dst.free_size != data.free_size:
        raise NkiValidationError(
            f"operand 'dst' must have 1 partition and the {data.free_size} elements per partition of 'data', got {dst}"
        )
    if data.shape[0] == 0:
        raise NkiValidationError(f"operand 'data' must have partitions to reduce, got {data}")
    key = operator_key("op", op)
    if key in _BITWISE:
        require_bit_patterns({"dst": dst, "data": data})
        bitwise = BITWISE_REDUCTIONS[key]

        def combine(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
            np.copyto(into, bitwise.reduce(elements, axis=0).reshape(into.shape), casting="unsafe")

        act(call.core, combine, writes=(dst,), reads=(data,))
        return
    if key not in _ARITHMETIC:
        raise NkiValidationError(
            f"op must be nl.add, nl.mean, nl.max, nl.bitwise_or, nl.bitwise_and or nl.bitwise_xor, got {op!r}"
        )
    arithmetic, dtype = _ARITHMETIC[key], dst.dtype
    count = np.float32(data.shape[0]) if key == MEAN else None

    def reduce(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        values = arithmetic.reduce(elements.astype(np.float32), axis=0)
        store_float(into, values if count is None else values / count, dtype)

    act(call.core, reduce, writes=(dst,), reads=(data,))
