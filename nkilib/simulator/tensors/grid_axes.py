# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Axis``: one dimension of the tensor behind a grid, divided into tiles, and the tiles of it that the grid selects.

This module contains arithmetic on tile numbers and strides only; it does not use tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

from ..terms.layout import row_major_strides


class Span(NamedTuple):
    """All selected elements of an :class:`Axis`, as one dimension of an access pattern.

    Attributes:
        size: the number of elements.
        stride: the distance from one element to the next, in elements of the storage.
        offset: the distance from the start of the axis to the first element, in elements of the storage.
    """

    size: int
    stride: int
    offset: int


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid, divided into tiles, with the tiles that the grid selects.

    The selected tiles are grouped into cells, which an index of the grid counts: a cell is one tile in a grid of
    tiles, and ``group`` tiles in a grid of blocks.

    Attributes:
        size: number of elements of the whole dimension.
        tile: number of elements of a tile (the last tile may have fewer); 1 if the dimension is not tiled.
        tiles: numbers of the selected tiles, ascending.
        inner: stride from an element of a tile to the next, in elements of the storage.
        outer: stride from the first element of a tile to the first element of the next tile, in the same unit.
        group: number of tiles in a cell.
        is_tiled: whether the dimension is tiled; leading dimensions that are not are indexed element by element.
        is_consumed: whether an integer has chosen its one cell, so that no further index counts along it.
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
        """Return the axis of a dimension with all its tiles selected."""
        return cls(size, tile, range(-(-size // tile)), inner, outer, is_tiled=is_tiled)

    @property
    def cells(self) -> int:
        """The number of selected cells: tiles, or blocks of tiles."""
        return -(-len(self.tiles) // self.group)

    @property
    def elements(self) -> int:
        """The number of elements of all selected tiles together."""
        return self._elements_of(self.tiles)

    @property
    def is_remainder(self) -> bool:
        """Whether the last cell, the only one that can, has fewer elements than a whole cell."""
        last = self.tiles[(self.cells - 1) * self.group :] if self.cells else ()
        return 0 < self._elements_of(last) < self.group * self.tile

    @property
    def step(self) -> int | None:
        """The number of elements of the dimension from a cell to the next; None if it differs from cell to cell."""
        firsts = self.tiles[:: self.group]
        if len(firsts) < 2:
            return self.group * self.tile
        if isinstance(firsts, range):
            return firsts.step * self.tile
        steps = {after - before for before, after in pairwise(firsts)}
        return steps.pop() * self.tile if len(steps) == 1 else None

    def one(self, cell: int) -> Axis:
        """Return the axis with only cell number ``cell``, counted from 0, selected by an integer."""
        tiles = self.tiles[cell * self.group : (cell + 1) * self.group]
        # Without replace(), which takes three times as long: kernels ask for tiles in their innermost loops.
        return Axis(self.size, self.tile, tiles, self.inner, self.outer, self.group, self.is_tiled, True)

    def some(self, cells: range) -> Axis:
        """Return the axis with only the given cells, in ascending order, selected by a slice."""
        if self.group == 1:
            return replace(self, tiles=_as_range(self.tiles[cells.start : cells.stop : cells.step]))
        chosen = [self.tiles[cell * self.group : (cell + 1) * self.group] for cell in cells]
        return replace(self, tiles=_as_range([tile for group in chosen for tile in group]))

    def regrouped(self, group: int) -> Axis:
        """Return the axis with the same tiles in cells of ``group`` tiles; its coordinate can be indexed again."""
        return replace(self, group=group, is_consumed=False)

    def follows_partitions(self) -> bool:
        """Return whether the elements of the axis, the first one of an on-chip grid, lie in successive partitions."""
        return self.is_tiled and (len(self.tiles) < 2 or self.outer % self.inner == 0)

    def span(self) -> Span | None:
        """Return all selected elements as one dimension of an access pattern; None if they are not equally spaced."""
        if not self.tiles:
            return Span(0, self.inner, 0)
        offset = self.tiles[0] * self.outer
        if len(self.tiles) == 1:
            return Span(self.elements, self.inner, offset)
        if not isinstance(self.tiles, range):
            return None
        step = self.tiles.step * self.outer
        if self.tile == 1 or step == self.inner * self.tile:
            return Span(self.elements, step // self.tile, offset)
        return None

    def _elements_of(self, tiles: Sequence[int]) -> int:
        """Return the number of elements of some of the tiles; the last tile of the dimension may be incomplete."""
        if not tiles:
            return 0
        lacking = (tiles[-1] + 1) * self.tile - self.size
        return len(tiles) * self.tile - max(0, lacking)


def _as_range(tiles: Sequence[int]) -> Sequence[int]:
    """Return tile numbers as a range if they form one, so that their step can be read."""
    if isinstance(tiles, range):
        return tiles
    if not tiles:
        return range(0)
    step = tiles[1] - tiles[0] if len(tiles) > 1 else 1
    candidate = range(tiles[0], tiles[-1] + 1, step)
    return candidate if list(candidate) == list(tiles) else tuple(tiles)


def dense_axes(shape: Sequence[int], strides: Sequence[int], tile_shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return an axis for each dimension of a tensor of these sizes and strides.

    The trailing dimensions, as many as ``tile_shape`` has, are tiled.
    """
    leading = len(shape) - len(tile_shape)
    tiles = (1,) * leading + tuple(tile_shape)
    return tuple(
        Axis.of(size, tile, stride, stride * tile, is_tiled=dim >= leading)
        for dim, (size, stride, tile) in enumerate(zip(shape, strides, tiles, strict=True))
    )


def packed_shape(element_shape: Sequence[int], tile_shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of on-chip memory in which whole tiles lie side by side: partitions, and elements of each."""
    return tile_shape[0], prod(_counts(element_shape, tile_shape)) * prod(tile_shape[1:])


def packed_axes(element_shape: Sequence[int], tile_shape: Sequence[int], partition_stride: int) -> tuple[Axis, ...]:
    """Return an axis for each dimension of a tensor whose tiles lie side by side in memory of :func:`packed_shape`.

    The tiles are in the row-major order of the grid; each has room for a whole one, also where it is smaller.
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


def _counts(element_shape: Sequence[int], tile_shape: Sequence[int]) -> list[int]:
    """Return the number of tiles along each dimension; along a dimension that is not tiled, the number of elements."""
    tiles = (1,) * (len(element_shape) - len(tile_shape)) + tuple(tile_shape)
    return [-(-size // tile) for size, tile in zip(element_shape, tiles, strict=True)]
