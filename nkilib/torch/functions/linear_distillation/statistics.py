# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Divergence, entropy and statistics over all classes from those of shards: only formulas, without communication.

With P_r and Q_r the shares of shard r in the teacher's and in the student's softmax, and D_r and H_r the divergence and
the entropy of the softmaxes over its classes alone, the chain rule is::

    KL(P || Q) = sum_r P_r (D_r + log(P_r / Q_r))
    H(Q) = sum_r Q_r (H_r - log Q_r)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from nkilib.torch.functions.linear_distillation.results import MixtureSums, ShardResults
from nkilib.torch.functions.vocab_parallel.statistics import product

# Kernels take a bias of -inf as a finite one, twice as low as logits may be.
_LOWEST: Final = -(2.0**115)
# Up to this distance of a ratio from 1, its logarithm is computed by log1p of the distance.
_NEAR: Final = 0.5


class Share(NamedTuple):
    """A shard's share of the softmax of one model, [N] float32 each.

    Attributes:
        value: the share, from 0 to 1.
        log: its logarithm, finite even if the value is too small for float32; -inf for a shard that is masked or has no
            classes.
    """

    value: Tensor
    log: Tensor


class MaskedLogits(NamedTuple):
    """A lower bound of the logits of each model's unmasked classes: a shard whose largest logit is not above it has
    only masked classes.
    """

    student: float
    teacher: float


def masked_logits(student_unit: float, teacher_unit: float, temperature: float) -> MaskedLogits:
    """Return the lowest z (logit after scale, cap and temperature) that an unmasked class of each model can have.

    Args:
        student_unit, teacher_unit: the softcap, or the logit scale without one.
        temperature: the divisor of the logits of both models.
    """
    lowest = _LOWEST / temperature
    return MaskedLogits(lowest * min(1.0, student_unit), lowest * min(1.0, student_unit, teacher_unit))


def log_sum_below(maximum: Tensor, log_sum: Tensor, of_all: Tensor, masked: float) -> Tensor:
    """Return log(sum exp(z - m)) over a shard, where m is the maximum of all shards; -inf if the shard has no unmasked
    class.

    Args:
        maximum, log_sum: the statistics of the shard.
        of_all: m, the maximum of all shards.
        masked: the limit of the model in :class:`MaskedLogits`; the shard has unmasked classes if its maximum is above
            it.
    """
    # Maxima are subtracted before anything is added to them, so that large logits cancel exactly.
    return torch.where(maximum > masked, log_sum - (of_all - maximum), -torch.inf)


def share_of(below: Tensor, log_sum: Tensor) -> Share:
    """Return the share of a shard in the softmax over all classes.

    Args:
        below: the shard's :func:`log_sum_below`.
        log_sum: log(sum exp(z - m)) over all shards, the logarithm of the sum of exp(``below``) over them.
    """
    log = below - log_sum
    return Share(torch.exp(log), log)


def entropy_term(own: ShardResults, student: Share) -> Tensor:
    """Return this shard's summand of the student's entropy; the entropy is the sum of these over all shards."""
    return product(student.value, own.entropy - student.log)


def divergence_term(own: ShardResults, student: Share, teacher: Share, beta: float) -> Tensor:
    """Return this shard's summand of KL(teacher || student), or of KL(student || teacher).

    For shares p and q of the shard in both softmaxes, the divergence between shards has the summand p log(p / q) - p +
    q. It is never negative, and the added -p + q cancels in the sum over shards, because shares add up to 1. So the
    rounding of shares does not affect the small divergence of similar models.
    """
    of, other = (teacher, student) if beta == 0.0 else (student, teacher)
    distance = of.value - other.value
    relative = distance / other.value
    ratio = torch.where(relative.abs() < _NEAR, torch.log1p(relative), of.log - other.log)
    between = (product(of.value, ratio) - distance).clamp(min=0.0)
    return product(of.value, own.divergence) + between


class Mixed(NamedTuple):
    """The results over all classes, [N] float32 each.

    Attributes:
        divergence: beta KL(P || M) + (1 - beta) KL(Q || M), in nats.
        moment: KL(Q || M), in nats.
    """

    divergence: Tensor
    moment: Tensor


def mixed(sums: MixtureSums, beta: float) -> Mixed:
    """Return the generalized Jensen-Shannon divergence from the sums over all shards.

    The probabilities are exp(z - lse) with a rounded lse; dividing by their sum removes the rounding error.
    """
    of_student = sums.student_terms / sums.student_mass
    of_teacher = sums.teacher_terms / sums.teacher_mass
    divergence = beta * of_teacher + (1.0 - beta) * of_student
    return Mixed(divergence.clamp(min=0.0), of_student)
