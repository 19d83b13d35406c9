# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Batches of rows: which rows of a tensor they are, and where they lie in SBUF."""

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
    """Rows that are in SBUF together: ``each`` rows of a partition, or ``parts`` partitions of a row.

    Attributes:
        plan: of the rows.
        matrix: number of the matrix that they are rows of.
        first: the first row; the others follow it.
        lines: rows or, where a partition holds several, partitions.
        each: rows of a partition.
    """

    plan: RowPlan
    matrix: int
    first: int
    lines: int
    each: int

    @property
    def partitions(self) -> int:
        """Partitions that hold something."""
        return self.lines * self.plan.parts

    @cached_property
    def pieces(self) -> list[Piece]:
        """In the order in which they are worked on."""
        return self.plan.pieces(self.each)

    def tile_of(self, buffer_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """A buffer as [partitions, rows of each, columns]."""
        columns = self.plan.columns
        flat_sbuf = buffer_sbuf[0 : self.partitions, 0 : self.each * columns]
        return flat_sbuf.reshape((self.partitions, self.each, columns))

    def piece_of(self, buffer_sbuf: nl.NkiTensor, piece: Piece) -> nl.NkiTensor:
        """Scratch for a piece, as [partitions, rows, columns]."""
        flat_sbuf = buffer_sbuf[0 : self.partitions, 0 : piece.size]
        return flat_sbuf.reshape((self.partitions, piece.rows, piece.columns))

    def load(self, matrix_hbm: nl.NkiTensor, piece: Piece, piece_sbuf: nl.NkiTensor, padding: float) -> None:
        """A piece of rows of a matrix into [partitions, rows, columns]; ``padding`` is what the columns hold that a
        part of a row does not have."""
        for part in self._transfers(piece):
            if part.is_tail:
                nisa.memset(dst=part.every_line(piece_sbuf), value=padding)
            nisa.dma_copy(dst=part.on_chip(piece_sbuf, self.plan), src=part.in_hbm(matrix_hbm, self))

    def store(self, matrix_hbm: nl.NkiTensor, piece: Piece, piece_sbuf: nl.NkiTensor) -> None:
        """The reverse of :meth:`load`."""
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
    """Columns of a piece that every part of a row has, or that the last one has alone.

    Attributes:
        piece: of a batch.
        start, stop: columns of a partition.
        is_tail: the last part has them alone.
    """

    piece: Piece
    start: int
    stop: int
    is_tail: bool

    def every_line(self, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """These columns in all partitions."""
        return piece_sbuf[:, :, self.start - self.piece.start : self.stop - self.piece.start]

    def on_chip(self, piece_sbuf: nl.NkiTensor, plan: RowPlan) -> nl.NkiTensor:
        """Where it lies in the tile of the piece."""
        columns_sbuf = self.every_line(piece_sbuf)
        if not self.is_tail:
            return columns_sbuf
        return columns_sbuf[plan.parts - 1 : columns_sbuf.shape[0] : plan.parts]

    def in_hbm(self, matrix_hbm: nl.NkiTensor, batch: RowBatch) -> nl.NkiTensor:
        """Where it lies in a matrix [rows, C]."""
        plan, piece = batch.plan, self.piece
        if self.is_tail:
            skipped = (plan.parts - 1) * plan.width
            return matrix_hbm[batch.first : batch.first + batch.lines, skipped + self.start : skipped + self.stop]
        rows_hbm = matrix_hbm[batch.first : batch.first + batch.lines * batch.each, 0 : plan.parts * plan.width]
        if plan.parts > 1:
            return rows_hbm.reshape_dim(1, (plan.parts, plan.width))[:, :, self.start : self.stop]
        by_partition_hbm = rows_hbm.reshape_dim(0, (batch.lines, batch.each))
        return by_partition_hbm[:, piece.first : piece.end, self.start : self.stop]


def batches_of_core(plan: RowPlan, matrices: int, rows: int, cores: int, core: int) -> list[RowBatch]:
    """The batches of a core, of so many matrices of ``rows`` rows: a run of rows of each matrix.

    Full partitions come first. What is left at the end has fewer rows in a partition, and then fewer partitions.
    """
    batches = []
    share = div_ceil(rows, cores)
    for matrix in range(matrices):
        first, end = core * share, min(rows, (core + 1) * share)
        while first < end:
            batch = _batch_of(plan, matrix, first, end - first)
            batches.append(batch)
            first += batch.lines * batch.each
    return batches


def _batch_of(plan: RowPlan, matrix: int, first: int, left: int) -> RowBatch:
    if plan.parts > 1:
        return RowBatch(plan, matrix, first, min(left, PARTITIONS // plan.parts), 1)
    if left < PARTITIONS:
        return RowBatch(plan, matrix, first, left, 1)
    most = left // PARTITIONS
    # Batches that are alike, instead of a short one at the end; of few rows three, so that engines work side by side.
    batches = max(div_ceil(most, plan.rows_each), min(_LEAST_BATCHES, most // plan.rows_of_piece), 1)
    each = div_ceil(most, batches)
    return RowBatch(plan, matrix, first, PARTITIONS, each)
