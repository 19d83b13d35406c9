"""Tiles of several tensors, loaded ahead of the computation, and cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.core.rows.scratch import Scratch
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.flat import flat_tiles
from nkilib.experimental.loss.elementwise.host.tiling import ElementwiseTiling
from nkilib.experimental.loss.elementwise.kind import Piece
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.matrix import matrix_tiles
from nkilib.experimental.loss.elementwise.sizes import piece_columns
from nkilib.experimental.loss.elementwise.sources import Elements, Source, source_of_matrix
from nkilib.experimental.loss.elementwise.tiles import Tile, tiles_of_core
from nkilib.nki import nl


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
