"""How each tensor of a launch comes on chip: its own tiles, or numbers of rows or of columns that many elements share.

A weight of rows or of columns is not copied to the size of the input, neither in HBM nor by DMA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from nkilib.core.rows.rings import ring_of
from nkilib.experimental.loss.elementwise.host.tiling import ElementwiseTiling
from nkilib.experimental.loss.elementwise.matrix import MatrixTile
from nkilib.experimental.loss.elementwise.tiles import Tile
from nkilib.nki import nisa, nl


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
