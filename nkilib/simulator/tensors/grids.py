# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NkiGrid``, ``NkiTileGrid``, ``NkiBlockGrid``: a tensor divided into tiles, or into blocks of tiles.

:func:`tile_grid_of` divides a tensor. A grid has an :class:`Axis` for each dimension: :func:`dense_axes` for a tensor,
:func:`packed_axes` for memory on chip in which whole tiles lie side by side (:func:`packed_shape`). A *cell* is what an
index of the grid counts: a tile, or a block of tiles.

A grid is a view: making or indexing one takes no memory, copies nothing and issues no instruction. Only ``data`` is a
tensor, for instructions.

Source: pages ``nki.language.NkiGrid``, ``NkiTileGrid``, ``NkiBlockGrid``, ``tiles`` and ``blocks`` of the API reference
of NKI 0.7.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from ..terms.dtypes import DType
from ..terms.enums import ON_CHIP, MemoryRegion
from ..terms.errors import GridTypeError, GridValueError, NkiValidationError, OutOfRangeError
from ..terms.layout import Layout, Shape, row_major_strides
from .indexed_views import DynamicSlice
from .tensor import NkiTensor

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


class AxisSpan(NamedTuple):
    """All selected elements of an :class:`Axis`, described as one dimension of an access pattern.

    Attributes:
        size: the number of elements.
        stride: the distance from one element to the next, in elements of the storage.
        offset: the distance from the start of the axis to the first element, in elements of the storage.
    """

    size: int
    stride: int
    offset: int


