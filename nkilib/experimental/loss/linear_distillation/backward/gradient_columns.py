# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The per-position inputs of the gradient of the student's logits: float32 columns [128, tiles], computed once.

With the scores a and b of student and teacher, the ratio r of their units, the student's scale c, which turns a into
z, and the exponentials e = exp(z - lse) of both, the gradient of z is -1 times

- (e_t * ratio - e_s) for KL(teacher || student), where ratio = exp(lost_t - lost_s),
- (r b - a - center) * e_s * c for KL(student || teacher), where center = (lse_t - lse_s - KL) / c,
- (softplus(c (r b - a) + center) + addend) * e_s * (1 - beta) for Jensen-Shannon, where
  center = lse_s - lse_t + log(beta / (1 - beta)) and addend = KL(student || mixture) + log(1 - beta),

times exp(lost_s). lost is the rounding error of a log-sum-exp; its exponential corrects it, as a factor of the
coefficients. Column t holds positions 128 t to 128 t + 127, one in each partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p

from nkilib.core.rows.tiles import constant, difference, float32_like, product, scaled, selected
from nkilib.experimental.loss.linear.backward.power_of_two import PowerOfTwo
from nkilib.experimental.loss.linear.shared.operands import load_positions
from nkilib.experimental.loss.linear_distillation.shared.options import (
    ModelOperands,
    ModelStatistics,
    PairLaunch,
    PairUpstream,
)
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class LogSumExp:
    """The log-sum-exp of one model: the softmax is exp(z + bias) * exp(lost); float32 [128, tiles] each.

    Attributes:
        maximum_sbuf, log_sum_sbuf: the two summands of the log-sum-exp.
        bias_sbuf: minus the log-sum-exp, rounded.
        lost_sbuf: the rounding error of the log-sum-exp.
    """

    maximum_sbuf: nl.NkiTensor
    log_sum_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    lost_sbuf: nl.NkiTensor

    @classmethod
    def loaded(cls, statistics: ModelStatistics) -> LogSumExp:
        """Load the log-sum-exps of all positions of a launch."""
        maximum_sbuf = load_positions(statistics.maximum_hbm, 0.0)
        log_sum_sbuf = load_positions(statistics.log_sum_hbm, 0.0)
        lse_sbuf = float32_like(maximum_sbuf)
        nisa.tensor_tensor(dst=lse_sbuf, data1=maximum_sbuf, data2=log_sum_sbuf, op=nl.add)
        lost_sbuf = difference(difference(lse_sbuf, maximum_sbuf), log_sum_sbuf)
        return cls(maximum_sbuf, log_sum_sbuf, scaled(lse_sbuf, -1.0), lost_sbuf)

    def less(self, other: LogSumExp) -> nl.NkiTensor:
        """Return this log-sum-exp minus another one; maxima and logs are subtracted separately first."""
        maxima_sbuf = difference(self.maximum_sbuf, other.maximum_sbuf)
        difference_sbuf = difference(self.log_sum_sbuf, other.log_sum_sbuf)
        nisa.tensor_tensor(dst=difference_sbuf, data1=difference_sbuf, data2=maxima_sbuf, op=nl.add)
        return difference_sbuf


@dataclass(frozen=True)
class LabelColumns:
    """The inputs of the gradient of the log-probability at a label; float32 [128, tiles] each.

    Attributes:
        label_sbuf: the label, counted from the first class of the launch's weights.
        label_factor_sbuf: the gradient at the label.
        softmax_factor_sbuf: the factor of e_s.
    """

    label_sbuf: nl.NkiTensor
    label_factor_sbuf: nl.NkiTensor
    softmax_factor_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class PairColumns:
    """The per-position inputs of the gradient, float32 [128, tiles] each; None if the divergence does not need them.

    Attributes:
        student_bias_sbuf, teacher_bias_sbuf: minus the log-sum-exp of each model, which is added to z in the exponents.
        center_sbuf: ``center`` of the module docstring; for KL(teacher || student) ``ratio``.
        addend_sbuf: ``addend`` of the module docstring; None without a mixture.
        factor_sbuf: the factor of the whole gradient.
        labels: the inputs of the gradient of the log-probability; None without one.
        power: the power of two by which the computed gradient is too large; None for 1.
    """

    student_bias_sbuf: nl.NkiTensor
    teacher_bias_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    addend_sbuf: nl.NkiTensor | None
    factor_sbuf: nl.NkiTensor
    labels: LabelColumns | None
    power: PowerOfTwo | None

    @classmethod
    def make(cls, launch: PairLaunch, upstream: PairUpstream) -> PairColumns:
        """Compute the columns of all positions of a launch."""
        student, teacher = LogSumExp.loaded(upstream.student), LogSumExp.loaded(upstream.teacher)
        of_rows = _Rows.loaded(launch, upstream)
        power = None
        if launch.student.dtype == nl.float16:
            power = PowerOfTwo.of_largest(of_rows.sizes())
            of_rows = of_rows.multiplied(power.factor_sbuf)
        lost_sbuf = _exponential(student.lost_sbuf)
        factor_sbuf = scaled(product(of_rows.factor_sbuf, lost_sbuf), _weight(launch))
        labels = None
        if of_rows.label_sbuf is not None and of_rows.label_factor_sbuf is not None:
            softmax_factor_sbuf = scaled(product(of_rows.label_factor_sbuf, lost_sbuf), -1.0)
            labels = LabelColumns(of_rows.label_sbuf, of_rows.label_factor_sbuf, softmax_factor_sbuf)
        return cls(
            student.bias_sbuf,
            teacher.bias_sbuf,
            _center(launch, student, teacher, of_rows.moment_sbuf),
            _addend(launch, of_rows.moment_sbuf),
            factor_sbuf,
            labels,
            power,
        )


