# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A ring buffer of tiles in PSUM (:class:`PsumRing`).

Vector processes a tile in SBUF and one in PSUM at twice the rate of two tiles in SBUF. PSUM is too small for a chunk,
so a chunk is processed in *pieces* (:class:`PsumPiece`), each as many columns as fit a tile of PSUM.
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
        start, end: the columns of the chunk, from ``start`` up to but not including ``end``.
        is_first, is_last: whether the piece is the first, or the last, of the chunk.
        tile_psum: the tile for the piece, float32 [rows, end - start].
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
    """A ring buffer of PSUM tiles for the pieces of chunks.

    Attributes:
        tiles_psum: the tiles, float32 [rows, columns of a piece].
        most: the number of pieces of the largest chunk.
    """

    tiles_psum: list[nl.NkiTensor]
    most: int

    @classmethod
    def make(cls, rows: int, chunk_size: int, reserved_bytes: int = 0) -> PsumRing:
        """Allocate the tiles for chunks of up to ``chunk_size`` columns, and leave ``reserved_bytes`` of each partition
        of PSUM free.

        A tile has whole banks, so that two engines never access the same bank. All tiles have the same size: if
        one were larger, Vector would wait while Scalar writes it.
        """
        bank_bytes = nl.tile_size.psum_bank_fmax_bytes
        banks = (nl.tile_size.psum_num_banks - div_ceil(reserved_bytes, bank_bytes)) // _PSUM_TILES
        size = min(banks * bank_bytes // FLOAT32_BYTES, chunk_size)
        tiles = [nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.psum) for _ in range(_PSUM_TILES)]
        return cls(tiles, div_ceil(chunk_size, size))

    def pieces(self, load: int, chunk_sbuf: nl.NkiTensor) -> list[PsumPiece]:
        """Return the pieces of a chunk, which get the tiles of the ring round-robin.

        Args:
            load: the index of the chunk among all chunks of the core, which decides the first tile.
            chunk_sbuf: the chunk, or a tile of the same shape.
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
