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

# Chunks that are opened ahead, and tiles: GpSimd takes differences while Vector and Scalar have chunks before.
_AHEAD, _WEIGHTS = 2, 2


@dataclass(frozen=True)
class DivergenceForward:
    """What all visits have in common.

    Attributes:
        launch: of the kernel.
        buffers: on chip.
        sums: of the visit, two that batches take in turn.
    """

    launch: Launch
    buffers: Buffers
    sums: list[ChunkSums]

    @classmethod
    def make(cls, launch: Launch) -> DivergenceForward:
        """Of a launch whose beta is 0 or 1."""
        chunks = div_ceil(launch.vocab_size, launch.tiling.chunk_size)
        buffers = Buffers.make(launch, _AHEAD, {"difference": _AHEAD + 1, "weights": _WEIGHTS})
        return cls(launch, buffers, [ChunkSums.make(chunks) for _ in range(2)])

    def visit(
        self, rows: list[Rows], totals: list[Totals], has_maxima: bool, at_shifts: Callable[[int], None]
    ) -> Iterator[int]:
        """Gather the totals of rows; yields the number of each when it is done.

        Args:
            rows: to be visited.
            totals: of each of them.
            has_maxima: shifts are the maxima of whole rows, which a visit before takes; else of their first columns.
            at_shifts: called with the number of rows whose shifts have been taken.
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
        """c of a row is the maximum of all its chunks."""
        is_further = pair.chunk.number > 0
        totals.student.take_shift(pair.student_sbuf, 0, is_further)
        totals.teacher.take_shift(pair.teacher_sbuf, 0, is_further)

    def _take_shifts(self, pair: PairChunk[Rows], totals: Totals) -> None:
        """c of the rows is the maximum of the first columns, of which this is the chunk."""
        columns = min(pair.chunk.columns, SAMPLE_COLUMNS)
        totals.student.take_shift(pair.student_sbuf[:, 0:columns], 0)
        totals.teacher.take_shift(pair.teacher_sbuf[:, 0:columns], 0)

    def _take(self, pair: PairChunk[Rows], totals: Totals, center_sbuf: nl.NkiTensor) -> None:
        """The sums of a Kullback-Leibler divergence: exponentials of both, and e * (d - c).

        Args:
            pair: the chunk.
            totals: of its rows.
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
        """S of both, and the sum of e * (d - c), of the rows of a visit."""
        sums = self.sums[visit % len(self.sums)]
        weighting, other = totals.weighting(self.launch)
        sums.weighting.total(weighting.sums_sbuf, chunks)
        sums.weighted.total(totals.weighted_sbuf, chunks)
        sums.other.total(other.sums_sbuf, chunks)


def _shift_difference(first: Exponentials, second: Exponentials) -> nl.NkiTensor:
    """c - c' of the two."""
    center_sbuf = nl.ndarray(first.neg_shift_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=center_sbuf, data1=second.neg_shift_sbuf, data2=first.neg_shift_sbuf, op=nl.subtract)
    return center_sbuf
