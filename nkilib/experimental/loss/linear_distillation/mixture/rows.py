# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The per-row scalars that a second visit of the classes needs, once the log-sum-exps of both models are known.

With r = log P - log Q, the scores y of both models and log odds = log(beta / (1 - beta)),

    x = r + log odds = scale * (ratio * y_teacher - y_student) + b,    b = log odds - (lse_teacher - lse_student).

An error of b shifts r of a whole row, and cancels in the divergence to first order: the derivatives of both parts with
respect to such a shift are beta (1 - beta) E and -beta (1 - beta) E with the same E = sum of P Q / M.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.rows.tiles import difference
from nkilib.experimental.loss.distillation.rows import Exponentials
from nkilib.experimental.loss.distillation.totals import log_ratio
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.operands import load_positions
from nkilib.experimental.loss.linear_distillation.forward.visits import ModelTotals
from nkilib.experimental.loss.linear_distillation.shared.options import PairLaunch
from nkilib.nki import nisa, nl

# The largest z of the rows behind the last position: their exponentials are 0.
_FAR_ABOVE = 2.0**100


@dataclass(frozen=True)
class PairVectors:
    """The log-sum-exps of all positions over all classes, float32 [N] in HBM.

    Attributes:
        student_maximum_hbm, teacher_maximum_hbm: the largest z of each model.
        student_log_sum_hbm, teacher_log_sum_hbm: log of the sum of exp(z - maximum).
    """

    student_maximum_hbm: nl.NkiTensor
    student_log_sum_hbm: nl.NkiTensor
    teacher_maximum_hbm: nl.NkiTensor
    teacher_log_sum_hbm: nl.NkiTensor

    def named(self) -> dict[str, nl.NkiTensor]:
        """Return the vectors by the names of the arguments."""
        return {
            "student_maximum_hbm": self.student_maximum_hbm,
            "student_log_sum_hbm": self.student_log_sum_hbm,
            "teacher_maximum_hbm": self.teacher_maximum_hbm,
            "teacher_log_sum_hbm": self.teacher_log_sum_hbm,
        }

    def of_positions(self, block: Block) -> PairVectors:
        """Return views of some positions."""
        return PairVectors(*(block.of(vector_hbm) for vector_hbm in self.named().values()))


@dataclass(frozen=True)
class MixtureRows:
    """The per-row scalars of a block of positions, float32 [128, tiles].

    Attributes:
        student_bias_sbuf, teacher_bias_sbuf: -m, where m is the largest z of each model.
        ratio_bias_sbuf: b of the module docstring.
        opposite_bias_sbuf: -b.
    """

    student_bias_sbuf: nl.NkiTensor
    teacher_bias_sbuf: nl.NkiTensor
    ratio_bias_sbuf: nl.NkiTensor
    opposite_bias_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int) -> MixtureRows:
        """Allocate the tiles."""
        return cls(*(nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)))

    def of_tiles(self, tiles: int) -> MixtureRows:
        """Return views of the first tiles."""
        scalars = (self.student_bias_sbuf, self.teacher_bias_sbuf, self.ratio_bias_sbuf, self.opposite_bias_sbuf)
        return MixtureRows(*(scalars_sbuf[:, 0:tiles] for scalars_sbuf in scalars))

    def of_totals(self, launch: PairLaunch, student: ModelTotals, teacher: ModelTotals) -> None:
        """Compute the scalars from the statistics of a first visit."""
        scale = launch.student.scale
        for bias_sbuf, totals, model in zip(
            (self.student_bias_sbuf, self.teacher_bias_sbuf), (student, teacher), launch.models, strict=True
        ):
            nisa.tensor_scalar(dst=bias_sbuf, data=totals.neg_max_sbuf, op0=nl.multiply, operand0=model.scale)
        # The difference of the maxima in the unit of the student's scores, which is exact where they are close.
        center_sbuf = self.ratio_bias_sbuf
        nisa.scalar_tensor_tensor(
            dst=center_sbuf,
            data=teacher.neg_max_sbuf,
            op0=nl.multiply,
            operand0=-launch.ratio,
            op1=nl.add,
            operand1=student.neg_max_sbuf,
        )
        nisa.scalar_tensor_tensor(
            dst=center_sbuf,
            data=center_sbuf,
            op0=nl.multiply,
            operand0=scale,
            op1=nl.add,
            operand1=log_ratio(_exponentials(teacher), _exponentials(student)),
        )
        self._finish(launch)

    def of_vectors(self, launch: PairLaunch, vectors: PairVectors) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """Compute the scalars from vectors of the block of positions.

        Returns:
            The log sums of student and teacher, float32 [128, tiles].
        """
        maxima = [
            load_positions(vector_hbm, fill=_FAR_ABOVE)
            for vector_hbm in (vectors.student_maximum_hbm, vectors.teacher_maximum_hbm)
        ]
        log_sums = (
            load_positions(vectors.student_log_sum_hbm, fill=0.0),
            load_positions(vectors.teacher_log_sum_hbm, fill=0.0),
        )
        for bias_sbuf, maximum_sbuf in zip((self.student_bias_sbuf, self.teacher_bias_sbuf), maxima, strict=True):
            nisa.tensor_scalar(dst=bias_sbuf, data=maximum_sbuf, op0=nl.multiply, operand0=-1.0)
        nisa.tensor_tensor(
            dst=self.ratio_bias_sbuf,
            data1=difference(maxima[1], maxima[0]),
            data2=difference(log_sums[1], log_sums[0]),
            op=nl.add,
        )
        self._finish(launch)
        return log_sums

    def _finish(self, launch: PairLaunch) -> None:
        """Compute b and -b from lse_teacher - lse_student, in place."""
        odds = log_odds(launch.options.beta)
        nisa.tensor_scalar(dst=self.opposite_bias_sbuf, data=self.ratio_bias_sbuf, op0=nl.subtract, operand0=odds)
        nisa.tensor_scalar(dst=self.ratio_bias_sbuf, data=self.opposite_bias_sbuf, op0=nl.multiply, operand0=-1.0)


def log_odds(beta: float) -> float:
    """Return log(beta / (1 - beta))."""
    return log(beta) - log1p(-beta)


def _exponentials(totals: ModelTotals) -> Exponentials:
    """Return the sums as an argument of :func:`log_ratio`, which reads nothing else."""
    return Exponentials(1.0, totals.neg_max_sbuf, totals.neg_max_sbuf, totals.sums_sbuf)
