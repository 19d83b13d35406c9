"""Tiles of several tensors, loaded ahead of the computation, and cut into pieces."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.flat import FlatTile
from nkilib.experimental.loss.elementwise.kind import Piece
from nkilib.experimental.loss.elementwise.scratch import Scratch
from nkilib.experimental.loss.elementwise.sizes import PARTITIONS, piece_columns
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class PlacedPiece:
    """A piece, and where it is.

    Attributes:
        tile: of which it is.
        visit: how many tiles the core has taken before that.
        start, end: its columns of the tile.
        piece: its tensors.
    """

    tile: FlatTile
    visit: int
    start: int
    end: int
    piece: Piece

    @property
    def is_last(self) -> bool:
        """Of its tile."""
        return self.end == self.tile.columns


def ring_of(count: int, columns: int, dtype: nl.DType) -> list[nl.NkiTensor]:
    """So many tiles [128, columns]."""
    return [nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]


@dataclass(frozen=True)
class FlatStream:
    """The tiles of a core.

    Attributes:
        flats_hbm: tensors [elements] by name.
        tiles: of the core, in order.
        buffers_sbuf: by name of the tensor, tiles [128, columns] that tiles of the stream take in turn.
        scratch: of the pieces.
    """

    flats_hbm: dict[str, nl.NkiTensor]
    tiles: list[FlatTile]
    buffers_sbuf: dict[str, list[nl.NkiTensor]]
    scratch: Scratch

    @property
    def columns(self) -> int:
        """Of a tile at most."""
        columns: int = next(iter(self.buffers_sbuf.values()))[0].shape[1]
        return columns

    @classmethod
    def make(
        cls, flats_hbm: dict[str, nl.NkiTensor], tiles: list[FlatTile], columns: int, buffers: int, scratch_tiles: int
    ) -> FlatStream:
        """With so many buffers of so many columns for each tensor, and scratch for two pieces at a time."""
        rings = {name: ring_of(buffers, columns, flat_hbm.dtype) for name, flat_hbm in flats_hbm.items()}
        scratch = Scratch.make(scratch_tiles, min(columns, piece_columns(scratch_tiles)))
        return cls(flats_hbm, tiles, rings, scratch)

    def pieces(self, visit: int) -> list[PlacedPiece]:
        """Those of a tile of the core. Also issues loads of later tiles, for which there are buffers.

        One buffer is left to the tile before, whose last piece is finished after the first one here is begun.
        """
        tile = self.tiles[visit]
        in_flight = len(next(iter(self.buffers_sbuf.values()))) - 1
        first = 0 if visit == 0 else visit + in_flight - 1
        for number in range(first, min(visit + in_flight, len(self.tiles))):
            self._load(number)
        on_chip = {name: self._on_chip(name, visit) for name in self.flats_hbm}
        step = self.scratch.columns
        return [
            self._piece(tile, visit, start, min(start + step, tile.columns), on_chip)
            for start in range(0, tile.columns, step)
        ]

    def _piece(self, tile: FlatTile, visit: int, start: int, end: int, on_chip: dict[str, nl.NkiTensor]) -> PlacedPiece:
        tensors = {name: tile_sbuf[:, start:end] for name, tile_sbuf in on_chip.items()}
        step = self.scratch.columns
        number = tile.number * div_ceil(self.columns, step) + start // step
        return PlacedPiece(tile, visit, start, end, Piece(tensors, self.scratch, number))

    def _load(self, visit: int) -> None:
        for name, flat_hbm in self.flats_hbm.items():
            nisa.dma_copy(dst=self._on_chip(name, visit), src=self.tiles[visit].of(flat_hbm))

    def _on_chip(self, name: str, visit: int) -> nl.NkiTensor:
        tile, ring = self.tiles[visit], self.buffers_sbuf[name]
        return ring[visit % len(ring)][0 : tile.rows, 0 : tile.columns]
