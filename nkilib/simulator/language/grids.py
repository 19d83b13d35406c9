# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.tiles``, ``nl.blocks``, ``nl.alloc_tiles``, ``nl.alloc_blocks``: tensors divided into tiles, or blocks of tiles.

Source: the pages of these functions in the API reference of NKI 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensors.grid_axes import dense_axes, packed_axes, packed_shape
from ..tensors.grids import NkiBlockGrid, NkiGrid, NkiTileGrid, tile_grid_of
from ..tensors.partitions import partition_elements
from ..tensors.tensor import NkiTensor
from ..terms.description import describe_foreign_value
from ..terms.errors import GridTypeError, GridValueError
from ..terms.layout import Shape
from ..terms.regions import ON_CHIP, MemoryRegion
from .creation import ndarray
from .located import language_function


@language_function
def tiles(source: NkiTensor | NkiTileGrid | NkiBlockGrid, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """Return a view of ``source`` divided into tiles; see :class:`NkiTileGrid`.

    The last tile along a dimension is smaller where the tile size does not divide the dimension.

    Args:
        source: a tensor at a static address, or a grid. For a grid of blocks, ``tiles(grid[i, j])`` has the tiles of
            one block.
        tile_shape: elements of a tile along the trailing dimensions, at least two; on chip along all of them. For a
            grid, the default is the tile shape that it has; another one is possible if the elements that the grid
            selects are one tensor (``grid.data``).

    Raises:
        GridTypeError: if ``source`` is neither tensor nor grid, or ``tile_shape`` is not a tuple of Python integers.
        GridValueError: if ``tile_shape`` does not fit.
    """
    return _tiles_of(source, tile_shape)


@language_function
def blocks(
    source: NkiTensor | NkiTileGrid | NkiBlockGrid,
    *,
    tile_shape: tuple[int, ...] | None = None,
    block_shape: tuple[int, ...],
) -> NkiBlockGrid:
    """Return a view of ``source`` divided into blocks of tiles; see :class:`NkiBlockGrid`.

    The last block along a dimension has fewer tiles where the block size does not divide their number.

    Args:
        source: a tensor at a static address, or a grid, whose tiles are then regrouped.
        tile_shape: see :func:`tiles`.
        block_shape: number of tiles of a block along each tiled dimension.

    Raises:
        GridTypeError: if ``source`` is neither tensor nor grid, or a shape is not a tuple of Python integers.
        GridValueError: if a shape does not fit.
    """
    grid = _tiles_of(source, tile_shape)
    return grid.block_grid(_checked_block_shape(block_shape, grid.tile_shape))


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

    In HBM the memory is one dense tensor of ``element_shape``. On chip it is one allocation of ``tile_shape[0]``
    partitions in which whole tiles lie beside each other, in the row-major order of the grid, so that a tensor may
    have more rows than there are partitions; a smaller tile at the edge also takes the room of a whole one.

    Args:
        tile_shape: elements of a tile along the trailing dimensions, at least two.
        element_shape: sizes of the whole tensor in elements, which need not be multiples of the tile's.
        buffer: memory region.
        dtype: type of an element.
        address: see ``nl.ndarray``.
        name: name in messages.

    Raises:
        GridTypeError: if a shape is not a tuple of Python integers, or ``buffer`` is not a memory region.
        GridValueError: if a size is not positive or the shapes do not fit each other.
        NkiValidationError: if ``nl.ndarray`` cannot create the memory.
    """
    return new_tile_grid(tile_shape, element_shape, buffer, dtype, address, name)


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
        block_shape: number of tiles of a block along each tiled dimension.
        tile_shape, element_shape, buffer, dtype, address, name: see :func:`alloc_tiles`.

    Raises:
        GridTypeError, GridValueError, NkiValidationError: see :func:`alloc_tiles`.
    """
    groups = _checked_block_shape(block_shape, _checked_tile_shape(tile_shape))
    return new_tile_grid(tile_shape, element_shape, buffer, dtype, address, name).block_grid(groups)


def new_tile_grid(
    tile_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: MemoryRegion,
    dtype: Any,
    address: tuple[int, ...] | None,
    name: str,
) -> NkiTileGrid:
    """Return a grid of tiles in new unwritten memory; see :func:`alloc_tiles`."""
    tile, elements = _checked_tile_shape(tile_shape), checked_shape("element_shape", element_shape)
    if len(tile) > len(elements):
        raise GridValueError(f"tile_shape {tile} has more dimensions than element_shape {elements}")
    if not isinstance(buffer, MemoryRegion):
        raise GridTypeError(f"buffer must be a memory region, such as nl.sbuf or nl.shared_hbm, got {buffer!r}")
    if buffer not in ON_CHIP:
        tensor = ndarray(elements, dtype, buffer, name, address)
        return NkiTileGrid.of(tensor, dense_axes(tensor.shape, tensor.strides, tile), tensor.offset)
    tensor = ndarray(packed_shape(elements, tile), dtype, buffer, name, address)
    return NkiTileGrid.of(tensor, packed_axes(elements, tile, partition_elements(tensor)), tensor.offset)


def checked_shape(what: str, shape: Any) -> Shape:
    """Return ``shape`` after checking that it is a tuple of positive Python integers.

    Raises:
        GridTypeError: if it is not a tuple of integers.
        GridValueError: if a size is not positive.
    """
    if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
        raise GridTypeError(f"{what} must be a tuple of Python integers, got {shape!r}")
    if not shape or min(shape) < 1:
        raise GridValueError(f"{what} must have positive sizes, got {shape!r}")
    return shape


def _checked_tile_shape(tile_shape: Any) -> Shape:
    checked = checked_shape("tile_shape", tile_shape)
    if len(checked) < 2:
        raise GridValueError(f"tile_shape must have at least two dimensions, got {checked}")
    return checked


def _checked_block_shape(block_shape: Any, tile_shape: Sequence[int]) -> Shape:
    checked = checked_shape("block_shape", block_shape)
    if len(checked) != len(tile_shape):
        raise GridValueError(
            f"block_shape counts tiles along each tiled dimension, of which there are {len(tile_shape)}; got {checked}"
        )
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
