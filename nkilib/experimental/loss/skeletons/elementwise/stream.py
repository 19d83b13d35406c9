# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The stream of the tensors of a launch: tiles that are loaded ahead of the computation and cut into pieces.

A :class:`Launch` has the tensors and the tiling; a :class:`Stream` loads the tiles of a core. Each tensor is loaded by
a :class:`Source`: :class:`Elements`, :class:`RowScalars` (one value per row) or :class:`ColumnScalars` (one value per
column). A *piece* is a range of columns of a tile that is processed at a time.

Tensors of any shape are flattened, and each tile is a range of elements (:class:`FlatTile`). Only if a weight has one
value per row or per column, the tensors are treated as matrices: each partition of a tile has some whole rows, or a
range of columns of one row (:class:`MatrixTile`). Tiles do not depend on the number of cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Protocol, TypeVar

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import Scratch, dtype_bytes, ring_of
from nkilib.experimental.loss.skeletons.elementwise.definition import Piece
from nkilib.experimental.loss.skeletons.elementwise.tiling import (
    ElementwiseTiling,
    columns_of_chunk,
    piece_columns,
    row_groups,
    run_columns,
)
from nkilib.nki import nisa, nl


class Tile(Protocol):
    """A tile: elements [rows, columns], one row per partition, the same range in each tensor."""

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
    """Return the tiles of a core: every ``cores``-th tile, from tile number ``core`` on."""
    return tiles[core::cores]


@dataclass(frozen=True)
class FlatTile:
    """A range of elements of a flattened tensor: ``columns`` adjacent elements in each of ``rows`` partitions.

    Attributes:
        number: the index of the tile among all tiles of the launch.
        first: the index of the tile's first element.
        rows: the number of partitions.
        columns: the number of elements per partition.
    """

    number: int
    first: int
    rows: int
    columns: int

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile's elements of a flattened tensor [elements], as a view [rows, columns]."""
        return flat_hbm[self.first : self.first + self.rows * self.columns].reshape((self.rows, self.columns))


