"""The definition of the loss, in float64 PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def capped(x: Tensor, softcap: float | None) -> Tensor:
    """float64 logits after the cap, -inf left alone."""
    x = x.double()
    return x if softcap is None else torch.where(x.isneginf(), x, softcap * torch.tanh(x / softcap))


def formula(
    x: Tensor, target: Tensor, softcap: float | None, scale: float, reduction: str = "mean", **arguments: Any
) -> Tensor:
    """The definition in the docstring of ``cross_entropy``, in float64."""
    z = capped(x, softcap)
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
