# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients in one launch: three matrix products instead of four, for memory that the caller grants."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.experimental.loss.linear.host.memory import copied_bytes
from nkilib.experimental.loss.linear_cross_entropy.host.memory import SCRATCH_BYTES, one_launch_bytes
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.operators import WITH_GRADIENTS, Product, Scratch, WantedGradients
from nkilib.torch.losses.target_indices import is_ignored, kernel_target

PLAIN: Final = Product()
# The kernel takes the logits of at least as many positions.
_TILE: Final = 128


def wanted_gradients(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> WantedGradients | None:
    """Those that a backward from here would ask for; None if it would ask for none."""
    if not torch.is_grad_enabled():
        return None
    of_bias = linear_bias is not None and linear_bias.requires_grad
    wanted = WantedGradients(input.requires_grad, linear_weight.requires_grad, of_bias)
    return wanted if wanted != WantedGradients(False, False, False) else None


def takes_one_launch(
    given: LinearArguments, wanted: WantedGradients, return_outputs: bool, product: Product = PLAIN
) -> bool:
    """Whether gradients can come with the loss: one number scales them, and only afterwards.

    Gradients of float16 would lack range before the scale of the loss multiplies them, and a sum over micro-batches
    takes them unrounded.
    """
    normalizer = given.normalizer
    return (
        given.reduction != "none"
        and not return_outputs
        and torch.float16 not in (given.input.dtype, given.linear_weight.dtype)
        and product.compute_dtype != "float16"
        and given.input.numel() > 0
        and not (given.grad_weight_sum is not None and wanted.grad_weight_wanted)
        and not (normalizer is not None and normalizer.requires_grad)
    )


def granted_scratch(
    given: LinearArguments, wanted: WantedGradients, memory_limit: int, product: Product = PLAIN
) -> int | None:
    """The most bytes for logits with which all that one launch takes fits; None if nothing does.

    Beside logits and sums in float32 it is the gradients, which are there from the forward on. It is at most the
    kernel's default, or what the fewest positions need where that is more.
    """
    weight = given.linear_weight
    classes, features = weight.shape
    positions = given.input.numel() // features
    kept = features * (
        wanted.grad_input_wanted * positions * given.input.itemsize
        + wanted.grad_weight_wanted * classes * weight.itemsize
    )
    kept += _rounded_bytes(given, product)
    least = min(positions, _TILE) * classes * torch.float32.itemsize
    scratch = max(SCRATCH_BYTES, least)
    while kept + one_launch_bytes(positions, features, classes, scratch) > memory_limit:
        if scratch == least:
            return None
        scratch = max(scratch // 2, least)
    return scratch


def _rounded_bytes(given: LinearArguments, product: Product) -> int:
    """Of copies of operands that the kernel rounds to the type of the products."""
    if product.compute_dtype is None:
        return 0
    dtype: torch.dtype = getattr(torch, product.compute_dtype)
    return copied_bytes(
        dtype.itemsize,
        input_elements=0 if given.input.dtype == dtype else given.input.numel(),
        # The operator gets it in float32.
        bias_classes=0 if given.linear_bias is None or dtype == torch.float32 else given.linear_bias.numel(),
    )


def loss_with_gradients(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    class_weight: Tensor | None,
    options: LossOptions,
    product: Product,
    reduction: str,
    normalizer: Tensor | None,
    wanted: WantedGradients,
    scratch_bytes: int,
) -> Tensor:
    """The loss, a scalar whose gradients are computed already.

    Args:
        input: [N, D].
        linear_weight: [V, D].
        target: [N].
        linear_bias, class_weight: [V] float32, or None.
        options: of the loss.
        product: what is done with the product.
        reduction: ``"mean"`` or ``"sum"``.
        normalizer: divisor of the mean.
        wanted: gradients.
        scratch_bytes: for logits.
    """
    scale = input.new_ones((), dtype=torch.float32)
    if reduction == "mean":
        scale = scale / (_divisor(target, class_weight, options) if normalizer is None else normalizer.to(scale))
    keywords = WITH_GRADIENTS.keywords_from(Scratch(scratch_bytes), options, product, wanted)
    operator = WITH_GRADIENTS.op(input.device)
    total, *_ = operator(input, linear_weight, target, scale.detach(), linear_bias, class_weight, **keywords)
    loss: Tensor = total
    return loss


def _divisor(target: Tensor, class_weight: Tensor | None, options: LossOptions) -> Tensor:
    """Of a mean: the summed weights of the targets that count; NaN for 0, as PyTorch's mean of nothing is."""
    counts = ~is_ignored(target, options.ignore_index)
    if class_weight is None:
        total = counts.sum().to(torch.float32)
    else:
        classes, _ = kernel_target(target, options.ignore_index, len(class_weight))
        weights = class_weight[classes.clamp(0, len(class_weight) - 1)]
        total = torch.where(counts, weights, 0.0).sum()
    return torch.where(total == 0.0, torch.nan, total)
