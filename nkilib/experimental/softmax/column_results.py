# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The destinations of results: the Tensor engine transposes them back into a natural tile, which has the layout of HBM
(:func:`.natural_shape`) and is stored when a part is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nkilib.core.tiling import div_ceil
from nkilib.experimental.softmax.column_geometry import STRIP_COLUMNS, Item
from nkilib.experimental.softmax.column_loads import Load
from nkilib.experimental.softmax.column_sources import PsumBanks, copy_natural, of_columns
from nkilib.nki import nisa, nl

# Tiles of results that wait to be transposed back.
_PIECES = 3


class Results(Protocol):
    """A tensor [O, C, I] to which the results of items are written."""

    def piece(self, item: Item) -> nl.NkiTensor:
        """Return the view to which the result of an item is written, [columns, elements of the segment]."""

    def transpose_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Issue the work of the Tensor engine on a result, and return the tensor that :meth:`finish` gets."""

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Issue the rest of the work on a result: copies, and the store if the item is the last one of its part."""


@dataclass
class TransposedResults:
    """Results that the Tensor engine transposes back.

    Attributes:
        result_hbm: the result tensor, [O, C, I].
        pieces_sbuf: the tiles for the results of items, used round-robin.
        banks: the PSUM banks for the transposed results.
        tile: a function that returns the natural tile to which the result of an item is written.
        scalar_share: the share of the copies out of PSUM that Scalar does; Vector does the rest.
        made: the number of tiles of ``pieces_sbuf`` that were used, and the number of copies out of PSUM, so far.
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
    ) -> TransposedResults:
        """Allocate the tiles for segments of at most ``longest`` elements."""
        shape = (nl.tile_size.pmax, longest)
        pieces = [nl.ndarray(shape, dtype=result_hbm.dtype, buffer=nl.sbuf) for _ in range(_PIECES)]
        # A line has up to 128 columns, and the last line of a segment may have few partitions.
        banks = PsumBanks.make(2, div_ceil(longest, STRIP_COLUMNS) * STRIP_COLUMNS, result_hbm.dtype)
        return cls(result_hbm, pieces, banks, tile, scalar_share)

    def piece(self, item: Item) -> nl.NkiTensor:
        """Return the next tile for a result."""
        self.made[0] += 1
        piece_sbuf = self.pieces_sbuf[self.made[0] % len(self.pieces_sbuf)]
        return piece_sbuf[0 : item.strip.columns, 0 : item.segment.size]

    def transpose_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Transpose the lines of the item's segment, side by side, into PSUM: [partitions, lines * columns]."""
        segment, columns = item.segment, item.strip.columns
        back_psum = self.banks.take()
        for line in range(segment.lines):
            partitions = segment.partitions(line)
            nisa.nc_transpose(
                dst=back_psum[0:partitions, line * columns : (line + 1) * columns],
                data=piece_sbuf[:, line : line + (partitions - 1) * segment.lines + 1 : segment.lines],
            )
        return back_psum

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy the result to the natural tile, and store the part after its last item."""
        segment, strip = item.segment, item.strip
        place_sbuf = of_columns(self.tile(item), item)
        for partitions, first, end in segment.blocks():
            from_psum = back_psum[0:partitions, first * strip.columns : end * strip.columns]
            from_psum = from_psum.reshape_dim(1, (end - first, strip.outer, strip.inner))
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
    """Tiles in the layout of HBM for a result that cannot be written over an input.

    Attributes:
        tiles_sbuf: the tiles, which the parts of the windows use round-robin.
        numbers: the number of each part that has used a tile, by the numbers of its window and part.
    """

    tiles_sbuf: list[nl.NkiTensor]
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def tile(self, item: Item) -> nl.NkiTensor:
        """Return the tile that collects the results of the item's part; all items of a part share one tile."""
        key = item.window.number, item.part.number
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
        return self.tiles_sbuf[self.numbers[key] % len(self.tiles_sbuf)]
