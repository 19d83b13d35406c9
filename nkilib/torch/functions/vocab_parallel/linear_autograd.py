# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The vocabulary-parallel cross-entropy from hidden states: a forward and a backward that communicate.

- :class:`VocabParallelLinearCrossEntropy`: the derivative of the results over all classes;
- :func:`vocab_parallel_linear_results`: these results, differentiable, from this rank's part of the output layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.core.host.options import values_of
from nkilib.torch.dispatch.autograd import Derivative, refuse_graph
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.functions.cross_entropy.checks import LossKeywords
from nkilib.torch.functions.cross_entropy.operators import ForwardResults, ShardStatistics, Wanted
from nkilib.torch.functions.linear_cross_entropy.operators import (
    FORWARD,
    SHARD_BACKWARD,
    SHARD_BACKWARD_ADDING,
    SHARD_STATISTICS,
    Product,
)
from nkilib.torch.functions.vocab_parallel.autograd import CombinedResults, combined_results, with_weight_sum
from nkilib.torch.functions.vocab_parallel.shard_autograd import (
    ShardOperands,
    backward_call,
    claims_of_product,
    gradients_of_shard,
    save_for_backward,
)
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards

# The differentiable results; the others are constants.
_DIFFERENTIABLE: Final = ("loss", "lse", "logprob", "entropy")

_OF_SHARD: Final = Derivative(FORWARD, SHARD_BACKWARD, adding=SHARD_BACKWARD_ADDING)


class VocabParallelLinearCrossEntropy(torch.autograd.Function):
    """An autograd function that returns results over all ranks, with derivatives with respect to this rank's tensors.

    The arguments of ``apply`` are, in order: the inputs of the forward operator, with this rank's classes; weight_sum
    (of all classes) and target_weight [N], as the backward kernel takes them; the results, already computed; the
    options of the operators; the process group.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        class_weight: Tensor | None,
        grad_weight_sum: Tensor | None,
        temperatures: Tensor | None,
        weight_sum: Tensor | None,
        target_weight: Tensor | None,
        results: ForwardResults,
        options: dict[str, Any],
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, ...]:
        tensors = {
            "input": input,
            "linear_weight": linear_weight,
            "target": target,
            "maximum": results.maximum,
            "log_sum": results.log_sum,
            "linear_bias": linear_bias,
            "class_weight": class_weight,
            "target_weight": target_weight,
            "entropy": results.entropy if options["with_entropy"] else None,
            "temperatures": temperatures,
        }
        returned: dict[str, Tensor] = {name: getattr(results, name) for name in _DIFFERENTIABLE}
        save_for_backward(ctx, _OF_SHARD, tensors, options, returned, grad_weight_sum, weight_sum)
        ctx.group = group
        return tuple(returned.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph(SHARD_BACKWARD)  # a sum over ranks without a graph would be taken for a constant
        call, weight_sum = backward_call(ctx, _OF_SHARD)
        upstream = _OF_SHARD.upstream(call, dict(zip(_DIFFERENTIABLE, grads, strict=True)))
        call = with_weight_sum(call.replaced(upstream), weight_sum)
        return *gradients_of_shard(ctx, _OF_SHARD, call, bool(upstream)), *[None] * 5


def _differentiable_results(
    operands: ShardOperands,
    own_weight: Tensor | None,
    whole: CombinedResults,
    options: dict[str, Any],
    group: dist.ProcessGroup | None,
) -> ForwardResults:
    """Return the results of all ranks, differentiable with respect to this rank's tensors.

    Args:
        operands: this rank's operands.
        own_weight: the weights of this rank's classes, or None.
        whole: the results of all ranks.
        options: the options of the operators, including those of the shard.
        group: the process group; None means all processes.
    """
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelLinearCrossEntropy.apply
    *tensors, grad_weight_sum, temperatures = operands
    inputs = (*tensors, own_weight, grad_weight_sum, temperatures)
    outputs = apply(*inputs, whole.weight_sum, whole.target_weight, whole.results, options, group)
    return whole.results._replace(**dict(zip(_DIFFERENTIABLE, outputs, strict=True)))


def vocab_parallel_linear_results(
    caller: Caller,
    operands: ShardOperands,
    class_weight: Tensor | None,
    options: LossKeywords,
    product: Product,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    wanted: Wanted,
    claims: Mapping[str, float],
) -> ForwardResults:
    """Return the results of the forward operator over all classes, differentiable with respect to this rank's tensors.

    Args:
        caller: the function that error messages name.
        operands: this rank's operands.
        class_weight: the class weights [V] float32, or None.
        options: the options of the loss.
        product: the scale and the compute dtype of the matrix product.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
        wanted: the requested results among logprob, argmax and entropy; the others are empty.
        claims: further values that must be equal on all ranks, by name.
    """
    input, linear_weight, target, linear_bias, _, temperatures = operands
    own_weight = shards.own(class_weight)
    keywords = {**options, **values_of(product, shards.columns, wanted)}
    asked_for = {**keywords, "with_distance_sum": options["label_smoothing"] > 0.0}
    all_claims = {**claims_of_product(operands, product), **claims}
    with torch.no_grad():
        own = SHARD_STATISTICS.op(input.device)(
            input.detach(),
            linear_weight.detach(),
            target,
            None if linear_bias is None else linear_bias.detach(),
            own_weight,
            temperatures,
            **SHARD_STATISTICS.taken(asked_for),
        )
        statistics = ShardStatistics(*own)
        whole = combined_results(
            caller,
            statistics,
            target,
            class_weight,
            options,
            shards,
            group,
            wanted.with_logprob,
            all_claims,
        )
    return _differentiable_results(operands, own_weight, whole, keywords, group)
