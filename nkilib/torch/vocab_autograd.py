"""Derivative of the vocabulary-parallel loss: the forward communicates, the backward does not."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from nkilib.torch.autograd import refuse_graph_of_inplace
from nkilib.torch.checks import Caller
from nkilib.torch.launch import LossOptions, ShardStatistics
from nkilib.torch.target_indices import is_ignored
from nkilib.torch.vocab_shards import VocabularyShards
from nkilib.torch.vocab_statistics import VocabularyStatistics, combined_statistics


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Loss [N] and position_weight [N], what a position adds to the divisor of a mean, float32; the same on all ranks.

    Arguments of ``apply``: logits [N, width] of this rank, target [N], class_weight [V] float32 or None, options,
    shards, group, whether the gradient goes over the logits, and who is named in errors.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        options: LossOptions,
        shards: VocabularyShards,
        group: dist.ProcessGroup | None,
        inplace: bool,
        caller: Caller,
    ) -> tuple[Tensor, Tensor]:
        # The kernel's own loss is not used: it would be that of a shard.
        plain = options._replace(label_smoothing=0.0, lse_square_scale=0.0)
        own = torch.ops.nkilib.cross_entropy_shard_statistics(
            logits[:, : shards.held],
            target,
            _own_weight(class_weight, shards),
            **plain._asdict(),
            **shards.columns._asdict(),
            with_logit_sum=options.label_smoothing > 0.0,
        )
        statistics = combined_statistics(caller, ShardStatistics(*own), shards, group, class_weight is not None)
        valid = ~is_ignored(target, options.ignore_index)
        loss = torch.where(valid, _losses(statistics, class_weight, options, shards), 0.0)
        weight = valid.to(torch.float32) if statistics.target_weight is None else statistics.target_weight
        ctx.save_for_backward(logits, target, class_weight, statistics.lse, statistics.target_weight)
        ctx.options, ctx.shards, ctx.inplace = options, shards, inplace
        ctx.mark_non_differentiable(weight)
        return loss, weight

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, grad_weight: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, class_weight, lse, target_weight = ctx.saved_tensors
        options, shards = ctx.options, ctx.shards
        grad_lse = weight_sum = None
        if class_weight is not None and options.label_smoothing > 0.0:
            # The kernel takes W as a number, and reading it would wait for the device: it comes with lse's gradient.
            valid = ~is_ignored(target, options.ignore_index)
            spread = options.label_smoothing / shards.num_classes
            grad_lse, weight_sum = torch.where(valid, grad_loss, 0.0) * (spread * class_weight.sum()), 0.0
        arguments = (target, lse, grad_loss, grad_lse, None, _own_weight(class_weight, shards), target_weight)
        keywords = {**options._asdict(), **shards.columns._asdict(), "weight_sum": weight_sum}
        return _gradient(logits, shards, ctx.inplace, arguments, keywords), *([None] * 7)


def _own_weight(class_weight: Tensor | None, shards: VocabularyShards) -> Tensor | None:
    first = shards.columns.first_class
    return None if class_weight is None else class_weight[first : first + shards.held]


def _losses(
    statistics: VocabularyStatistics, class_weight: Tensor | None, options: LossOptions, shards: VocabularyShards
) -> Tensor:
    """The loss of every position, [N] float32, undefined where it is ignored."""
    # In this order, since large logits cancel exactly in the difference. Never negative: both summands are not.
    loss = (statistics.maximum - statistics.target_logit) + statistics.log_sum
    if statistics.target_weight is not None:
        loss = loss * statistics.target_weight
    lse = statistics.lse
    if statistics.logit_sum is not None:
        weight_sum = float(shards.num_classes) if class_weight is None else class_weight.sum()
        spread = options.label_smoothing / shards.num_classes
        loss = (1.0 - options.label_smoothing) * loss + spread * (weight_sum * lse - statistics.logit_sum)
    return loss + options.lse_square_scale * lse.square() if options.lse_square_scale > 0.0 else loss


def _gradient(
    logits: Tensor, shards: VocabularyShards, inplace: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Tensor:
    """The gradient of this rank's logits, [N, width] in their type; that of padding is 0.

    Padded logits are copied without the padding, since kernels read rows that follow each other without a gap.
    """
    padding = logits.shape[1] - shards.held
    if not inplace:  # not detached, so that a second derivative reaches the operator, which refuses it
        gradient: Tensor = torch.ops.nkilib.cross_entropy_backward(logits[:, : shards.held], *arguments, **keywords)
        return functional.pad(gradient, (0, padding)) if padding else gradient
    refuse_graph_of_inplace()
    overwritten = logits.detach()  # the same memory and version
    if not padding:
        torch.ops.nkilib.cross_entropy_backward_(overwritten, *arguments, **keywords)
        return overwritten
    held = overwritten[:, : shards.held].clone(memory_format=torch.contiguous_format)
    torch.ops.nkilib.cross_entropy_backward_(held, *arguments, **keywords)
    overwritten[:, : shards.held] = held
    overwritten[:, shards.held :] = 0.0
    return overwritten
