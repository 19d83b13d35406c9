# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of several tensors, loaded ahead of the computation, and cut into pieces.

How each tensor of a launch comes on chip: its own tiles, or numbers of rows or of columns that many elements share.

A weight of rows or of columns is not copied to the size of the input, neither in HBM nor by DMA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.scratch import Scratch
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.elementwise.kind import Piece
from nkilib.experimental.loss.skeletons.elementwise.tiles import (
    MatrixTile,
    Tile,
    flat_tiles,
    matrix_tiles,
    tiles_of_core,
)
from nkilib.experimental.loss.skeletons.elementwise.tiling import ElementwiseTiling, piece_columns, run_columns
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Launch:
    """Tensors, and how they are cut up.

    Attributes:
        tensors_hbm: by name, the first one first. All have its shape, but that of one of [rows, columns] some may be
            [rows, 1] or [1, columns].
        tiling: of the stream.
        scratch_tiles: of a piece.
    """

    tensors_hbm: dict[str, nl.NkiTensor]
    tiling: ElementwiseTiling
    scratch_tiles: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first tensor, and of losses and gradients."""
        return tuple(next(iter(self.tensors_hbm.values())).shape)

    @property
    def elements(self) -> int:
        """Of such a tensor."""
        return prod(self.shape)

    @property
    def is_by_rows(self) -> bool:
        """Whether a weight is one of rows or of columns."""
        return any(tuple(each.shape) != self.shape for each in self.tensors_hbm.values())

    @property
    def run_columns(self) -> int:
        """Elements that an accumulator adds up before it is read."""
        sizes = [dtype_bytes(each.dtype) for each in self.tensors_hbm.values()]
        return run_columns(sizes, piece_columns(self.scratch_tiles))


class Source(Protocol):
    """A tensor, tile by tile of a core."""

    def load(self, visit: int) -> None:
        """Issue the load of the tile with that number in the core."""

    def take(self, visit: int) -> nl.NkiTensor:
        """The loaded tile, [rows, columns] in the type of the tensor; once, when its turn has come."""


@dataclass(frozen=True)
class Elements:
    """A tensor of a number for each element.

    Attributes:
        flat_hbm: [elements].
        tiles: of the core.
        ring_sbuf: tiles [128, columns] that they take in turn.
    """

    flat_hbm: nl.NkiTensor
    tiles: Sequence[Tile]
    ring_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(
        cls, tensor_hbm: nl.NkiTensor, elements: int, tiles: Sequence[Tile], tiling: ElementwiseTiling
    ) -> Elements:
        """Of any shape."""
        ring_sbuf = ring_of(tiling.buffers, tiling.columns, tensor_hbm.dtype)
        return cls(tensor_hbm.reshape((elements,)), tiles, ring_sbuf)

    def load(self, visit: int) -> None:
        """As :class:`Source` has it."""
        nisa.dma_copy(dst=self.take(visit), src=self.tiles[visit].of(self.flat_hbm))

    def take(self, visit: int) -> nl.NkiTensor:
        """As :class:`Source` has it."""
        tile = self.tiles[visit]
        return self.ring_sbuf[visit % len(self.ring_sbuf)][0 : tile.rows, 0 : tile.columns]


@dataclass(frozen=True)
class RowNumbers:
    """A number for each row: an operand without a step where a partition has one row, else copied along rows on chip.

    Attributes:
        numbers_hbm: [rows].
        tiles: of the core.
        ring_sbuf: [128, most rows in a partition], for the numbers of tiles in turn.
        copies_sbuf: [128, columns], likewise; none where each partition of every tile has one row.
    """

    numbers_hbm: nl.NkiTensor
    tiles: Sequence[MatrixTile]
    ring_sbuf: list[nl.NkiTensor]
    copies_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, tiles: Sequence[MatrixTile], tiling: ElementwiseTiling) -> RowNumbers:
        """Of [rows, 1]."""
        most = max((tile.each for tile in tiles), default=1)
        ring_sbuf = ring_of(tiling.buffers, most, tensor_hbm.dtype)
        copies_sbuf = ring_of(tiling.buffers, tiling.columns, tensor_hbm.dtype) if most > 1 else []
        return cls(tensor_hbm.reshape((tensor_hbm.shape[0],)), tiles, ring_sbuf, copies_sbuf)

    def load(self, visit: int) -> None:
        """As :class:`Source` has it."""
        nisa.dma_copy(dst=self._numbers(visit), src=self.tiles[visit].of_rows(self.numbers_hbm))

    def take(self, visit: int) -> nl.NkiTensor:
        """As :class:`Source` has it."""
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
class ColumnNumbers:
    """A number for each column, loaded into all partitions once for all tiles of the same columns.

    Attributes:
        numbers_hbm: [1, row_columns].
        tiles: of the core, those of the same columns next to each other.
        ring_sbuf: [128, columns], that columns take in turn.
        turns: by the first of the columns, their place there, once they are loaded.
    """

    numbers_hbm: nl.NkiTensor
    tiles: Sequence[MatrixTile]
    ring_sbuf: list[nl.NkiTensor]
    turns: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, tiles: Sequence[MatrixTile], tiling: ElementwiseTiling) -> ColumnNumbers:
        """Of [1, row_columns]."""
        return cls(tensor_hbm, tiles, ring_of(tiling.buffers, tiling.columns, tensor_hbm.dtype))

    def load(self, visit: int) -> None:
        """As :class:`Source` has it. Of some columns the first tile has the most rows: the later ones find theirs."""
        tile = self.tiles[visit]
        if tile.start in self.turns:
            return
        self.turns[tile.start] = len(self.turns) % len(self.ring_sbuf)
        numbers_sbuf = self.take(visit)
        row_sbuf = numbers_sbuf[:, 0 : tile.end - tile.start]
        nisa.dma_copy(dst=row_sbuf, src=self.numbers_hbm[:, tile.start : tile.end].broadcast(0, tile.rows))
        if tile.each > 1:
            rows_sbuf = row_sbuf.expand_dim(1).broadcast(1, tile.each - 1)
            nisa.tensor_copy(dst=tile.by_row(numbers_sbuf)[:, 1:, :], src=rows_sbuf)

    def take(self, visit: int) -> nl.NkiTensor:
        """As :class:`Source` has it."""
        tile = self.tiles[visit]
        return self.ring_sbuf[self.turns[tile.start]][0 : tile.rows, 0 : tile.columns]


def source_of_matrix(
    tensor_hbm: nl.NkiTensor, shape: tuple[int, ...], tiles: Sequence[MatrixTile], tiling: ElementwiseTiling
) -> Source:
    """Of a tensor [rows, columns], [rows, 1] or [1, columns] of a launch of that shape."""
    own = tuple(tensor_hbm.shape)
    if own == shape:
        return Elements.make(tensor_hbm, prod(shape), tiles, tiling)
    return (RowNumbers if own == (shape[0], 1) else ColumnNumbers).make(tensor_hbm, tiles, tiling)


@dataclass(frozen=True)
class PlacedPiece:
    """A piece, and where it is.

    Attributes:
        tile: of which it is.
        visit: how many tiles the core has taken before that.
        start, end: its columns of the tile.
        piece: its tensors.
    """

    tile: Tile
    visit: int
    start: int
    end: int
    piece: Piece

    @property
    def is_last(self) -> bool:
        """Of its tile."""
        return self.end == self.tile.columns


@dataclass(frozen=True)
class Stream:
    """The tiles of a core.

    Attributes:
        sources: of the tensors, by name.
        tiles: of the core, in order.
        num_tiles: of all cores.
        tiling: of the launch.
        scratch: of the pieces.
    """

    sources: dict[str, Source]
    tiles: Sequence[Tile]
    num_tiles: int
    tiling: ElementwiseTiling
    scratch: Scratch

    @classmethod
    def make(cls, launch: Launch, tensors_hbm: dict[str, nl.NkiTensor]) -> Stream:
        """Of those tensors of a launch, with scratch for two pieces at a time."""
        tiling, shape = launch.tiling, launch.shape
        share = nl.num_programs(), nl.program_id(0)
        scratch = Scratch.make(launch.scratch_tiles, min(tiling.columns, piece_columns(launch.scratch_tiles)))
        if launch.is_by_rows:
            rows, row_columns = shape
            matrix = matrix_tiles(rows, row_columns, tiling.columns)
            own_rows = tiles_of_core(matrix, *share)
            by_rows = {name: source_of_matrix(each, shape, own_rows, tiling) for name, each in tensors_hbm.items()}
            return cls(by_rows, own_rows, len(matrix), tiling, scratch)
        flat = flat_tiles(launch.elements, tiling.columns)
        own = tiles_of_core(flat, *share)
        sources = {name: Elements.make(each, launch.elements, own, tiling) for name, each in tensors_hbm.items()}
        return cls(dict(sources), own, len(flat), tiling, scratch)

    @property
    def visits(self) -> int:
        """As :class:`nkilib.core.rows.overlap.PieceStream` has it: a tile each."""
        return len(self.tiles)

    def pieces(self, visit: int) -> list[PlacedPiece]:
        """Those of a tile of the core. Also issues loads of later tiles, for which there are buffers.

        One buffer is left to the tile before, whose last piece is finished after the first one here is begun.
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
