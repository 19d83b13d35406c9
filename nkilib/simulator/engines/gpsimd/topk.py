# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``topk``: the largest elements of a sequence that is wound over the 16 partitions of a GpSimd core.

Element i of such a sequence, called a snake, is in partition i % 16 and column i // 16 of the core's partitions. Every
16 partitions of a tile are a separate snake, in the source as in the results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.limits import GPSIMD_CORE_PARTITIONS
from ...isa.checks import same_partitions
from ...isa.operand import SBUF, Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...machine.operands import check_written
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import bfloat16, uint32
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout
from ...timing import costs
from ..actions import act

_N_MIN, _N_END = 8, 65536
_K_END = 32768
# What published kernels of NKI 0.7 know of the sorted mode.
_SORTED_K_MAX = 8192


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
    """Find the K largest of the first ``n`` elements of each snake of 16 partitions of ``src``, and their positions.

    A snake has its element i in partition i % 16 and column i // 16; positions count its elements. K is the number of
    columns of ``val_dst`` and ``idx_dst``. Their results are snakes too, so that only the first ceil(K / 16) columns
    are written, and these are written whole: elements of the last one that hold no result are undefined afterwards.
    With ``sorted`` the largest comes first, and K is at most 8192. Without it NKI 0.7 names no order, and the simulator
    uses the ascending order of 0.6. Among equal elements the lowest positions are chosen, and count as the larger ones;
    NaN counts as the largest.
    """
    tiles = {"val_dst": val_dst, "idx_dst": idx_dst, "src": src}
    same_partitions(tiles, "src", "val_dst", "idx_dst")
    for name, tensor in tiles.items():
        _check_snakes(name, tensor)
    k = val_dst.shape[1]
    _check_sizes(tiles, n, k, sorted)
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
    _mark(val_dst, k)
    _mark(idx_dst, k)


def _mark(destination: NkiTensor, k: int) -> None:
    """Mark the first ``k`` elements of each snake as written, and the rest of their last column as unwritten."""
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


def _check_sizes(tiles: dict[str, NkiTensor], n: Any, k: int, is_sorted: Any) -> None:
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


def _snake(tensor: NkiTensor, elements: int) -> list[Layout]:
    """Return layouts that together select the first ``elements`` elements of all snakes of a tile.

    One selects the columns that are selected whole, another one the part of a column that may follow.
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
    """Return the layout of what follows the first ``elements`` elements of all snakes in their last column.

    It is None if they fill the column.
    """
    column, used = divmod(elements, GPSIMD_CORE_PARTITIONS)
    if not used:
        return None
    (partitions, _), (lane, step) = tensor.shape, tensor.strides
    shape = (partitions // GPSIMD_CORE_PARTITIONS, GPSIMD_CORE_PARTITIONS - used, 1)
    strides = (GPSIMD_CORE_PARTITIONS * lane, lane, step)
    return Layout(shape, strides, tensor.offset + column * step + used * lane)


def _cores(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a tile's array as a view (GpSimd cores, partitions of a core, columns)."""
    return array.reshape(array.shape[0] // GPSIMD_CORE_PARTITIONS, GPSIMD_CORE_PARTITIONS, array.shape[1])


def _unwind(array: npt.NDArray[Any], n: int) -> npt.NDArray[np.float32]:
    """Return an array with a row for each GpSimd core: the first ``n`` elements of its snake."""
    columns = -(-n // GPSIMD_CORE_PARTITIONS)
    snakes = _cores(array)[:, :, :columns].transpose(0, 2, 1).astype(np.float32)
    return snakes.reshape(snakes.shape[0], columns * GPSIMD_CORE_PARTITIONS)[:, :n]


def _wind(array: npt.NDArray[Any], results: npt.NDArray[Any]) -> None:
    """Write each row of ``results`` as the beginning of the snake of a GpSimd core."""
    columns, rest = divmod(results.shape[1], GPSIMD_CORE_PARTITIONS)
    whole = results.shape[1] - rest
    snakes = _cores(array)
    blocks = results[:, :whole].reshape(results.shape[0], columns, GPSIMD_CORE_PARTITIONS)
    np.copyto(snakes[:, :, :columns], blocks.transpose(0, 2, 1), casting="unsafe")
    if rest:
        np.copyto(snakes[:, :rest, columns], results[:, whole:], casting="unsafe")
