# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.empty_like``: new memory with the shapes of a tensor or a grid.

Source: page ``nki.language.empty_like`` of the API reference of NKI 0.7.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ..hardware.limits import PARTITIONS
from ..tensors.grids import NkiBlockGrid, NkiGrid, NkiTileGrid
from ..tensors.tensor import NkiTensor
from ..terms.description import describe_foreign_value
from ..terms.errors import GridTypeError, GridValueError
from ..terms.layout import Shape
from ..terms.regions import MemoryRegion, as_region
from .creation import ndarray
from .grids import new_tile_grid
from .located import language_function

TensorOrGrid = TypeVar("TensorOrGrid", NkiTensor, NkiTileGrid, NkiBlockGrid)

# What nisa.dma_transpose does with two, three and four dimensions.
_TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


@language_function
def empty_like(
    x: TensorOrGrid,
    dtype: Any = None,
    buffer: Any = None,
    name: str = "",
    *,
    transpose_axes: tuple[int, ...] | None = None,
    address: tuple[int, ...] | None = None,
) -> TensorOrGrid:
    """Return new unwritten memory of the same kind as ``x``: a tensor of its shape, or a grid with the same sizes.

    Gaps that a slice of a grid leaves between its tiles are not reproduced: the tiles lie one after the other.
    Coordinates that integer indices have removed from ``x`` are absent from the result as well.

    Args:
        x: a tensor, or a grid of tiles or blocks.
        dtype: type of an element; the type of ``x`` by default.
        buffer: memory region; the region of ``x`` by default.
        name: name in messages.
        transpose_axes: the order of the tiled dimensions of ``x`` in the result, which will be the destination of
            ``nisa.dma_transpose``: (1, 0), (2, 1, 0) or (3, 1, 2, 0). ``buffer`` must then be SBUF. Nothing is
            transposed.
        address: see ``nl.ndarray``.

    Raises:
        GridTypeError, GridValueError: if ``x`` is neither tensor nor grid, or has no transpose in this order in SBUF.
        NkiValidationError: if ``nl.ndarray`` cannot create the memory.
    """
    if not isinstance(x, NkiTensor | NkiGrid):
        raise GridTypeError(f"x must be a tensor or a grid, got {describe_foreign_value(x)}")
    region = x.buffer if buffer is None else as_region(buffer)
    kind = x.dtype if dtype is None else dtype
    if isinstance(x, NkiTensor):
        shape = x.shape
        if transpose_axes is not None:
            shape = _transposed(shape, _checked_axes(transpose_axes, len(shape), region))
            _check_partitions(shape[0], x)
        return ndarray(shape, kind, region, name, address)
    order = _order_of(x, transpose_axes, region)
    dimensions = _with_leading(len(x.element_shape) - len(order), order)
    elements = _transposed(x.element_shape, dimensions)
    tiles = new_tile_grid(_transposed(x.tile_shape, order), elements, region, kind, address, name)
    if isinstance(x, NkiBlockGrid):
        return tiles.block_grid(_transposed(x.block_shape, order)).with_coordinates_of(x, dimensions)
    return tiles.with_coordinates_of(x, dimensions)


def _order_of(x: NkiGrid, transpose_axes: tuple[int, ...] | None, region: MemoryRegion) -> tuple[int, ...]:
    """Return the tiled dimensions of a grid in the order in which the result has them."""
    if 0 in x.element_shape:
        raise GridValueError(f"{x} has no tiles")
    if transpose_axes is None:
        return tuple(range(len(x.tile_shape)))
    order = _checked_axes(transpose_axes, len(x.tile_shape), region)
    _check_partitions(x.tile_shape[order[0]], x)
    return order


def _with_leading(leading: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return all dimensions: first those that are not tiled, then the tiled ones in their order."""
    return (*range(leading), *(leading + dim for dim in order))


def _transposed(sizes: Shape, order: tuple[int, ...]) -> Shape:
    return tuple(sizes[dim] for dim in order)


def _checked_axes(axes: Any, dimensions: int, region: MemoryRegion) -> tuple[int, ...]:
    order = _TRANSPOSES.get(dimensions)
    if order is None or axes != order:
        allowed = " or ".join(map(str, _TRANSPOSES.values())) if order is None else str(order)
        raise GridValueError(f"transpose_axes of {dimensions} dimensions must be {allowed}, got {axes!r}")
    if region is not MemoryRegion.sbuf:
        raise GridValueError(f"transpose_axes is for a result in nl.sbuf, got buffer {region}; pass buffer=nl.sbuf")
    return order


def _check_partitions(partitions: int, x: NkiTensor | NkiGrid) -> None:
    if partitions > PARTITIONS:
        raise GridValueError(
            f"transpose_axes makes partitions of the last dimension of {x}, which must be at most {PARTITIONS}, got "
            f"{partitions}"
        )
