# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiles of a launch, cut from flattened tensors or by rows.

A tile of a flattened tensor, of any shape, is a range of its elements; a tile of a matrix is whole rows, or
a range of columns of one row in each partition. A weight per row or per column requires the latter: in a
tile of a flattened tensor a row may begin anywhere. No tile depends on the number of cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol, TypeVar

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.skeletons.elementwise.tiling import columns_of_chunk, row_groups
from nkilib.nki import nl


class Tile(Protocol):
    """A set of elements, the same for each tensor, that is processed at a time."""

    @property
    def number(self) -> int:
        """The index of the tile among all tiles of the launch."""

    @property
    def rows(self) -> int:
        """The number of partitions that the tile takes."""

    @property
    def columns(self) -> int:
        """The number of elements per partition."""

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile's elements of a flattened tensor [elements], as a view [rows, columns]."""


AnyTile = TypeVar("AnyTile", bound=Tile)


def tiles_of_core(tiles: Sequence[AnyTile], cores: int, core: int) -> Sequence[AnyTile]:
    """Return the tiles of a core: every ``cores``-th one, so that the shares of cores differ by one tile at most."""
    return tiles[core::cores]


@dataclass(frozen=True)
class FlatTile:
    """A range of elements of a flattened tensor: ``columns`` adjacent elements in each of ``rows`` partitions.

    Attributes:
        number: the index among all tiles of the launch.
        first: the first element.
        rows, columns: the shape of the tile.
    """

    number: int
    first: int
    rows: int
    columns: int

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile's elements of a flattened tensor [elements], as a view [rows, columns]."""
        return flat_hbm[self.first : self.first + self.rows * self.columns].reshape((self.rows, self.columns))


def flat_tiles(elements: int, columns: int) -> list[FlatTile]:
    """Return all tiles of a flattened tensor, with at most ``columns`` elements per partition, except possibly for
    the last one.

    They are full ones, one of all partitions for the rest, and one of a single partition for the last elements,
    under 128.
    """
    size = PARTITIONS * columns
    tiles = [FlatTile(number, number * size, PARTITIONS, columns) for number in range(elements // size)]
    done = len(tiles) * size
    left = (elements - done) // PARTITIONS
    if left > 0:
        tiles.append(FlatTile(len(tiles), done, PARTITIONS, left))
        done += left * PARTITIONS
    if done < elements:
        tiles.append(FlatTile(len(tiles), done, 1, elements - done))
    return tiles


@dataclass(frozen=True)
class MatrixTile:
    """Rows of a matrix, ``each`` of them in a partition; if there is one row in a partition, a range of columns of
    the rows.

    Attributes:
        number: the index among all tiles of the launch.
        first: the first row.
        rows: the number of partitions.
        each: the rows in a partition.
        start, end: the columns; all columns if there are several rows in a partition.
        row_columns: the columns of the matrix.
    """

    number: int
    first: int
    rows: int
    each: int
    start: int
    end: int
    row_columns: int

    @property
    def columns(self) -> int:
        """The number of elements per partition."""
        return self.each * (self.end - self.start)

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile's elements of a flattened tensor [elements], as a view [rows, columns]."""
        first, last = self.first, self.first + self.rows * self.each
        if self.each > 1:
            part_hbm = flat_hbm[first * self.row_columns : last * self.row_columns]
            return part_hbm.reshape((self.rows, self.columns))
        matrix_hbm = flat_hbm.reshape((flat_hbm.shape[0] // self.row_columns, self.row_columns))
        return matrix_hbm[first:last, self.start : self.end]

    def of_rows(self, numbers_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the numbers of the tile's rows in a vector with one number per row, as a view [rows, each]."""
        return numbers_hbm[self.first : self.first + self.rows * self.each].reshape((self.rows, self.each))

    def by_row(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile [rows, columns] on chip in the shape [rows, each, columns of a row]."""
        return tile_sbuf.reshape((self.rows, self.each, self.columns // self.each))


def matrix_tiles(rows: int, row_columns: int, columns: int) -> list[MatrixTile]:
    """Return all tiles of a matrix, with at most ``columns`` elements in a partition.

    All rows of a range of columns come before the next range, so that a per-column weight is loaded once.
    """
    chunk = columns_of_chunk(row_columns, columns)
    spans = [(start, min(start + chunk, row_columns)) for start in range(0, row_columns, chunk)]
    placed = product(spans, row_groups(rows, row_columns, columns))
    return [
        MatrixTile(number, group.first, group.partitions, group.each, start, end, row_columns)
        for number, ((start, end), group) in enumerate(placed)
    ]
