# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The maximum and the sum of exponentials of each row, combined from the maxima and sums of its pieces and partitions.

A batch is a set of rows that are in SBUF together, a piece the part of a batch that one instruction handles
(:mod:`nkilib.core.rows.row_plan`). For piece k of a row x let m_k be the maximum of its elements and s_k the sum of
exp(x - m_k). With m = max over k of m_k,

    d = sum over the row of exp(x - m) = sum over k of s_k * exp(m_k - m)

(Milakov and Gimelshein, arXiv 1805.02867, in its parallel form). A row that lies on several partitions has m and d for
each partition first, which are combined in the same way.

The tiles hold -m_k, which an activation takes as its ``bias``. The kernel clamps -m_k to at most the largest finite
number. So a piece of nothing but -inf gives exp(-inf + largest) = 0, not NaN; a row of nothing but -inf gives d = 0,
from which NaN follows, as in PyTorch. A +inf makes its row NaN.

:class:`RowStatistics` combines the statistics in :func:`num_stages` stages. :class:`Lines` combines the statistics of a
row's partitions, after :func:`nkilib.core.rows.row_plan.on_line` has brought them side by side on one partition.
:func:`negated_maximum` computes -m_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from nkilib.core.rows.row_plan import RowBatch, RowPiece, RowPlan, column_of, off_line, on_line
from nkilib.experimental.softmax.tensors import Kind
from nkilib.nki import nisa, nl


def _float32(shape: tuple[int, ...]) -> nl.NkiTensor:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def _divide(kind: Kind, dst_sbuf: nl.NkiTensor, sums_sbuf: nl.NkiTensor) -> None:
    if kind is Kind.LOG_SOFTMAX:
        nisa.activation(dst=dst_sbuf, op=nl.log, data=sums_sbuf)
    else:
        nisa.reciprocal(dst=dst_sbuf, data=sums_sbuf)


@dataclass
class Lines:
    """The statistics of rows that lie on several partitions, brought to one partition, where they are combined.

    A *part* of a row is its elements on one of its partitions. All tiles are float32.

    Attributes:
        kind: softmax or log-softmax.
        neg_max_psum: -m of each part, [1, rows, parts].
        sums_psum: d of each part, [1, rows, parts].
        weights_sbuf: (m of the part) - (m of the row), then the exponential of this difference, [1, rows, parts].
        row_neg_max_sbuf: -m of each row, [1, rows].
        divisor_sbuf: d of each row, then log d, or 1 / d for softmax, [1, rows].
        back_psum: tiles [partitions, 1] with a value for each part on its partition: -m and the divisor of the row
            after :meth:`spread`, one factor after :meth:`spread_scale`.
    """

    kind: Kind
    neg_max_psum: nl.NkiTensor
    sums_psum: nl.NkiTensor
    weights_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    divisor_sbuf: nl.NkiTensor
    back_psum: list[nl.NkiTensor] = field(default_factory=list)

    @classmethod
    def make(cls, kind: Kind, batch: RowBatch, neg_max_sbuf: nl.NkiTensor, sums_sbuf: nl.NkiTensor) -> Lines:
        """Bring -m and d of each part, [partitions, 1], to one partition, and allocate the other tiles."""
        shape = (1, batch.lines, batch.plan.parts)
        neg_max_psum, sums_psum = on_line(neg_max_sbuf).reshape(shape), on_line(sums_sbuf).reshape(shape)
        row = (1, batch.lines)
        return cls(kind, neg_max_psum, sums_psum, _float32(shape), _float32(row), _float32(row))

    def take_distances(self) -> None:
        """Compute -m of each row, and store (m of a part) - (m of its row) in ``weights_sbuf``."""
        nisa.tensor_reduce(dst=self.row_neg_max_sbuf, op=nl.minimum, data=self.neg_max_psum, axis=2)
        broadcast_sbuf = self.row_neg_max_sbuf.expand_dim(2).broadcast(2, self.weights_sbuf.shape[2])
        nisa.tensor_tensor(dst=self.weights_sbuf, data1=broadcast_sbuf, data2=self.neg_max_psum, op=nl.subtract)

    def take_weights(self) -> None:
        """Replace the distances in ``weights_sbuf`` by their exponentials."""
        nisa.activation(dst=self.weights_sbuf, op=nl.exp, data=self.weights_sbuf)

    def sum_parts(self) -> None:
        """Compute d of each row as the sum over the row's parts of (d of the part) times (weight of the part)."""
        products_sbuf = _float32(self.weights_sbuf.shape)
        nisa.tensor_tensor(dst=products_sbuf, data1=self.weights_sbuf, data2=self.sums_psum, op=nl.multiply)
        nisa.tensor_reduce(dst=self.divisor_sbuf, op=nl.add, data=products_sbuf, axis=2)

    def divide(self) -> None:
        """Replace d of each row by the divisor: log d for log-softmax, 1 / d for softmax."""
        _divide(self.kind, self.divisor_sbuf, self.divisor_sbuf)

    def spread(self) -> None:
        """Copy -m and the divisor of each row back to all partitions of the row."""
        parts = self.weights_sbuf.shape[2]
        self.back_psum = [off_line(line_sbuf, parts) for line_sbuf in (self.row_neg_max_sbuf, self.divisor_sbuf)]

    def spread_scale(self) -> None:
        """Compute exp(m of the part - m of the row) / d for each part, and copy this factor to the part's partition."""
        _, rows, parts = self.weights_sbuf.shape
        scales_sbuf, divisor_sbuf = self.weights_sbuf, self.divisor_sbuf.expand_dim(2).broadcast(2, parts)
        nisa.tensor_tensor(dst=scales_sbuf, data1=scales_sbuf, data2=divisor_sbuf, op=nl.multiply)
        self.back_psum = [column_of(scales_sbuf.reshape((1, rows * parts)))]


