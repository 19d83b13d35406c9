# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of a second visit, from its sums.

With S the sum of the exponentials e of the student, and A the sum of e * log(M / Q), KL(student || mixture) is -A / S,
and likewise for the teacher with log(M / P). A divergence is clamped at 0, because rounding may make it negative.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like, product, scaled
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.operands import store_positions
from nkilib.experimental.loss.linear_distillation.forward.pair_positions import PairPositions
from nkilib.experimental.loss.linear_distillation.forward.pair_results import add_nan_of_empty
from nkilib.experimental.loss.linear_distillation.mixture.rows import MixtureRows
from nkilib.experimental.loss.linear_distillation.mixture.sums import (
    STUDENT_LOGS,
    STUDENT_MASS,
    TEACHER_LOGS,
    TEACHER_MASS,
)
from nkilib.experimental.loss.linear_distillation.shared.options import PairLaunch
from nkilib.nki import nisa, nl

# A row behind the last position may have no mass.
_LEAST_MASS = 2.0**-100


@dataclass(frozen=True)
class MixtureResults:
    """The results of the kernel that computes mixture sums alone, float32 [N] in HBM.

    Attributes:
        student_terms_hbm, teacher_terms_hbm: sums of q log(q / M) and of p log(p / M) over the classes of the shard.
        student_mass_hbm, teacher_mass_hbm: sums of q and of p.
    """

    student_terms_hbm: nl.NkiTensor
    teacher_terms_hbm: nl.NkiTensor
    student_mass_hbm: nl.NkiTensor
    teacher_mass_hbm: nl.NkiTensor

    @classmethod
    def make(cls, num_positions: int) -> MixtureResults:
        """Allocate the vectors."""
        names = ("student_terms_hbm", "teacher_terms_hbm", "student_mass_hbm", "teacher_mass_hbm")
        return cls(*(nl.ndarray((num_positions,), dtype=nl.float32, buffer=nl.shared_hbm, name=name) for name in names))

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the vectors in the order of the kernel's results."""
        return (self.student_terms_hbm, self.teacher_terms_hbm, self.student_mass_hbm, self.teacher_mass_hbm)

    def store(
        self,
        block: Block,
        sums_sbuf: nl.NkiTensor,
        rows: MixtureRows,
        log_sums: tuple[nl.NkiTensor, nl.NkiTensor],
    ) -> None:
        """Store the results of a block of positions, each core two of them.

        Args:
            block: the positions.
            sums_sbuf: float32 [128, sums, tiles].
            rows: the per-row scalars.
            log_sums: the log sums of student and teacher over all shards.
        """
        terms: list[nl.NkiTensor] = []
        masses: list[nl.NkiTensor] = []
        for logs, mass, log_sum_sbuf in (
            (STUDENT_LOGS, STUDENT_MASS, log_sums[0]),
            (TEACHER_LOGS, TEACHER_MASS, log_sums[1]),
        ):
            inverse_sbuf = float32_like(log_sum_sbuf)
            nisa.activation(dst=inverse_sbuf, op=nl.exp, data=log_sum_sbuf, scale=-1.0)
            terms.append(scaled(product(sums_sbuf[:, logs], inverse_sbuf), -1.0))
            masses.append(product(sums_sbuf[:, mass], inverse_sbuf))
        values = (*terms, *masses)
        for number, (vector_hbm, values_sbuf) in enumerate(zip(self.returned(), values, strict=True)):
            if number % nl.num_programs() == nl.program_id(0):
                store_positions(block.of(vector_hbm), values_sbuf)


