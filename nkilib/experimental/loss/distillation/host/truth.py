# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses and gradients in float64, from the very logits that a kernel was given, and what the kernels may be off
by, as derived in docs/distillation.md.

u is 2^-23, the unit in the last place of 1. An exponential of a row of logits x, under a shift c of the size of its
logits at most, is off by a factor 1 + u * a with a = 8 + 2 * max|x| / T: the function itself, its argument's rounding,
and the sum that it goes into. With p the weighting distribution and q the other one, r = log(p / q):

- KL: u * (a_p + a_q) * (2 + E_p|r|): the first-order terms of E[d - c] and of the log of the ratio of the sums;
- Jensen-Shannon: the same with the weighted mean of both distances to the mixture, and with 2 |log((1 - beta) beta)|
  more in a: logs that the mixture's are added to and that are taken away again;
- gradient: u * (a_p + a_q) of each of its terms, plus half a unit in the last place of the result's type. A probability
  below 2^-126 is subnormal in float32, has fewer digits, and may count as 0. So the bound adds 2^-126 times the factors
  of the probability, which are the distances and the upstream gradient.

Sums are off by less than u * 8 of the sum of magnitudes: runs of at most 2,048 elements are added up by the engine's
accumulator in float32, which for terms of one sign is 8 u on the average and is held by tests at 262,144 classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Distributions:
    """Both, in float64.

    Attributes:
        student_log, teacher_log: log-probabilities, [N, V].
    """

    student_log: Array
    teacher_log: Array

    @classmethod
    def of_logits(cls, student: Any, teacher: Any, temperature: float = 1.0) -> Distributions:
        """softmax(logits / T) of both."""
        return cls(_log_softmax(student, temperature), _log_softmax(teacher, temperature))

    @property
    def student(self) -> Array:
        """Q."""
        return np.asarray(np.exp(self.student_log))

    @property
    def teacher(self) -> Array:
        """P."""
        return np.asarray(np.exp(self.teacher_log))

    def mixture_log(self, beta: float) -> Array:
        """log(beta * P + (1 - beta) * Q)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(
                np.logaddexp(np.log(beta) + self.teacher_log, np.log1p(-beta) + self.student_log), np.float64
            )


def kl(log_p: Array, log_q: Array) -> Array:
    """KL(p || q) of rows; 0 * anything is 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.exp(log_p) * (log_p - log_q)
    return np.asarray(np.where(log_p == -np.inf, 0.0, terms).sum(axis=1))


def distillation_reference(
    student: Any,
    teacher: Any,
    labels: Any = None,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
) -> Array:
    """The loss of every position."""
    both = Distributions.of_logits(student, teacher, temperature)
    if beta == 0.0:
        loss = kl(both.teacher_log, both.student_log)
    elif beta == 1.0:
        loss = kl(both.student_log, both.teacher_log)
    else:
        mixture = both.mixture_log(beta)
        loss = beta * kl(both.teacher_log, mixture) + (1.0 - beta) * kl(both.student_log, mixture)
    return loss if labels is None else np.where(np.asarray(labels) == ignore_index, 0.0, loss)


def distillation_gradient_reference(
    student: Any,
    teacher: Any,
    grad_loss: Any,
    labels: Any = None,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
) -> Array:
    """The gradient by the student's logits, of upstream gradients [N]."""
    both = Distributions.of_logits(student, teacher, temperature)
    upstream = np.asarray(grad_loss, np.float64) / temperature
    if labels is not None:
        upstream = np.where(np.asarray(labels) == ignore_index, 0.0, upstream)
    if beta == 0.0:
        gradient = both.student - both.teacher
    else:
        against = both.teacher_log if beta == 1.0 else both.mixture_log(beta)
        with np.errstate(invalid="ignore"):
            distance = np.where(both.student_log == -np.inf, 0.0, both.student_log - against)
        gradient = (
            (1.0 if beta == 1.0 else 1.0 - beta) * both.student * (distance - kl(both.student_log, against)[:, None])
        )
    return np.asarray(upstream[:, None] * gradient)


def _log_softmax(logits: Any, temperature: float) -> Array:
    scaled = np.asarray(logits, np.float64) / temperature
    with np.errstate(invalid="ignore"):
        distance = scaled - scaled.max(axis=1, keepdims=True)
        return np.asarray(distance - np.log(np.exp(distance).sum(axis=1, keepdims=True)))


def distillation_bound(student: Any, teacher: Any, beta: float = 0.0, temperature: float = 1.0) -> Array:
    """Of the loss of every position."""
    both = Distributions.of_logits(student, teacher, temperature)
    sizes = _size(student, temperature) + _size(teacher, temperature)
    if beta in (0.0, 1.0):
        pair = (both.teacher_log, both.student_log) if beta == 0.0 else (both.student_log, both.teacher_log)
        return np.asarray(UNIT * sizes * (2.0 + _mean_distance(*pair)))
    mixture = both.mixture_log(beta)
    distance = beta * _mean_distance(both.teacher_log, mixture) + (1 - beta) * _mean_distance(both.student_log, mixture)
    sizes = sizes - 2.0 * (np.log(beta) + np.log1p(-beta))
    return np.asarray(UNIT * sizes * (2.0 + distance))


def distillation_gradient_bound(
    student: Any, teacher: Any, grad_loss: Any, exact: Array, beta: float = 0.0, temperature: float = 1.0
) -> Array:
    """Of every element of the gradient, of which ``exact`` is the truth and the student's type that of the result."""
    both = Distributions.of_logits(student, teacher, temperature)
    upstream = np.abs(np.asarray(grad_loss, np.float64))[:, None] / temperature
    sizes = (_size(student, temperature) + _size(teacher, temperature))[:, None]
    if beta == 0.0:
        terms, factors = both.student + both.teacher, np.full_like(both.student, 2.0)
    else:
        against = both.teacher_log if beta == 1.0 else both.mixture_log(beta)
        with np.errstate(invalid="ignore"):
            distance = np.where(both.student_log == -np.inf, 0.0, np.abs(both.student_log - against))
        factors = 2.0 + distance + kl(both.student_log, against)[:, None]
        terms = both.student * factors
    off = upstream * (UNIT * sizes * terms + SMALLEST_NORMAL * factors)
    return np.asarray(off + rounding(exact, np.asarray(student).dtype))


def _size(logits: Any, temperature: float) -> Array:
    """a: 8 + 2 * max|x| / T of each row, of its finite logits."""
    values = np.asarray(logits, np.float64)
    return np.asarray(8.0 + 2.0 * np.where(np.isfinite(values), np.abs(values), 0.0).max(axis=1) / temperature)


def _mean_distance(log_p: Array, log_q: Array) -> Array:
    with np.errstate(invalid="ignore"):
        terms = np.exp(log_p) * np.abs(log_p - log_q)
    return np.asarray(np.where(log_p == -np.inf, 0.0, terms).sum(axis=1))