@dataclass(frozen=True)
class _Rows:
    """The upstream gradients and moments, 0 at ignored positions; float32 [128, tiles] each.

    Attributes:
        moment_sbuf: the forward's moment: KL(student || teacher), KL(student || mixture), or 0 for KL(teacher ||
            student).
        factor_sbuf: the gradient of each divergence, times its weight, the derivative of z with respect to the logit,
            and for a mixture 1 - beta.
        label_sbuf, label_factor_sbuf: see :class:`LabelColumns`.
    """

    moment_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor
    label_sbuf: nl.NkiTensor | None
    label_factor_sbuf: nl.NkiTensor | None

    @classmethod
    def loaded(cls, launch: PairLaunch, upstream: PairUpstream) -> _Rows:
        """Load the upstream gradients of all positions of a launch."""
        factor_sbuf = load_positions(upstream.grad_divergence_hbm, 0.0)
        has_moment = launch.options.beta > 0.0
        moment_sbuf = load_positions(upstream.moment_hbm, 0.0) if has_moment else constant(factor_sbuf, 0.0)
        if launch.row_weight_hbm is not None:
            factor_sbuf = product(factor_sbuf, load_positions(launch.row_weight_hbm, 0.0))
        label_sbuf = label_factor_sbuf = None
        if launch.labels_hbm is not None:
            label_sbuf = load_positions(launch.labels_hbm, 0.0)
            valid_sbuf = nl.ndarray(label_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
            # Classes are small enough for float32, and no other value is equal to one.
            ignored = float(launch.options.ignore_index)
            nisa.tensor_scalar(dst=valid_sbuf, data=label_sbuf, op0=nl.not_equal, operand0=ignored)
            factor_sbuf, moment_sbuf = selected(factor_sbuf, valid_sbuf), selected(moment_sbuf, valid_sbuf)
            if upstream.grad_logprob_hbm is not None:
                label_factor_sbuf = selected(load_positions(upstream.grad_logprob_hbm, 0.0), valid_sbuf)
                label_factor_sbuf = scaled(label_factor_sbuf, slope(launch.student))
                nisa.tensor_scalar(
                    dst=label_sbuf, data=label_sbuf, op0=nl.subtract, operand0=float(launch.classes.first)
                )
        mixture_factor = 1.0 - launch.options.beta if launch.is_mixed else 1.0
        return cls(
            moment_sbuf, scaled(factor_sbuf, mixture_factor * slope(launch.student)), label_sbuf, label_factor_sbuf
        )

    def sizes(self) -> list[nl.NkiTensor]:
        """Return bounds on the magnitudes of the gradients of logits, for the power of two of float16.

        |Q (log(Q / P) - KL)| is less than KL(Q || P) + 1.
        """
        sizes_sbuf = float32_like(self.moment_sbuf)
        nisa.tensor_scalar(
            dst=sizes_sbuf, data=self.moment_sbuf, op0=nl.add, operand0=1.0, op1=nl.maximum, operand1=1.0
        )
        sizes = [product(sizes_sbuf, self.factor_sbuf)]
        return sizes if self.label_factor_sbuf is None else [*sizes, self.label_factor_sbuf]

    def multiplied(self, factor_sbuf: nl.NkiTensor) -> _Rows:
        """Return rows whose gradients are multiplied by a factor, float32 [128, 1]."""
        label_factor_sbuf = self.label_factor_sbuf
        if label_factor_sbuf is not None:
            label_factor_sbuf = scaled(label_factor_sbuf, factor_sbuf)
        return _Rows(self.moment_sbuf, scaled(self.factor_sbuf, factor_sbuf), self.label_sbuf, label_factor_sbuf)


def slope(student: ModelOperands) -> float:
    """Return the derivative of z with respect to the logit; under a softcap the derivative where the tangent is 0."""
    return student.logit_scale / student.temperature


def _weight(launch: PairLaunch) -> float:
    """Return the constant factor of the terms that :mod:`.gradient_tiles` computes."""
    return -launch.student.scale if launch.is_reverse else -1.0


def _center(launch: PairLaunch, student: LogSumExp, teacher: LogSumExp, moment_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Compute ``center`` of the module docstring; for KL(teacher || student) ``ratio``."""
    if launch.options.beta == 0.0:
        return _exponential(difference(teacher.lost_sbuf, student.lost_sbuf))
    if launch.is_mixed:
        center_sbuf, log_odds = student.less(teacher), log(launch.options.beta) - log1p(-launch.options.beta)
        nisa.tensor_scalar(dst=center_sbuf, data=center_sbuf, op0=nl.add, operand0=log_odds)
        return center_sbuf
    center_sbuf = difference(teacher.less(student), moment_sbuf)
    return center_sbuf if launch.student.scale == 1.0 else scaled(center_sbuf, 1.0 / launch.student.scale)


def _addend(launch: PairLaunch, moment_sbuf: nl.NkiTensor) -> nl.NkiTensor | None:
    """Compute ``addend``, KL(student || mixture) + log(1 - beta); None without a mixture."""
    if not launch.is_mixed:
        return None
    addend_sbuf = float32_like(moment_sbuf)
    nisa.tensor_scalar(dst=addend_sbuf, data=moment_sbuf, op0=nl.add, operand0=log1p(-launch.options.beta))
    return addend_sbuf


def _exponential(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    exponential_sbuf = float32_like(values_sbuf)
    nisa.activation(dst=exponential_sbuf, op=nl.exp, data=values_sbuf)
    return exponential_sbuf
