# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The names of what the operators return beside gradients: of all classes, and of a shard of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ForwardResults(NamedTuple):
    """What the forward operator returns, [N] each; what was not asked for is empty, [0].

    Attributes:
        loss: float32, 0 at ignored positions.
        lse: float32, log-sum-exp of the (capped) logits.
        logprob: float32, log-probability of the target, 0 at ignored positions; always [0] for class probabilities.
        position_weight: float32, what the position adds to the divisor of a mean: the class weight of the target, 0 at
            ignored positions. Of class probabilities the sum of the weighted and smoothed ones.
        maximum: float32, the largest (capped) logit; the lowest float32 if all are -inf.
        log_sum: float32, log of the sum of exp(logit - maximum), in nats.
        argmax: int32, the first class with the largest logit.
        entropy: float32, of the softmax of the (capped) logits, in nats.
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
    """What one shard of the vocabulary knows of each position, [N] float32 each.

    Attributes:
        maximum: the largest (capped) logit of the shard; the lowest float32 if all are -inf.
        log_sum: log of the sum of exp(logit - maximum), in nats.
        target_logit: the (capped) logit of the target if the shard holds it, else 0, as at ignored positions.
        position_weight: the class weight of the target likewise; of class probabilities the sum of the shard's factors,
            the weighted and smoothed ones.
        distance_sum: sum over the shard of factor times (maximum - (capped) logit), where the factors of class targets
            are the class weights; [0] if not asked for.
        argmax: int32, the first class of the shard with the largest logit; [0] if not asked for.
        entropy: of the softmax over the shard alone, in nats; [0] if not asked for.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    position_weight: Tensor
    distance_sum: Tensor
    argmax: Tensor
    entropy: Tensor
