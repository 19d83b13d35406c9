"""Tensors into the kernels and results out of them, the same for every device. Nothing here looks at values."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from nkilib.experimental.loss import (
    choose_tiling,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.nki import nl
from nkilib.torch.options import WHOLE, Columns, LossOptions
from nkilib.torch.results import ForwardResults, ShardStatistics, Wanted, empty_statistics, zero_results
from nkilib.torch.target_indices import is_ignored, kernel_target

# What the kernels take; tiles have the type of the logits.
TILE_DTYPES: Final = {torch.bfloat16: nl.bfloat16, torch.float32: nl.float32}


def launch_forward(
    cores: int,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    options: LossOptions,
    wanted: Wanted,
) -> ForwardResults:
    """Run the forward kernel on ``cores`` cores; arguments as for the operator."""
    if logits.numel() == 0:  # a kernel needs an element
        return zero_results(logits, target, wanted)
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
    logprob = _absent(logits)
    if wanted.with_logprob and not target.is_floating_point():
        ignored = is_ignored(target, options.ignore_index)
        logprob = torch.where(ignored, 0.0, (target_logit - maximum) - log_sum)
    asked_for = iter(others)
    argmax = next(asked_for) if wanted.with_argmax else _absent(logits, torch.int32)
    entropy = next(asked_for) if wanted.with_entropy else _absent(logits)
    return ForwardResults(loss, lse, logprob, position_weight, maximum, log_sum, argmax, entropy)


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
    if logits.numel() == 0:
        return empty_statistics(logits, columns, with_distance_sum, with_argmax, with_entropy)
    classes, ignore_index = kernel_target(target, options.ignore_index, columns.vocabulary(logits))
    _, _, target_logit, position_weight, *others, maximum, log_sum = extended_cross_entropy_forward[cores](
        logits.detach().contiguous(),
        classes.detach(),
        class_weight_hbm=_detached(class_weight),
        **_launch_options(logits, options, ignore_index, "forward", columns),
        with_argmax=with_argmax,
        with_entropy=with_entropy,
        with_distance_sum=with_distance_sum,
        with_log_sum=True,
    )
    asked_for = iter(others)
    argmax = next(asked_for) if with_argmax else _absent(logits, torch.int32)
    entropy = next(asked_for) if with_entropy else _absent(logits)
    distance_sum = next(asked_for) if with_distance_sum else _absent(logits)
    return ShardStatistics(maximum, log_sum, target_logit, position_weight, distance_sum, argmax, entropy)


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
    return given if inplace else gradient


def _absent(logits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What stands for a result that was not asked for."""
    return logits.new_empty(0, dtype=dtype)


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
