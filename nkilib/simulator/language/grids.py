# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors divided into tiles or blocks of tiles: ``nl.tiles``, ``nl.blocks``, ``nl.alloc_tiles``, ``nl.alloc_blocks``.

``nl.empty_like`` returns new memory with the shape of a tensor or of such a grid. Source: the pages of these functions
in the API reference of NKI 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ..engines.dma_instructions import TRANSPOSED_AXES
from ..hardware.generations import PARTITIONS
from ..tensors.grids import NkiBlockGrid, NkiGrid, NkiTileGrid, dense_axes, packed_axes, packed_shape, tile_grid_of
from ..tensors.tensor import NkiTensor
from ..tensors.view import partition_elements
from ..terms.descriptions import describe_foreign_value
from ..terms.enums import ON_CHIP, MemoryRegion, as_region
from ..terms.errors import GridTypeError, GridValueError
from ..terms.layout import Shape
from .creation import ndarray
from .language_function import language_function

_TensorOrGrid = TypeVar("_TensorOrGrid", NkiTensor, NkiTileGrid, NkiBlockGrid)


def _checked_shape(what: str, shape: Any) -> Shape:
    """Return ``shape`` after checking that it is a tuple of positive Python integers; ``what`` is its name in errors.

    Raises:
        GridTypeError: ``shape`` is not a tuple of integers.
        GridValueError: a size is not positive.
    """
    if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
        raise GridTypeError(f"{what} must be a tuple of Python integers, got {shape!r}")
    if not shape or min(shape) < 1:
        raise GridValueError(f"{what} must have positive sizes, got {shape!r}")
    return shape


def _checked_tile_shape(tile_shape: Any) -> Shape:
    checked = _checked_shape("tile_shape", tile_shape)
    if len(checked) < 2:
        raise GridValueError(f"tile_shape must have at least two dimensions, got {checked}")
    return checked


def _tiles_of(source: Any, tile_shape: Any) -> NkiTileGrid:
    if isinstance(source, NkiGrid):
        grid = source.tile_grid()
        if tile_shape is None or _checked_tile_shape(tile_shape) == grid.tile_shape:
            return grid
        return tile_grid_of(grid.data, tile_shape)
    if not isinstance(source, NkiTensor):
        raise GridTypeError(f"source must be a tensor or a grid, got {describe_foreign_value(source)}")
    if tile_shape is None:
        raise GridTypeError(f"tile_shape is needed: {source} is no grid, which would have one")
    return tile_grid_of(source, _checked_tile_shape(tile_shape))


@language_function
def tiles(source: NkiTensor | NkiTileGrid | NkiBlockGrid, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """Return a view of ``source`` divided into tiles; see :class:`NkiTileGrid`.

    The last tile along a dimension is smaller where the tile size does not divide the dimension.

    Args:
        source: a tensor at a static address, or a grid. For a grid of blocks, ``tiles(grid[i, j])`` returns the tiles
            of one block.
        tile_shape: the sizes of a tile in elements along the trailing dimensions, at least two; on chip along all
            dimensions. For a grid, the default is the grid's tile shape; another shape is possible if ``grid.data``
            exists.

    Raises:
        GridTypeError: ``source`` is neither tensor nor grid, or ``tile_shape`` is not a tuple of Python integers.
        GridValueError: ``tile_shape`` does not fit the source.
    """
    return _tiles_of(source, tile_shape)


def _checked_block_shape(block_shape: Any, tile_shape: Sequence[int]) -> Shape:
    checked = _checked_shape("block_shape", block_shape)
    if len(checked) != len(tile_shape):
        raise GridValueError(
            f"block_shape counts tiles along each tiled dimension, of which there are {len(tile_shape)}; got {checked}"
        )
    return checked


@language_function
def blocks(
    source: NkiTensor | NkiTileGrid | NkiBlockGrid,
    *,
    tile_shape: tuple[int, ...] | None = None,
    block_shape: tuple[int, ...],
) -> NkiBlockGrid:
    """Return a view of ``source`` divided into blocks of tiles; see :class:`NkiBlockGrid`.

    The last block along a dimension has fewer tiles if the block size does not divide the number of tiles.

    Args:
        source: a tensor at a static address, or a grid, whose tiles are regrouped.
        tile_shape: see :func:`tiles`.
        block_shape: the number of tiles of a block along each tiled dimension.

    Raises:
        GridTypeError: ``source`` is neither tensor nor grid, or a shape is not a tuple of Python integers.
        GridValueError: a shape does not fit the source.
    """
    grid = _tiles_of(source, tile_shape)
    return grid.block_grid(_checked_block_shape(block_shape, grid.tile_shape))


def _new_tile_grid(
    tile_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, ...] | None,
    name: str,
) -> NkiTileGrid:
    tile, elements = _checked_tile_shape(tile_shape), _checked_shape("element_shape", element_shape)
    if len(tile) > len(elements):
        raise GridValueError(f"tile_shape {tile} has more dimensions than element_shape {elements}")
    if not isinstance(buffer, MemoryRegion):
        raise GridTypeError(f"buffer must be a memory region, such as nl.sbuf or nl.shared_hbm, got {buffer!r}")
    if buffer not in ON_CHIP:
        tensor = ndarray(elements, dtype, buffer, name, address)
        return NkiTileGrid.of(tensor, dense_axes(tensor.shape, tensor.strides, tile), tensor.offset)
    tensor = ndarray(packed_shape(elements, tile), dtype, buffer, name, address)
    return NkiTileGrid.of(tensor, packed_axes(elements, tile, partition_elements(tensor)), tensor.offset)