@dataclass(frozen=True)
class MixtureStore:
    """The vectors that the divergences from a mixture over all classes are stored to.

    Attributes:
        launch: the launch of the kernel.
        divergence_hbm, moment_hbm: float32 [N] in HBM.
    """

    launch: PairLaunch
    divergence_hbm: nl.NkiTensor
    moment_hbm: nl.NkiTensor

    def store(self, block: Block, sums_sbuf: nl.NkiTensor, neg_maxima: tuple[nl.NkiTensor, nl.NkiTensor]) -> None:
        """Store the results of a block of positions, after loading its labels and row weights.

        Args:
            block: the positions.
            sums_sbuf: float32 [128, sums, tiles].
            neg_maxima: minus the largest scores of student and teacher, float32 [128, tiles].
        """
        divergences = MixtureDivergences.of_sums(self.launch, sums_sbuf)
        add_nan_of_empty(self.launch, divergences.moment_sbuf, neg_maxima)
        add_nan_of_empty(self.launch, divergences.divergence_sbuf, neg_maxima)
        weighted_sbuf = PairPositions.load(self.launch, block).weighted(divergences.divergence_sbuf)
        values = ((self.divergence_hbm, weighted_sbuf), (self.moment_hbm, divergences.moment_sbuf))
        for number, (vector_hbm, values_sbuf) in enumerate(values):
            if number % nl.num_programs() == nl.program_id(0):
                store_positions(block.of(vector_hbm), values_sbuf)

    def store_of_vectors(
        self,
        block: Block,
        sums_sbuf: nl.NkiTensor,
        rows: MixtureRows,
        log_sums: tuple[nl.NkiTensor, nl.NkiTensor],
    ) -> None:
        """Store the results of a block of positions, with the largest scores derived from the per-row scalars."""
        student_sbuf, teacher_sbuf = (
            scaled(bias_sbuf, 1.0 / model.scale)
            for bias_sbuf, model in zip(
                (rows.student_bias_sbuf, rows.teacher_bias_sbuf), self.launch.models, strict=True
            )
        )
        self.store(block, sums_sbuf, (student_sbuf, teacher_sbuf))


@dataclass(frozen=True)
class MixtureDivergences:
    """The divergences of rows, float32 [128, tiles].

    Attributes:
        divergence_sbuf: beta KL(teacher || mixture) + (1 - beta) KL(student || mixture), not weighted.
        moment_sbuf: KL(student || mixture).
    """

    divergence_sbuf: nl.NkiTensor
    moment_sbuf: nl.NkiTensor

    @classmethod
    def of_sums(cls, launch: PairLaunch, sums_sbuf: nl.NkiTensor) -> MixtureDivergences:
        """Compute the divergences from sums over all classes, float32 [128, sums, tiles]."""
        beta = launch.options.beta
        moment_sbuf = _divergence(sums_sbuf[:, STUDENT_LOGS], sums_sbuf[:, STUDENT_MASS])
        teacher_sbuf = _divergence(sums_sbuf[:, TEACHER_LOGS], sums_sbuf[:, TEACHER_MASS])
        nisa.tensor_scalar(dst=teacher_sbuf, data=teacher_sbuf, op0=nl.multiply, operand0=beta)
        divergence_sbuf = float32_like(teacher_sbuf)
        nisa.scalar_tensor_tensor(
            dst=divergence_sbuf,
            data=moment_sbuf,
            op0=nl.multiply,
            operand0=1.0 - beta,
            op1=nl.add,
            operand1=teacher_sbuf,
        )
        return cls(divergence_sbuf, moment_sbuf)


def _divergence(logs_sbuf: nl.NkiTensor, mass_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return -logs / mass, at least 0."""
    mean_sbuf = float32_like(logs_sbuf)
    nisa.tensor_scalar(dst=mean_sbuf, data=mass_sbuf, op0=nl.maximum, operand0=_LEAST_MASS)
    nisa.reciprocal(dst=mean_sbuf, data=mean_sbuf)
    nisa.tensor_tensor(dst=mean_sbuf, data1=mean_sbuf, data2=logs_sbuf, op=nl.multiply)
    nisa.tensor_scalar(dst=mean_sbuf, data=mean_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.maximum, operand1=0.0)
    return mean_sbuf
