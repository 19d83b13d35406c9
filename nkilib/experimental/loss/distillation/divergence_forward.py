# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of a Kullback-Leibler divergence: one visit of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nkilib.core.rows.stream import Rows
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.distillation.options import SAMPLE_COLUMNS, Launch
from nkilib.experimental.loss.distillation.pair import Buffers, PairChunk, PairStream
from nkilib.experimental.loss.distillation.rows import Exponentials
from nkilib.experimental.loss.distillation.totals import ChunkSums, Totals, sum_of_products
from nkilib.nki import nisa, nl

# Chunks that are opened ahead, and tiles: GpSimd computes differences while Vector and Scalar process earlier chunks.
_AHEAD, _WEIGHTS = 2, 2


@dataclass(frozen=True)
class DivergenceForward:
    """The state that all visits of the forward of a Kullback-Leibler divergence share.

    Attributes:
        launch: the launch of the kernel.
        buffers: the chunk buffers and scratch on chip.
        sums: two sums of a visit, used by the batches in round-robin order.
    """

    launch: Launch
    buffers: Buffers
    sums: list[ChunkSums]

    @classmethod
    def make(cls, launch: Launch) -> DivergenceForward:
        """Allocate the state for a launch whose beta is 0 or 1."""
        chunks = div_ceil(launch.vocab_size, launch.tiling.chunk_size)
        buffers = Buffers.make(launch, _AHEAD, {"difference": _AHEAD + 1, "weights": _WEIGHTS})
        return cls(launch, buffers, [ChunkSums.make(chunks) for _ in range(2)])

    def visit(
        self, rows: list[Rows], totals: list[Totals], has_maxima: bool, at_shifts: Callable[[int], None]
    ) -> Iterator[int]:
        """Gather the totals of rows; yields the index of each entry of ``rows`` when it is done.

        Args:
            rows: the rows to visit.
            totals: the totals of each entry of ``rows``.
            has_maxima: whether shifts are the maxima of whole rows, taken in a visit before; else those of their first
                columns.
            at_shifts: the function to call with the index of rows whose shifts have been taken.
        """

        def open_rows(pair: PairChunk[Rows]) -> None:
            if pair.chunk.number == 0 and not has_maxima:
                self._take_shifts(pair, totals[pair.visit])
                at_shifts(pair.visit)

        visits, has_differences = (rows * 2, [False, True]) if has_maxima else (rows, [True] * len(rows))
        stream = PairStream.make(self.launch, visits, self.buffers, has_differences, open_rows)
        if has_maxima:
            for load in range(stream.num_chunks):
                self._take_maxima(stream.taken(load), totals[0])
        for number, of_rows in enumerate(totals):
            visit = number + has_maxima
            center_sbuf = None
            for load in range(visit * stream.num_chunks, (visit + 1) * stream.num_chunks):
                pair = stream.taken(load)
                if center_sbuf is None:
                    center_sbuf = _shift_difference(*of_rows.weighting(self.launch))
                self._take(pair, of_rows, center_sbuf)
            self._close(visit, stream.num_chunks, of_rows)
            yield number

    def _take_maxima(self, pair: PairChunk[Rows], totals: Totals) -> None:
        """Set the shift of each row to the maximum of all its chunks, of which this is one."""
        is_further = pair.chunk.number > 0
        totals.student.take_shift(pair.student_sbuf, 0, is_further)
        totals.teacher.take_shift(pair.teacher_sbuf, 0, is_further)

    def _take_shifts(self, pair: PairChunk[Rows], totals: Totals) -> None:
        """Set the shifts of the rows to the maxima of their first columns, which this chunk holds."""
        columns = min(pair.chunk.columns, SAMPLE_COLUMNS)
        totals.student.take_shift(pair.student_sbuf[:, 0:columns], 0)
        totals.teacher.take_shift(pair.teacher_sbuf[:, 0:columns], 0)

    def _take(self, pair: PairChunk[Rows], totals: Totals, center_sbuf: nl.NkiTensor) -> None:
        """Compute a chunk's sums: the exponentials of both distributions, and e * (d - c).

        e are the exponentials of the distribution whose probabilities are the weights, d its logits minus those of the
        other one.

        Args:
            pair: the chunk.
            totals: the totals of its rows.
            center_sbuf: c, the difference of the shifts, [rows, 1].
        """
        launch, sums = self.launch, self.sums[pair.visit % len(self.sums)]
        weighting, other = totals.weighting(launch)
        weighting_sbuf, other_sbuf = pair.teacher_sbuf, pair.student_sbuf
        if launch.is_reverse:
            weighting_sbuf, other_sbuf = other_sbuf, weighting_sbuf
        (rows, columns), number = weighting_sbuf.shape, pair.chunk.number
        weights_sbuf = self.buffers.tile("weights", pair.chunk.load, weighting_sbuf)
        weighting.take(weights_sbuf, weighting_sbuf, 0, sums.weighting.part(number, rows))
        sum_of_products(pair.difference, center_sbuf, nl.subtract, weights_sbuf, sums.weighted.part(number, rows))
        unread_sbuf = self.buffers.unread_sbuf[0:rows, 0:columns]
        other.take(unread_sbuf, other_sbuf, 0, sums.other.part(number, rows))

    def _close(self, visit: int, chunks: int, totals: Totals) -> None:
        """Compute the totals of the rows of a visit: S of both distributions, and the sum of e * (d - c)."""
        sums = self.sums[visit % len(self.sums)]
        weighting, other = totals.weighting(self.launch)
        sums.weighting.total(weighting.sums_sbuf, chunks)
        sums.weighted.total(totals.weighted_sbuf, chunks)
        sums.other.total(other.sums_sbuf, chunks)


def _shift_difference(first: Exponentials, second: Exponentials) -> nl.NkiTensor:
    """Return c - c', the difference of the two shifts."""
    center_sbuf = nl.ndarray(first.neg_shift_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=center_sbuf, data1=second.neg_shift_sbuf, data2=first.neg_shift_sbuf, op=nl.subtract)
    return center_sbuf
