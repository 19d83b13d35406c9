"""Tensors into the kernels and results out of them, the same for every device. Nothing here looks at values."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.experimental.loss import (
    choose_tiling,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.nki import nl
from nkilib.torch.target_indices import is_ignored, kernel_target

# What the kernels take; tiles have the type of the logits.
TILE_DTYPES: Final = {torch.bfloat16: nl.bfloat16, torch.float32: nl.float32}


class LossOptions(NamedTuple):
    """The options that both kernels take, named as they name them.

    Attributes:
        ignore_index: target of positions that do not count; any integer.
        label_smoothing: share of the target probability that is spread over all classes, 0 to 1.
        logit_softcap: c > 0 replaces a logit x by c * tanh(x / c), except -inf; None leaves it.
        lse_square_scale: factor of lse^2 in the loss, 0 or more.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0


class Columns(NamedTuple):
    """Which classes the columns of the logits are, named as the kernels name it.

    Attributes:
        first_class: the class of the first column.
        num_classes: V, of all shards of the vocabulary; None: the columns are all classes.
    """

    first_class: int = 0
    num_classes: int | None = None

    def vocabulary(self, logits: Tensor) -> int:
        """V."""
        return logits.shape[1] if self.num_classes is None else self.num_classes


WHOLE: Final = Columns()


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


def launch_forward(
    cores: int,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossOptions,
    wanted: Wanted,
) -> ForwardResults:
    """Run the forward kernel on ``cores`` cores; arguments as for the operator."""
    zeros = zero_results(logits, target, wanted)
    if logits.numel() == 0:  # a kernel needs an element
        return zeros
    classes, ignore_index = kernel_target(target, options.ignore_index, logits.shape[1])
    loss, lse, target_logit, position_weight, *others, maximum, log_sum = extended_cross_entropy_forward[cores](
        logits.detach().contiguous(),
        classes.detach(),
        class_weight_hbm=_detached(class_weight),
        **_launch_options(logits, options, ignore_index, "forward"),
        with_argmax=wanted.with_argmax,
        with_entropy=wanted.with_entropy,
        with_log_sum=True,
    )
    flags = {"argmax": wanted.with_argmax, "entropy": wanted.with_entropy}
    asked_for = dict(zip([name for name, flag in flags.items() if flag], others, strict=True))
    if wanted.with_logprob and not target.is_floating_point():
        ignored = is_ignored(target, options.ignore_index)
        asked_for["logprob"] = torch.where(ignored, 0.0, (target_logit - maximum) - log_sum)
    return zeros._replace(
        loss=loss, lse=lse, position_weight=position_weight, maximum=maximum, log_sum=log_sum, **asked_for
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


def launch_statistics(
    cores: int,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossOptions,
    columns: Columns,
    with_distance_sum: bool,
    with_argmax: bool,
    with_entropy: bool,
) -> ShardStatistics:
    """Run the forward kernel on ``cores`` cores over a shard; arguments as for the operator.

    A shard without classes, or without positions, needs no kernel: it adds nothing to any sum.
    """
    empty = empty_statistics(logits, columns, with_distance_sum, with_argmax, with_entropy)
    if logits.numel() == 0:
        return empty
    classes, ignore_index = kernel_target(target, options.ignore_index, columns.vocabulary(logits))
    _, _, target_logit, position_weight, *others = extended_cross_entropy_forward[cores](
        logits.detach().contiguous(),
        classes.detach(),
        class_weight_hbm=_detached(class_weight),
        **_launch_options(logits, options, ignore_index, "forward", columns),
        with_argmax=with_argmax,
        with_entropy=with_entropy,
        with_distance_sum=with_distance_sum,
        with_log_sum=True,
    )
    maximum, log_sum = others[-2:]
    flags = {"argmax": with_argmax, "entropy": with_entropy, "distance_sum": with_distance_sum}
    asked_for = dict(zip([name for name, flag in flags.items() if flag], others[:-2], strict=True))
    always = {"maximum": maximum, "log_sum": log_sum, "target_logit": target_logit, "position_weight": position_weight}
    return empty._replace(**always, **asked_for)


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


def launch_backward(
    cores: int,
    logits: Tensor,
    target: Tensor,
    maximum: Tensor,
    log_sum: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor | None,
    grad_logprob: Tensor | None,
    class_weight: Tensor | None,
    options: LossOptions,
    inplace: bool,
    columns: Columns = WHOLE,
    target_weight: Tensor | None = None,
    weight_sum: float | None = None,
) -> Tensor:
    """Run the backward kernel on ``cores`` cores; arguments as for the operators.

    Returns:
        The gradient, [N, V] in the type of the logits; in place, it has their memory.
    """
    given = logits.detach() if inplace else logits.detach().contiguous()
    if logits.numel() == 0:
        return given if inplace else torch.empty_like(given)
    classes, ignore_index = kernel_target(target, options.ignore_index, columns.vocabulary(logits))
    gradient: Tensor = extended_cross_entropy_backward[cores](
        given,
        classes.detach(),
        (maximum + log_sum).detach().contiguous(),
        grad_loss.detach().contiguous(),
        grad_lse_hbm=_detached(grad_lse),
        grad_logprob_hbm=_detached(grad_logprob),
        class_weight_hbm=_detached(class_weight),
        **_launch_options(logits, options, ignore_index, "backward", columns),
        inplace=inplace,
        target_weight_hbm=_detached(target_weight),
        weight_sum=weight_sum,
        maximum_hbm=_detached(maximum),
        log_sum_hbm=_detached(log_sum),
    )
    if inplace and gradient is not given:  # a framework without writing in place returns another tensor
        given.copy_(gradient)
    return gradient


def _detached(tensor: Tensor | None) -> Tensor | None:
    """Without autograd, and dense, as kernels read it."""
    return None if tensor is None else tensor.detach().contiguous()


def _launch_options(
    logits: Tensor, options: LossOptions, ignore_index: int, direction: str, columns: Columns = WHOLE
) -> dict[str, Any]:
    positions, classes = logits.shape
    tiling = choose_tiling(positions, classes, logits.dtype, direction, extended=True)
    dtype = TILE_DTYPES[logits.dtype]
    given = {**options._asdict(), **columns._asdict(), **tiling._asdict()}
    return {**given, "ignore_index": ignore_index, "dtype": dtype}
