"""What the operators return beside gradients: of all classes, and of a shard of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nkilib.torch.options import Columns


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


class Wanted(NamedTuple):
    """Which results of the forward are asked for beside those that it always gives; named as the operator does it."""

    with_logprob: bool = False
    with_argmax: bool = False
    with_entropy: bool = False


def zero_results(logits: Tensor, target: Tensor, wanted: Wanted) -> ForwardResults:
    """Results of the right shapes, types and device: what they are where there are no positions, or no classes."""
    soft = target.is_floating_point()

    def zeros(is_wanted: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
        return logits.new_zeros(logits.shape[0] if is_wanted else 0, dtype=dtype)

    return ForwardResults(
        loss=zeros(),
        lse=zeros(),
        logprob=zeros(wanted.with_logprob and not soft),
        position_weight=zeros(),
        maximum=zeros(),
        log_sum=zeros(),
        argmax=zeros(wanted.with_argmax, torch.int32),
        entropy=zeros(wanted.with_entropy),
    )


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


def empty_statistics(
    logits: Tensor, columns: Columns, with_distance_sum: bool, with_argmax: bool, with_entropy: bool
) -> ShardStatistics:
    """Those of a shard without classes."""

    def full(value: float, is_wanted: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
        return logits.new_full((logits.shape[0] if is_wanted else 0,), value, dtype=dtype)

    return ShardStatistics(
        maximum=full(torch.finfo(torch.float32).min),
        log_sum=full(-torch.inf),
        target_logit=full(0.0),
        position_weight=full(0.0),
        distance_sum=full(0.0, with_distance_sum),
        argmax=full(columns.vocabulary(logits), with_argmax, torch.int32),
        entropy=full(0.0, with_entropy),
    )