@language_function
def alloc_tiles(
    *,
    tile_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, ...] | None = None,
    name: str = "",
) -> NkiTileGrid:
    """Return a grid of tiles in new unwritten memory.

    In HBM the memory is one dense tensor of ``element_shape``. On chip the memory is one allocation of
    ``tile_shape[0]`` partitions in which whole tiles lie beside each other, in the row-major order of the grid. A
    tensor may therefore have more rows than there are partitions. A smaller tile at the edge takes the room of a whole
    tile.

    Args:
        tile_shape: the sizes of a tile in elements along the trailing dimensions, at least two.
        element_shape: the sizes of the whole tensor in elements, which need not be multiples of the tile's sizes.
        buffer: memory region.
        dtype: type of an element.
        address: see ``nl.ndarray``.
        name: name in messages.

    Raises:
        GridTypeError: a shape is not a tuple of Python integers, or ``buffer`` is not a memory region.
        GridValueError: a size is not positive, or the shapes do not fit each other.
        NkiValidationError: ``nl.ndarray`` cannot create the memory.
    """
    return _new_tile_grid(tile_shape, element_shape, buffer, dtype, address, name)


@language_function
def alloc_blocks(
    *,
    tile_shape: tuple[int, ...],
    block_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, ...] | None = None,
    name: str = "",
) -> NkiBlockGrid:
    """Return a grid of blocks of tiles in new unwritten memory, in the layout of :func:`alloc_tiles`.

    Args:
        block_shape: the number of tiles of a block along each tiled dimension.
        tile_shape, element_shape, buffer, dtype, address, name: see :func:`alloc_tiles`.

    Raises:
        GridTypeError, GridValueError, NkiValidationError: see :func:`alloc_tiles`.
    """
    groups = _checked_block_shape(block_shape, _checked_tile_shape(tile_shape))
    return _new_tile_grid(tile_shape, element_shape, buffer, dtype, address, name).block_grid(groups)


def _checked_axes(axes: Any, dimensions: int, region: MemoryRegion) -> tuple[int, ...]:
    order = TRANSPOSED_AXES.get(dimensions)
    if order is None or axes != order:
        allowed = " or ".join(map(str, TRANSPOSED_AXES.values())) if order is None else str(order)
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


def _order_of(x: NkiGrid, transpose_axes: tuple[int, ...] | None, region: MemoryRegion) -> tuple[int, ...]:
    if 0 in x.element_shape:
        raise GridValueError(f"{x} has no tiles")
    if transpose_axes is None:
        return tuple(range(len(x.tile_shape)))
    order = _checked_axes(transpose_axes, len(x.tile_shape), region)
    _check_partitions(x.tile_shape[order[0]], x)
    return order


def _with_leading(leading: int, order: tuple[int, ...]) -> tuple[int, ...]:
    return (*range(leading), *(leading + dim for dim in order))


def _transposed(sizes: Shape, order: tuple[int, ...]) -> Shape:
    return tuple(sizes[dim] for dim in order)


@language_function
def empty_like(
    x: _TensorOrGrid,
    dtype: Any = None,
    buffer: Any = None,
    name: str = "",
    *,
    transpose_axes: tuple[int, ...] | None = None,
    address: tuple[int, ...] | None = None,
) -> _TensorOrGrid:
    """Return new unwritten memory of the same kind as ``x``: a tensor of its shape, or a grid with the same sizes.

    The new tiles lie one after the other, also if there are gaps between the tiles of ``x``. Dimensions that an integer
    index has removed from the grid ``x`` are absent from the result.

    Args:
        x: a tensor, or a grid of tiles or blocks.
        dtype: type of an element; the type of ``x`` by default.
        buffer: memory region; the region of ``x`` by default.
        name: name in messages.
        transpose_axes: the order of the tiled dimensions of ``x`` in the result: (1, 0), (2, 1, 0) or (3, 1, 2, 0). The
            result can then be the destination of ``nisa.dma_transpose`` from ``x``. ``buffer`` must be SBUF.
        address: see ``nl.ndarray``.

    Raises:
        GridTypeError, GridValueError: ``x`` is neither tensor nor grid, or SBUF cannot hold a transpose in this order.
        NkiValidationError: ``nl.ndarray`` cannot create the memory.
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
    tiles = _new_tile_grid(_transposed(x.tile_shape, order), elements, region, kind, address, name)
    if isinstance(x, NkiBlockGrid):
        return tiles.block_grid(_transposed(x.block_shape, order)).with_coordinates_of(x, dimensions)
    return tiles.with_coordinates_of(x, dimensions)
