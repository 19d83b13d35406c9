# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The vocabulary-parallel cross-entropy from logits: a forward that communicates, and a backward that does not.

:func:`vocab_parallel_results` returns the results with the derivative of :class:`VocabParallelCrossEntropy`. The
cross-entropy from hidden states uses :func:`combined_results`, without a derivative, and :func:`with_weight_sum`.

There are N positions and V classes, of which each rank has a shard. z are the logits, lse is their log-sum-exp, w are
the class weights, and e is the label smoothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from nkilib.core.host.options import values_of
from nkilib.torch.dispatch.autograd import overwritten_input, refuse_graph
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.functions.cross_entropy.checks import LossKeywords
from nkilib.torch.functions.cross_entropy.operators import (
    BACKWARD,
    DERIVATIVE,
    SHARD_STATISTICS,
    ForwardResults,
    ShardStatistics,
    Wanted,
    probability_gradients,
)
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards, VocabularyStatistics, combined_statistics
from nkilib.torch.losses.indexed import is_ignored

# The differentiable results; the others are constants.
_DIFFERENTIABLE: Final = ("loss", "lse", "logprob", "entropy")


class CombinedResults(NamedTuple):
    """The results over all classes, the same on every rank.

    Attributes:
        results: the results of every position.
        weight_sum: the sum of all class weights, a scalar tensor; None without weights, and for class probabilities.
        target_weight: the weights of the positions' targets, [N], which a single shard does not know; None if all of
            them are 1.
    """

    results: ForwardResults
    weight_sum: Tensor | None
    target_weight: Tensor | None


def _class_loss(
    statistics: VocabularyStatistics, weight_sum: Tensor | None, options: LossKeywords, shards: VocabularyShards
) -> Tensor:
    """Return the losses of the positions for class indices t, without z-loss: (1 - e) * w[t] * (lse - z[t]) + (e / V) *
    sum of w * (lse - z).

    The losses are undefined at ignored positions.
    """
    sums = statistics.sums
    # In this order, since large logits cancel exactly in the difference. Never negative: both summands are not.
    loss = (statistics.maximum - sums["target_logit"]) + statistics.log_sum
    if "position_weight" in sums:
        loss = loss * sums["position_weight"]
    if options["label_smoothing"] == 0.0:
        return loss
    total = float(shards.num_classes) if weight_sum is None else weight_sum
    spread = options["label_smoothing"] / shards.num_classes
    return (1.0 - options["label_smoothing"]) * loss + spread * (sums["distance_sum"] + total * statistics.log_sum)


def _results(
    statistics: VocabularyStatistics,
    valid: Tensor | None,
    weight_sum: Tensor | None,
    options: LossKeywords,
    shards: VocabularyShards,
    with_logprob: bool,
) -> ForwardResults:
    """Return the results of every position from statistics over all classes.

    ``valid`` says which positions are valid; it is None for class probabilities, where all are.
    """
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
    if options["lse_square_scale"] > 0.0:
        loss = loss + options["lse_square_scale"] * lse.square()
    if valid is not None:
        loss = torch.where(valid, loss, 0.0)
    return ForwardResults(loss, lse, logprob, position_weight, maximum, log_sum, argmax, entropy)


def combined_results(
    caller: Caller,
    own: ShardStatistics,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossKeywords,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    with_logprob: bool,
    claims: Mapping[str, float],
) -> CombinedResults:
    """All-reduce the statistics of the shards, and return the results over all classes.

    Every rank of the group has to call this function. It records no graph for autograd.

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
    valid = None if soft else ~is_ignored(target, options["ignore_index"])
    results = _results(statistics, valid, weight_sum, options, shards, with_logprob)
    return CombinedResults(results, weight_sum, statistics.sums.get("position_weight"))


def with_weight_sum(call: Call, weight_sum: Tensor | None) -> Call:
    """Return the call of the backward, changed so that label smoothing uses the sum of the class weights of all ranks.

    The kernel takes this sum as a Python number, and reading the tensor would wait for the device. So the kernel gets
    the sum 0, and the effect of the true sum is added to the upstream gradient of the log-sum-exp, ``grad_lse``.
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


def _gradient(logits: Tensor, call: Call, inplace: bool) -> Tensor:
    """Return the gradient of this rank's logits, [N, width] in their dtype; the gradient of padding columns is 0.

    Padded logits are copied without the padding, because kernels read contiguous rows.
    """
    own_classes = call.first
    padding = logits.shape[1] - own_classes.shape[1]
    if not inplace:  # not detached, so that a second derivative reaches the operator, which refuses it
        (gradient,) = DERIVATIVE.run(call, inplace)
        return functional.pad(gradient, (0, padding)) if padding else gradient
    if not padding:
        return DERIVATIVE.run(call, inplace)[0]
    overwritten = logits.detach()  # the same memory and version
    copied = own_classes.detach().clone(memory_format=torch.contiguous_format)
    overwritten[:, : own_classes.shape[1]] = DERIVATIVE.run(call.replaced({"logits": copied}), inplace)[0]
    overwritten[:, own_classes.shape[1] :] = 0.0
    return overwritten


