# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses of an input and a target that broadcast, with a warning, and perhaps a weight of the shape of the input."""

from __future__ import annotations

from torch import Tensor

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
    """The loss, as PyTorch takes these tensors.

    Args:
        loss, reduction, inplace: of the loss, whose function calls this one: a warning names the caller of that.
        input, target: of shapes that broadcast.
        weight: of the shape of the input; None: 1.
        divides_by_weight: a mean divides by the sum of the weights, not by their number.
        options: of the loss.
    """
    if all(isinstance(each, Tensor) for each in (input, target)):  # the others are refused by the loss
        warn_of_broadcast(loss.caller, input, target)
    if isinstance(weight, Tensor):
        check_weight(loss.caller, input, weight)
    tensors: dict[str, Tensor | None] = {"input": input, "target": target}
    if loss.optional:
        tensors["weight"] = weight
    if weight is None or reduction != "mean" or not divides_by_weight:
        return loss(tensors, reduction, inplace, **options)
    return loss(tensors, "sum", inplace, **options) / sum_of(weight)
