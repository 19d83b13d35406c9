# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the rows of a core are divided: into batches, one row a partition, and into groups of batches.

Rows go to cores in strides (:mod:`nkilib.core.cores`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.core.cores import positions_of_core, row_span, strided_rows
from nkilib.nki import nisa, nl

# How many batches share a group at most.
GROUP_BATCHES_MAX = 16


class RowsOfMatrix(Protocol):
    """Rows that are worked on at a time, one a partition."""

    @property
    def rows(self) -> int:
        """How many."""

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Columns ``start`` to ``end`` of the rows of a matrix, a view [rows, columns]."""


class StoredRows(Protocol):
    """Rows whose results are stored together."""

    @property
    def start(self) -> int:
        """The number of their first batch."""

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, batches] as the values of a vector [N] that belong to the rows."""


@dataclass(frozen=True)
class Batch:
    """Rows that are worked on at a time: ``first``, ``first + cores``, ...

    Attributes:
        first: the first row.
        rows: how many, at most one for each partition.
        cores: of the launch.
    """

    first: int
    rows: int
    cores: int

    @property
    def span(self) -> int:
        """Rows of the matrix from the first one to the last, both included."""
        return row_span(self.rows, self.cores)

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Columns ``start`` to ``end`` of the rows of a matrix, a view."""
        return matrix_hbm[self.first : self.first + self.span : self.cores, start:end]

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """The values of a vector [N] that belong to the rows, as a tile [rows, 1]."""
        values_sbuf = nl.ndarray((self.rows, 1), dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values_sbuf, src=strided_rows(vector_hbm, self.first, self.rows, self.cores))
        return values_sbuf

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, 1] as the values of a vector [N] that belong to the rows."""
        return nisa.dma_copy(dst=strided_rows(vector_hbm, self.first, self.rows, self.cores), src=values_sbuf)


@dataclass(frozen=True)
class BatchGroup:
    """Batches that are finished together: all of them have as many rows.

    Attributes:
        start, end: numbers of its first batch, and of the one after its last.
        first, rows, cores: of its first batch.
    """

    start: int
    end: int
    first: int
    rows: int
    cores: int

    @property
    def batches(self) -> int:
        """How many."""
        return self.end - self.start

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, batches] as the values of a vector [N] that belong to the rows."""
        of_group_hbm = strided_rows(vector_hbm, self.first, self.rows * self.batches, self.cores)
        return nisa.dma_copy(
            dst=of_group_hbm.reshape_dim(0, (self.batches, self.rows)).permute((1, 0)),
            src=values_sbuf,
        )


def batches_of_core(num_rows: int, cores: int, core: int, rows_per_batch: int) -> list[Batch]:
    """The batches of a core; none where there are fewer rows than cores."""
    own = positions_of_core(num_rows, cores, core)
    return [
        Batch(core + done * cores, min(rows_per_batch, own - done), cores) for done in range(0, own, rows_per_batch)
    ]


def batch_groups(batches: list[Batch], most: int) -> list[BatchGroup]:
    """Groups of at most ``most`` batches.

    The last batch is a group of its own: it may have fewer rows, and after the last chunk only its results are left to
    be stored, while those of the others have been stored meanwhile.
    """
    last = len(batches) - 1
    starts = [*range(0, last, most), last]
    return [
        BatchGroup(start, end, batches[start].first, batches[start].rows, batches[start].cores)
        for start, end in zip(starts, [*starts[1:], last + 1], strict=True)
    ]
