# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bounds on the errors of the kernels, compared with float64 results of the same inputs.

:func:`pair_forward_bounds`, :func:`mixture_bounds` and :func:`pair_gradients_and_bounds` return the bounds of the three
kernels. :class:`StatisticsErrors` are the errors of the statistics that a backward received.

Notation: u = 2^-23, the unit in the last place of 1; N positions, V classes, R rows (positions of a block); P, Q, M the
distributions of teacher, student and mixture M = beta P + (1 - beta) Q; y the product X W^T with its bias; z the logits
after scale s, softcap c and temperature T; dy and dz the errors of y and z; m the sum of both models' largest dz in a
row; a = 8 + 2 max|z| of a row, for each model; r = log(P / Q); E_P the mean under P; H the entropy; G the gradient of
X W^T; dX, dW, db the gradients of X, W and the bias. The *moment* is KL(Q||P) for beta 1, KL(Q||M) for a mixture.

- dz = s dy / T, with dy from ``linear.reference``, for operands in the dtype of the products. A softcap adds 4 u c / T,
  for its tanh and the product with c. If logit scales or softcaps of the models differ, the teacher's scores are
  multiplied by a rounded ratio, which adds 2 u |z|.
- A tensor of temperatures adds 4 u |z| to dz, because the device rounds 1 / T. In a gradient it adds 4 u of the
  log-sum-exps, of the moment, and of the gradient itself.
- The divergence of exact z has an error of u (a_P + a_Q) (2 + E|r|), as in ``distillation.host``. For a mixture, a of
  each model is larger by -log(beta (1 - beta)).
- The effect of dz on the divergence is at most exp(4 m) (sum |D| dz + 2 m^2) for m <= 0.2, summed over classes and
  models. D is the derivative with respect to z. For KL(P||Q) it is P (r - KL(P||Q)) for the teacher's z and Q - P for
  the student's; for KL(Q||P) P and Q are swapped, and r changes its sign. For a mixture it is beta P (log(P/M) -
  KL(P||M)) for the teacher's z and (1 - beta) Q (log(Q/M) - KL(Q||M)) for the student's. The terms with m bound the
  change of D itself: P changes at most by the factor exp(2 m), a log-ratio by 2 m.
- The effect of dz on the moment KL(Q||M) is bounded in the same way. D has the further terms (1 - beta) Q (Q/M -
  E_Q[Q/M]) and beta P (Q/M - E_P[Q/M]).
- Entropy, log-sum-exp and log-probability: the bounds of cross-entropy for exact logits (``cross_entropy.bounds``),
  plus the effect of dz. It is the largest dz on lse; the largest dz and the label's dz on the log-probability; 2 sum Q
  |log Q + H| dz and the square of the largest dz on the entropy.
- A term q log(q/M) of the mixture kernel: q has a relative error of u a + dz, and log(q/M) an error of beta p/M times
  the error of r, which is u a + dz of both models. A sum has a further error of 8 u of its magnitudes. The sizes of the
  received log-sum-exps are added to a, because they may be larger than the z at hand.
- The gradient of z: P and Q have a relative error of u a + dz. log(Q/P) has an error of u a + dz of both models,
  log(Q/M) beta P/M times that, and the received moment has its own. A probability below 2^-126 may count as 0. The
  log-probability's onehot - Q has an error of (u a + dz) Q and 4 u of itself. If the kernel received results of a
  forward, but the reference has exact ones, the errors of these results are added (:class:`StatisticsErrors`).
- G is the gradient of z times s (1 - tanh^2) / T. The factor adds an error of 3 u s / T, and one of 2 |tanh| s dy / c
  relative to G. ``linear.reference`` has the errors of dX, dW and db.

The bounds hold for the simulator; hardware was never measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.cross_entropy.bounds import CAP_UNITS, extended_forward_bounds
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss, Float64Array
from nkilib.experimental.loss.distillation.host import Distributions, scale_units
from nkilib.experimental.loss.linear.reference import (
    EVERY_CLASS,
    GradientRows,
    LinearGradients,
    ResultTypes,
    gradients_and_bounds,
    logit_bounds,
)
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ExactMixtureSums,
    ModelProblem,
    PairProblem,
    PairUpstream,
    Statistics,
    divergence_gradient,
    divergence_of,
    z_gradient_of,
)

# Besides 2 max|z|: the exponential, the rounding of its argument, and the sum of exponentials.
_OF_EXPONENTIAL = 8.0
_SUM_UNITS = 8.0
_IGNORED = -1


