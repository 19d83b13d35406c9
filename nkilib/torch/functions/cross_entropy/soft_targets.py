# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gradients of class probabilities and of their class weights, computed by PyTorch's operators instead of kernels.

They use several times the memory of the logits, in float32, so nothing here runs unless one of the two requires grad.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions


def soft_target_gradients(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    maximum: Tensor,
    log_sum: Tensor,
    grad_loss: Tensor,
    options: LossOptions,
    num_classes: int,
    needs_target: bool,
    needs_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients, with respect to ``target`` and ``class_weight``, of each position's loss ``sum_k w[k] *
    y'[k] * (lse - z[k])``, with y' = (1 - e) * y + e / num_classes for smoothing e.

    Args:
        logits: [N, V], before cap and temperature.
        target: [N, V], class probabilities y.
        class_weight: [V] float32; None means 1.
        maximum, log_sum: [N] float32; their sum is the lse of z, the logits after cap and temperature.
        grad_loss: [N] float32, the upstream gradient of every position's loss.
        options: the options of the forward.
        num_classes: the number of classes that smoothing spreads over; more than V if the logits are a shard.
        needs_target, needs_weight: whether each gradient is requested.

    Returns:
        The gradients of ``target``, in its dtype, and of ``class_weight``, [V] float32; None for a gradient that is not
        requested.
    """
    z = logits.to(torch.float32)
    if options.logit_softcap is not None:
        capped = options.logit_softcap * torch.tanh(z / options.logit_softcap)
        z = torch.where(z.isneginf(), z, capped)
    z = z / options.temperature
    log_sum = log_sum + 0.0 * log_sum  # NaN where it is infinite: the row has no softmax
    scaled_nll = ((maximum[:, None] - z) + log_sum[:, None]) * grad_loss[:, None]  # large logits cancel exactly
    kept = 1.0 - options.label_smoothing
    grad_target = grad_weight = None
    if needs_target:
        grad_target = (kept * (scaled_nll if class_weight is None else scaled_nll * class_weight)).to(target.dtype)
    if needs_weight:
        smoothed = kept * target.to(torch.float32) + options.label_smoothing / max(num_classes, 1)
        grad_weight = (smoothed * scaled_nll).sum(0)
    return grad_target, grad_weight
