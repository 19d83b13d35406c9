# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses of an input and a target that broadcast, with a warning, and optionally a weight of the shape of the input."""

from __future__ import annotations

from torch import Tensor

from nkilib.torch.dispatch.checks import check_tensors
from nkilib.torch.losses.elementwise import ElementwiseLoss
from nkilib.torch.losses.shapes import check_weight, warn_of_broadcast
from nkilib.torch.losses.shared_weights import sum_of


def loss_of_pair(
    loss: ElementwiseLoss,
    input: Tensor,
    target: Tensor,
    reduction: str,
    inplace: bool,
    weight: Tensor | None = None,
    divides_by_weight: bool = False,
    **options: float,
) -> Tensor:
    """Return the loss of an input and a target, with PyTorch's broadcasting.

    Args:
        loss: the elementwise loss.
        input, target: tensors whose shapes broadcast. If the shapes differ, a warning names the line that called the
            public function, which calls this one.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: whether the gradient is written over the memory of the input.
        weight: a weight of the shape of the input; None: 1.
        divides_by_weight: whether a mean divides by the sum of the weights, not by their number.
        options: the options of the loss.
    """
    tensors: dict[str, Tensor | None] = {"input": input, "target": target}
    check_tensors(loss.caller, {**tensors, "weight": weight}, optional=("weight",))
    warn_of_broadcast(loss.caller, input, target)
    check_weight(loss.caller, input, weight)
    if loss.optional:
        tensors["weight"] = weight
    if weight is None or reduction != "mean" or not divides_by_weight:
        return loss(tensors, reduction, inplace, **options)
    return loss(tensors, "sum", inplace, **options) / sum_of(weight)