@dataclass(frozen=True)
class StatisticsErrors:
    """The errors of the statistics that a backward receives, compared with the float64 ones, [N] each.

    Attributes:
        student_lse, teacher_lse: the errors of the log-sum-exps.
        moment: the error of the moment.
    """

    student_lse: Float64Array
    teacher_lse: Float64Array
    moment: Float64Array

    @classmethod
    def of_forward(cls, bounds: dict[str, Float64Array]) -> StatisticsErrors:
        """Return the errors from the result of :func:`pair_forward_bounds`."""
        return cls(bounds["student_lse"], bounds["teacher_lse"], bounds["moment"])


class _Rows(NamedTuple):
    """The values of both models at R positions.

    Attributes:
        student, teacher: z, [R, V].
        of_student, of_teacher: dz, [R, V].
        student_size, teacher_size: a = 8 + 2 max|z|, [R].
    """

    student: Float64Array
    teacher: Float64Array
    of_student: Float64Array
    of_teacher: Float64Array
    student_size: Float64Array
    teacher_size: Float64Array

    @property
    def most(self) -> Float64Array:
        """The sum m of both models' largest dz, [R]."""
        return np.asarray(self.of_student.max(axis=1) + self.of_teacher.max(axis=1))


def _log_softmax(z: Float64Array) -> Float64Array:
    distance = z - z.max(axis=1, keepdims=True)
    return np.asarray(distance - np.log(np.exp(distance).sum(axis=1, keepdims=True)))


def _of_z(problem: PairProblem, model: ModelProblem, rows: slice, weight: Float64Array) -> Float64Array:
    """Return dz of one model, [R, V]."""
    of_rows, off = model.at_rows(rows), logit_bounds(model, rows, weight) * model.logit_scale
    if model.logit_softcap is not None:
        off += CAP_UNITS * UNIT * model.logit_softcap
    student, teacher = problem.student, problem.teacher
    if model is teacher and (student.logit_scale, student.logit_softcap) != (model.logit_scale, model.logit_softcap):
        z = of_rows.divisor * of_rows.z_of(model.logits_of(rows, weight))
        off += np.where(np.isfinite(z), 2.0 * UNIT * np.abs(z), 0.0)
    off = off / of_rows.divisor
    units = scale_units(model.temperature)
    if units > 0.0:
        z = of_rows.z_of(model.logits_of(rows, weight))
        off += np.where(np.isfinite(z), units * UNIT * np.abs(z), 0.0)
    return np.asarray(off)


def _size(z: Float64Array) -> Float64Array:
    # a = 8 + 2 max|z| of each row, over the finite z.
    return np.asarray(_OF_EXPONENTIAL + 2.0 * np.where(np.isfinite(z), np.abs(z), 0.0).max(axis=1))


def _rows_of(problem: PairProblem, rows: slice, weights: tuple[Float64Array, Float64Array]) -> _Rows:
    student, teacher = problem.scores_of(rows, weights)
    # For a mixture, the logs of beta and 1 - beta, which are added to its logs and subtracted again.
    further = -np.log(problem.beta) - np.log1p(-problem.beta) if problem.is_mixed else 0.0
    return _Rows(
        student,
        teacher,
        _of_z(problem, problem.student, rows, weights[0]),
        _of_z(problem, problem.teacher, rows, weights[1]),
        _size(student) + further,
        _size(teacher) + further,
    )


def _centred(log_p: Float64Array, values: Float64Array) -> Float64Array:
    """Return p |value - E_p value|, [R, V]; 0 where p is 0."""
    p = np.exp(log_p)
    finite = np.where(p == 0.0, 0.0, values)
    return np.asarray(p * np.abs(finite - (p * finite).sum(axis=1, keepdims=True)))


def _mean_size(log_p: Float64Array, values: Float64Array) -> Float64Array:
    """Return the mean of |value| under p, [R]; 0 where p is 0."""
    p = np.exp(log_p)
    return np.asarray((p * np.abs(np.where(p == 0.0, 0.0, values))).sum(axis=1))


def _moved(models: _Rows, by_student: Float64Array, by_teacher: Float64Array) -> Float64Array:
    """Return the effect of dz on a divergence, [R].

    ``by_student`` and ``by_teacher`` are |D|, the derivatives with respect to z of each model, [R, V].
    """
    first = (by_student * models.of_student + by_teacher * models.of_teacher).sum(axis=1)
    return np.asarray(np.exp(4.0 * models.most) * (first + 2.0 * np.square(models.most)))


