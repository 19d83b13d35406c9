# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Statistics over the whole vocabulary from those of its shards: all-reduces of maxima, of sums, and of the argmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.core.host.options import values_of
from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.functions.cross_entropy.results import ShardStatistics
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from nkilib.torch.losses.target_indices import is_ignored

# The distance of a row's log_sum from that of equal logits, log(columns), within which the row may be constant.
_OF_CONSTANT: Final = 1e-3


class VocabularyStatistics(NamedTuple):
    """The statistics over all classes, [N] float32 each, the same on every rank.

    Attributes:
        maximum: the largest logit.
        log_sum: log of the sum of exp(logit - maximum), in nats; at least 0.
        sums: further sums over the ranks, by name. ``target_logit`` (not for class probabilities): the logit of the
            target, 0 at ignored positions; [N, K] for K target ids. ``position_weight`` (with class weights or
            probabilities): the weight of the target, 0 at ignored positions; or the sum of the weighted and smoothed
            probabilities. ``distance_sum`` (if the shards have it): the sum over all classes of f * (maximum - logit),
            with f as in :class:`ShardStatistics`.
        argmax: int32, the first class with the largest logit; [0] if the shards have none.
        entropy: the entropy of the softmax, in nats; [0] if the shards have none.
    """

    maximum: Tensor
    log_sum: Tensor
    sums: dict[str, Tensor]
    argmax: Tensor
    entropy: Tensor

    @property
    def lse(self) -> Tensor:
        """Log-sum-exp of the logits, in nats."""
        return self.maximum + self.log_sum


def combined_statistics(
    caller: Caller,
    own: ShardStatistics,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    class_weight: Tensor | None,
    options: LossOptions,
    target: Tensor,
    claims: Mapping[str, float],
    further: Callable[[Tensor], Mapping[str, Tensor]] | None = None,
) -> VocabularyStatistics:
    """Return the statistics over all classes from those of the shards, with all-reduces: every rank of the group has to
    call it. ``docs/explanation/cross_entropy.md`` has the formulas.

    Args:
        caller: the function that error messages name.
        own: the statistics of this rank's shard.
        shards: the shards of all ranks, as this rank sees them.
        group: the process group; None means all processes.
        class_weight: the weights of this rank's classes, or None.
        options: the options of the loss.
        target: class indices, or class probabilities of this rank's classes.
        claims: further values that must be equal on all ranks, by name.
        further: a function that returns this rank's summands of further sums over the ranks, [N] by name, from the
            distances [N] of this rank's maxima below those of all ranks.

    Raises:
        ValueError: raised on all ranks if the ranks do not see the same shards or options, or seem to have the same
            whole vocabulary. On the CPU only: elsewhere reading the answer would wait for the device; where options
            differ, the statistics are NaN instead.
    """
    soft = target.is_floating_point()
    all_claims = {
        **{f"classes of rank {rank}": size for rank, size in enumerate(shards.sizes)},
        **{name: 0.0 if value is None else value for name, value in values_of(options).items()},
        "weight": class_weight is not None,
        "class probabilities": soft,
        "outputs (none, entropy, all)": _is_given(own.entropy, own.maximum) + _is_given(own.argmax, own.maximum),
        **claims,
    }
    marks = torch.stack([own.maximum.sum(), own.log_sum.sum()]) if _may_read_values(own.maximum) else None
    maximum, agreed, are_alike = greatest_of_ranks(caller, own.maximum, all_claims, group, marks)
    # The shards' maxima are subtracted before anything is added to them, so that large logits cancel exactly.
    below = maximum - own.maximum
    share = torch.exp(own.log_sum - below)
    summands = {"share": share}
    if not soft:
        summands["target_logit"] = own.target_logit
    if soft or class_weight is not None:
        summands["position_weight"] = own.position_weight
    if _is_given(own.distance_sum, maximum):
        summands["distance_sum"] = own.distance_sum + product(_factor_sum(own, shards, class_weight, soft), below)
    if _is_given(own.entropy, maximum):
        summands["entropy"] = product(share, own.entropy + (below - own.log_sum))
    if further is not None:
        summands.update(further(below))
    sums = sums_of_ranks(summands, group)
    if marks is not None and shards.are_assumed and not soft and bool(are_alike & (sums["share"] > share).all()):
        _check_different(caller, own, shards, target, options.ignore_index)
    log_sum = torch.where(agreed, sums["share"].log(), torch.nan)
    argmax, entropy = own.argmax, own.entropy
    if _is_given(own.argmax, maximum):
        argmax = _argmax(own, maximum, log_sum, shards, group)
    if _is_given(own.entropy, maximum):
        entropy = log_sum + sums["entropy"] / sums["share"]
    return VocabularyStatistics(maximum, log_sum, sums, argmax, entropy)


