# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of the tests, seeded, and the float64 results of PyTorch for them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

POSITIONS, CLASSES = 6, 11
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make_logits(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, spread: float = 3.0) -> Tensor:
    """Normal logits, rounded to ``dtype``."""
    return (spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def make_targets(*shape: int, classes: int = CLASSES, ignored: int | None = None, seed: int = 1) -> Tensor:
    """Class indices; with ``ignored``, every third position has that target."""
    target = torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))
    if ignored is not None:
        target.view(-1)[1::3] = ignored
    return target


def make_probabilities(*shape: int, class_dim: int = 1, seed: int = 2) -> Tensor:
    """float32 class probabilities."""
    return make_logits(*shape, seed=seed).softmax(class_dim)


def make_weight(classes: int = CLASSES, seed: int = 3) -> Tensor:
    """Class weights from 0.5 to 1.5."""
    return 0.5 + torch.rand(classes, generator=torch.Generator().manual_seed(seed))


def exact(input: Tensor, target: Tensor, upstream: Tensor | None = None, **arguments: Any) -> tuple[Tensor, Tensor]:
    """F.cross_entropy in float64 on the same values: loss, and gradient of the input."""
    x = input.detach().double().requires_grad_()
    if arguments.get("weight") is not None:
        arguments = {**arguments, "weight": arguments["weight"].double()}
    y = target.double() if target.is_floating_point() else target.long()
    loss = F.cross_entropy(x, y, **arguments)
    loss.backward(None if upstream is None else upstream.double())
    assert x.grad is not None
    return loss.detach(), x.grad


def gradient_of(loss: Tensor, input: Tensor, upstream: Tensor | None = None) -> Tensor:
    """The gradient of ``input``, which requires grad."""
    (gradient,) = torch.autograd.grad(loss, input, upstream)
    return gradient
