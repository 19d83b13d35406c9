# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows from anywhere in a matrix, gathered into a tile to be recomputed.

:class:`GatheredRows` gathers the elements of the rows and scatters their results. :class:`KeptValues` keeps a value of
each row in HBM, from which the values of gathered rows are read later.

The rows to be recomputed are kept as a list, :class:`nkilib.core.rows.recomputation.FlaggedRows`. A *slot* is a place
in this list: slot 128 i + j is row j of tile i. :class:`SlotTables` has constants for the computation of slots, and
:func:`cut` splits slot numbers into :class:`Slots`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.core.rows.batches import BatchGroup
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.nki import nisa, nl

# Rows of a tile: one a partition. A power of two, so that slots are cut into tiles by their bits.
ROWS_OF_TILE = 128
BITS_OF_ROW = 7


@dataclass(frozen=True)
class KeptValues:
    """One value of each row of a core, kept in HBM to be read again for recomputed rows.

    In a vector [N], a DMA engine would write each value by itself. Here the values of a group in a partition are
    contiguous.

    Attributes:
        values_hbm: the values, [128, batches]: the row in partition p of batch b has the value [p, b].
    """

    values_hbm: nl.NkiTensor

    @classmethod
    def make(cls, name: str, num_batches: int, dtype: nl.DType) -> KeptValues:
        """Allocate the values, without writing them."""
        return cls(nl.ndarray((ROWS_OF_TILE, num_batches), dtype=dtype, buffer=nl.private_hbm, name=name))

    def keep(self, values_sbuf: nl.NkiTensor, group: BatchGroup) -> nisa.NkiInstruction:
        """Store the values of a group of batches, [rows, batches], and return the DMA instruction."""
        return nisa.dma_copy(dst=self.values_hbm[0 : group.rows, group.start : group.end], src=values_sbuf)


@dataclass(frozen=True)
class GatheredRows:
    """The 128 slots of a tile of the list, each with a row from anywhere in a matrix, or empty. Indices are int32 tiles
    [rows, 1].

    Attributes:
        num_rows: the number of rows of the matrix.
        number_sbuf: the index of each row in the matrix; out of range in a slot without a row.
        readable_sbuf: the same index; in a slot without a row, the index of the first row of the core.
        kept_sbuf: the index of each row in the values of a :class:`KeptValues`.
        after: the instructions that must finish before values of the rows are read or written.
    """

    num_rows: int
    number_sbuf: nl.NkiTensor
    readable_sbuf: nl.NkiTensor
    kept_sbuf: nl.NkiTensor
    after: list[nisa.NkiInstruction]

    @property
    def rows(self) -> int:
        """128: the number of slots, empty ones included."""
        return ROWS_OF_TILE

    @property
    def start(self) -> int:
        """0: the rows are a single batch. :class:`.batches.StoredRows` requires this property."""
        return 0

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns ``start`` to ``end`` of the rows of a matrix, as an indirect view."""
        return matrix_hbm[:, start:end].vector_select(0, self.readable_sbuf)

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the values of the rows from a vector [N] into a new tile [rows, 1]; the load waits for the instructions
        in ``after``.
        """
        return self._gathered(vector_hbm, self.readable_sbuf, dtype)

    def kept(self, values: KeptValues) -> nl.NkiTensor:
        """Load the kept values of the rows into a new tile [rows, 1]."""
        return self._gathered(values.values_hbm, self.kept_sbuf, values.values_hbm.dtype)

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, 1] as the values of the rows in a vector [N], over the earlier values; return the DMA
        instruction.
        """
        column_hbm = vector_hbm.reshape((self.num_rows, 1))
        store = nisa.dma_copy(
            dst=column_hbm.vector_select(0, self.number_sbuf), src=values_sbuf, oob_mode=nisa.oob_mode.skip
        )
        self._wait(store)
        return store

    def _gathered(self, values_hbm: nl.NkiTensor, index_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        values_sbuf = nl.ndarray((self.rows, 1), dtype=dtype, buffer=nl.sbuf)
        column_hbm = values_hbm.reshape((prod(values_hbm.shape), 1))
        self._wait(nisa.dma_copy(dst=values_sbuf, src=column_hbm.vector_select(0, index_sbuf)))
        return values_sbuf

    def _wait(self, transfer: nisa.NkiInstruction) -> None:
        for earlier in self.after:
            transfer.depends_on(earlier, kind=nisa.dependency.runtime)


@dataclass(frozen=True)
class SlotTables:
    """Constants for the computation of slots.

    Attributes:
        earlier_sbuf: bfloat16 [128, 128]; the element [k, p] is 1 if k < p, else 0.
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
        """Return the constants for a list of ``tiles`` tiles."""
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
    """The slot of each row of a group of batches, float32 [rows, batches].

    Attributes:
        row_sbuf: the row of the slot in its tile, 0 to 127.
        tile_sbuf: the index of the slot's tile in the list; -1 for a row that is not flagged.
    """

    row_sbuf: nl.NkiTensor
    tile_sbuf: nl.NkiTensor


def cut(slot_sbuf: nl.NkiTensor, flags_sbuf: nl.NkiTensor) -> Slots:
    """Split slot numbers into the row in the tile (the low 7 bits) and the tile.

    Args:
        slot_sbuf: the slot numbers, float32 [rows, batches].
        flags_sbuf: 1 for a row that is in the list, else 0; the tile of other rows is -1.
    """
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