def _as_range(tiles: Sequence[int]) -> Sequence[int]:
    """Return tile numbers as a ``range`` if they have equal steps, otherwise as a tuple."""
    if isinstance(tiles, range):
        return tiles
    if not tiles:
        return range(0)
    step = tiles[1] - tiles[0] if len(tiles) > 1 else 1
    candidate = range(tiles[0], tiles[-1] + 1, step)
    return candidate if list(candidate) == list(tiles) else tuple(tiles)


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid, divided into tiles, with the tiles that the grid selects.

    A cell is one tile in a grid of tiles, and ``group`` tiles in a grid of blocks.

    Attributes:
        size: number of elements of the whole dimension.
        tile: number of elements of a tile (the last tile may have fewer); 1 if the dimension is not tiled.
        tiles: numbers of the selected tiles, ascending.
        inner: the distance from an element of a tile to the next, in elements of the storage.
        outer: the distance from the first element of a tile to the first element of the next tile, in elements of the
            storage.
        group: number of tiles in a cell.
        is_tiled: whether the dimension is tiled; a leading dimension that is not tiled is indexed element by element.
        is_consumed: whether an integer index has selected a single cell, so that the dimension cannot be indexed again.
    """

    size: int
    tile: int
    tiles: Sequence[int]
    inner: int
    outer: int
    group: int = 1
    is_tiled: bool = True
    is_consumed: bool = False

    @classmethod
    def of(cls, size: int, tile: int, inner: int, outer: int, *, is_tiled: bool = True) -> Axis:
        """Return the axis of a dimension of ``size`` elements, with all its tiles selected."""
        return cls(size, tile, range(-(-size // tile)), inner, outer, is_tiled=is_tiled)

    @property
    def cells(self) -> int:
        """The number of selected cells."""
        return -(-len(self.tiles) // self.group)

    @property
    def elements(self) -> int:
        """The number of elements of all selected tiles together."""
        return self._elements_of(self.tiles)

    @property
    def is_remainder(self) -> bool:
        """Whether the last selected cell has fewer elements than a whole cell."""
        last = self.tiles[(self.cells - 1) * self.group :] if self.cells else ()
        return 0 < self._elements_of(last) < self.group * self.tile

    @property
    def step(self) -> int | None:
        """The number of elements from the start of one cell to the start of the next; None if the distances differ."""
        firsts = self.tiles[:: self.group]
        if len(firsts) < 2:
            return self.group * self.tile
        if isinstance(firsts, range):
            return firsts.step * self.tile
        steps = {after - before for before, after in pairwise(firsts)}
        return steps.pop() * self.tile if len(steps) == 1 else None

    def one(self, cell: int) -> Axis:
        """Return the axis with only cell number ``cell``, from 0, which an integer index has selected.

        The result cannot be indexed again.
        """
        tiles = self.tiles[cell * self.group : (cell + 1) * self.group]
        # Without replace(), which takes three times as long: kernels ask for tiles in their innermost loops.
        return Axis(self.size, self.tile, tiles, self.inner, self.outer, self.group, self.is_tiled, True)

    def some(self, cells: range) -> Axis:
        """Return the axis with only the cells ``cells``, which a slice has selected; they are in ascending order."""
        if self.group == 1:
            return replace(self, tiles=_as_range(self.tiles[cells.start : cells.stop : cells.step]))
        chosen = [self.tiles[cell * self.group : (cell + 1) * self.group] for cell in cells]
        return replace(self, tiles=_as_range([tile for group in chosen for tile in group]))

    def regrouped(self, group: int) -> Axis:
        """Return the axis with the same tiles in blocks of ``group`` tiles; the result can be indexed again."""
        return replace(self, group=group, is_consumed=False)

    def follows_partitions(self) -> bool:
        """Return whether the elements of this axis, the first axis of an on-chip grid, lie in consecutive
        partitions.
        """
        return self.is_tiled and (len(self.tiles) < 2 or self.outer % self.inner == 0)

    def span(self) -> AxisSpan | None:
        """Return all selected elements as one dimension of an access pattern; None if they are not equally spaced."""
        if not self.tiles:
            return AxisSpan(0, self.inner, 0)
        offset = self.tiles[0] * self.outer
        if len(self.tiles) == 1:
            return AxisSpan(self.elements, self.inner, offset)
        if not isinstance(self.tiles, range):
            return None
        step = self.tiles.step * self.outer
        if self.tile == 1 or step == self.inner * self.tile:
            return AxisSpan(self.elements, step // self.tile, offset)
        return None

    def _elements_of(self, tiles: Sequence[int]) -> int:
        """Return the number of elements in the given tiles; the last tile of the dimension may be smaller."""
        if not tiles:
            return 0
        lacking = (tiles[-1] + 1) * self.tile - self.size
        return len(tiles) * self.tile - max(0, lacking)


def dense_axes(shape: Sequence[int], strides: Sequence[int], tile_shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return an axis for each dimension of a tensor; the trailing dimensions, as many as ``tile_shape`` has, are
    tiled.
    """
    leading = len(shape) - len(tile_shape)
    tiles = (1,) * leading + tuple(tile_shape)
    return tuple(
        Axis.of(size, tile, stride, stride * tile, is_tiled=dim >= leading)
        for dim, (size, stride, tile) in enumerate(zip(shape, strides, tiles, strict=True))
    )


