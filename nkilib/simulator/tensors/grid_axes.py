# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Axis``: one dimension of the tensor behind a grid, cut into tiles, and the tiles that the grid has.

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
    """The elements of an axis as one dimension of an access pattern.

    Attributes:
        size: the number of elements.
        stride: the distance from one element to the next, in elements of the storage.
        offset: the offset of the first element, in elements of the storage.
    """

    size: int
    stride: int
    offset: int


@dataclass(frozen=True)
class Axis:
    """One dimension in tiles, grouped into cells. An index of the grid counts cells: tiles or blocks of tiles.

    Attributes:
        size: elements of the whole dimension.
        tile: elements of a tile; the last tile has the remainder. 1 if the dimension is not tiled.
        tiles: numbers of the tiles that the grid has, ascending.
        inner: stride from an element of a tile to the next.
        outer: stride from the first element of a tile to the first element of the next tile.
        group: tiles in a cell.
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
        """Return the axis with all tiles of a dimension."""
        return cls(size, tile, range(-(-size // tile)), inner, outer, is_tiled=is_tiled)

    @property
    def cells(self) -> int:
        """The number of cells."""
        return -(-len(self.tiles) // self.group)

    @property
    def elements(self) -> int:
        """The number of elements of all tiles together."""
        return self._elements_of(self.tiles)

    @property
    def is_remainder(self) -> bool:
        """Whether a cell, which can only be the last one, has fewer elements than a whole one."""
        last = self.tiles[(self.cells - 1) * self.group :] if self.cells else ()
        return 0 < self._elements_of(last) < self.group * self.tile

    @property
    def step(self) -> int | None:
        """The number of elements from a cell to the next; None if it differs from cell to cell."""
        firsts = self.tiles[:: self.group]
        if len(firsts) < 2:
            return self.group * self.tile
        if isinstance(firsts, range):
            return firsts.step * self.tile
        steps = {after - before for before, after in pairwise(firsts)}
        return steps.pop() * self.tile if len(steps) == 1 else None

    def one(self, cell: int) -> Axis:
        """Return the axis with only the cell of that number, from 0."""
        tiles = self.tiles[cell * self.group : (cell + 1) * self.group]
        # Without replace(), which takes three times as long: kernels ask for tiles in their innermost loops.
        return Axis(self.size, self.tile, tiles, self.inner, self.outer, self.group, self.is_tiled, True)

    def some(self, cells: range) -> Axis:
        """Return the axis with several cells, in ascending order."""
        if self.group == 1:
            return replace(self, tiles=_as_range(self.tiles[cells.start : cells.stop : cells.step]))
        chosen = [self.tiles[cell * self.group : (cell + 1) * self.group] for cell in cells]
        return replace(self, tiles=_as_range([tile for group in chosen for tile in group]))

    def regrouped(self, group: int) -> Axis:
        """Return the axis with the same tiles in cells of another size, all of which can be indexed again."""
        return replace(self, group=group, is_consumed=False)

    def follows_partitions(self) -> bool:
        """Return whether the elements of the axis, the first one on chip, lie in successive partitions."""
        return self.is_tiled and (len(self.tiles) < 2 or self.outer % self.inner == 0)

    def span(self) -> Span | None:
        """Return all elements as one dimension of an access pattern, or None if one stride cannot reach them."""
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
    """Return the axes of a tensor of these sizes and strides, whose trailing dimensions only are tiled."""
    leading = len(shape) - len(tile_shape)
    tiles = (1,) * leading + tuple(tile_shape)
    return tuple(
        Axis.of(size, tile, stride, stride * tile, is_tiled=dim >= leading)
        for dim, (size, stride, tile) in enumerate(zip(shape, strides, tiles, strict=True))
    )


def packed_shape(element_shape: Sequence[int], tile_shape: Sequence[int]) -> tuple[int, int]:
    """Return the partitions, and the elements of each, of on-chip memory in which whole tiles lie side by side."""
    return tile_shape[0], prod(_counts(element_shape, tile_shape)) * prod(tile_shape[1:])


def packed_axes(element_shape: Sequence[int], tile_shape: Sequence[int], partition_stride: int) -> tuple[Axis, ...]:
    """Return the axes of memory with :func:`packed_shape`.

    Every tile has room for a whole one, in the row-major order of the grid.
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
    """Return the number of tiles along each dimension; for a leading dimension, its number of elements."""
    tiles = (1,) * (len(element_shape) - len(tile_shape)) + tuple(tile_shape)
    return [-(-size // tile) for size, tile in zip(element_shape, tiles, strict=True)]
