# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of every position from the statistics of all shards, and the tensors that the backward of a shard
needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.functions.cross_entropy.results import ForwardResults, ShardStatistics
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from nkilib.torch.functions.vocab_parallel.statistics import VocabularyStatistics, combined_statistics
from nkilib.torch.losses.target_indices import is_ignored


class CombinedResults(NamedTuple):
    """The results over all classes, the same on every rank.

    Attributes:
        results: the results of every position.
        weight_sum: the sum of all class weights, a scalar tensor; None without weights, and for class probabilities.
        target_weight: [N], the weights of the positions, which a single shard does not know; None if all of them are 1.
    """

    results: ForwardResults
    weight_sum: Tensor | None
    target_weight: Tensor | None


def combined_results(
    caller: Caller,
    own: ShardStatistics,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossOptions,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    with_logprob: bool,
    claims: Mapping[str, float],
) -> CombinedResults:
    """Communicate the statistics and return the results; every rank of the group has to call it, without autograd.

    Args:
        caller: the function that error messages name.
        own: the statistics of this rank's shard.
        target: class indices [N], or probabilities [N, classes of this rank].
        class_weight: [V] float32, or None.
        options: the options of the loss.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
        with_logprob: whether the log-probability of the target is requested.
        claims: further values that must be equal on all ranks, by name.

    Raises:
        ValueError: see :func:`combined_statistics`.
    """
    soft = target.is_floating_point()
    statistics = combined_statistics(caller, own, shards, group, shards.own(class_weight), options, target, claims)
    weight_sum = None if soft or class_weight is None else class_weight.sum()
    valid = None if soft else ~is_ignored(target, options.ignore_index)
    results = _results(statistics, valid, weight_sum, options, shards, with_logprob)
    return CombinedResults(results, weight_sum, statistics.sums.get("position_weight"))


def _results(
    statistics: VocabularyStatistics,
    valid: Tensor | None,
    weight_sum: Tensor | None,
    options: LossOptions,
    shards: VocabularyShards,
    with_logprob: bool,
) -> ForwardResults:
    """Return the results of every position; ``valid`` is None for class probabilities."""
    maximum, log_sum, sums, argmax, entropy = statistics
    lse = statistics.lse
    logprob = maximum.new_empty(0)
    if valid is None:
        position_weight = sums["position_weight"]
        # Sum of f * (lse - z), where f are weighted and smoothed probabilities.
        loss = sums["distance_sum"] + position_weight * log_sum
    else:
        position_weight = sums.get("position_weight", valid.to(torch.float32))
        loss = _class_loss(statistics, weight_sum, options, shards)
        if with_logprob:
            logprob = torch.where(valid, (sums["target_logit"] - maximum) - log_sum, 0.0)
    loss = loss + 0.0 * lse  # NaN where lse is infinite, as the kernel has it
    if options.lse_square_scale > 0.0:
        loss = loss + options.lse_square_scale * lse.square()
    if valid is not None:
        loss = torch.where(valid, loss, 0.0)
    return ForwardResults(loss, lse, logprob, position_weight, maximum, log_sum, argmax, entropy)


def _class_loss(
    statistics: VocabularyStatistics, weight_sum: Tensor | None, options: LossOptions, shards: VocabularyShards
) -> Tensor:
    """Return the losses without z-loss for class indices t: (1 - e) * w[t] * (lse - z[t]) + (e / V) * sum of w * (lse -
    z), with class weights w and smoothing e. They are undefined at ignored positions.
    """
    sums = statistics.sums
    # In this order, since large logits cancel exactly in the difference. Never negative: both summands are not.
    loss = (statistics.maximum - sums["target_logit"]) + statistics.log_sum
    if "position_weight" in sums:
        loss = loss * sums["position_weight"]
    if options.label_smoothing == 0.0:
        return loss
    total = float(shards.num_classes) if weight_sum is None else weight_sum
    spread = options.label_smoothing / shards.num_classes
    return (1.0 - options.label_smoothing) * loss + spread * (sums["distance_sum"] + total * statistics.log_sum)


def with_weight_sum(call: Call, weight_sum: Tensor | None) -> Call:
    """Return the call of the backward changed so that smoothing uses the sum of the class weights of all ranks.

    The kernel takes the sum as a Python number, and reading the tensor would wait for the device, so its effect is
    added to the gradient of lse.
    """
    smoothing = call.options["label_smoothing"]
    if weight_sum is None or smoothing == 0.0:
        return call
    grad_loss, grad_lse = call.tensors.get("grad_loss"), call.tensors.get("grad_lse")
    if grad_loss is not None:
        of_loss = torch.where(is_ignored(call.tensor("target"), call.options["ignore_index"]), 0.0, grad_loss)
        of_spread = of_loss * (smoothing / call.options["num_classes"] * weight_sum)
        grad_lse = of_spread if grad_lse is None else grad_lse + of_spread
    return call.replaced({"grad_lse": grad_lse}, weight_sum=0.0)