class VocabParallelCrossEntropy(torch.autograd.Function):
    """An autograd function that returns results over all ranks, with derivatives with respect to this rank's logits.

    The arguments of ``apply`` are, in order:

    - the logits [N, width], the target, class_weight of this rank's classes, and the temperatures;
    - weight_sum (of all classes) and target_weight [N], as the backward kernel takes them;
    - the results, and the options of the operators;
    - the number of columns that are classes, and whether the gradient is written over the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        temperatures: Tensor | None,
        weight_sum: Tensor | None,
        target_weight: Tensor | None,
        results: ForwardResults,
        options: dict[str, Any],
        own_classes: int,
        inplace: bool,
    ) -> tuple[Tensor, ...]:
        entropy = results.entropy if options["with_entropy"] else None
        kept = (temperatures, weight_sum, target_weight, results.maximum, results.log_sum, entropy)
        ctx.save_for_backward(logits, target, class_weight, *kept)
        ctx.options, ctx.own_size, ctx.inplace = options, own_classes, inplace
        overwrites = inplace and ctx.needs_input_grad[0]
        ctx.overwritten = overwritten_input(BACKWARD, logits) if overwrites else None
        call = Call({"logits": logits, "target": target, "class_weight": class_weight}, options)
        returned: dict[str, Tensor] = {name: getattr(results, name) for name in _DIFFERENTIABLE}
        DERIVATIVE.mark_constants(ctx, call, returned, DERIVATIVE.needed(ctx.needs_input_grad[:4]))
        return tuple(returned.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.inplace:
            refuse_graph(BACKWARD)
        if ctx.overwritten is not None:
            ctx.overwritten.check()
        logits, target, class_weight, temperatures, weight_sum, target_weight, *saved = ctx.saved_tensors
        maximum, log_sum, entropy = saved
        tensors = {
            "logits": logits if ctx.own_size == logits.shape[1] else logits[:, : ctx.own_size],
            "target": target,
            "maximum": maximum,
            "log_sum": log_sum,
            "class_weight": class_weight,
            "target_weight": target_weight,
            "entropy": entropy,
            "temperatures": temperatures,
        }
        call = Call(tensors, ctx.options)
        of_results = dict(zip(_DIFFERENTIABLE, grads, strict=True))
        upstream, needed = DERIVATIVE.upstream(call, of_results), DERIVATIVE.needed(ctx.needs_input_grad[:4])
        call = call.replaced(upstream)
        if ctx.overwritten is not None:
            ctx.overwritten.check(logits)
            ctx.overwritten.is_spent = bool(upstream) and needed["logits"]
        others, gradient = probability_gradients(call, needed), None
        if upstream and needed["logits"]:
            gradient = _gradient(logits, with_weight_sum(call, weight_sum), ctx.inplace)
        return gradient, others.get("target"), others.get("class_weight"), *([None] * 7)


def vocab_parallel_results(
    caller: Caller,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    temperatures: Tensor | None,
    options: LossKeywords,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    inplace: bool,
    wanted: Wanted,
    claims: Mapping[str, float],
) -> ForwardResults:
    """Return the results of the forward operator over all classes, differentiable with respect to this rank's logits.

    Args:
        caller: the function that error messages name.
        logits: this rank's logits [N, width], padding included.
        target: class indices [N] over all ranks, or probabilities [N, classes of this rank].
        class_weight: [V] float32, or None.
        temperatures: [N] or [1] float32, or None.
        options: the options of the loss.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
        inplace: whether the gradient is written over the logits.
        wanted: the requested results among logprob, argmax and entropy; the others are empty.
        claims: further values that must be equal on all ranks, by name.
    """
    soft = target.is_floating_point()
    own_weight = shards.own(class_weight)
    claims = {**claims, "temperature (a tensor)": temperatures is not None}
    keywords = {**options, **values_of(shards.columns, wanted)}
    asked_for = {**keywords, "with_distance_sum": soft or options["label_smoothing"] > 0.0}
    with torch.no_grad():
        own = SHARD_STATISTICS.op(logits.device)(
            logits[:, : shards.own_size].detach(),
            target.detach(),
            own_weight,
            temperatures,
            **SHARD_STATISTICS.taken(asked_for),
        )
        whole = combined_results(
            caller, ShardStatistics(*own), target, class_weight, options, shards, group, wanted.with_logprob, claims
        )
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelCrossEntropy.apply
    tensors = (logits, target, own_weight, temperatures, whole.weight_sum, whole.target_weight)
    outputs = apply(*tensors, whole.results, keywords, shards.own_size, inplace)
    return whole.results._replace(**dict(zip(_DIFFERENTIABLE, outputs, strict=True)))
