# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The vocabulary-parallel cross-entropy of rows: a forward that communicates, and a backward that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from nkilib.core.host.options import values_of
from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.autograd import overwritten_input, refuse_graph
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.functions.cross_entropy.autograd import DERIVATIVE, soft_gradients
from nkilib.torch.functions.cross_entropy.operators import BACKWARD, STATISTICS, Wanted
from nkilib.torch.functions.cross_entropy.results import ForwardResults, ShardStatistics
from nkilib.torch.functions.vocab_parallel.results import combined_results, with_weight_sum
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards


def vocab_parallel_results(
    caller: Caller,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossOptions,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    inplace: bool,
    wanted: Wanted,
    claims: Mapping[str, float],
) -> ForwardResults:
    """Return the results that the forward operator would have for the whole vocabulary, differentiable with respect to
    this rank's logits.

    Args:
        caller: the function that error messages name.
        logits: this rank's logits [N, width], padding included.
        target: class indices [N] over all ranks, or probabilities [N, classes of this rank].
        class_weight: [V] float32, or None.
        options: the options of the loss.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
        inplace: whether the gradient is written over the logits.
        wanted: the requested results among logprob, argmax and entropy; the others are empty.
        claims: further values that must be equal on all ranks, by name.
    """
    soft = target.is_floating_point()
    own_weight = shards.own(class_weight)
    sums_distances = soft or options.label_smoothing > 0.0
    asked_for = replace(wanted, with_distance_sum=sums_distances)
    with torch.no_grad():
        own = STATISTICS.op(logits.device)(
            logits[:, : shards.own_size].detach(),
            target.detach(),
            own_weight,
            **STATISTICS.keywords_from(options, shards.columns, asked_for),
        )
        whole = combined_results(
            caller, ShardStatistics(*own), target, class_weight, options, shards, group, wanted.with_logprob, claims
        )
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelCrossEntropy.apply
    keywords = {**values_of(options), **values_of(shards.columns), **values_of(wanted)}
    tensors = (logits, target, own_weight, whole.weight_sum, whole.target_weight)
    outputs = apply(*tensors, whole.results, keywords, shards.own_size, inplace)
    return whole.results._replace(**dict(zip(_DIFFERENTIABLE, outputs, strict=True)))


# The differentiable results; the others are constants.
_DIFFERENTIABLE: Final = ("loss", "lse", "logprob", "entropy")


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Returns results that have been computed over all ranks, and gives them a derivative with respect to this rank's
    logits.

    The arguments of ``apply`` are logits [N, width], target, class_weight of this rank's classes, weight_sum (of all
    classes) and target_weight [N] as the backward kernel takes them, the results, the options of the operators, the
    number of columns that are classes, and whether the gradient is written over the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        weight_sum: Tensor | None,
        target_weight: Tensor | None,
        results: ForwardResults,
        options: dict[str, Any],
        own_classes: int,
        inplace: bool,
    ) -> tuple[Tensor, ...]:
        entropy = results.entropy if options["with_entropy"] else None
        kept = (weight_sum, target_weight, results.maximum, results.log_sum, entropy)
        ctx.save_for_backward(logits, target, class_weight, *kept)
        ctx.options, ctx.own_size, ctx.inplace = options, own_classes, inplace
        overwrites = inplace and ctx.needs_input_grad[0]
        ctx.overwritten = overwritten_input(BACKWARD, logits) if overwrites else None
        call = Call({"logits": logits, "target": target, "class_weight": class_weight}, options)
        returned: dict[str, Tensor] = {name: getattr(results, name) for name in _DIFFERENTIABLE}
        DERIVATIVE.mark_constants(ctx, call, returned, DERIVATIVE.needed(ctx.needs_input_grad[:3]))
        return tuple(returned.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.inplace:
            refuse_graph(BACKWARD)
        if ctx.overwritten is not None:
            ctx.overwritten.check()
        logits, target, class_weight, weight_sum, target_weight, maximum, log_sum, entropy = ctx.saved_tensors
        tensors = {
            "logits": logits if ctx.own_size == logits.shape[1] else logits[:, : ctx.own_size],
            "target": target,
            "maximum": maximum,
            "log_sum": log_sum,
            "class_weight": class_weight,
            "target_weight": target_weight,
            "entropy": entropy,
        }
        call = Call(tensors, ctx.options)
        of_results = dict(zip(_DIFFERENTIABLE, grads, strict=True))
        upstream, needed = DERIVATIVE.upstream(call, of_results), DERIVATIVE.needed(ctx.needs_input_grad[:3])
        call = call.replaced(upstream)
        if ctx.overwritten is not None:
            ctx.overwritten.check(logits)
            ctx.overwritten.is_spent = bool(upstream) and needed["logits"]
        others, gradient = soft_gradients(call, needed), None
        if upstream and needed["logits"]:
            gradient = _gradient(logits, with_weight_sum(call, weight_sum), ctx.inplace)
        return gradient, others.get("target"), others.get("class_weight"), *([None] * 6)


def _gradient(logits: Tensor, call: Call, inplace: bool) -> Tensor:
    """Return the gradient of this rank's logits, [N, width] in their dtype; the gradient of padding is 0.

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
