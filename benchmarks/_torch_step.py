# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A training step of cross-entropy through nkilib.torch and autograd."""

from __future__ import annotations

from typing import Any

import torch

from nkilib.torch import cross_entropy


class _Layer(torch.autograd.Function):
    """A stand-in for the layer that made the logits.

    The logits are therefore not a leaf, and the layer takes neither time nor memory of its own.
    """

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        return None, None  # never called: the gradient of the logits is what is asked for


def torch_step(
    values: torch.Tensor, targets: torch.Tensor, backward: bool, inplace: bool
) -> tuple[float, torch.Tensor | None]:
    """Mean loss of ``values`` [N, V], and the gradient if ``backward``, which ``inplace`` writes over them."""
    logits: torch.Tensor = _Layer.apply(torch.ones(1, requires_grad=True), values)
    loss = cross_entropy(logits, targets, inplace=inplace)
    if not backward:
        return loss.item(), None
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), gradient
