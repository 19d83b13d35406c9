# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles in PSUM for the pieces of a chunk: the ring buffer :class:`PsumRing` divides a chunk into :class:`PsumPiece`.

Vector processes a tile in SBUF and one in PSUM at twice the rate of two tiles in SBUF. PSUM is too small for a chunk,
so a chunk is processed piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nkilib.core.hardware import FLOAT32_BYTES, div_ceil
from nkilib.nki import nl

# Tiles of a ring buffer: Scalar writes one while Vector reads the other.
_PSUM_TILES: Final = 2


@dataclass(frozen=True)
class PsumPiece:
    """Some columns of a chunk, and a tile of PSUM for them.

    Attributes:
        start, end: the columns of the piece, counted in the chunk.
        is_first, is_last: whether the piece is the first, or the last, of the chunk.
        tile_psum: a free tile, float32 [rows, columns].
    """

    start: int
    end: int
    is_first: bool
    is_last: bool
    tile_psum: nl.NkiTensor

    def of(self, chunk_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a view of the columns of this piece in a tile that has the columns of the whole chunk."""
        return chunk_sbuf[:, self.start : self.end]


@dataclass(frozen=True)
class PsumRing:
    """A ring buffer of PSUM tiles, which successive pieces of chunks use one after the other.

    Attributes:
        tiles_psum: the tiles, float32 [rows, columns of a piece].
        most: the number of pieces of the largest chunk.
    """

    tiles_psum: list[nl.NkiTensor]
    most: int

    @classmethod
    def make(cls, rows: int, chunk_size: int, reserved_bytes: int = 0) -> PsumRing:
        """Allocate tiles for chunks of up to ``chunk_size`` columns; ``reserved_bytes`` of a partition stay free.

        Each tile has the same number of whole banks, so that two engines never access the same bank: if one tile were
        larger, Vector would wait while Scalar writes it.
        """
        bank_bytes = nl.tile_size.psum_bank_fmax_bytes
        banks = (nl.tile_size.psum_num_banks - div_ceil(reserved_bytes, bank_bytes)) // _PSUM_TILES
        size = min(banks * bank_bytes // FLOAT32_BYTES, chunk_size)
        tiles = [nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.psum) for _ in range(_PSUM_TILES)]
        return cls(tiles, div_ceil(chunk_size, size))

    def pieces(self, load: int, chunk_sbuf: nl.NkiTensor) -> list[PsumPiece]:
        """Divide a chunk into pieces, each with the next tile of the ring.

        Args:
            load: the number of the chunk among all chunks of the core, which decides the first tile.
            chunk_sbuf: a tile of the chunk's size.
        """
        rows, columns = chunk_sbuf.shape
        pieces: list[PsumPiece] = []
        start = 0
        while start < columns:
            tile_psum = self.tiles_psum[(load * self.most + len(pieces)) % len(self.tiles_psum)]
            end = min(start + tile_psum.shape[1], columns)
            pieces.append(PsumPiece(start, end, start == 0, end == columns, tile_psum[0:rows, 0 : end - start]))
            start = end
        return pieces
