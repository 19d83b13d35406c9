# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums over rows of logits, gathered chunk by chunk, and the divergences computed from them.

T is the temperature, *rows* are the positions, a *chunk* is some columns of a batch of rows, and a *piece* some columns
of a chunk. The *shift* of a row is subtracted from its logits before exponentials are taken. P, Q and M = beta P + (1 -
beta) Q are the distributions of teacher, student and mixture, and L = log(M / Q).

:class:`ChunkSums` holds the sums of the rows being visited. :class:`Totals` holds the shifts and sums of all rows, and
tells which rows must be recomputed. :class:`SplitTotals` makes those of positions that lie on several partitions.
:func:`kl_of_totals` and :func:`jensen_shannon_of_totals` compute the results
(:class:`Divergences`), with :func:`log_ratio` and :func:`center` of both models' sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p
from typing import TYPE_CHECKING

from nkilib.core.rows.row_plan import RowBatch, on_line
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.statistics import Columns, SplitStatistics, Statistics
from nkilib.core.rows.stream import SplitRows
from nkilib.core.rows.tiles import RowSums, difference, float32_like, product, scaled
from nkilib.experimental.loss.distillation.launch import POSITIONS, Launch, tile_dtype
from nkilib.experimental.loss.distillation.pair import Exponentials, RowTemperatures, add_nan_of_empty, row_tile
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# A larger mean of differences of logits is treated as infinite: a student's -inf is LOWEST.
INFINITE = 2.0**48
# How large a sum of exponentials may be under a shift, for the types of logits on chip: x - c is exact for bfloat16.
_SUM_MOST = {False: 2.0**60, True: 2.0**24}
_SUM_LEAST = 0.5


def _outside(sums_sbuf: nl.NkiTensor, most: float) -> nl.NkiTensor:
    """Return 1.0 where a sum is NaN or outside the trusted range, from 0.5 to ``most``; else 0.0."""
    trusted_sbuf, outside_sbuf = float32_like(sums_sbuf), float32_like(sums_sbuf)
    nisa.tensor_scalar(
        dst=trusted_sbuf, data=sums_sbuf, op0=nl.maximum, operand0=_SUM_LEAST, op1=nl.minimum, operand1=most
    )
    nisa.tensor_tensor(dst=outside_sbuf, data1=sums_sbuf, data2=trusted_sbuf, op=nl.not_equal)
    return outside_sbuf


def _mean(sum_sbuf: nl.NkiTensor, exponentials_sbuf: nl.NkiTensor, factor: float) -> nl.NkiTensor:
    inverse_sbuf = float32_like(exponentials_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=exponentials_sbuf)
    mean_sbuf = product(sum_sbuf, inverse_sbuf)
    return mean_sbuf if factor == 1.0 else scaled(mean_sbuf, factor)


def _finish_losses(loss_sbuf: nl.NkiTensor, totals: Totals) -> None:
    """Set negative losses, which only rounding produces, to 0, and losses that do not exist to NaN.

    No loss exists where the logits of a model have no softmax (all are -inf, or one is +inf or NaN), or where the
    temperature is out of its range.
    """
    nisa.tensor_scalar(dst=loss_sbuf, data=loss_sbuf, op0=nl.maximum, operand0=0.0)
    for side in (totals.student, totals.teacher):
        add_nan_of_empty(loss_sbuf, side.neg_shift_sbuf)
    totals.temperature.add_nan(loss_sbuf)


@dataclass(frozen=True)
class ChunkSums:
    """The sums of the rows being visited: one value per piece of a chunk, or per chunk if it is not divided.

    Attributes:
        weighting: sums of exponentials of the distribution whose probabilities weight the logarithms of the divergence.
        other: sums of exponentials of the other distribution.
        weighted, logs: see ``Totals``.
    """

    weighting: RowSums
    other: RowSums
    weighted: RowSums
    logs: RowSums

    @classmethod
    def make(cls, parts: int) -> ChunkSums:
        """Allocate the sums for rows of ``parts`` pieces."""
        return cls(*(RowSums.make(POSITIONS, parts) for _ in range(4)))


