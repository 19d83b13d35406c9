# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels wrapped as users of NKI libraries wrap them: both forms that are published, written for ours.

One is an ``autograd.Function`` that launches kernels itself, for eager mode. The other makes operators of typed
functions with ``nki_op`` and registers a derivative. The mean of the losses is what they give; targets are int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nkilib.experimental.loss import choose_tiling, cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl

CORES = 2

Decorator = Callable[..., Any]


def _tiling(logits: Tensor, direction: str) -> dict[str, int]:
    return choose_tiling(*logits.shape, logits.dtype, direction)._asdict()


def function_over_kernels(hold: Callable[[Any], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """The first form; ``hold`` gives what the framework makes of a kernel."""
    forward_kernel, backward_kernel = hold(cross_entropy_forward), hold(cross_entropy_backward)

    class TokenLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
            tiling = _tiling(logits, "forward")
            loss, lse = forward_kernel[CORES](logits.detach(), targets, dtype=nl.float32, **tiling)
            ctx.save_for_backward(logits, targets, lse)
            return torch.mean(loss)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            logits, targets, lse = ctx.saved_tensors
            tiling = _tiling(logits, "backward")
            gradient = backward_kernel[CORES](
                logits.detach(), targets, lse, reduction="mean", dtype=nl.float32, inplace=False, **tiling
            )
            return (gradient * grad).to(logits.dtype), None

    def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = TokenLoss.apply(logits, targets)
        return loss

    return mean_loss


def operators_over_kernels(nki_op: Decorator, hold: Callable[[Any], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """The second form; ``nki_op`` is that of torch-neuronx or of the same form."""
    forward_kernel, backward_kernel = hold(cross_entropy_forward), hold(cross_entropy_backward)

    @nki_op("nkilib_users::token_losses", mutates_args={})
    def token_losses(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tiling = _tiling(logits, "forward")
        loss, lse = forward_kernel[CORES](logits, targets, dtype=nl.float32, **tiling)
        return loss, lse

    @nki_op("nkilib_users::token_gradients", mutates_args={})
    def token_gradients(logits: torch.Tensor, targets: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        tiling = _tiling(logits, "backward")
        gradient: Tensor = backward_kernel[CORES](
            logits, targets, lse, reduction="sum", dtype=nl.float32, inplace=False, **tiling
        )
        return gradient

    def setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.mark_non_differentiable(output[1])

    def gradients(ctx: Any, grad_loss: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        logits, targets, lse = ctx.saved_tensors
        return (token_gradients(logits, targets, lse) * grad_loss[:, None]).to(logits.dtype), None

    token_losses.register_autograd(gradients, setup_context=setup)

    def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = token_losses(logits, targets)[0].mean()
        return loss

    return mean_loss
