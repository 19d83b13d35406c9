# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of ``linear_distillation_loss`` and of its operators."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LinearDistillationOutputs(NamedTuple):
    """The loss and the requested scores of the student, float32; None for a score that is not requested.

    Attributes:
        loss: the same loss as without ``outputs``. Differentiable.
        entropy: the entropy of the student's softmax at every position, ignored ones included, in nats. A constant.
        logprob: the student's log-probability of the label, in nats, of the shape of the labels; 0 at ignored
            positions. Differentiable.
    """

    loss: Tensor
    entropy: Tensor | None
    logprob: Tensor | None


class DistillationResults(NamedTuple):
    """The results of the forward operator, [N] float32 each.

    z denotes the logits after scale, cap and temperature; P is the teacher's softmax, Q the student's, and M their
    mixture.

    Attributes:
        divergence: the divergence times the weight of the position, in nats; 0 at ignored positions.
        entropy: the entropy of Q, in nats.
        moment: KL(Q || M) for ``beta`` between 0 and 1, KL(Q || P) for 1, and 0 for 0; the backward needs it.
        student_maximum, teacher_maximum: the largest z of a model.
        student_log_sum, teacher_log_sum: the log of the sum of exp(z - maximum), in nats.
        logprob: see :class:`LinearDistillationOutputs`; [0] if it is not requested.
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
    """The results that one shard of the vocabulary has for each position, [N] float32 each.

    Attributes:
        divergence: the divergence between the softmaxes over the shard alone, not weighted; 0 at ignored positions, and
            for ``beta`` between 0 and 1.
        entropy: the entropy of the student's softmax over the shard alone.
        student_maximum, student_log_sum, teacher_maximum, teacher_log_sum: the maximum and log_sum of each model over
            the shard; the lowest float32 and -inf for a shard without classes.
        target_logit: the student's z at the label, 0 if the label is in another shard; [0] if it is not requested.
    """

    divergence: Tensor
    entropy: Tensor
    student_maximum: Tensor
    student_log_sum: Tensor
    teacher_maximum: Tensor
    teacher_log_sum: Tensor
    target_logit: Tensor


class MixtureSums(NamedTuple):
    """Sums over the classes of a shard, [N] float32 each, where p and q are probabilities over all classes and m is
    their mixture.

    Attributes:
        student_terms: the sum of q log(q / m), in nats.
        teacher_terms: the sum of p log(p / m), in nats.
        student_mass: the sum of q.
        teacher_mass: the sum of p.
    """

    student_terms: Tensor
    teacher_terms: Tensor
    student_mass: Tensor
    teacher_mass: Tensor