def flat_tiles(elements: int, columns: int) -> list[FlatTile]:
    """Return all tiles of a flattened tensor, with at most ``columns`` elements per partition.

    Full tiles come first, then at most one tile of 128 partitions with fewer columns, then at most one tile of a single
    partition with the last elements: fewer than 128, but possibly more than ``columns``.
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
    """A tile of a matrix: ``each`` whole rows in a partition; or, if ``each`` is 1, a range of columns of one row.

    Attributes:
        number: the index of the tile among all tiles of the launch.
        first: the index of the first row of the matrix.
        rows: the number of partitions, not of rows of the matrix.
        each: the number of rows of the matrix in a partition.
        start, end: the range [start, end) of columns of the matrix; all columns if ``each`` is over 1.
        row_columns: the number of columns of the matrix.
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
        """Return a view [partitions, each] of a vector that has one value per row of the matrix."""
        return numbers_hbm[self.first : self.first + self.rows * self.each].reshape((self.rows, self.each))

    def by_row(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile [partitions, each * c] on chip, reshaped to [partitions, each, c], with c columns of a row."""
        return tile_sbuf.reshape((self.rows, self.each, self.columns // self.each))


def matrix_tiles(rows: int, row_columns: int, columns: int) -> list[MatrixTile]:
    """Return all tiles of a matrix [rows, row_columns], with at most ``columns`` elements in a partition.

    All tiles of one range of columns come before those of the next, so that a per-column weight is loaded once.
    """
    chunk = columns_of_chunk(row_columns, columns)
    spans = [(start, min(start + chunk, row_columns)) for start in range(0, row_columns, chunk)]
    placed = product(spans, row_groups(rows, row_columns, columns))
    return [
        MatrixTile(number, group.first, group.partitions, group.each, start, end, row_columns)
        for number, ((start, end), group) in enumerate(placed)
    ]


@dataclass(frozen=True)
class Launch:
    """The tensors of a launch, and its tiling.

    Attributes:
        tensors_hbm: the tensors by name. All have the shape of the first one, which is the shape of the losses; for a
            shape [rows, columns], weights may be [rows, 1] or [1, columns].
        tiling: the tiling of the launch.
        scratch_tiles: the number of float32 scratch tiles of a piece.
    """

    tensors_hbm: dict[str, nl.NkiTensor]
    tiling: ElementwiseTiling
    scratch_tiles: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first tensor, of the losses and of the gradients."""
        return tuple(next(iter(self.tensors_hbm.values())).shape)

    @property
    def elements(self) -> int:
        """The number of elements of the first tensor."""
        return prod(self.shape)

    @property
    def is_by_rows(self) -> bool:
        """Whether a tensor has one value per row or per column."""
        return any(tuple(tensor_hbm.shape) != self.shape for tensor_hbm in self.tensors_hbm.values())

    @property
    def run_columns(self) -> int:
        """The number of columns of a run, the range over which an accumulator adds up losses before it is read."""
        sizes = [dtype_bytes(tensor_hbm.dtype) for tensor_hbm in self.tensors_hbm.values()]
        return run_columns(sizes, piece_columns(self.scratch_tiles))


class Source(Protocol):
    """The loader of one tensor's tiles, for the tiles of a core."""

    def load(self, visit: int) -> None:
        """Issue the load of the core's tile number ``visit``."""

    def take(self, visit: int) -> nl.NkiTensor:
        """Return the core's tile number ``visit``, [rows, columns] in the type of the tensor.

        Call this method once for each tile, in order, after :meth:`load`.
        """


@dataclass(frozen=True)
class Elements:
    """The source of a tensor with one value per element.

    Attributes:
        flat_hbm: the tensor, flattened to [elements].
        tiles: the tiles of the core.
        ring_sbuf: buffer slots [128, columns] for the tiles.
    """

    flat_hbm: nl.NkiTensor
    tiles: Sequence[Tile]
    ring_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(
        cls, tensor_hbm: nl.NkiTensor, elements: int, tiles: Sequence[Tile], tiling: ElementwiseTiling
    ) -> Elements:
        """Allocate the buffers for a tensor of any shape with ``elements`` elements."""
        ring_sbuf = ring_of(tiling.buffers, tiling.columns, tensor_hbm.dtype)
        return cls(tensor_hbm.reshape((elements,)), tiles, ring_sbuf)

    def load(self, visit: int) -> None:
        nisa.dma_copy(dst=self.take(visit), src=self.tiles[visit].of(self.flat_hbm))

    def take(self, visit: int) -> nl.NkiTensor:
        tile = self.tiles[visit]
        return self.ring_sbuf[visit % len(self.ring_sbuf)][0 : tile.rows, 0 : tile.columns]


@dataclass(frozen=True)
class RowScalars:
    """The source of a tensor with one value per row of a matrix.

    :meth:`take` returns a broadcast view of the values if each partition has one row; else it copies each value to all
    elements of its row.

    Attributes:
        numbers_hbm: the values, [rows of the matrix].
        tiles: the tiles of the core.
        ring_sbuf: buffer slots [128, largest ``MatrixTile.each``] for the values.
        copies_sbuf: buffer slots [128, columns of a tile] for the copies; empty if each partition has one row.
    """

    numbers_hbm: nl.NkiTensor
    tiles: Sequence[MatrixTile]
    ring_sbuf: list[nl.NkiTensor]
    copies_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, tiles: Sequence[MatrixTile], tiling: ElementwiseTiling) -> RowScalars:
        """Allocate the buffers for a tensor [rows, 1]."""
        most = max((tile.each for tile in tiles), default=1)
        ring_sbuf = ring_of(tiling.buffers, most, tensor_hbm.dtype)
        copies_sbuf = ring_of(tiling.buffers, tiling.columns, tensor_hbm.dtype) if most > 1 else []
        return cls(tensor_hbm.reshape((tensor_hbm.shape[0],)), tiles, ring_sbuf, copies_sbuf)

    def load(self, visit: int) -> None:
        nisa.dma_copy(dst=self._numbers(visit), src=self.tiles[visit].of_rows(self.numbers_hbm))

    def take(self, visit: int) -> nl.NkiTensor:
        tile = self.tiles[visit]
        if tile.each == 1:
            return self._numbers(visit).broadcast(1, tile.columns)
        copy_sbuf = self.copies_sbuf[visit % len(self.copies_sbuf)][0 : tile.rows, 0 : tile.columns]
        numbers_sbuf = self._numbers(visit).expand_dim(2).broadcast(2, tile.row_columns)
        nisa.tensor_copy(dst=tile.by_row(copy_sbuf), src=numbers_sbuf, engine=nisa.engine.scalar)
        return copy_sbuf

    def _numbers(self, visit: int) -> nl.NkiTensor:
        tile = self.tiles[visit]
        return self.ring_sbuf[visit % len(self.ring_sbuf)][0 : tile.rows, 0 : tile.each]


@dataclass(frozen=True)
class ColumnScalars:
    """The source of a tensor with one value per column of a matrix.

    The values of a range of columns are loaded into all partitions, once for all tiles of this range.

    Attributes:
        numbers_hbm: the values, [1, row_columns].
        tiles: the tiles of the core; all tiles of a range of columns follow one another.
        ring_sbuf: buffer slots [128, columns of a tile], one for each range of columns, used round-robin.
        slots: for the first column of each range loaded so far, the index of the range's slot in ``ring_sbuf``.
    """

    numbers_hbm: nl.NkiTensor
    tiles: Sequence[MatrixTile]
    ring_sbuf: list[nl.NkiTensor]
    slots: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, tiles: Sequence[MatrixTile], tiling: ElementwiseTiling) -> ColumnScalars:
        """Allocate the buffers for a tensor [1, row_columns]."""
        return cls(tensor_hbm, tiles, ring_of(tiling.buffers, tiling.columns, tensor_hbm.dtype))

    def load(self, visit: int) -> None:
        """Load the values for the core's tile number ``visit``, if it is the first tile of its range of columns.

        Later tiles of the range have no more partitions, nor more rows in each, so they find all values loaded.
        """
        tile = self.tiles[visit]
        if tile.start in self.slots:
            return
        self.slots[tile.start] = len(self.slots) % len(self.ring_sbuf)
        numbers_sbuf = self.take(visit)
        row_sbuf = numbers_sbuf[:, 0 : tile.end - tile.start]
        nisa.dma_copy(dst=row_sbuf, src=self.numbers_hbm[:, tile.start : tile.end].broadcast(0, tile.rows))
        if tile.each > 1:
            rows_sbuf = row_sbuf.expand_dim(1).broadcast(1, tile.each - 1)
            nisa.tensor_copy(dst=tile.by_row(numbers_sbuf)[:, 1:, :], src=rows_sbuf)

    def take(self, visit: int) -> nl.NkiTensor:
        tile = self.tiles[visit]
        return self.ring_sbuf[self.slots[tile.start]][0 : tile.rows, 0 : tile.columns]


