"""What one visit of a row gathers: its maxima, its sums of exponentials, or the terms of the mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkilib.core.rows.stream import Rows
from nkilib.experimental.loss.distillation.options import SAMPLE_COLUMNS, Launch
from nkilib.experimental.loss.distillation.pair import Buffers, PairChunk
from nkilib.experimental.loss.distillation.rows import Exponentials, row_tile
from nkilib.experimental.loss.distillation.totals import RATIO_MOST, RowSums, Totals, center
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


@dataclass(frozen=True)
class ChunkSums:
    """Sums of the rows that are being visited: by pieces, or one a chunk where a chunk is taken at once.

    Attributes:
        weighting, other: of exponentials, of the distribution whose probabilities are the weights and of the other.
        weighted, logs: as in ``Totals``.
    """

    weighting: RowSums
    other: RowSums
    weighted: RowSums
    logs: RowSums

    @classmethod
    def make(cls, parts: int) -> ChunkSums:
        """For rows of so many pieces."""
        return cls(*(RowSums.make(parts) for _ in range(4)))


@dataclass(frozen=True)
class Visits:
    """What all visits have in common.

    Attributes:
        launch: of the kernel.
        buffers: on chip.
        sums: of the visit, two that batches take in turn.
        rest_sbuf: 1 - beta, [128, 1].
    """

    launch: Launch
    buffers: Buffers
    sums: list[ChunkSums]
    rest_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, buffers: Buffers, parts: int) -> Visits:
        """For rows of so many pieces."""
        return cls(launch, buffers, [ChunkSums.make(parts) for _ in range(2)], row_tile(1, 1.0 - launch.options.beta))

    def maxima(self, pair: PairChunk[Rows], totals: Totals) -> None:
        """c of a row is the maximum of all its chunks."""
        is_further = pair.chunk.number > 0
        totals.student.take_shift(pair.student_sbuf, 0, is_further)
        totals.teacher.take_shift(pair.teacher_sbuf, 0, is_further)

    def shifts(self, pair: PairChunk[Rows], totals: Totals, batch: int) -> None:
        """c of the rows of a batch is the maximum of the first columns, of which this is the chunk."""
        columns = min(pair.chunk.columns, SAMPLE_COLUMNS)
        totals.student.take_shift(pair.student_sbuf[:, 0:columns], batch)
        totals.teacher.take_shift(pair.teacher_sbuf[:, 0:columns], batch)

    def exponentials(self, pair: PairChunk[Rows], totals: Totals) -> None:
        """Sums of exponentials of both."""
        sums, rows, load = self.sums[pair.visit % len(self.sums)], pair.student_sbuf.shape[0], pair.chunk.load
        scratch_sbuf = self.buffers.tile("other", load, pair.student_sbuf)
        for side, logits_sbuf, of_side in (
            (totals.teacher, pair.teacher_sbuf, sums.weighting),
            (totals.student, pair.student_sbuf, sums.other),
        ):
            side.take(scratch_sbuf, logits_sbuf, 0, of_side.part(pair.chunk.number, rows))

    def close_exponentials(self, visit: int, chunks: int, totals: Totals) -> None:
        """S of the rows of a visit."""
        sums = self.sums[visit % len(self.sums)]
        sums.weighting.total(totals.teacher.sums_sbuf, chunks)
        sums.other.total(totals.student.sums_sbuf, chunks)

    def divergence(self, pair: PairChunk[Rows], totals: Totals, center_sbuf: nl.NkiTensor) -> None:
        """The sums of a Kullback-Leibler divergence: exponentials of both, and e * (d - c) by pieces.

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
        _sum_of_products(pair.difference, center_sbuf, nl.subtract, weights_sbuf, sums.weighted.part(number, rows))
        unread_sbuf = self.buffers.unread_sbuf[0:rows, 0:columns]
        other.take(unread_sbuf, other_sbuf, 0, sums.other.part(number, rows))

    def close_divergence(self, visit: int, chunks: int, totals: Totals) -> None:
        """S of both, and the sum of e * (d - c), of the rows of a visit."""
        sums = self.sums[visit % len(self.sums)]
        weighting, other = totals.weighting(self.launch)
        sums.weighting.total(weighting.sums_sbuf, chunks)
        sums.weighted.total(totals.weighted_sbuf, chunks)
        sums.other.total(other.sums_sbuf, chunks)

    def mixture(self, pair: PairChunk[Rows], totals: Totals, center_sbuf: nl.NkiTensor) -> None:
        """The terms of a Jensen-Shannon divergence: L = log(beta e^r + 1 - beta), with r the log of the ratio.

        Args:
            pair: the chunk.
            totals: of its rows, with S.
            center_sbuf: T times the difference of the log-sum-exps, [rows, 1].
        """
        sums, load, rows = self.sums[pair.visit % len(self.sums)], pair.chunk.load, pair.student_sbuf.shape[0]
        ratio_sbuf = pair.difference
        student_sbuf = self.buffers.tile("student", load, pair.student_sbuf)
        teacher_sbuf = self.buffers.tile("other", load, pair.student_sbuf)
        power_sbuf = self.buffers.tile("power", load, pair.student_sbuf)
        self.ratios(ratio_sbuf, power_sbuf, center_sbuf)
        totals.teacher.take(teacher_sbuf, pair.teacher_sbuf, 0)
        totals.student.take(student_sbuf, pair.student_sbuf, 0)
        first = pair.chunk.number * self._pieces_of_chunk
        for piece in self.buffers.pieces(load, student_sbuf):
            self.logs(piece.tile_psum, piece.of(power_sbuf))
            nisa.scalar_tensor_tensor(
                dst=piece.of(ratio_sbuf),
                data=piece.of(ratio_sbuf),
                op0=nl.multiply,
                operand0=self.launch.scale,
                op1=nl.subtract,
                operand1=piece.tile_psum,
            )
            number = first + piece.number
            _sum_of_products(piece.tile_psum, 1.0, nl.multiply, piece.of(student_sbuf), sums.logs.part(number, rows))
            _sum_of_products(
                piece.of(ratio_sbuf), 1.0, nl.multiply, piece.of(teacher_sbuf), sums.weighted.part(number, rows)
            )

    def close_mixture(self, visit: int, columns: int, chunks: int, totals: Totals) -> None:
        """The sums of the terms of the rows of a visit."""
        sums = self.sums[visit % len(self.sums)]
        last = columns - (chunks - 1) * self.launch.tiling.chunk_size
        pieces = (chunks - 1) * self._pieces_of_chunk + -(-last // self._piece)
        sums.weighted.total(totals.weighted_sbuf, pieces)
        sums.logs.total(totals.logs_sbuf, pieces)

    def ratios(self, ratio_sbuf: nl.NkiTensor, power_sbuf: nl.NkiTensor, center_sbuf: nl.NkiTensor) -> None:
        """T * r in the place of differences, at most T * RATIO_MOST, where the mixture is the teacher's; and e^r."""
        nisa.tensor_scalar(
            dst=ratio_sbuf,
            data=ratio_sbuf,
            op0=nl.subtract,
            operand0=center_sbuf,
            op1=nl.minimum,
            operand1=RATIO_MOST * self.launch.options.temperature,
        )
        nisa.activation(dst=power_sbuf, op=nl.exp, data=ratio_sbuf, scale=self.launch.scale)

    def logs(self, dst: nl.NkiTensor, power_sbuf: nl.NkiTensor) -> None:
        """L = log(beta * e^r + 1 - beta): of the mixture over the student."""
        rest_sbuf = self.rest_sbuf[0 : power_sbuf.shape[0], :]
        nisa.activation(dst=dst, op=nl.log, data=power_sbuf, scale=self.launch.options.beta, bias=rest_sbuf)

    @property
    def _piece(self) -> int:
        return int(self.buffers.pieces_psum[0].shape[1])

    @property
    def _pieces_of_chunk(self) -> int:
        return -(-self.launch.tiling.chunk_size // self._piece)


def _sum_of_products(
    data: nl.NkiTensor, operand0: nl.NkiTensor | float, op0: Operator, factors: nl.NkiTensor, sum_sbuf: nl.NkiTensor
) -> None:
    """The sum of (data op0 operand0) * factors; the products take the place of the data."""
    nisa.scalar_tensor_tensor(
        dst=data,
        data=data,
        op0=op0,
        operand0=operand0,
        op1=nl.multiply,
        operand1=factors,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def center_of(launch: Launch, totals: Totals) -> nl.NkiTensor:
    """T * (lse of the teacher - lse of the student), once S of both are there."""
    return center(totals.teacher, totals.student, launch.options.temperature)


def shift_difference(first: Exponentials, second: Exponentials) -> nl.NkiTensor:
    """c - c' of the two."""
    center_sbuf = nl.ndarray(first.neg_shift_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=center_sbuf, data1=second.neg_shift_sbuf, data2=first.neg_shift_sbuf, op=nl.subtract)
    return center_sbuf