def _divergence_bound(problem: PairProblem, models: _Rows, pair: Distributions) -> Float64Array:
    q, p, beta = pair.student_log, pair.teacher_log, problem.beta
    if problem.is_mixed:
        mixture = pair.mixture_log(beta)
        distance = beta * _mean_size(p, p - mixture) + (1.0 - beta) * _mean_size(q, q - mixture)
        moved = _moved(models, (1.0 - beta) * _centred(q, q - mixture), beta * _centred(p, p - mixture))
    elif beta == 1.0:
        distance = _mean_size(q, q - p)
        moved = _moved(models, _centred(q, q - p), np.abs(pair.student - pair.teacher))
    else:
        distance = _mean_size(p, p - q)
        moved = _moved(models, np.abs(pair.student - pair.teacher), _centred(p, p - q))
    return np.asarray(moved + UNIT * (models.student_size + models.teacher_size) * (2.0 + distance))


def _moment_bound(problem: PairProblem, models: _Rows, pair: Distributions) -> Float64Array:
    """Return the bound on the error of the moment KL(Q || M), [R]."""
    q, p, beta = pair.student_log, pair.teacher_log, problem.beta
    mixture = pair.mixture_log(beta)
    of_mixture = np.exp(np.where(np.isneginf(q), -np.inf, q - mixture))
    by_student = _centred(q, q - mixture) + (1.0 - beta) * _centred(q, of_mixture)
    moved = _moved(models, by_student, beta * _centred(p, of_mixture))
    distance = _mean_size(q, q - mixture)
    return np.asarray(moved + UNIT * (models.student_size + models.teacher_size) * (2.0 + distance))


def _model_bounds(
    model: ModelProblem, z: Float64Array, off: Float64Array, labels: npt.NDArray[np.int64]
) -> dict[str, Float64Array]:
    """Return the bounds on lse, maximum, log_sum, entropy, logprob and target_logit of one model, by name, [R] each."""
    # The bounds for exact z: scale and softcap are in dz.
    scaled = ExtendedLoss(ignore_index=_IGNORED, temperature=model.temperature / model.logit_scale)
    bounds = extended_forward_bounds(z * scaled.element_divisor, labels, None, scaled)
    log_p = _log_softmax(z)
    most = off.max(axis=1)
    spread = (_centred(log_p, log_p) * off).sum(axis=1)
    lse = bounds["lse"] + most
    at_label = np.where(labels >= 0, off[np.arange(len(z)), labels], 0.0)
    return {
        "lse": lse,
        "maximum": lse + most,
        "log_sum": lse + most,
        "entropy": bounds["entropy"] + 2.0 * spread + np.square(most),
        "logprob": np.where(labels >= 0, bounds["loss"] + at_label + most, 0.0) + SMALLEST_NORMAL,
        "target_logit": bounds["target_logit"] + at_label,
    }


def _forward_bounds_of(
    problem: PairProblem, rows: slice, weights: tuple[Float64Array, Float64Array]
) -> dict[str, Float64Array]:
    models, labels = _rows_of(problem, rows, weights), problem.local_labels[rows]
    with np.errstate(invalid="ignore", over="ignore"):
        pair = Distributions(_log_softmax(models.student), _log_softmax(models.teacher))
        student = _model_bounds(problem.student.at_rows(rows), models.student, models.of_student, labels)
        teacher = _model_bounds(problem.teacher.at_rows(rows), models.teacher, models.of_teacher, labels)
        divergence, weight = _divergence_bound(problem, models, pair), np.abs(problem.weights[rows])
        if problem.is_mixed:
            moment = _moment_bound(problem, models, pair)
        else:
            moment = divergence if problem.beta == 1.0 else np.zeros_like(divergence)
        weighted = weight * (divergence + UNIT * (np.abs(divergence_of(problem, pair)) + divergence))
    bounds = {f"student_{name}": student[name] for name in ("maximum", "log_sum", "lse")}
    bounds |= {f"teacher_{name}": teacher[name] for name in ("maximum", "log_sum", "lse")}
    bounds |= {name: student[name] for name in ("entropy", "logprob", "target_logit")}
    return bounds | {"divergence": weighted + SMALLEST_NORMAL, "moment": moment + SMALLEST_NORMAL}


