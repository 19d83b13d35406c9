# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of a first pass for a block of positions, from the statistics of both models.

N positions; P and Q are the distributions of teacher and student; *scores* are the logits before scaling, or tanh(logit
/ cap) under a cap, and the scale of a model turns scores into its logits after cap and temperature.
:class:`PairResults` are the vectors in HBM. :func:`results_of_models` computes the entropy and the statistics that are
saved, :func:`divergence_results` the divergence, :func:`label_results` log-probabilities and logits at labels. Where a
model has no distribution, :func:`add_nan_of_empty` adds NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from nkilib.core.rows.tiles import constant, difference, float32_like, product, scaled
from nkilib.experimental.loss.cross_entropy.results import GroupResult, new_vector
from nkilib.experimental.loss.distillation.pair import Exponentials
from nkilib.experimental.loss.distillation.totals import log_ratio
from nkilib.experimental.loss.linear_distillation.forward.pair_statistics import PairPositions, PairStatistics
from nkilib.experimental.loss.linear_distillation.launch import ModelOperands, PairLaunch
from nkilib.nki import nisa, nl

# The overflow of float32.
_OVERFLOW = 2.0**128
# A masked score times this factor is infinite; any other score times it is finite.
_FACTOR_OF_MASKED = 2.0**20


@dataclass(frozen=True)
class PairResults:
    """Vectors [N] in HBM, float32, in the order in which the forward returns them; None for results not requested."""

    divergence_hbm: nl.NkiTensor
    entropy_hbm: nl.NkiTensor
    moment_hbm: nl.NkiTensor
    student_maximum_hbm: nl.NkiTensor
    student_log_sum_hbm: nl.NkiTensor
    teacher_maximum_hbm: nl.NkiTensor
    teacher_log_sum_hbm: nl.NkiTensor
    logprob_hbm: nl.NkiTensor | None
    target_logit_hbm: nl.NkiTensor | None

    @classmethod
    def of_launch(cls, launch: PairLaunch) -> PairResults:
        """Allocate the vectors of a launch."""

        def vector(name: str) -> nl.NkiTensor:
            return new_vector(name, launch.num_positions, nl.float32)

        return cls(
            vector("divergence_hbm"),
            vector("entropy_hbm"),
            vector("moment_hbm"),
            vector("student_maximum_hbm"),
            vector("student_log_sum_hbm"),
            vector("teacher_maximum_hbm"),
            vector("teacher_log_sum_hbm"),
            vector("logprob_hbm") if launch.wanted.logprob else None,
            vector("target_logit_hbm") if launch.wanted.target else None,
        )

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the vectors that the kernel returns."""
        vectors: list[nl.NkiTensor | None] = [getattr(self, field.name) for field in fields(self)]
        return tuple(vector_hbm for vector_hbm in vectors if vector_hbm is not None)


def results_of_models(statistics: PairStatistics, results: PairResults) -> list[GroupResult]:
    """Return the entropy and the statistics of both models, after the logs of the statistics are computed."""
    student, teacher = statistics.models
    group_results = [GroupResult(results.entropy_hbm, statistics.entropy.entropies(student))]
    for side, maximum_hbm, log_sum_hbm in (
        (student, results.student_maximum_hbm, results.student_log_sum_hbm),
        (teacher, results.teacher_maximum_hbm, results.teacher_log_sum_hbm),
    ):
        group_results.append(GroupResult(maximum_hbm, side.scale.times(side.row_neg_max_sbuf, -1.0)))
        group_results.append(GroupResult(log_sum_hbm, side.log_sum_sbuf))
    return group_results


def _beyond(launch: PairLaunch, model: ModelOperands) -> float:
    """Return a factor that makes the score of a masked class overflow float32, but no other score.

    For a shard of the vocabulary it is 1, so that nothing overflows: a shard may mask all of its classes.
    """
    if launch.classes.is_shard:
        return 1.0
    return _FACTOR_OF_MASKED * 2.0**116 / -launch.lowest(model)


def add_nan_of_empty(
    launch: PairLaunch, values_sbuf: nl.NkiTensor, neg_maxima: tuple[nl.NkiTensor, nl.NkiTensor]
) -> None:
    """Make values NaN where a model masks every class, as in PyTorch, or has a logit of +inf or NaN.

    In a shard of the vocabulary, where a model may mask every class, only +inf and NaN count.

    Args:
        launch: the launch of the kernel.
        values_sbuf: the values, one per position, changed in place, float32 [128, tiles].
        neg_maxima: minus the largest scores of student and teacher, float32 [128, tiles].
    """
    for model, suspects_sbuf in zip(launch.models, neg_maxima, strict=True):
        nan_sbuf = float32_like(suspects_sbuf)
        nisa.tensor_scalar(
            dst=nan_sbuf,
            data=suspects_sbuf,
            op0=nl.multiply,
            operand0=_beyond(launch, model),
            op1=nl.multiply,
            operand1=0.0,
        )
        nisa.tensor_tensor(dst=values_sbuf, data1=values_sbuf, data2=nan_sbuf, op=nl.add)


def _overflown(values_sbuf: nl.NkiTensor, factor: float, inverse: float) -> nl.NkiTensor:
    # ``factor`` makes large values overflow to infinity; ``inverse`` scales the others back.
    nisa.tensor_scalar(
        dst=values_sbuf, data=values_sbuf, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=inverse
    )
    return values_sbuf


def _logits_of_scores(launch: PairLaunch, statistics: PairStatistics, mean_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return ``mean_sbuf``, a mean of differences of scores, times the student's scale.

    A mean difference of logits, before the temperature, from ``launch.infinite`` on becomes infinite: a factor makes it
    overflow. If ``student.unit``, which turns scores into logits, is less than 1, the factor multiplies the mean of
    scores, else the mean of logits. So, and as units differ by at most 1e12, the factor stays below 2^121.
    """
    unit, temperatures = launch.student.unit, statistics.temperatures
    if unit < 1.0:
        factor = _OVERFLOW / (launch.infinite / unit)
        return statistics.student.scale.times(_overflown(mean_sbuf, factor, 1.0 / factor))
    if unit != 1.0:
        mean_sbuf = scaled(mean_sbuf, unit)
    factor = _OVERFLOW / launch.infinite
    if temperatures is None:
        return _overflown(mean_sbuf, factor, 1.0 / (factor * launch.options.temperature))
    return temperatures.scale(1.0).times(_overflown(mean_sbuf, factor, 1.0 / factor))


