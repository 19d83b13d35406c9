# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where results go: turned back by Tensor into a natural tile, which is stored once a part is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nkilib.core.tiling import div_ceil
from nkilib.experimental.softmax.column_geometry import TURN, Item
from nkilib.experimental.softmax.column_loads import Load
from nkilib.experimental.softmax.column_sources import PsumBanks, copy_natural, of_columns
from nkilib.nki import nisa, nl

# Tiles of items that are made and wait to be turned back.
_PIECES = 3


class Results(Protocol):
    """A tensor [O, C, I] to which items are written."""

    def piece(self, item: Item) -> nl.NkiTensor:
        """Where the result of an item is to be written, [columns, elements of the segment]."""

    def turn_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Issue what Tensor does of it."""

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Issue the rest."""


@dataclass
class TurnedResults:
    """Results that are turned back.

    Attributes:
        result_hbm: [O, C, I].
        pieces_sbuf: results of items, in turn.
        banks: what Tensor makes of them.
        tile: of an item: where it is written in the natural layout.
        scalar_share: of the copies out of PSUM, which part is Scalar's; the rest is Vector's.
        made: pieces and copies so far.
    """

    result_hbm: nl.NkiTensor
    pieces_sbuf: list[nl.NkiTensor]
    banks: PsumBanks
    tile: Callable[[Item], nl.NkiTensor]
    scalar_share: float
    made: list[int] = field(default_factory=lambda: [0, 0])

    @classmethod
    def make(
        cls,
        result_hbm: nl.NkiTensor,
        longest: int,
        scalar_share: float,
        tile: Callable[[Item], nl.NkiTensor],
    ) -> TurnedResults:
        """For segments of at most ``longest`` elements."""
        shape = (nl.tile_size.pmax, longest)
        pieces = [nl.ndarray(shape, dtype=result_hbm.dtype, buffer=nl.sbuf) for _ in range(_PIECES)]
        # A line has up to 128 columns, and the last line of a segment may be one of few partitions.
        banks = PsumBanks.make(2, div_ceil(longest, TURN) * TURN, result_hbm.dtype)
        return cls(result_hbm, pieces, banks, tile, scalar_share)

    def piece(self, item: Item) -> nl.NkiTensor:
        """A tile of its own."""
        self.made[0] += 1
        piece_sbuf = self.pieces_sbuf[self.made[0] % len(self.pieces_sbuf)]
        return piece_sbuf[0 : item.turn.columns, 0 : item.segment.size]

    def turn_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The lines of the segment, one beside the other: [partitions, lines * columns]."""
        segment, columns = item.segment, item.turn.columns
        back_psum = self.banks.take()
        for line in range(segment.lines):
            partitions = segment.partitions(line)
            nisa.nc_transpose(
                dst=back_psum[0:partitions, line * columns : (line + 1) * columns],
                data=piece_sbuf[:, line : line + (partitions - 1) * segment.lines + 1 : segment.lines],
            )
        return back_psum

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy it, and store the part after its last item."""
        segment, turn = item.segment, item.turn
        place_sbuf = of_columns(self.tile(item), item)
        for partitions, first, end in segment.blocks():
            from_psum = back_psum[0:partitions, first * turn.columns : end * turn.columns]
            from_psum = from_psum.reshape_dim(1, (end - first, turn.outer, turn.inner))
            self._copy(place_sbuf[0:partitions, :, first:end].permute((0, 2, 1, 3)), from_psum)
        if item.ends_part:
            for _ in copy_natural(self.result_hbm, self.tile(item), Load(item.window, item.part, 2), is_store=True):
                pass

    def _copy(self, dst_sbuf: nl.NkiTensor, src_psum: nl.NkiTensor) -> None:
        self.made[1] += 1
        if int(self.made[1] * self.scalar_share) > int((self.made[1] - 1) * self.scalar_share):
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=src_psum)
        else:
            nisa.tensor_copy(dst=dst_sbuf, src=src_psum)


@dataclass
class OwnTiles:
    """Natural tiles of a result that cannot take the place of an input.

    Attributes:
        tiles_sbuf: taken in turn by the parts.
        numbers: of the parts of windows that took one.
    """

    tiles_sbuf: list[nl.NkiTensor]
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def tile(self, item: Item) -> nl.NkiTensor:
        """That of the part of an item."""
        key = item.window.number, item.part.number
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
        return self.tiles_sbuf[self.numbers[key] % len(self.tiles_sbuf)]
