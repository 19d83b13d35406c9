# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The names of the operators' results other than gradients, over all classes and over a shard of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ForwardResults(NamedTuple):
    """The results of the forward operator, [N] each; a result that is not requested is empty, [0].

    Attributes:
        loss: float32, 0 at ignored positions.
        lse: float32, log-sum-exp of the (capped) logits.
        logprob: float32, log-probability of the target, 0 at ignored positions; always [0] for class probabilities.
        position_weight: float32, the position's summand in the divisor of a mean: the class weight of the target, 0 at
            ignored positions. With class probabilities, the sum of the weighted and smoothed probabilities.
        maximum: float32, the largest (capped) logit; the lowest float32 if all are -inf.
        log_sum: float32, log of the sum of exp(logit - maximum), in nats.
        argmax: int32, the first class with the largest logit.
        entropy: float32, the entropy of the softmax of the (capped) logits, in nats.
    """

    loss: Tensor
    lse: Tensor
    logprob: Tensor
    position_weight: Tensor
    maximum: Tensor
    log_sum: Tensor
    argmax: Tensor
    entropy: Tensor


class ShardStatistics(NamedTuple):
    """The statistics that one shard of the vocabulary has of each position, [N] float32 each.

    Attributes:
        maximum: the largest (capped) logit of the shard; the lowest float32 if all are -inf.
        log_sum: log of the sum of exp(logit - maximum), in nats.
        target_logit: the (capped) logit of the target if the shard holds it, else 0, as at ignored positions.
        position_weight: the class weight of the target if the shard holds it, else 0; with class probabilities, the sum
            of the weighted and smoothed probabilities of the shard's classes.
        distance_sum: the sum over the shard's classes of f * (maximum - (capped) logit), where f is the class weight,
            or with class probabilities the weighted and smoothed probability; [0] if not requested.
        argmax: int32, the first class of the shard with the largest logit; [0] if not requested.
        entropy: the entropy of the softmax over the shard alone, in nats; [0] if not requested.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    position_weight: Tensor
    distance_sum: Tensor
    argmax: Tensor
    entropy: Tensor
