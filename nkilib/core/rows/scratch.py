# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is on chip for the pieces of a tile beside the tensors: float32 tiles, and constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.nki import nisa, nl

# A piece and the one that is prepared while it is finished.
PIECES_AT_A_TIME: Final = 2


@dataclass
class Scratch:
    """Tiles that pieces take in turn, and numbers that instructions take from a tile.

    Attributes:
        tiles_sbuf: float32 [128, columns of a piece].
        constants_sbuf: by its number, float32 [128, 1] with that number in each partition.
        taken: how many tiles were taken so far.
    """

    tiles_sbuf: list[nl.NkiTensor]
    constants_sbuf: dict[float, nl.NkiTensor] = field(default_factory=dict)
    taken: int = 0

    @classmethod
    def make(cls, tiles_of_piece: int, columns: int) -> Scratch:
        """For so many tiles of a piece."""
        count = PIECES_AT_A_TIME * tiles_of_piece
        return cls([nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)])

    @property
    def tiles_of_piece(self) -> int:
        """Of which a piece takes as many at most."""
        return len(self.tiles_sbuf) // PIECES_AT_A_TIME

    @property
    def columns(self) -> int:
        """Of a piece at most."""
        columns: int = self.tiles_sbuf[0].shape[1]
        return columns

    def next(self, rows: int, columns: int) -> nl.NkiTensor:
        """The tile that was taken the longest time ago."""
        tile_sbuf = self.tiles_sbuf[self.taken % len(self.tiles_sbuf)]
        self.taken += 1
        return tile_sbuf[0:rows, 0:columns]

    def constant(self, number: float, rows: int) -> nl.NkiTensor:
        """A tile [rows, 1] of a number, which is written once."""
        if number not in self.constants_sbuf:
            constant_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=constant_sbuf, value=number)
            self.constants_sbuf[number] = constant_sbuf
        return self.constants_sbuf[number][0:rows, :]
