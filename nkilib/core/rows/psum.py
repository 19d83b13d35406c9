# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pieces of a chunk that go through PSUM: Vector takes a tile of SBUF beside one of PSUM at twice the rate of two of
SBUF.

PSUM holds too little for a chunk, so a chunk is taken piece by piece. Scalar writes one tile while Vector reads the
other.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.core.tiling import div_ceil
from nkilib.nki import nl

# Tiles that the pieces take in turn.
_TURNS = 2


@dataclass(frozen=True)
class Piece:
    """Some columns of a chunk.

    Attributes:
        start, end: its columns, counted in the chunk.
        is_first, is_last: of the chunk.
        tile_psum: float32 [rows, columns], free to be written.
    """

    start: int
    end: int
    is_first: bool
    is_last: bool
    tile_psum: nl.NkiTensor

    def of(self, chunk_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a tile of the chunk's size that the piece is, a view."""
        return chunk_sbuf[:, self.start : self.end]


@dataclass(frozen=True)
class PsumRing:
    """The tiles of PSUM that pieces take in turn.

    Attributes:
        tiles_psum: float32 [rows, columns of a piece].
        most: pieces of the largest chunk.
    """

    tiles_psum: list[nl.NkiTensor]
    most: int

    @classmethod
    def make(cls, rows: int, chunk_size: int, reserved_bytes: int = 0) -> PsumRing:
        """For chunks of at most that size; so many bytes of a partition are left to others.

        The tiles have as many whole banks each, so that two engines do not meet in one: were one tile larger, Vector
        would wait while Scalar writes it.
        """
        bank_bytes = nl.tile_size.psum_bank_fmax_bytes
        banks = (nl.tile_size.psum_num_banks - div_ceil(reserved_bytes, bank_bytes)) // _TURNS
        size = min(banks * bank_bytes // FLOAT32_BYTES, chunk_size)
        tiles = [nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.psum) for _ in range(_TURNS)]
        return cls(tiles, div_ceil(chunk_size, size))

    def pieces(self, load: int, chunk_sbuf: nl.NkiTensor) -> list[Piece]:
        """Those of chunk number ``load`` of the core, of which a tile has the size."""
        rows, columns = chunk_sbuf.shape
        found: list[Piece] = []
        start = 0
        while start < columns:
            tile_psum = self.tiles_psum[(load * self.most + len(found)) % len(self.tiles_psum)]
            end = min(start + tile_psum.shape[1], columns)
            found.append(Piece(start, end, start == 0, end == columns, tile_psum[0:rows, 0 : end - start]))
            start = end
        return found
