# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What every tile of a launch is, however its tensors are cut up: flat (:mod:`.flat`), or by rows (:mod:`.matrix`).

Of a flat stream a tile is some elements of any shape, in a matrix whole rows, or some columns of one row in each
partition. That is what a weight of rows or of columns asks for: in a tile of a flat stream a row begins anywhere. No
tile depends on the number of cores.
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
    """Some elements of each tensor."""

    @property
    def number(self) -> int:
        """Among all tiles of the launch."""

    @property
    def rows(self) -> int:
        """Partitions that it takes."""

    @property
    def columns(self) -> int:
        """Elements of each."""

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a tensor [elements] that the tile is, a view [rows, columns]."""


AnyTile = TypeVar("AnyTile", bound=Tile)


def tiles_of_core(tiles: Sequence[AnyTile], cores: int, core: int) -> Sequence[AnyTile]:
    """Every ``cores``-th tile: shares differ by one tile at most."""
    return tiles[core::cores]


@dataclass(frozen=True)
class FlatTile:
    """Elements of the stream: ``rows`` runs of ``columns``, one a partition.

    Attributes:
        number: among all tiles of the launch.
        first: its first element.
        rows, columns: of it.
    """

    number: int
    first: int
    rows: int
    columns: int

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a tensor [elements] that the tile is, a view [rows, columns]."""
        return flat_hbm[self.first : self.first + self.rows * self.columns].reshape((self.rows, self.columns))


def flat_tiles(elements: int, columns: int) -> list[FlatTile]:
    """All tiles of a stream: full ones, one of all partitions for what is left, and one of less than 128 elements."""
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
    """Rows of a matrix, ``each`` of them in a partition; where that is one, some of its columns.

    Attributes:
        number: among all tiles of the launch.
        first: its first row.
        rows: partitions.
        each: rows in a partition.
        start, end: columns; all of them where there are several rows in a partition.
        row_columns: of the matrix.
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
        """Elements of a partition."""
        return self.each * (self.end - self.start)

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a tensor [elements] that the tile is, a view [rows, columns]."""
        first, last = self.first, self.first + self.rows * self.each
        if self.each > 1:
            part_hbm = flat_hbm[first * self.row_columns : last * self.row_columns]
            return part_hbm.reshape((self.rows, self.columns))
        matrix_hbm = flat_hbm.reshape((flat_hbm.shape[0] // self.row_columns, self.row_columns))
        return matrix_hbm[first:last, self.start : self.end]

    def of_rows(self, numbers_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Those of its rows of a tensor [all rows], a view [rows, each]."""
        return numbers_hbm[self.first : self.first + self.rows * self.each].reshape((self.rows, self.each))

    def by_row(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """A tile [rows, columns] on chip as [rows, each, columns of a row]."""
        return tile_sbuf.reshape((self.rows, self.each, self.columns // self.each))


def matrix_tiles(rows: int, row_columns: int, columns: int) -> list[MatrixTile]:
    """All tiles of a matrix, with at most so many elements in a partition.

    All rows of some columns come before the next columns, so that a weight of columns is loaded once.
    """
    chunk = columns_of_chunk(row_columns, columns)
    spans = [(start, min(start + chunk, row_columns)) for start in range(0, row_columns, chunk)]
    placed = product(spans, row_groups(rows, row_columns, columns))
    return [
        MatrixTile(number, group.first, group.partitions, group.each, start, end, row_columns)
        for number, ((start, end), group) in enumerate(placed)
    ]