def _counts(element_shape: Sequence[int], tile_shape: Sequence[int]) -> list[int]:
    tiles = (1,) * (len(element_shape) - len(tile_shape)) + tuple(tile_shape)
    return [-(-size // tile) for size, tile in zip(element_shape, tiles, strict=True)]


def packed_shape(element_shape: Sequence[int], tile_shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of on-chip memory in which whole tiles lie side by side: (partitions, elements per
    partition).
    """
    return tile_shape[0], prod(_counts(element_shape, tile_shape)) * prod(tile_shape[1:])


def packed_axes(element_shape: Sequence[int], tile_shape: Sequence[int], partition_stride: int) -> tuple[Axis, ...]:
    """Return an axis for each dimension of a tensor whose tiles lie side by side in memory of :func:`packed_shape`.

    The tiles are in the row-major order of the grid; a tile with fewer elements takes the memory of a whole tile.
    """
    leading = len(element_shape) - len(tile_shape)
    slot = prod(tile_shape[1:])
    outer = [slot * stride for stride in row_major_strides(_counts(element_shape, tile_shape))]
    inner = [*outer[:leading], partition_stride, *row_major_strides(tile_shape[1:])]
    tiles = (1,) * leading + tuple(tile_shape)
    return tuple(
        Axis.of(size, tiles[dim], inner[dim], outer[dim], is_tiled=dim >= leading)
        for dim, size in enumerate(element_shape)
    )


class NkiGrid:
    """A tensor divided into tiles or blocks of tiles: the base of :class:`NkiTileGrid` and :class:`NkiBlockGrid`.

    ``nl.tiles`` and ``nl.blocks`` make grids. ``grid[i, j]`` is a grid again: an integer (a negative one counts from
    the end) selects one cell and removes the coordinate, a slice keeps it. If leading dimensions of an HBM tensor are
    not tiled, their coordinates come first and count elements.
    """

    __slots__ = ("_axes", "_offset", "_tensor")

    # What an index counts, for messages.
    _cell: ClassVar[str] = "tile"

    _tensor: NkiTensor
    _axes: tuple[Axis, ...]
    _offset: int

    def __init__(self, **kwargs: Any) -> None:
        raise GridTypeError(
            f"{type(self).__name__} is not made by kernels; nl.tiles, nl.blocks, nl.alloc_tiles make it"
        )

    @classmethod
    def of(cls, tensor: NkiTensor, axes: Sequence[Axis], offset: int) -> Self:
        """Return a grid over the storage of ``tensor``. For the simulator only.

        Args:
            tensor: the tensor that is divided.
            axes: the axes of the grid.
            offset: the position in the storage of the element at index 0 of all axes.
        """
        grid = cls.__new__(cls)
        grid._tensor, grid._axes, grid._offset = tensor, tuple(axes), offset
        return grid

    @property
    def dtype(self) -> DType:
        """The type of an element."""
        return self._tensor.dtype

    @property
    def buffer(self) -> MemoryRegion:
        """The memory region of the tensor behind the grid."""
        return self._tensor.buffer

    @property
    def tile_shape(self) -> Shape:
        """The shape of a whole tile: its number of elements along each tiled dimension."""
        return tuple(axis.tile for axis in self._tiled)

    @property
    def shape(self) -> Shape:
        """The number of tiles, or of blocks, along each dimension that no integer index has removed."""
        return tuple(axis.cells for axis in self._axes if not axis.is_consumed)

    @property
    def element_shape(self) -> Shape:
        """The number of selected elements along each dimension of the tensor.

        Dimensions that an integer index has removed from :attr:`shape` are included.
        """
        return tuple(axis.elements for axis in self._axes)

    @property
    def index_step_elements(self) -> Shape:
        """The number of elements from one coordinate to the next, along each dimension of :attr:`shape`.

        Raises:
            NkiValidationError: the steps of a dimension differ, for instance after blocks with a gap were regrouped.
        """
        steps = [axis.step for axis in self._axes if not axis.is_consumed]
        if None in steps:
            raise NkiValidationError(f"{self}: its {self._cell}s do not follow each other in equal steps")
        return tuple(step for step in steps if step is not None)

    @property
    def is_remainder(self) -> bool:
        """Whether the edge of the tensor truncates a selected tile or block."""
        return 0 not in self.element_shape and any(axis.is_remainder for axis in self._axes)

    @property
    def is_data_representable(self) -> bool:
        """Whether :attr:`data` exists: a single access pattern selects exactly the elements of the grid."""
        return self._layout() is not None

    @property
    def data(self) -> NkiTensor:
        """The selected elements as one tensor, for an instruction.

        The shape is :attr:`element_shape`. If several rows of tiles lie side by side in the same partitions on chip,
        the shape is (partitions, elements of all tiles in row-major order).

        Raises:
            NkiValidationError: no access pattern selects exactly these elements: there are gaps between tiles, or
                truncated tiles in several rows on chip.
        """
        layout = self._layout()
        if layout is None:
            raise NkiValidationError(
                f"{self}: no one access pattern has the elements {list(self.element_shape)} of this selection "
                f"(is_data_representable is False); index it down to neighbouring {self._cell}s"
                + (", of one row where some are cut off" if self.buffer in ON_CHIP else "")
            )
        is_packed = self._is_packed()
        if layout == self._tensor.layout and not is_packed:
            return self._tensor
        data = self._tensor.with_layout(layout)
        if is_packed:
            slabs = [len(axis.tiles) for axis in self._axes if not axis.is_tiled]
            data.mark_rows_of_tiles(prod(slabs) * len(self._tiled[0].tiles))
        return data

    def __getitem__(self, key: Any) -> Self:
        """Return the cells at integers and slices, as a grid of the same class.

        Raises:
            OutOfRangeError: an index or a slice leaves the grid.
            GridTypeError: an index is neither an integer nor a slice, for instance a register.
            GridValueError: there are too many indices, or a slice is not ascending.
        """
        keys = self._keys(key)
        axes, offset = [], self._offset
        for axis in self._axes:
            chosen = axis if axis.is_consumed else self._chosen(axis, keys.pop(0))
            if chosen.is_consumed and not chosen.is_tiled:  # a dimension less, as of a tensor
                offset += chosen.tiles[0] * chosen.outer
            else:
                axes.append(chosen)
        return type(self).of(self._tensor, axes, offset)

    def __iter__(self) -> Any:
        raise GridTypeError(f"{self}: a grid is not iterated over; index it, for i in range(grid.shape[0])")

    def __repr__(self) -> str:
        counts = " x ".join(map(str, self.shape))
        cells = f"{counts} {self._cell}s" if counts else f"one {self._cell}"
        return f"{type(self).__name__} of {cells} {self._grain()} of {self._tensor!r}"

    def tile_grid(self) -> NkiTileGrid:
        """Return the selected tiles as a grid of tiles."""
        return NkiTileGrid.of(self._tensor, [axis.regrouped(1) for axis in self._axes], self._offset)

    def block_grid(self, block_shape: Sequence[int]) -> NkiBlockGrid:
        """Return the selected tiles as a grid of blocks.

        Args:
            block_shape: the number of tiles of a block along each tiled dimension.
        """
        leading = len(self._axes) - len(block_shape)
        groups = (1,) * leading + tuple(block_shape)
        axes = [axis.regrouped(group) for axis, group in zip(self._axes, groups, strict=True)]
        return NkiBlockGrid.of(self._tensor, axes, self._offset)

    def with_coordinates_of(self, other: NkiGrid, order: Sequence[int]) -> Self:
        """Return this grid without the coordinates that integer indices have removed from ``other``.

        Args:
            other: a grid with the same dimensions in another order, such as the one that is transposed into this.
            order: the dimension of ``other`` that corresponds to each dimension of this grid.
        """
        axes = [
            replace(axis, is_consumed=other._axes[dim].is_consumed) for axis, dim in zip(self._axes, order, strict=True)
        ]
        return type(self).of(self._tensor, axes, self._offset)

    @property
    def _tiled(self) -> list[Axis]:
        return [axis for axis in self._axes if axis.is_tiled]

    def _grain(self) -> str:
        return str(self.tile_shape)

    def _layout(self) -> Layout | None:
        """Return the layout of all selected elements; None if no single access pattern selects exactly them."""
        if self._is_packed():
            return self._packed_layout()
        spans = [axis.span() for axis in self._axes]
        dimensions = [span for span in spans if span is not None]
        if len(dimensions) < len(spans):
            return None
        offset = self._offset + sum(span.offset for span in dimensions)
        return Layout(tuple(span.size for span in dimensions), tuple(span.stride for span in dimensions), offset)

    def _is_packed(self) -> bool:
        """Return whether the grid has several rows of tiles that lie side by side in the same partitions."""
        return self._tensor.buffer in ON_CHIP and not self._axes[0].follows_partitions()

    def _packed_layout(self) -> Layout | None:
        """Return the layout of whole tiles that lie side by side in the same partitions; None for other selections."""
        rows = self._tiled[0]
        offset, size = self._offset, prod(self.tile_shape[1:])
        for axis in reversed(self._axes):
            if not axis.tiles or axis.elements < len(axis.tiles) * axis.tile:
                return None
            if len(axis.tiles) > 1 and (not isinstance(axis.tiles, range) or axis.tiles.step * axis.outer != size):
                return None
            offset += axis.tiles[0] * axis.outer
            size *= len(axis.tiles)
        return Layout((rows.tile, size), (rows.inner, 1), offset)

    def _keys(self, key: Any) -> list[Any]:
        """Return one index for each coordinate of the grid; a coordinate that ``key`` omits gets a slice of all
        cells.
        """
        keys = list(key) if isinstance(key, tuple) and not isinstance(key, DynamicSlice) else [key]
        missing = sum(not axis.is_consumed for axis in self._axes) - len(keys)
        dots = [at for at, item in enumerate(keys) if item is Ellipsis]
        if missing + len(dots) < 0 or len(dots) > 1:
            raise GridValueError(f"{self} has {len(self.shape)} coordinates, got the index {key!r}")
        at = dots[0] if dots else len(keys)
        keys[at : at + len(dots)] = [slice(None)] * (missing + len(dots))
        return keys

    def _chosen(self, axis: Axis, item: Any) -> Axis:
        if isinstance(item, builtins.slice):
            return axis.some(self._range(axis, item))
        number = self._integer(item, item)
        if not -axis.cells <= number < axis.cells:
            raise OutOfRangeError(f"{self}: {self._cell} {number} is out of range of {axis.cells}")
        return axis.one(number % axis.cells)

    def _range(self, axis: Axis, item: builtins.slice) -> range:
        """Return the numbers of the cells that the slice ``item`` selects; a slice that leaves the grid is an error."""
        count = axis.cells
        step = 1 if item.step is None else self._integer(item.step, item)
        if step < 1:
            raise GridValueError(f"{self}: a slice needs a step >= 1, got {step}")
        start = 0 if item.start is None else self._integer(item.start, item)
        stop = count if item.stop is None else self._integer(item.stop, item)
        start += count if start < 0 else 0
        stop += count if stop < 0 else 0
        if not (0 <= start <= count and 0 <= stop <= count):
            raise OutOfRangeError(f"{self}: the slice {item.start}:{item.stop} leaves its {count} {self._cell}s")
        return range(start, max(start, stop), step)

    def _integer(self, value: Any, item: Any) -> int:
        try:
            if isinstance(value, bool):
                raise TypeError
            return index(value)
        except TypeError:
            raise GridTypeError(
                f"{self} is indexed with integers and slices, got {item!r}; where the place is known at run time only, "
                f"use a scalar_offset on the tensor, in steps of index_step_elements"
            ) from None


@final
class NkiTileGrid(NkiGrid):
    """A tensor divided into tiles: ``shape`` counts tiles, and an index selects tiles."""

    __slots__ = ()


@final
class NkiBlockGrid(NkiGrid):
    """A tensor divided into blocks of tiles: ``shape`` counts blocks; ``nl.tiles(grid[i, j])`` are the tiles of one
    block.
    """

    __slots__ = ()

    _cell = "block"

    @property
    def block_shape(self) -> Shape:
        """The number of tiles of a whole block along each tiled dimension."""
        return tuple(axis.group for axis in self._tiled)

    def _grain(self) -> str:
        return f"{self.block_shape} of tiles {self.tile_shape}"


def tile_grid_of(tensor: NkiTensor, tile_shape: Sequence[int]) -> NkiTileGrid:
    """Return a tensor divided into tiles; the last tile along a dimension may have fewer elements.

    Args:
        tensor: a tensor with a static address; on chip it has as many dimensions as ``tile_shape``, and the first one
            counts partitions.
        tile_shape: the shape of a tile, for the trailing dimensions.

    Raises:
        GridValueError: the tensor does not meet these requirements.
    """
    if tensor.is_indirect():
        raise GridValueError(f"{tensor} is indirect: its address is known at run time only, and it has no tiles")
    if len(tile_shape) > tensor.ndim or (tensor.is_on_chip() and len(tile_shape) < tensor.ndim):
        limit = "as many dimensions as" if tensor.is_on_chip() else "at most as many dimensions as"
        raise GridValueError(f"tile_shape must have {limit} {tensor}, got {tuple(tile_shape)}")
    return NkiTileGrid.of(tensor, dense_axes(tensor.shape, tensor.strides, tile_shape), tensor.offset)