def _stages(plan: RowPlan) -> list[Callable[[RowStatistics], None]]:
    """Return the stages that combine the statistics of a batch, in the order of issue."""
    if plan.is_whole:
        return [RowStatistics.divide]
    of_pieces = [RowStatistics.take_distances, RowStatistics.take_weights, RowStatistics.sum_pieces]
    keeps = plan.kept_pieces > 0
    if plan.parts == 1:
        return [*of_pieces, RowStatistics.divide, *([RowStatistics.take_scales] if keeps else [])]
    spread = Lines.spread_scale if keeps else Lines.spread
    of_lines = (Lines.take_distances, Lines.take_weights, Lines.sum_parts, Lines.divide, spread)
    return [
        *of_pieces,
        *(partial(RowStatistics.with_lines, stage=stage) for stage in of_lines),
        RowStatistics.take_scales if keeps else RowStatistics.bring_back,
    ]


def num_stages(plan: RowPlan) -> int:
    """Return the number of stages that combine the statistics of a batch."""
    return len(_stages(plan))


@dataclass
class RowStatistics:
    """The statistics of the rows of a batch, float32; the head of the module defines m_k, s_k, m and d.

    Attributes:
        kind: softmax or log-softmax.
        batch: the batch of rows.
        neg_max_sbuf: -m_k, then m_k - m, then exp(m_k - m), and at last, if exponentials of pieces are kept,
            exp(m_k - m) / d: [partitions, rows per partition, pieces of a row].
        sums_sbuf: s_k, then s_k * exp(m_k - m), of the same shape.
        row_neg_max_sbuf: -m, [partitions, rows per partition]. Until :meth:`bring_back`, m is the maximum of the row's
            elements in the partition only.
        divisor_sbuf: log d, or 1 / d for softmax, [partitions, rows per partition].
        total_sbuf: d of the row's elements in the partition, [partitions, rows per partition].
        lines: from :meth:`sum_pieces` on, the statistics of rows that lie on several partitions; else None.
    """

    kind: Kind
    batch: RowBatch
    neg_max_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    divisor_sbuf: nl.NkiTensor
    total_sbuf: nl.NkiTensor
    lines: Lines | None = None

    @classmethod
    def make(cls, kind: Kind, batch: RowBatch) -> RowStatistics:
        """Allocate the tiles for the statistics of a batch; nothing is computed yet."""
        rows = (batch.partitions, batch.rows_each)
        pieces = (*rows, batch.plan.pieces_per_row)
        neg_max_sbuf, sums_sbuf = _float32(pieces), _float32(pieces)
        row_neg_max_sbuf = neg_max_sbuf.reshape(rows) if batch.plan.is_whole else _float32(rows)
        total_sbuf = sums_sbuf.reshape(rows) if batch.plan.is_whole else _float32(rows)
        return cls(kind, batch, neg_max_sbuf, sums_sbuf, row_neg_max_sbuf, _float32(rows), total_sbuf)

    def neg_max_of(self, piece: RowPiece) -> nl.NkiTensor:
        """Return the view of :attr:`neg_max_sbuf` for a piece, [partitions, rows, 1]."""
        return self.neg_max_sbuf[:, piece.first : piece.end, piece.column : piece.column + 1]

    def sums_of(self, piece: RowPiece) -> nl.NkiTensor:
        """Return the view of :attr:`sums_sbuf` for a piece, [partitions, rows, 1]."""
        return self.sums_sbuf[:, piece.first : piece.end, piece.column : piece.column + 1]

    def combine(self, stage: int) -> None:
        """Issue combining stage number ``stage``, counted from 0.

        Issue each stage in a step of its own, so that no engine waits for the results of another engine.
        """
        _stages(self.batch.plan)[stage](self)

    def divide(self) -> None:
        """Compute the divisor of each row: log d for log-softmax, 1 / d for softmax."""
        _divide(self.kind, self.divisor_sbuf, self.total_sbuf)

    def take_distances(self) -> None:
        """Compute -m of each row's elements in the partition, and replace -m_k by m_k - m."""
        neg_max_sbuf = self.neg_max_sbuf
        nisa.tensor_reduce(dst=self.row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
        broadcast_sbuf = self.row_neg_max_sbuf.expand_dim(2).broadcast(2, neg_max_sbuf.shape[2])
        nisa.tensor_tensor(dst=neg_max_sbuf, data1=broadcast_sbuf, data2=neg_max_sbuf, op=nl.subtract)

    def take_weights(self) -> None:
        """Replace m_k - m by exp(m_k - m)."""
        nisa.activation(dst=self.neg_max_sbuf, op=nl.exp, data=self.neg_max_sbuf)

    def sum_pieces(self) -> None:
        """Compute d of each row's elements in the partition.

        For rows on several partitions, also make :attr:`lines`, which brings d and -m to one partition.
        """
        nisa.tensor_tensor(dst=self.sums_sbuf, data1=self.sums_sbuf, data2=self.neg_max_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.total_sbuf, op=nl.add, data=self.sums_sbuf, axis=2)
        if self.batch.plan.parts > 1:
            self.lines = Lines.make(self.kind, self.batch, self.row_neg_max_sbuf, self.total_sbuf)

    def with_lines(self, stage: Callable[[Lines], None]) -> None:
        """Apply a stage of :class:`Lines` to :attr:`lines`, if the rows lie on several partitions."""
        if self.lines is not None:
            stage(self.lines)

    def take_scales(self) -> None:
        """Replace exp(m_k - m) in :attr:`neg_max_sbuf` by exp(m_k - m) / d, the factor of kept exponentials
        exp(x - m_k).
        """
        factor = self.divisor_sbuf if self.lines is None else self.lines.back_psum[0]
        scales_sbuf = self.neg_max_sbuf
        divisor_sbuf = factor.expand_dim(2).broadcast(2, scales_sbuf.shape[2])
        nisa.tensor_tensor(dst=scales_sbuf, data1=scales_sbuf, data2=divisor_sbuf, op=nl.multiply)

    def bring_back(self) -> None:
        """Copy the results of :meth:`Lines.spread`, -m and the divisor of each row, from PSUM to the tiles in SBUF."""
        if self.lines is not None and self.lines.back_psum:
            neg_max_psum, divisor_psum = self.lines.back_psum
            nisa.tensor_copy(dst=self.row_neg_max_sbuf, src=neg_max_psum)
            nisa.tensor_copy(dst=self.divisor_sbuf, src=divisor_psum)


def _reduce(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor) -> None:
    nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=data_sbuf, axis=2, negate=True, keepdims=True)


def negated_maximum(dst_sbuf: nl.NkiTensor, x_sbuf: nl.NkiTensor, halves_sbuf: nl.NkiTensor | None) -> None:
    """Write minus the maximum of each row to ``dst_sbuf``.

    Args:
        dst_sbuf: the destination, [partitions, rows, 1].
        x_sbuf: the rows, [partitions, rows, columns].
        halves_sbuf: for the first rows of ``x_sbuf``, the maxima of pairs of elements (:func:`.halved`), which are read
            instead of ``x_sbuf``; None if there are none.
    """
    of_halves = 0 if halves_sbuf is None else halves_sbuf.shape[1]
    if halves_sbuf is not None:
        _reduce(dst_sbuf[:, 0:of_halves], halves_sbuf)
    if of_halves < x_sbuf.shape[1]:
        _reduce(dst_sbuf[:, of_halves:], x_sbuf[:, of_halves:])
