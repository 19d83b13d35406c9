# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The scores of tokens over all classes from each rank's part of the output layer: a forward and a backward that
communicate.

:func:`vocab_parallel_scores` returns the scores, with the derivative of :class:`VocabParallelTokenScores`.
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
from nkilib.torch.functions.cross_entropy.operators import ShardStatistics
from nkilib.torch.functions.linear_cross_entropy.operators import Product
from nkilib.torch.functions.linear_token_scores.operators import (
    FORWARD,
    SHARD_BACKWARD,
    SHARD_BACKWARD_ADDING,
    SHARD_STATISTICS,
    ScoreResults,
    ShardScores,
    WantedScores,
)
from nkilib.torch.functions.vocab_parallel.shard_autograd import (
    ShardOperands,
    backward_call,
    claims_of_product,
    gradients_of_shard,
    save_for_backward,
)
from nkilib.torch.functions.vocab_parallel.shards import (
    VocabularyShards,
    VocabularyStatistics,
    combined_statistics,
    product_or_zero,
)
from nkilib.torch.losses.indexed import is_ignored

_OF_SHARD: Final = Derivative(FORWARD, SHARD_BACKWARD, adding=SHARD_BACKWARD_ADDING)
# The differentiable results; the others are constants.
_DIFFERENTIABLE: Final = ("logprob", "lse", "entropy")


def _log_probability(statistics: VocabularyStatistics, target: Tensor, options: LossKeywords) -> Tensor:
    """Return the targets' log-probabilities from statistics over all classes; 0 where the target is ignored.

    The shape is [N], or [N, K] if each position has K target ids.
    """
    maximum, log_sum, lse = statistics.maximum, statistics.log_sum, statistics.lse
    if target.dim() > 1:
        maximum, log_sum, lse = maximum[:, None], log_sum[:, None], lse[:, None]
    # In this order, since large logits cancel exactly in the difference.
    logprob = (statistics.sums["target_logit"] - maximum) - log_sum
    logprob = logprob + 0.0 * lse  # NaN where lse is infinite, as the kernel has it
    return torch.where(is_ignored(target, options["ignore_index"]), 0.0, logprob)


def _statistics(own: ShardScores) -> ShardStatistics:
    """Return the shard's scores as :class:`ShardStatistics`; fields that ``own`` does not have are empty."""
    nothing = own.maximum.new_empty(0)
    return ShardStatistics(own.maximum, own.log_sum, own.target_logit, nothing, nothing, own.argmax, own.entropy)


def _further_sums(
    own: ShardScores, linear_bias: Tensor | None, shards: VocabularyShards, wanted: WantedScores
) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """Return a function that computes this rank's summands for ``log_sum_squares`` and ``mean_logit``, by name.

    The argument of the function is m minus the shard's maximum, [N], where m is the maximum over all ranks. The
    summands, [N] each, are: ``squares``, the sum of exp(z - m)^2 over the shard; ``logits``, the sum of z over the
    shard's unmasked classes; ``counted``, the number of these classes (only with a bias).
    """

    def summands(below: Tensor) -> dict[str, Tensor]:
        terms = {}
        if wanted.with_log_sum_squares:
            terms["squares"] = torch.exp(own.log_sum_squares + 2.0 * (own.log_sum - below))
        if wanted.with_mean_logit:
            counted = below.new_full((), float(shards.own_size))
            if linear_bias is not None:
                counted = (~linear_bias.isneginf()).sum().to(below.dtype)
            terms["logits"] = product_or_zero(counted, own.mean_logit)
            if linear_bias is not None:
                terms["counted"] = counted.expand_as(below)
        return terms

    return summands


def _moments(
    sums: Mapping[str, Tensor], log_sum: Tensor, own: ShardScores, shards: VocabularyShards
) -> tuple[Tensor, Tensor]:
    """Return ``log_sum_squares`` and ``mean_logit`` over all classes; one that is not requested is empty.

    ``sums`` has the summands of :func:`_further_sums`, summed over the ranks.
    """
    log_sum_squares, mean_logit = own.log_sum_squares, own.mean_logit
    if "squares" in sums:
        log_sum_squares = sums["squares"].log() - 2.0 * log_sum
    if "logits" in sums:
        mean_logit = sums["logits"] / sums.get("counted", float(shards.num_classes))
    return log_sum_squares, mean_logit


class VocabParallelTokenScores(torch.autograd.Function):
    """An autograd function that returns scores over all ranks, with derivatives with respect to this rank's tensors.

    The arguments of ``apply`` are, in order: the inputs of the forward operator, with this rank's classes; the results,
    already computed; the options of the operators; the process group.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        grad_weight_sum: Tensor | None,
        temperatures: Tensor | None,
        results: ScoreResults,
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
            "entropy": results.entropy if options["with_entropy"] else None,
            "temperatures": temperatures,
        }
        returned: dict[str, Tensor] = {name: getattr(results, name) for name in _DIFFERENTIABLE}
        save_for_backward(ctx, _OF_SHARD, tensors, options, returned, grad_weight_sum)
        ctx.group = group
        return tuple(returned.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph(SHARD_BACKWARD)  # a sum over ranks without a graph would be taken for a constant
        call, _ = backward_call(ctx, _OF_SHARD)
        upstream = _OF_SHARD.upstream(call, dict(zip(_DIFFERENTIABLE, grads, strict=True)))
        return *gradients_of_shard(ctx, _OF_SHARD, call.replaced(upstream), bool(upstream)), *[None] * 3


def vocab_parallel_scores(
    caller: Caller,
    operands: ShardOperands,
    options: LossKeywords,
    product: Product,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    wanted: WantedScores,
) -> ScoreResults:
    """Return the results of the forward operator over all classes, differentiable with respect to this rank's tensors.

    Args:
        caller: the function that error messages name.
        operands: this rank's operands.
        options: the options of the loss.
        product: the scale and the compute dtype of the matrix product.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
        wanted: the requested scores.
    """
    input, linear_weight, target, linear_bias, _, temperatures = operands
    claims = {
        **claims_of_product(operands, product),
        **values_of(wanted),
        "linear_bias": linear_bias is not None,
        "target ids": target.shape[1] if target.dim() > 1 else 1,
    }
    keywords = {**options, **values_of(product, shards.columns, wanted)}
    with torch.no_grad():
        own = ShardScores(
            *SHARD_STATISTICS.op(input.device)(
                input.detach(),
                linear_weight.detach(),
                target,
                None if linear_bias is None else linear_bias.detach(),
                temperatures,
                **SHARD_STATISTICS.taken(keywords),
            )
        )
        further = _further_sums(own, linear_bias, shards, wanted)
        statistics = combined_statistics(
            caller, _statistics(own), shards, group, None, options, target, claims, further
        )
        results = ScoreResults(
            _log_probability(statistics, target, options),
            statistics.lse,
            statistics.maximum,
            statistics.log_sum,
            statistics.argmax,
            statistics.entropy,
            *_moments(statistics.sums, statistics.log_sum, own, shards),
        )
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelTokenScores.apply
    scores = apply(*operands, results, keywords, group)
    return results._replace(**dict(zip(_DIFFERENTIABLE, scores, strict=True)))
