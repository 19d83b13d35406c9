# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The scratch of elementwise and row-wise kernels on chip: float32 tiles for pieces, and constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.nki import nisa, nl

# A piece and the one that is prepared while it is finished.
PIECES_AT_A_TIME: Final = 2


@dataclass
class Scratch:
    """A ring buffer of tiles for pieces, and constants for instructions that take a number from a tile.

    Attributes:
        tiles_sbuf: the tiles, float32 [128, columns of a piece].
        constants_sbuf: by number, a float32 tile [128, 1] with that number in each partition.
        taken: the number of tiles taken so far.
    """

    tiles_sbuf: list[nl.NkiTensor]
    constants_sbuf: dict[float, nl.NkiTensor] = field(default_factory=dict)
    taken: int = 0

    @classmethod
    def make(cls, tiles_of_piece: int, columns: int) -> Scratch:
        """Allocate the ring for pieces that take ``tiles_of_piece`` tiles each."""
        count = PIECES_AT_A_TIME * tiles_of_piece
        return cls([nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)])

    @property
    def tiles_of_piece(self) -> int:
        """The largest number of tiles that a piece takes."""
        return len(self.tiles_sbuf) // PIECES_AT_A_TIME

    @property
    def columns(self) -> int:
        """The largest number of columns of a piece."""
        columns: int = self.tiles_sbuf[0].shape[1]
        return columns

    def next(self, rows: int, columns: int) -> nl.NkiTensor:
        """Return the tile that was taken longest ago."""
        tile_sbuf = self.tiles_sbuf[self.taken % len(self.tiles_sbuf)]
        self.taken += 1
        return tile_sbuf[0:rows, 0:columns]

    def constant(self, number: float, rows: int) -> nl.NkiTensor:
        """Return a tile [rows, 1] of a number. Each number is written once."""
        if number not in self.constants_sbuf:
            constant_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=constant_sbuf, value=number)
            self.constants_sbuf[number] = constant_sbuf
        return self.constants_sbuf[number][0:rows, :]