def source_of_matrix(
    tensor_hbm: nl.NkiTensor, shape: tuple[int, ...], tiles: Sequence[MatrixTile], tiling: ElementwiseTiling
) -> Source:
    """Return the source of a tensor [rows, columns], [rows, 1] or [1, columns].

    Args:
        tensor_hbm: the tensor.
        shape: the shape of the launch, (rows, columns).
        tiles: the tiles of the core.
        tiling: the tiling of the launch.
    """
    own = tuple(tensor_hbm.shape)
    if own == shape:
        return Elements.make(tensor_hbm, prod(shape), tiles, tiling)
    return (RowScalars if own == (shape[0], 1) else ColumnScalars).make(tensor_hbm, tiles, tiling)


@dataclass(frozen=True)
class PlacedPiece:
    """A piece and its place in the stream.

    Attributes:
        tile: the tile that contains the piece.
        visit: the index of the tile among the tiles of the core.
        start, end: the range [start, end) of columns of the piece in the tile.
        piece: the piece itself.
    """

    tile: Tile
    visit: int
    start: int
    end: int
    piece: Piece

    @property
    def is_last(self) -> bool:
        """Whether the piece is the last one of its tile."""
        return self.end == self.tile.columns


@dataclass(frozen=True)
class Stream:
    """The stream of the tiles of a core.

    Attributes:
        sources: the sources of the tensors, by name.
        tiles: the tiles of the core, in order.
        num_tiles: the number of tiles of all cores.
        tiling: the tiling of the launch.
        scratch: the scratch tiles of the pieces.
    """

    sources: dict[str, Source]
    tiles: Sequence[Tile]
    num_tiles: int
    tiling: ElementwiseTiling
    scratch: Scratch

    @classmethod
    def make(cls, launch: Launch, tensors_hbm: dict[str, nl.NkiTensor]) -> Stream:
        """Return a stream of tensors of a launch, with new buffers and with scratch tiles for two pieces at a time."""
        tiling, shape = launch.tiling, launch.shape
        share = nl.num_programs(), nl.program_id(0)
        scratch = Scratch.make(launch.scratch_tiles, min(tiling.columns, piece_columns(launch.scratch_tiles)))
        if launch.is_by_rows:
            rows, row_columns = shape
            matrix = matrix_tiles(rows, row_columns, tiling.columns)
            own_rows = tiles_of_core(matrix, *share)
            by_rows = {
                name: source_of_matrix(tensor_hbm, shape, own_rows, tiling) for name, tensor_hbm in tensors_hbm.items()
            }
            return cls(by_rows, own_rows, len(matrix), tiling, scratch)
        flat = flat_tiles(launch.elements, tiling.columns)
        own = tiles_of_core(flat, *share)
        sources = {
            name: Elements.make(tensor_hbm, launch.elements, own, tiling) for name, tensor_hbm in tensors_hbm.items()
        }
        return cls(dict(sources), own, len(flat), tiling, scratch)

    @property
    def visits(self) -> int:
        """The number of tiles to process, as :class:`nkilib.core.rows.stream.PieceStream` requires."""
        return len(self.tiles)

    def pieces(self, visit: int) -> list[PlacedPiece]:
        """Issue the loads of further tiles into free buffers, and return the pieces of the core's tile number
        ``visit``.

        One buffer of each tensor is not free: the last piece of tile ``visit`` - 1 is still in use.
        """
        tile = self.tiles[visit]
        in_flight = self.tiling.buffers - 1
        first = 0 if visit == 0 else visit + in_flight - 1
        for number in range(first, min(visit + in_flight, len(self.tiles))):
            for source in self.sources.values():
                source.load(number)
        on_chip = {name: source.take(visit) for name, source in self.sources.items()}
        step = self.scratch.columns
        return [
            self._piece(tile, visit, start, min(start + step, tile.columns), on_chip)
            for start in range(0, tile.columns, step)
        ]

    def _piece(self, tile: Tile, visit: int, start: int, end: int, on_chip: dict[str, nl.NkiTensor]) -> PlacedPiece:
        tensors = {name: tile_sbuf[:, start:end] for name, tile_sbuf in on_chip.items()}
        step = self.scratch.columns
        number = tile.number * div_ceil(self.tiling.columns, step) + start // step
        return PlacedPiece(tile, visit, start, end, Piece(tensors, self.scratch, number))
