# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows that lie anywhere in a matrix, such as those that are recomputed, as a tile.

:class:`GatheredRows` gathers their elements and scatters their results. :class:`KeptValues` keeps a value of every row
in HBM, from which those of gathered rows are read later.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.core.rows.batches import BatchGroup
from nkilib.core.rows.slots import ROWS_OF_TILE
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class KeptValues:
    """A value of each row of a core, kept in HBM for the rows that are recomputed.

    The values of a partition are contiguous, so that a DMA engine writes them at once; in a vector [N] each value would
    be a row of its own.

    Attributes:
        values_hbm: the values, [128, batches].
    """

    values_hbm: nl.NkiTensor

    @classmethod
    def make(cls, name: str, num_batches: int, dtype: nl.DType) -> KeptValues:
        """Allocate the values, without writing them."""
        return cls(nl.ndarray((ROWS_OF_TILE, num_batches), dtype=dtype, buffer=nl.private_hbm, name=name))

    def keep(self, values_sbuf: nl.NkiTensor, group: BatchGroup) -> nisa.NkiInstruction:
        """Store the values of a group of batches, [rows, batches]."""
        return nisa.dma_copy(dst=self.values_hbm[0 : group.rows, group.start : group.end], src=values_sbuf)


@dataclass(frozen=True)
class GatheredRows:
    """Rows of a tile, each anywhere in a matrix of ``num_rows`` rows. The indices are int32 tiles [rows, 1].

    Attributes:
        num_rows: the number of rows of the matrix.
        number_sbuf: the index of each row in the matrix; out of range in a slot (:mod:`.slots`) without a row.
        readable_sbuf: the same index, but the first row of the core in a slot without a row.
        kept_sbuf: the index of each row in the values of a :class:`KeptValues`.
        after: the instructions that have to finish before anything is read or written for the rows.
    """

    num_rows: int
    number_sbuf: nl.NkiTensor
    readable_sbuf: nl.NkiTensor
    kept_sbuf: nl.NkiTensor
    after: list[nisa.NkiInstruction]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return ROWS_OF_TILE

    @property
    def start(self) -> int:
        """The number of the first batch: 0, because the rows are a batch by themselves."""
        return 0

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns ``start`` to ``end`` of the rows of a matrix, as an indirect view."""
        return matrix_hbm[:, start:end].vector_select(0, self.readable_sbuf)

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the values of a vector [N] that belong to the rows, also those just stored, as a tile [rows, 1]."""
        return self._gathered(vector_hbm, self.readable_sbuf, dtype)

    def kept(self, values: KeptValues) -> nl.NkiTensor:
        """Load the kept values of the rows into a tile [rows, 1]."""
        return self._gathered(values.values_hbm, self.kept_sbuf, values.values_hbm.dtype)

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, 1] as the values of a vector [N] that belong to the rows, over the earlier values."""
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