@dataclass(frozen=True)
class Totals:
    """Shifts and sums of each row, computed by the forward, float32 [128, batches].

    Attributes:
        student, teacher: the shift of each row, and the sum of its shifted exponentials.
        weighted_sbuf: for a Kullback-Leibler divergence the sum of e * (d - c), with e, d and c as in
            :func:`kl_of_totals`; for Jensen-Shannon the sum of e_t * (d / T - s), with d the teacher's minus the
            student's logit and s = L - log(1 - beta).
        logs_sbuf: for Jensen-Shannon the sum of e_s * s; e_s and e_t are the shifted exponentials of student and
            teacher.
        temperature: T, which divides the logits.
    """

    student: Exponentials
    teacher: Exponentials
    weighted_sbuf: nl.NkiTensor
    logs_sbuf: nl.NkiTensor
    temperature: Scale

    @classmethod
    def make(cls, batches: int, temperatures: RowTemperatures) -> Totals:
        """Allocate the totals of ``batches`` batches."""
        scale = temperatures.scale
        student, teacher = Exponentials.make(batches, scale), Exponentials.make(batches, scale)
        return cls(student, teacher, row_tile(batches), row_tile(batches), temperatures.temperature)

    def of_batches(self, start: int, end: int, rows: int) -> Totals:
        """Return views of a range of batches with equally many rows: [rows, end - start]."""

        def part(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
            return tile_sbuf[0:rows, start:end]

        def of_side(side: Exponentials) -> Exponentials:
            scale = side.scale.part(start, end, rows)
            return Exponentials(scale, part(side.neg_shift_sbuf), part(side.bias_sbuf), part(side.sums_sbuf))

        return Totals(
            of_side(self.student),
            of_side(self.teacher),
            part(self.weighted_sbuf),
            part(self.logs_sbuf),
            self.temperature.part(start, end, rows),
        )

    def tiles(self) -> tuple[nl.NkiTensor, ...]:
        """Return each tile of the totals once, except the biases, which can be computed from the shifts."""
        sides = (self.student, self.teacher)
        of_sides = [tile_sbuf for side in sides for tile_sbuf in (side.neg_shift_sbuf, side.sums_sbuf)]
        return (*of_sides, self.weighted_sbuf, self.logs_sbuf)

    def weighting(self, launch: Launch) -> tuple[Exponentials, Exponentials]:
        """Return the exponentials of the distribution that weights the logarithms, and those of the other one."""
        return (self.student, self.teacher) if launch.is_reverse else (self.teacher, self.student)

    def doubtful(self, launch: Launch) -> nl.NkiTensor:
        """Return 1.0 for each row whose sum of exponentials is untrusted, else 0.0.

        A sum is untrusted if the shift is too far below the maximum of the row, or if the sum is NaN.
        """
        flags = [
            _outside(side.sums_sbuf, _SUM_MOST[tensor_hbm.dtype == nl.float32])
            for side, tensor_hbm in ((self.student, launch.student_hbm), (self.teacher, launch.teacher_hbm))
        ]
        doubtful_sbuf = float32_like(flags[0])
        nisa.tensor_tensor(dst=doubtful_sbuf, data1=flags[0], data2=flags[1], op=nl.maximum)
        return doubtful_sbuf


@dataclass(frozen=True)
class SplitTotals:
    """The statistics of student and teacher of a batch of positions.

    Attributes:
        launch: the launch of the kernel.
        batch: the positions.
        student, teacher: the statistics of the partitions and of the positions.
        of_parts, of_positions: the temperatures, in the partitions and on the line.
    """

    launch: Launch
    batch: RowBatch
    student: SplitStatistics
    teacher: SplitStatistics
    of_parts: RowTemperatures
    of_positions: RowTemperatures

    @classmethod
    def make(cls, launch: Launch, rows: SplitRows, chunks: int, is_whole: bool = False) -> SplitTotals:
        """Allocate the statistics of positions with ``chunks`` chunks in each partition; ``is_whole`` is that of
        :meth:`Statistics.make`.
        """
        batch = rows.batch
        of_parts = RowTemperatures.of(launch, batch, (rows.rows, 1))
        of_positions = RowTemperatures.of(launch, batch.as_line, (1, batch.lines))
        student, teacher = (
            SplitStatistics(
                batch,
                Statistics.make(Columns(rows.rows, 1, chunks), tile_dtype(matrix_hbm.dtype), of_parts.scale, is_whole),
                Statistics.make(Columns(1, batch.lines, 1), nl.float32, of_positions.scale),
            )
            for matrix_hbm in (launch.student_hbm, launch.teacher_hbm)
        )
        return cls(launch, batch, student, teacher, of_parts, of_positions)

    @property
    def weighting(self) -> tuple[SplitStatistics, SplitStatistics]:
        """The statistics of the distribution that weights the logarithms of a KL, and those of the other one."""
        return (self.student, self.teacher) if self.launch.is_reverse else (self.teacher, self.student)

    def summed(self, of_parts: list[nl.NkiTensor]) -> list[nl.NkiTensor]:
        """Return the sums of numbers of the partitions, [partitions, 1], for each position, [1, positions]."""
        lines = [on_line(of_parts_sbuf) for of_parts_sbuf in of_parts]
        sums = [self.student.rows.columns.row_tile() for _ in of_parts]
        for sums_sbuf, line_psum in zip(sums, lines, strict=True):
            self.student.reduce_line(sums_sbuf, line_psum, nl.add)
        return sums

    def totals(self, sums: list[nl.NkiTensor], weighted_sbuf: nl.NkiTensor, logs_sbuf: nl.NkiTensor) -> Totals:
        """Return the totals of the positions, once their shifts are known, from other tiles [1, positions]: the sums of
        exponentials of student and teacher, and the last two of :class:`Totals`.
        """
        student, teacher = (
            Exponentials(side.rows.scale, side.rows.row_neg_max_sbuf, side.rows.bias_sbuf, sums_sbuf)
            for side, sums_sbuf in zip((self.student, self.teacher), sums, strict=True)
        )
        return Totals(student, teacher, weighted_sbuf, logs_sbuf, self.of_positions.temperature)


@dataclass(frozen=True)
class Divergences:
    """The results of the forward for each row.

    Attributes:
        loss_sbuf: the divergence.
        moment_sbuf: the divergence that the gradient needs: KL(student || mixture), or the loss.
    """

    loss_sbuf: nl.NkiTensor
    moment_sbuf: nl.NkiTensor


def sum_of_products(
    data: nl.NkiTensor, operand0: nl.NkiTensor | float, op0: Operator, factors: nl.NkiTensor, sum_sbuf: nl.NkiTensor
) -> None:
    """Compute the sum of (data op0 operand0) * factors of each row in ``sum_sbuf``; the products replace ``data``."""
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


def log_ratio(first: Exponentials, second: Exponentials) -> nl.NkiTensor:
    """Return log(S / S') for the sums S and S' of exponentials of two distributions; 0 where they are equal.

    With the smaller sum s it is log(1 + |S - S'| / s), with the sign of S - S'. For similar sums its error is smaller
    than that of a difference of two logs.
    """
    sums_sbuf, others_sbuf = first.sums_sbuf, second.sums_sbuf
    smaller_sbuf, log_sbuf, sign_sbuf = (float32_like(sums_sbuf) for _ in range(3))
    nisa.tensor_tensor(dst=smaller_sbuf, data1=sums_sbuf, data2=others_sbuf, op=nl.minimum)
    nisa.tensor_tensor(dst=log_sbuf, data1=sums_sbuf, data2=others_sbuf, op=nl.maximum)
    nisa.tensor_tensor(dst=log_sbuf, data1=log_sbuf, data2=smaller_sbuf, op=nl.subtract)
    nisa.reciprocal(dst=smaller_sbuf, data=smaller_sbuf)
    nisa.tensor_tensor(dst=log_sbuf, data1=log_sbuf, data2=smaller_sbuf, op=nl.multiply)
    nisa.tensor_scalar(dst=log_sbuf, data=log_sbuf, op0=nl.add, operand0=1.0)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    nisa.tensor_tensor(dst=sign_sbuf, data1=sums_sbuf, data2=others_sbuf, op=nl.greater_equal)
    nisa.tensor_scalar(dst=sign_sbuf, data=sign_sbuf, op0=nl.multiply, operand0=2.0, op1=nl.subtract, operand1=1.0)
    nisa.tensor_tensor(dst=log_sbuf, data1=log_sbuf, data2=sign_sbuf, op=nl.multiply)
    return log_sbuf


def center(first: Exponentials, second: Exponentials, temperature: Scale) -> nl.NkiTensor:
    """Return T * (lse - lse') of two distributions, for each row.

    With logits x and x' and probabilities p and p', T * log(p / p') is x - x' minus this result.
    """
    center_sbuf = difference(second.neg_shift_sbuf, first.neg_shift_sbuf)
    temperature.take_sum(center_sbuf, log_ratio(first, second), center_sbuf)
    return center_sbuf


def kl_of_totals(launch: Launch, totals: Totals) -> Divergences:
    """Return the Kullback-Leibler divergence E[d - c] / T - log(S / S').

    E is the mean under the first distribution, whose shifted exponentials are e. d are its logits minus the second
    one's, c is the difference of their shifts, and S and S' are their sums of exponentials. The first distribution is
    the one whose probabilities weight the logarithms.
    """
    weighting, other = totals.weighting(launch)
    mean_sbuf = _mean(totals.weighted_sbuf, weighting.sums_sbuf, 1.0)
    weighting.scale.take_limited(mean_sbuf, mean_sbuf, INFINITE)
    loss_sbuf = difference(mean_sbuf, log_ratio(weighting, other))
    _finish_losses(loss_sbuf, totals)
    return Divergences(loss_sbuf, loss_sbuf)


def jensen_shannon_of_totals(launch: Launch, totals: Totals) -> Divergences:
    """Return the loss beta * KL(teacher || mixture) + (1 - beta) * KL(student || mixture), and the moment KL(student ||
    mixture).

    KL(student || mixture) is -E_student[L], and KL(teacher || mixture) is E_teacher[r - L], with r = log(P / Q) and L =
    log(M / Q).
    """
    beta = launch.options.beta
    log_rest = log1p(-beta)
    moment_sbuf = _mean(totals.logs_sbuf, totals.student.sums_sbuf, -1.0)
    nisa.tensor_scalar(
        dst=moment_sbuf, data=moment_sbuf, op0=nl.subtract, operand0=log_rest, op1=nl.maximum, operand1=0.0
    )
    totals.temperature.add_nan(moment_sbuf)
    loss_sbuf = _mean(totals.weighted_sbuf, totals.teacher.sums_sbuf, 1.0)
    center_sbuf = center(totals.teacher, totals.student, totals.temperature)
    totals.teacher.scale.by(-1.0).take_sum(loss_sbuf, center_sbuf, loss_sbuf)
    nisa.tensor_scalar(
        dst=loss_sbuf, data=loss_sbuf, op0=nl.subtract, operand0=log_rest, op1=nl.multiply, operand1=beta
    )
    nisa.scalar_tensor_tensor(
        dst=loss_sbuf, data=moment_sbuf, op0=nl.multiply, operand0=1.0 - beta, op1=nl.add, operand1=loss_sbuf
    )
    _finish_losses(loss_sbuf, totals)
    return Divergences(loss_sbuf, moment_sbuf)
