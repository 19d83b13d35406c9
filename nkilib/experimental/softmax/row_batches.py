# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Batches of rows: their position in a tensor, and their layout in SBUF."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.softmax.row_plan import Piece, RowPlan
from nkilib.nki import nisa, nl

_LEAST_BATCHES = 3


@dataclass(frozen=True)
class RowBatch:
    """Rows that are in SBUF together: ``rows_each`` rows per partition, or ``plan.parts`` partitions per row.

    Attributes:
        plan: the plan of the rows.
        matrix: the index of the matrix that the rows belong to.
        first: the first row; the others follow it.
        lines: the number of rows or, if a partition holds several rows, the number of partitions.
        rows_each: the number of rows per partition.
    """

    plan: RowPlan
    matrix: int
    first: int
    lines: int
    rows_each: int

    @property
    def partitions(self) -> int:
        """The number of partitions in use."""
        return self.lines * self.plan.parts

    @cached_property
    def pieces(self) -> list[Piece]:
        """The pieces in the order in which they are processed."""
        return self.plan.pieces(self.rows_each)

    def tile_of(self, buffer_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the batch's view of a buffer [128, size]: [partitions, rows per partition, columns]."""
        columns = self.plan.columns
        flat_sbuf = buffer_sbuf[0 : self.partitions, 0 : self.rows_each * columns]
        return flat_sbuf.reshape((self.partitions, self.rows_each, columns))

    def piece_of(self, buffer_sbuf: nl.NkiTensor, piece: Piece) -> nl.NkiTensor:
        """Return a piece's view of a scratch buffer [128, size]: [partitions, rows, columns]."""
        flat_sbuf = buffer_sbuf[0 : self.partitions, 0 : piece.size]
        return flat_sbuf.reshape((self.partitions, piece.rows, piece.columns))

    def load(self, matrix_hbm: nl.NkiTensor, piece: Piece, piece_sbuf: nl.NkiTensor, padding: float) -> None:
        """Load a piece of rows of a matrix into [partitions, rows, columns], and fill columns beyond a part with
        ``padding``.
        """
        for part in self._transfers(piece):
            if part.is_tail:
                nisa.memset(dst=part.on_all_partitions(piece_sbuf), value=padding)
            nisa.dma_copy(dst=part.on_chip(piece_sbuf, self.plan), src=part.in_hbm(matrix_hbm, self))

    def store(self, matrix_hbm: nl.NkiTensor, piece: Piece, piece_sbuf: nl.NkiTensor) -> None:
        """Store a piece of rows, the reverse of :meth:`load`."""
        for part in self._transfers(piece):
            nisa.dma_copy(dst=part.in_hbm(matrix_hbm, self), src=part.on_chip(piece_sbuf, self.plan))

    def _transfers(self, piece: Piece) -> list[_Transfer]:
        width = self.plan.width
        if piece.stop <= width:
            return [_Transfer(piece, piece.start, piece.stop, False)]
        transfers = [_Transfer(piece, max(piece.start, width), piece.stop, True)]
        if piece.start < width:
            transfers.append(_Transfer(piece, piece.start, width, False))
        return transfers


@dataclass(frozen=True)
class _Transfer:
    """The columns of a piece that one transfer moves: those that every part of a row has, or those that only the last
    part has.

    Attributes:
        piece: the piece of a batch.
        start, stop: the columns of a partition.
        is_tail: whether only the last part has these columns.
    """

    piece: Piece
    start: int
    stop: int
    is_tail: bool

    def on_all_partitions(self, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return these columns on all partitions."""
        return piece_sbuf[:, :, self.start - self.piece.start : self.stop - self.piece.start]

    def on_chip(self, piece_sbuf: nl.NkiTensor, plan: RowPlan) -> nl.NkiTensor:
        """Return the columns that are transferred, in the tile of the piece."""
        columns_sbuf = self.on_all_partitions(piece_sbuf)
        if not self.is_tail:
            return columns_sbuf
        return columns_sbuf[plan.parts - 1 : columns_sbuf.shape[0] : plan.parts]

    def in_hbm(self, matrix_hbm: nl.NkiTensor, batch: RowBatch) -> nl.NkiTensor:
        """Return the columns that are transferred, in a matrix [rows, C]."""
        plan, piece = batch.plan, self.piece
        if self.is_tail:
            skipped = (plan.parts - 1) * plan.width
            return matrix_hbm[batch.first : batch.first + batch.lines, skipped + self.start : skipped + self.stop]
        rows_hbm = matrix_hbm[batch.first : batch.first + batch.lines * batch.rows_each, 0 : plan.parts * plan.width]
        if plan.parts > 1:
            return rows_hbm.reshape_dim(1, (plan.parts, plan.width))[:, :, self.start : self.stop]
        by_partition_hbm = rows_hbm.reshape_dim(0, (batch.lines, batch.rows_each))
        return by_partition_hbm[:, piece.first : piece.end, self.start : self.stop]


def batches_of_core(plan: RowPlan, matrices: int, rows: int, cores: int, core: int) -> list[RowBatch]:
    """Return the batches of a core, which processes consecutive rows of each of ``matrices`` matrices of ``rows`` rows.

    Full partitions come first. The rows left at the end have fewer rows per partition, and then fewer partitions.
    """
    batches = []
    share = div_ceil(rows, cores)
    for matrix in range(matrices):
        first, end = core * share, min(rows, (core + 1) * share)
        while first < end:
            batch = _batch_of(plan, matrix, first, end - first)
            batches.append(batch)
            first += batch.lines * batch.rows_each
    return batches


def _batch_of(plan: RowPlan, matrix: int, first: int, left: int) -> RowBatch:
    if plan.parts > 1:
        return RowBatch(plan, matrix, first, min(left, PARTITIONS // plan.parts), 1)
    if left < PARTITIONS:
        return RowBatch(plan, matrix, first, left, 1)
    most = left // PARTITIONS
    # Batches of equal size, without a short one at the end; three for few rows, so that engines work in parallel.
    batches = max(div_ceil(most, plan.rows_each), min(_LEAST_BATCHES, most // plan.rows_of_piece), 1)
    rows_each = div_ceil(most, batches)
    return RowBatch(plan, matrix, first, PARTITIONS, rows_each)
