# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients in a single launch: three matrix products instead of four, for memory that the caller grants."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.experimental.loss.linear_cross_entropy.host.memory import SCRATCH_BYTES, one_launch_bytes
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.operators import WITH_GRADIENTS, Product, Scratch, WantedGradients
from nkilib.torch.losses.target_indices import is_ignored, kernel_target

PLAIN: Final = Product()
# The least number of positions whose logits the kernel keeps.
_TILE: Final = 128


def wanted_gradients(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> WantedGradients | None:
    """Return the gradients that a backward would need; None if it would need none."""
    if not torch.is_grad_enabled():
        return None
    of_bias = linear_bias is not None and linear_bias.requires_grad
    wanted = WantedGradients(input.requires_grad, linear_weight.requires_grad, of_bias)
    return wanted if wanted != WantedGradients(False, False, False) else None


def takes_one_launch(
    arguments: LinearArguments, wanted: WantedGradients, return_outputs: bool, product: Product = PLAIN
) -> bool:
    """Return whether the loss and its gradients can be computed in a single launch, so that the backward only has to
    multiply the gradients by one number.

    Float16 gradients would lack range before the scale of the loss multiplies them, and a sum over micro-batches needs
    unrounded gradients.
    """
    normalizer = arguments.normalizer
    return (
        arguments.reduction != "none"
        and not return_outputs
        and torch.float16 not in (arguments.input.dtype, arguments.linear_weight.dtype)
        and product.compute_dtype != "float16"
        and arguments.input.numel() > 0
        and not (arguments.grad_weight_sum is not None and wanted.grad_weight_wanted)
        and not (normalizer is not None and normalizer.requires_grad)
    )


def granted_scratch(
    arguments: LinearArguments, wanted: WantedGradients, memory_limit: int, product: Product = PLAIN
) -> int | None:
    """Return how many bytes of scratch memory a single launch may use for logits so as to stay within ``memory_limit``;
    None if it cannot.

    A launch uses memory for logits, for float32 sums, and for the gradients, which exist from the forward on. The
    result is at most the larger of the kernel's default and the bytes of the logits of 128 positions (or of all, if
    there are fewer).
    """
    weight = arguments.linear_weight
    classes, features = weight.shape
    positions = arguments.input.numel() // features
    kept = features * (
        wanted.grad_input_wanted * positions * arguments.input.itemsize
        + wanted.grad_weight_wanted * classes * weight.itemsize
    )
    kept += _rounded_bytes(arguments, product)
    least = min(positions, _TILE) * classes * torch.float32.itemsize
    scratch = max(SCRATCH_BYTES, least)
    while kept + one_launch_bytes(positions, features, classes, scratch) > memory_limit:
        if scratch == least:
            return None
        scratch = max(scratch // 2, least)
    return scratch


def _rounded_bytes(arguments: LinearArguments, product: Product) -> int:
    """Return the bytes of the copy of ``input`` that the kernel rounds to the dtype of the products."""
    if product.compute_dtype is None:
        return 0
    dtype: torch.dtype = getattr(torch, product.compute_dtype)
    return 0 if arguments.input.dtype == dtype else dtype.itemsize * arguments.input.numel()


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
    """Return the loss, a scalar whose gradients are already computed.

    Args:
        input: the hidden states [N, D].
        linear_weight: the weight [V, D].
        target: the class indices [N].
        linear_bias, class_weight: [V] float32, or None.
        options: the options of the loss.
        product: the scale and the compute dtype of the matrix product.
        reduction: ``"mean"`` or ``"sum"``.
        normalizer: the divisor of the mean.
        wanted: the requested gradients.
        scratch_bytes: the bytes of scratch memory for logits, see :func:`granted_scratch`.
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
    """Return the divisor of a mean: the summed weights of the valid targets. If these are 0 it is NaN, so that the mean
    is, as in PyTorch.
    """
    counts = ~is_ignored(target, options.ignore_index)
    if class_weight is None:
        total = counts.sum().to(torch.float32)
    else:
        classes, _ = kernel_target(target, options.ignore_index, len(class_weight))
        weights = class_weight[classes.clamp(0, len(class_weight) - 1)]
        total = torch.where(counts, weights, 0.0).sum()
    return torch.where(total == 0.0, torch.nan, total)