def _divergence(launch: PairLaunch, statistics: PairStatistics) -> nl.NkiTensor:
    """Compute scale * W / S - log(S_t / S_s), at least 0.

    S_t and S_s are the sums of exponentials of teacher and student, and W is the weighted sum of score differences of
    :class:`GapMoment`. S is S_t if the teacher's probabilities are the weights, else S_s. With the student's
    probabilities, the sign is reversed, because the expression is the mean of log P - log Q.
    """
    student, teacher = statistics.models
    if statistics.gap is None:
        raise ValueError(f"{launch.function}: a mixture has no weighted differences")
    sides = [
        Exponentials(side.scale, side.row_neg_max_sbuf, side.row_neg_max_sbuf, side.row_sum_sbuf)
        for side in (teacher, student)
    ]
    ratio_sbuf = log_ratio(*sides)
    inverse_sbuf = float32_like(ratio_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=statistics.weighting.row_sum_sbuf)
    mean_sbuf = product(statistics.gap.row_weighted_sbuf, inverse_sbuf)
    mean_sbuf = _logits_of_scores(launch, statistics, mean_sbuf)
    # KL(t||s) = mean - log(S_t / S_s), and KL(s||t) = log(S_t / S_s) - mean.
    first_sbuf, second_sbuf = (ratio_sbuf, mean_sbuf) if launch.is_reverse else (mean_sbuf, ratio_sbuf)
    divergence_sbuf = difference(first_sbuf, second_sbuf)
    nisa.tensor_scalar(dst=divergence_sbuf, data=divergence_sbuf, op0=nl.maximum, operand0=0.0)
    add_nan_of_empty(launch, divergence_sbuf, (student.row_neg_max_sbuf, teacher.row_neg_max_sbuf))
    student.scale.add_nan(divergence_sbuf)
    return divergence_sbuf


def divergence_results(
    launch: PairLaunch, statistics: PairStatistics, positions: PairPositions, results: PairResults
) -> list[GroupResult]:
    """Return the Kullback-Leibler divergence, times the row weights, and its moment.

    The moment is the unweighted divergence for KL(student || teacher), and 0 for KL(teacher || student). For a shard of
    the vocabulary with 0 < beta < 1, both results are 0, because a shard cannot know the divergence from a mixture.
    """
    if launch.is_mixed:
        nothing_sbuf = constant(statistics.student.row_sum_sbuf, 0.0)
        return [GroupResult(results.divergence_hbm, nothing_sbuf), GroupResult(results.moment_hbm, nothing_sbuf)]
    divergence_sbuf = _divergence(launch, statistics)
    moment_sbuf = divergence_sbuf if launch.is_reverse else constant(divergence_sbuf, 0.0)
    return [
        GroupResult(results.divergence_hbm, positions.weighted(divergence_sbuf)),
        GroupResult(results.moment_hbm, moment_sbuf),
    ]


def label_results(statistics: PairStatistics, positions: PairPositions, results: PairResults) -> list[GroupResult]:
    """Return the log-probabilities and the logits at the labels, as far as they are requested."""
    score_sbuf = positions.picked_sbuf
    if score_sbuf is None:
        return []
    group_results: list[GroupResult] = []
    student = statistics.student
    if results.logprob_hbm is not None:
        distance_sbuf = float32_like(score_sbuf)
        nisa.tensor_tensor(dst=distance_sbuf, data1=score_sbuf, data2=student.row_neg_max_sbuf, op=nl.add)
        logprob_sbuf = difference(student.scaled(distance_sbuf), student.log_sum_sbuf)
        group_results.append(GroupResult(results.logprob_hbm, positions.where_local(logprob_sbuf)))
    if results.target_logit_hbm is not None:
        logit_sbuf = student.scaled(score_sbuf)
        group_results.append(GroupResult(results.target_logit_hbm, positions.where_local(logit_sbuf)))
    return group_results
