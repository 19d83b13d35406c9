# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What ``linear_distillation_loss`` returns, and what its operators return."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LinearDistillationOutputs(NamedTuple):
    """Loss and scores of the student, float32; None for what is not asked for.

    Attributes:
        loss: as without outputs. Differentiable.
        entropy: of the student's softmax, in nats, of every position, those that do not count among them. A constant.
        logprob: the student's log-probability of the label, in nats, of the shape of the labels; 0 where a position
            does not count. Differentiable.
    """

    loss: Tensor
    entropy: Tensor | None
    logprob: Tensor | None


class DistillationResults(NamedTuple):
    """What the forward operator returns, [N] float32 each.

    z are the logits after scale, cap and temperature; P is the teacher's softmax, Q the student's, and M their mixture.

    Attributes:
        divergence: times the weight of the position, in nats; 0 where it does not count.
        entropy: of Q, in nats.
        moment: KL(Q || M) for ``beta`` between 0 and 1, KL(Q || P) for 1, and 0 for 0: what the backward takes.
        student_maximum, teacher_maximum: the largest z of a model.
        student_log_sum, teacher_log_sum: log of the sum of exp(z - maximum), in nats.
        logprob: as in :class:`LinearDistillationOutputs`; [0] if it is not asked for.
    """

    divergence: Tensor
    entropy: Tensor
    moment: Tensor
    student_maximum: Tensor
    student_log_sum: Tensor
    teacher_maximum: Tensor
    teacher_log_sum: Tensor
    logprob: Tensor


class ShardResults(NamedTuple):
    """What one shard of the vocabulary knows of each position, [N] float32 each.

    Attributes:
        divergence: of the softmaxes over the shard alone, not weighted; 0 where a position does not count, and for
            ``beta`` between 0 and 1.
        entropy: of the student's softmax over the shard alone.
        student_maximum, student_log_sum, teacher_maximum, teacher_log_sum: of the shard; the lowest float32 and -inf
            of one without classes.
        target_logit: the student's z at the label, 0 where it is in another shard; [0] if it is not asked for.
    """

    divergence: Tensor
    entropy: Tensor
    student_maximum: Tensor
    student_log_sum: Tensor
    teacher_maximum: Tensor
    teacher_log_sum: Tensor
    target_logit: Tensor


class MixtureSums(NamedTuple):
    """Sums over the classes of a shard, [N] float32 each, of probabilities p and q over all classes, and of m.

    Attributes:
        student_terms: of q log(q / m), in nats.
        teacher_terms: of p log(p / m), in nats.
        student_mass: of q.
        teacher_mass: of p.
    """

    student_terms: Tensor
    teacher_terms: Tensor
    student_mass: Tensor
    teacher_mass: Tensor