def _check_different(
    caller: Caller, own: ShardStatistics, shards: VocabularyShards, target: Tensor, ignore_index: int
) -> None:
    """Reject logits that every rank holds whole, where the logits of all ranks have the same statistics.

    Parts of a vocabulary may have them too: those of one class each, those of an output layer that is 0, and those of a
    layer that every rank has initialised with the same seed. So an error is raised only if rows are not constant, and
    if every label is a class of the first rank, as a label of a whole vocabulary is. All of this is the same on all
    ranks, so either all raise or none. (The sums of a group that does not communicate, such as PyTorch's fake one, are
    this rank's, and are not compared.)
    """
    ranks, width = len(shards.sizes), shards.sizes[0]
    labels = target[~is_ignored(target, ignore_index)]
    are_constant = bool((own.log_sum > math.log(width) - _OF_CONSTANT).all())
    if ranks == 1 or are_constant or labels.numel() == 0 or bool((labels.to(torch.int64) >= width).any()):
        return
    raise ValueError(
        f"{caller}: each rank must have its own part of the vocabulary, but all {ranks} ranks have the same logits, "
        f"and every label is among the {width} classes of the first; pass a vocabulary that each rank has whole to "
        f"nkilib.torch.{caller.function.removeprefix('vocab_parallel_')} without a group, or "
        f"num_classes={shards.num_classes} if the parts are equal by chance"
    )


def _is_given(values: Tensor, maximum: Tensor) -> bool:
    return values.shape == maximum.shape


def _factor_sum(own: ShardStatistics, shards: VocabularyShards, class_weight: Tensor | None, soft: bool) -> Tensor:
    """Return the sum over this shard's classes of the factors in its ``distance_sum``, [N] or without dimensions."""
    if soft:
        return own.position_weight
    return own.maximum.new_tensor(float(shards.own_size)) if class_weight is None else class_weight.sum()


def product(factor: Tensor, values: Tensor) -> Tensor:
    """Return the product, but 0 where the factor is 0, even if the value is not finite, as it is for a shard without
    classes.
    """
    return torch.where(factor == 0.0, 0.0, factor * values)


def sums_of_ranks(summands: dict[str, Tensor], group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Return the sums over all ranks, with one all-reduce: [N] each, or [N, K] for several target ids."""
    values = torch.cat([summand.reshape(-1) for summand in summands.values()])
    dist.all_reduce(values, op=dist.ReduceOp.SUM, group=group)
    sums = torch.split(values, [summand.numel() for summand in summands.values()])
    named = zip(summands.items(), sums, strict=True)
    return {name: unviewed(sum.view(summand.shape)) for (name, summand), sum in named}


def _argmax(
    own: ShardStatistics,
    maximum: Tensor,
    log_sum: Tensor,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Return the smallest class among the shards that hold the maximum; V in a row with a NaN, as in the kernel."""
    beyond = shards.num_classes
    classes = torch.where(own.maximum == maximum, own.argmax, beyond)
    dist.all_reduce(classes, op=dist.ReduceOp.MIN, group=group)
    has_nan = log_sum.isnan() & ~maximum.isposinf()
    return torch.where(has_nan, beyond, classes)


def _may_read_values(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def greatest_of_ranks(
    caller: Caller,
    maximum: Tensor,
    claims: dict[str, float],
    group: dist.ProcessGroup | None,
    marks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum over all shards, whether all ranks make the same claims, and whether all have the same
    ``marks``, a few numbers that may differ.

    Claims and their negatives go through the same all-reduce: the greatest and the least value of each claim must be
    equal as float32, so integers above 2^24 that are close to each other pass as equal. The claims are a few numbers
    from the host in every call; they are not cached as a tensor, which might belong to a trace.
    """
    own = torch.tensor(list(claims.values()), dtype=torch.float32, device=maximum.device)
    compared = own if marks is None else torch.cat([own, marks])
    values = torch.cat([maximum, compared, -compared])
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    greatest, most, least = torch.split(values, [maximum.shape[0], compared.shape[0], compared.shape[0]])
    is_same = most == -least
    agreed = is_same[: len(claims)].all()
    if _may_read_values(values) and not bool(agreed):
        differing = ", ".join(
            f"{name} from {-low:g} to {high:g}, here {claims[name]:g}"
            for name, high, low in zip(claims, most.tolist(), least.tolist(), strict=False)  # then marks
            if high != -low
        )
        raise ValueError(
            f"{caller}: all ranks must see the same shards and options, but they have {differing}; pass the same "
            f"options everywhere, and the same shard_sizes where ranks have unlike widths"
        )
    return greatest, agreed, is_same[len(claims) :].all()
