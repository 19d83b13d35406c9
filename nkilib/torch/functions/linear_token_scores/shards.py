# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores of all classes from the part of the output layer that each rank has: a forward that communicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.core.host.options import values_of
from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.cross_entropy.results import ShardStatistics
from nkilib.torch.functions.linear_cross_entropy.operators import Product
from nkilib.torch.functions.linear_token_scores.autograd import DIFFERENTIABLE, VocabParallelTokenScores
from nkilib.torch.functions.linear_token_scores.operators import SHARD_STATISTICS
from nkilib.torch.functions.linear_token_scores.results import ScoreResults, ShardScores, WantedScores
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from nkilib.torch.functions.vocab_parallel.statistics import VocabularyStatistics, combined_statistics
from nkilib.torch.functions.vocab_parallel.statistics import product as product_or_zero
from nkilib.torch.functions.vocab_parallel_linear.autograd import ShardOperands, claims_of_product
from nkilib.torch.losses.target_indices import is_ignored


def vocab_parallel_scores(
    caller: Caller,
    operands: ShardOperands,
    options: LossOptions,
    product: Product,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    wanted: WantedScores,
) -> ScoreResults:
    """What the forward operator would return for the whole weight, differentiable by what this rank has.

    Args:
        caller: who is named in errors.
        operands: of this rank.
        options: of the loss.
        product: what is done with the product.
        shards: of all ranks.
        group: None for all processes.
        wanted: which scores are asked for.
    """
    input, linear_weight, target, linear_bias, _ = operands
    claims = {
        **claims_of_product(operands, product),
        **values_of(wanted),
        "linear_bias": linear_bias is not None,
        "target ids": target.shape[1] if target.dim() > 1 else 1,
    }
    with torch.no_grad():
        own = ShardScores(
            *SHARD_STATISTICS.op(input.device)(
                input.detach(),
                linear_weight.detach(),
                target,
                None if linear_bias is None else linear_bias.detach(),
                **SHARD_STATISTICS.keywords_from(options, product, shards.columns, wanted),
            )
        )
        further = _further_sums(own, _rounded(linear_bias, product), shards, wanted)
        statistics = combined_statistics(caller, _statistics(own), shards, group, None, options, False, claims, further)
        results = ScoreResults(
            _log_probability(statistics, target, options),
            statistics.lse,
            statistics.maximum,
            statistics.log_sum,
            statistics.argmax,
            statistics.entropy,
            *_moments(statistics.sums, statistics.log_sum, own, shards),
        )
    keywords = {**values_of(options), **values_of(product), **values_of(shards.columns), **values_of(wanted)}
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelTokenScores.apply
    found = apply(*operands, results, keywords, group)
    return results._replace(**dict(zip(DIFFERENTIABLE, found, strict=True)))


def _log_probability(statistics: VocabularyStatistics, target: Tensor, options: LossOptions) -> Tensor:
    """[N], or of K target ids [N, K]; 0 where they are ignored."""
    maximum, log_sum, lse = statistics.maximum, statistics.log_sum, statistics.lse
    if target.dim() > 1:
        maximum, log_sum, lse = maximum[:, None], log_sum[:, None], lse[:, None]
    # In this order, since large logits cancel exactly in the difference.
    found = (statistics.sums["target_logit"] - maximum) - log_sum
    found = found + 0.0 * lse  # NaN where lse is infinite, as the kernel has it
    return torch.where(is_ignored(target, options.ignore_index), 0.0, found)


def _statistics(own: ShardScores) -> ShardStatistics:
    """As those of the loss."""
    nothing = own.maximum.new_empty(0)
    return ShardStatistics(own.maximum, own.log_sum, own.target_logit, nothing, nothing, own.argmax, own.entropy)


def _rounded(linear_bias: Tensor | None, product: Product) -> Tensor | None:
    """The bias as the kernel has it: of float16 a large one is infinite."""
    if linear_bias is None or product.compute_dtype is None:
        return linear_bias
    dtype: torch.dtype = getattr(torch, product.compute_dtype)
    return linear_bias.to(dtype)


def _further_sums(
    own: ShardScores, linear_bias: Tensor | None, shards: VocabularyShards, wanted: WantedScores
) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """What is summed over the ranks for the last two scores.

    sum exp(z - m)^2 of a shard is exp(its log sum p^2 + 2 (its log_sum - how far its maximum is below m)). The mean is
    that of the classes that no bias masks.
    """

    def summands(below: Tensor) -> dict[str, Tensor]:
        found = {}
        if wanted.with_log_sum_squares:
            found["squares"] = torch.exp(own.log_sum_squares + 2.0 * (own.log_sum - below))
        if wanted.with_mean_logit:
            counted = below.new_full((), float(shards.held))
            if linear_bias is not None:
                counted = (~linear_bias.isneginf()).sum().to(below.dtype)
            found["logits"] = product_or_zero(counted, own.mean_logit)
            if linear_bias is not None:
                found["counted"] = counted.expand_as(below)
        return found

    return summands


def _moments(
    sums: Mapping[str, Tensor], log_sum: Tensor, own: ShardScores, shards: VocabularyShards
) -> tuple[Tensor, Tensor]:
    """log sum p^2 and the mean logit of all classes; empty where they are not asked for."""
    log_sum_squares, mean_logit = own.log_sum_squares, own.mean_logit
    if "squares" in sums:
        log_sum_squares = sums["squares"].log() - 2.0 * log_sum
    if "logits" in sums:
        mean_logit = sums["logits"] / sums.get("counted", float(shards.num_classes))
    return log_sum_squares, mean_logit