def _of_log_probabilities(
    problem: PairProblem, models: _Rows, statistics: Statistics, rows: slice
) -> tuple[Float64Array, Float64Array]:
    """Return the errors of the log-probabilities log Q (student) and log P (teacher), [R, V].

    They allow for received log-sum-exps that are larger than any z of this shard.
    """
    units = 1.0 + scale_units(problem.student.temperature)
    of_student = UNIT * (models.student_size + units * np.abs(statistics.student_lse[rows]))
    of_teacher = UNIT * (models.teacher_size + units * np.abs(statistics.teacher_lse[rows]))
    return models.of_student + of_student[:, np.newaxis], models.of_teacher + of_teacher[:, np.newaxis]


def _mixture_bounds_of(
    problem: PairProblem, statistics: Statistics, rows: slice, weights: tuple[Float64Array, Float64Array]
) -> ExactMixtureSums:
    models = _rows_of(problem, rows, weights)
    pair = statistics.distributions(rows, models.student, models.teacher)
    of_student, of_teacher = _of_log_probabilities(problem, models, statistics, rows)
    with np.errstate(invalid="ignore", over="ignore"):
        mixture = pair.mixture_log(problem.beta)
        of_ratio = of_student + of_teacher
        bounds = []
        for log_p, other_log, share, off in (
            (pair.student_log, pair.teacher_log, problem.beta, of_student),
            (pair.teacher_log, pair.student_log, 1.0 - problem.beta, of_teacher),
        ):
            p = np.exp(log_p)
            relative = np.expm1(off)
            sensitivity = share * np.exp(np.where(np.isneginf(other_log), -np.inf, other_log - mixture))
            distance = np.abs(np.where(p == 0.0, 0.0, log_p - mixture))
            terms = p * (distance * (relative + _SUM_UNITS * UNIT) + sensitivity * of_ratio + 4.0 * UNIT)
            bounds.append((terms.sum(axis=1), (p * (relative + _SUM_UNITS * UNIT)).sum(axis=1)))
    (student_terms, student_mass), (teacher_terms, teacher_mass) = bounds
    return ExactMixtureSums(
        *(bound + SMALLEST_NORMAL for bound in (student_terms, teacher_terms, student_mass, teacher_mass))
    )


def _divergence_gradient_bound(
    problem: PairProblem,
    pair: Distributions,
    moment: npt.NDArray[np.floating],
    of_student: Float64Array,
    of_teacher: Float64Array,
    of_moment: Float64Array,
) -> Float64Array:
    """Return the bound on the error of the gradient of an unweighted divergence with respect to the student's z, [R,
    V].

    ``of_student``, ``of_teacher`` and ``of_moment`` are the errors of log Q, log P and the moment.
    """
    student, rounded = pair.student, 4.0 * UNIT
    if problem.beta == 0.0:
        teacher = pair.teacher
        terms = student * (np.expm1(of_student) + rounded) + teacher * (np.expm1(of_teacher) + rounded)
        return np.asarray(terms + 2.0 * SMALLEST_NORMAL)
    factor, share = 1.0, np.ones_like(student)
    against = pair.teacher_log
    if problem.is_mixed:
        factor, against = 1.0 - problem.beta, pair.mixture_log(problem.beta)
        share = np.where(np.isneginf(pair.teacher_log), 0.0, problem.beta * np.exp(pair.teacher_log - against))
    distance = np.abs(np.where(student == 0.0, 0.0, pair.student_log - against))
    size = np.abs(divergence_gradient(problem, moment, pair))
    of_ratio = share * (of_student + of_teacher) + rounded * (1.0 + distance) + of_moment[:, np.newaxis]
    floor = SMALLEST_NORMAL * (2.0 + distance + np.abs(moment.astype(np.float64))[:, np.newaxis])
    # The error of a ratio is multiplied by a probability that has an error too.
    moved = np.exp(of_student)
    return np.asarray(size * (np.expm1(of_student) + rounded) + factor * (student * of_ratio * moved + floor))


