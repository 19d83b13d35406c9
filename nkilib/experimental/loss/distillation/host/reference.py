"""The losses and gradients in float64, from the very logits that a kernel was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
