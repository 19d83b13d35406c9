# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums over a row for further scores, gathered chunk by chunk: of squared exponentials, and of the elements.

With z_j the elements of a row, m_k the maximum of chunk k, m that of the row, and d the sum of exp(z_j - m),

    Q_k = sum of exp(2 (z_j - m_k))        Q = sum of exp(2 (m_k - m)) * Q_k
    log sum p_j^2 = log Q - 2 log d

where p_j = exp(z_j - m) / d. Q and d are at least 1, so neither log loses precision.

The mean of the elements needs no maximum: their sum is as exact as they are. Where elements may be masked by -inf, the
unmasked elements are counted too.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.statistics import Columns, Place, Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, float32_like, scaled
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class SquareMoment:
    """Q of the module, for a group of batches: of chunks, [rows, batches, columns], and of rows, [rows, batches]."""

    squares_sbuf: nl.NkiTensor
    row_squares_sbuf: nl.NkiTensor

    def take(self, exponentials_sbuf: nl.NkiTensor, scratch_sbuf: nl.NkiTensor, place: Place) -> None:
        """Compute Q_k of one chunk.

        Args:
            exponentials_sbuf: exp(z - m_k), float32 [rows, columns].
            scratch_sbuf: scratch of any float type and the same shape; it is overwritten.
            place: the place of the chunk in the group.
        """
        nisa.activation(
            dst=scratch_sbuf,
            op=nl.square,
            data=exponentials_sbuf,
            reduce_op=nl.add,
            reduce_res=place.of(self.squares_sbuf),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def combine(self, statistics: Statistics, terms_sbuf: nl.NkiTensor, chunks: int) -> None:
        """Compute Q of the rows, while the weights exp(m_k - m) are there; ``terms`` is overwritten."""
        columns = statistics.columns
        weights_sbuf = columns.in_use(statistics.weights_sbuf, chunks)
        squares_sbuf = columns.in_use(self.squares_sbuf, chunks)
        nisa.tensor_tensor(dst=terms_sbuf, data1=squares_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.row_squares_sbuf, op=nl.add, data=terms_sbuf, axis=2)

    def logs(self, statistics: Statistics) -> nl.NkiTensor:
        """Compute log sum p^2 = log Q - 2 log d, [rows, batches]."""
        logs_sbuf = float32_like(self.row_squares_sbuf)
        nisa.activation(dst=logs_sbuf, op=nl.log, data=self.row_squares_sbuf)
        nisa.scalar_tensor_tensor(
            dst=logs_sbuf,
            data=statistics.log_sum_sbuf,
            op0=nl.multiply,
            operand0=-2.0,
            op1=nl.add,
            operand1=logs_sbuf,
        )
        return logs_sbuf


@dataclass(frozen=True)
class MeanMoment:
    """The sum and the number of the elements x of a group of batches.

    Attributes:
        columns: the layout of the tiles of chunks.
        num_columns: the number of elements of a row; none is masked where elements are not counted.
        sums_sbuf, row_sums_sbuf: the sums of chunks, [rows, batches, columns], and of rows, [rows, batches].
        counts_sbuf, row_counts_sbuf: the numbers of unmasked elements of chunks and of rows; None where none may be
            masked.
    """

    columns: Columns
    num_columns: int
    sums_sbuf: nl.NkiTensor
    row_sums_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor | None = None
    row_counts_sbuf: nl.NkiTensor | None = None

    def take(
        self, elements_sbuf: nl.NkiTensor, unmasked_sbuf: nl.NkiTensor | None, scratch_sbuf: nl.NkiTensor, place: Place
    ) -> None:
        """Compute the sum of the elements of one chunk, on Scalar; on Vector where elements may be masked.

        Args:
            elements_sbuf: x, [rows, columns].
            unmasked_sbuf: 1.0, and 0.0 where an element is -inf, float32 [rows, columns]; None where none may be.
            scratch_sbuf: scratch of any float type and the same shape; it is overwritten.
            place: the place of the chunk in the group.
        """
        if unmasked_sbuf is None:
            nisa.activation(
                dst=scratch_sbuf,
                op=nl.copy,
                data=elements_sbuf,
                reduce_op=nl.add,
                reduce_res=place.of(self.sums_sbuf),
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )
            return
        nisa.scalar_tensor_tensor(
            dst=scratch_sbuf,
            data=elements_sbuf,
            op0=nl.maximum,
            operand0=FLOAT32_LOWEST,
            op1=nl.multiply,
            operand1=unmasked_sbuf,
            reduce_op=nl.add,
            reduce_res=place.of(self.sums_sbuf),
        )

    def combine(self, chunks: int) -> None:
        """Compute the sums and counts of the rows."""
        for of_chunks_sbuf, of_rows_sbuf in self._pairs():
            in_use_sbuf = self.columns.in_use(of_chunks_sbuf, chunks)
            nisa.tensor_reduce(dst=of_rows_sbuf, op=nl.add, data=in_use_sbuf, axis=2)

    def restart(self) -> None:
        """Put the sums and counts of the rows, computed by :meth:`combine`, into column 0, as those of one chunk."""
        for of_chunks_sbuf, of_rows_sbuf in self._pairs():
            self.columns.restart(of_chunks_sbuf, of_rows_sbuf)

    def means(self, scale: float) -> nl.NkiTensor:
        """Compute ``scale`` times the means, [rows, batches]; NaN for a row whose elements are all masked."""
        if self.row_counts_sbuf is None:
            return scaled(self.row_sums_sbuf, scale / self.num_columns)
        means_sbuf = float32_like(self.row_sums_sbuf)
        nisa.reciprocal(dst=means_sbuf, data=self.row_counts_sbuf)
        nisa.scalar_tensor_tensor(
            dst=means_sbuf,
            data=means_sbuf,
            op0=nl.multiply,
            operand0=scale,
            op1=nl.multiply,
            operand1=self.row_sums_sbuf,
        )
        return means_sbuf

    @property
    def of_chunks(self) -> list[nl.NkiTensor]:
        """Return the tiles of chunks: the sums, and the counts if there are any."""
        return [of_chunks_sbuf for of_chunks_sbuf, _ in self._pairs()]

    def _pairs(self) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
        """Return the tiles of sums and counts of chunks, each with the tile that holds those of rows."""
        pairs = [(self.sums_sbuf, self.row_sums_sbuf)]
        if self.counts_sbuf is not None and self.row_counts_sbuf is not None:
            pairs.append((self.counts_sbuf, self.row_counts_sbuf))
        return pairs
