# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Slots, the places in the list of rows that are to be recomputed: slot 128 i + j is row j of tile i.

:class:`SlotTables` has the constants that slots are computed with, :func:`cut` splits their numbers into
:class:`Slots`. The list itself is :class:`nkilib.core.rows.recomputation.FlaggedRows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import cast, float32_like
from nkilib.nki import nisa, nl

# Rows of a tile: one a partition. A power of two, so that slots are cut into tiles by their bits.
ROWS_OF_TILE = 128
BITS_OF_ROW = 7


@dataclass(frozen=True)
class SlotTables:
    """Constants for the computation of slots.

    Attributes:
        earlier_sbuf: 1 where row p of a batch comes after row k, bfloat16 [128 k, 128 p].
        ones_sbuf: ones, bfloat16 [128, 128].
        count_to_sbuf: 0, 1, 2, ... in each partition, float32 [128, 128 or more].
        ordinal_sbuf: 1, 2, 3, ... down the partitions, float32 [128, 1].
    """

    earlier_sbuf: nl.NkiTensor
    ones_sbuf: nl.NkiTensor
    count_to_sbuf: nl.NkiTensor
    ordinal_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> SlotTables:
        """Make the constants for a list of ``tiles`` tiles."""
        shape = (ROWS_OF_TILE, ROWS_OF_TILE)
        wide = (ROWS_OF_TILE, max(ROWS_OF_TILE, tiles))
        count_to_sbuf = nl.ndarray(wide, dtype=nl.float32, buffer=nl.sbuf)
        ordinal_sbuf = nl.ndarray((ROWS_OF_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        earlier_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        ones_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.iota(dst=count_to_sbuf, pattern=[[1, wide[1]]], offset=0, channel_multiplier=0)
        nisa.iota(dst=ordinal_sbuf, pattern=[[0, 1]], offset=1, channel_multiplier=1)
        nisa.tensor_scalar(
            dst=earlier_sbuf, data=count_to_sbuf[:, 0:ROWS_OF_TILE], op0=nl.greater_equal, operand0=ordinal_sbuf
        )
        nisa.memset(dst=ones_sbuf, value=1.0)
        return cls(earlier_sbuf, ones_sbuf, count_to_sbuf, ordinal_sbuf)


@dataclass(frozen=True)
class Slots:
    """The slots of the rows of a group of batches, float32 [rows, batches].

    Attributes:
        row_sbuf: the row of the slot in its tile.
        tile_sbuf: the tile of the slot; -1 for a row that is not flagged.
    """

    row_sbuf: nl.NkiTensor
    tile_sbuf: nl.NkiTensor


def cut(slot_sbuf: nl.NkiTensor, flags_sbuf: nl.NkiTensor) -> Slots:
    """Split the number of each slot into row (its low 7 bits) and tile; the tile is -1 where the row's flag is 0."""
    bits_sbuf, row_sbuf, tile_sbuf = cast(slot_sbuf, nl.int32), float32_like(slot_sbuf), float32_like(slot_sbuf)
    low_sbuf = nl.ndarray(bits_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=low_sbuf, data=bits_sbuf, op0=nl.bitwise_and, operand0=ROWS_OF_TILE - 1)
    nisa.tensor_scalar(dst=bits_sbuf, data=bits_sbuf, op0=nl.right_shift, operand0=BITS_OF_ROW)
    nisa.tensor_copy(dst=row_sbuf, src=low_sbuf)
    # flag * (tile + 1) - 1
    nisa.scalar_tensor_tensor(
        dst=tile_sbuf, data=bits_sbuf, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=flags_sbuf
    )
    nisa.tensor_scalar(dst=tile_sbuf, data=tile_sbuf, op0=nl.subtract, operand0=1.0)
    return Slots(row_sbuf, tile_sbuf)