def _z_gradient_bound(
    problem: PairProblem,
    upstream: PairUpstream,
    rows: slice,
    models: _Rows,
    pair: Distributions,
    errors: StatisticsErrors | None,
) -> Float64Array:
    """Return the largest error of the gradient of the student's z, [R, V]."""
    counts = problem.counts[rows]
    coefficient = np.abs(np.where(counts, upstream.grad_divergence[rows].astype(np.float64), 0.0))
    coefficient = (coefficient * np.abs(problem.weights[rows]))[:, np.newaxis]
    of_student, of_teacher = _of_log_probabilities(problem, models, upstream.statistics, rows)
    units = 1.0 + scale_units(problem.student.temperature)
    of_moment = UNIT * (units * np.abs(upstream.moment[rows].astype(np.float64)) + 4.0)
    if errors is not None:
        of_student += errors.student_lse[rows, np.newaxis]
        of_teacher += errors.teacher_lse[rows, np.newaxis]
        of_moment = of_moment + errors.moment[rows]
    with np.errstate(invalid="ignore", over="ignore"):
        bound = coefficient * _divergence_gradient_bound(
            problem, pair, upstream.moment[rows], of_student, of_teacher, of_moment
        )
        if upstream.grad_logprob is not None:
            of_logprob = np.abs(np.where(counts, upstream.grad_logprob[rows].astype(np.float64), 0.0))
            labels, drawn = problem.local_labels[rows], pair.student.copy()
            labelled = np.flatnonzero(labels >= 0)
            drawn[labelled, labels[labelled]] = np.abs(1.0 - drawn[labelled, labels[labelled]])
            terms = pair.student * np.expm1(of_student) + 4.0 * UNIT * (drawn + pair.student) + SMALLEST_NORMAL
            bound = bound + of_logprob[:, np.newaxis] * terms
    return np.asarray(bound)


def _logit_gradient_blocks(
    problem: PairProblem, upstream: PairUpstream, errors: StatisticsErrors | None = None
) -> Iterator[GradientRows]:
    """Yield the gradient G of the logits and its error bound before rounding, for blocks that cover the positions."""
    student, weights = problem.student, problem.classes_first
    cap, units = student.logit_softcap, scale_units(student.temperature)
    for rows in problem.row_blocks():
        logits = student.logits_of(rows, weights[0])
        models = _rows_of(problem, rows, weights)
        pair = upstream.statistics.distributions(rows, models.student, models.teacher)
        of_z = z_gradient_of(problem, upstream, rows, pair)
        of_rows = student.at_rows(rows)
        off, slopes = _z_gradient_bound(problem, upstream, rows, models, pair, errors), of_rows.slopes_of(logits)
        of_logit = (off + units * UNIT * (np.abs(of_z) + off)) * slopes
        if cap is not None:
            tangents = np.tanh(student.logit_scale * logits / cap)
            unit = student.logit_scale / of_rows.divisor
            of_product = logit_bounds(student, rows, weights[0]) * student.logit_scale / cap
            of_logit += (np.abs(of_z) + off) * (2.0 * np.abs(tangents) * of_product * slopes + 3.0 * UNIT * unit)
        yield GradientRows(rows, of_z * slopes, of_logit)


def pair_forward_bounds(problem: PairProblem) -> dict[str, Float64Array]:
    """Return the accepted errors by result name, [N] each, for positions whose results are finite.

    ``student_lse`` and ``teacher_lse``, sums of maximum and log_sum, have bounds as well.
    """
    weights = problem.classes_first
    blocks = [_forward_bounds_of(problem, rows, weights) for rows in problem.row_blocks()]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def mixture_bounds(problem: PairProblem, statistics: Statistics) -> ExactMixtureSums:
    """Return the accepted errors of ``linear_distillation_mixture``, given the log-sum-exps that it received."""
    weights = problem.classes_first
    blocks = [_mixture_bounds_of(problem, statistics, rows, weights) for rows in problem.row_blocks()]
    return ExactMixtureSums(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def pair_gradients_and_bounds(
    problem: PairProblem,
    upstream: PairUpstream,
    classes: slice = EVERY_CLASS,
    *,
    errors: StatisticsErrors | None = None,
    input_dtype: npt.DTypeLike | None = None,
    weight_dtype: npt.DTypeLike | None = None,
) -> tuple[LinearGradients, LinearGradients]:
    """Return the gradients of ``pair_backward_reference``, and the bounds on the errors of all their elements.

    Args:
        problem: the problem with operands in the dtype of the products: rounded to it if the kernel rounds them.
        upstream, classes: see ``pair_backward_reference``.
        errors: by how much the statistics that the kernel received may differ from those in ``upstream``; None for 0.
        input_dtype, weight_dtype: the dtypes of dX and dW; None for the dtype of the products.
    """
    student = problem.student
    sizes = np.abs(np.where(problem.counts, upstream.grad_divergence.astype(np.float64), 0.0) * problem.weights)
    if upstream.grad_logprob is not None:
        sizes = sizes + np.where(problem.counts, np.abs(upstream.grad_logprob.astype(np.float64)), 0.0)
    largest = float(sizes.max(initial=0.0)) * student.logit_scale / float(np.min(student.divisor))
    blocks = _logit_gradient_blocks(problem, upstream, errors)
    return gradients_and_bounds(student, blocks, largest, classes, ResultTypes(input_dtype, weight_dtype))
