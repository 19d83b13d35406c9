# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The definition of the loss, in float64 PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def capped(x: Tensor, softcap: float | None, temperature: float | Tensor = 1.0) -> Tensor:
    """float64 logits after the cap, -inf left alone, and the temperature."""
    x = x.double()
    z = x if softcap is None else torch.where(x.isneginf(), x, softcap * torch.tanh(x / softcap))
    return z / temperature


def entropy_of(z: Tensor) -> Tensor:
    """Return the entropy of the last dimension's softmax: a class of -inf adds nothing, to the gradient either."""
    p = z.softmax(-1)
    return z.logsumexp(-1) - torch.where(p == 0.0, 0.0, p * torch.where(p == 0.0, 0.0, z)).sum(-1)


def formula(
    x: Tensor,
    target: Tensor,
    softcap: float | None,
    scale: float,
    reduction: str = "mean",
    *,
    temperature: float = 1.0,
    **arguments: Any,
) -> Tensor:
    """The definition in the docstring of ``cross_entropy``, in float64."""
    z = capped(x, softcap, temperature)
    y = target.double() if target.is_floating_point() else target
    if arguments.get("weight") is not None:
        arguments = {**arguments, "weight": arguments["weight"].double()}
    z_loss = scale * z.logsumexp(1).square()
    counted = torch.ones_like(z_loss)
    divisor = counted.sum()
    if not target.is_floating_point():
        counted = (target != -100).double()
        weight = arguments.get("weight")
        divisor = (counted if weight is None else counted * weight[target.clamp(min=0)]).sum()
    loss = F.cross_entropy(z, y, reduction="none", **arguments) + counted * z_loss
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / divisor}[reduction]
