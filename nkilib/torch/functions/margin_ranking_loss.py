# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``margin_ranking_loss`` and ``MarginRankingLoss``: two numbers in the wrong order, or too close."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nkilib.experimental.loss import margin_ranking_loss_backward, margin_ranking_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import finite_number
from nkilib.torch.losses.shapes import check_dimensions

_TENSORS: Final = ("input1", "input2", "target")
MARGIN_RANKING_LOSS: Final = elementwise_loss(
    "margin_ranking_loss",
    "numbers",
    (margin_ranking_loss_forward, margin_ranking_loss_backward),
    tensors=_TENSORS,
    integers=_TENSORS,
    takes_integers_alone=True,
    options={"margin": 0.0},
)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    reduction: str = "mean",
    *,
    inplace: bool = False,
) -> Tensor:
    """How far numbers are from an order, ``max(margin - target (input1 - input2), 0)``, on the kernels of
    :mod:`nkilib.experimental.loss`.

    Equals ``torch.nn.functional.margin_ranking_loss(input1, input2, target, margin, reduction=reduction)``, in float32,
    and sums are float32. Where the loss is just 0 gradients flow, as in PyTorch. No value is looked at, so nothing
    waits for the device.

    Args:
        input1, input2: bfloat16, float16, float32 or integers, of as many dimensions; shapes broadcast.
        target: 1 where input1 is to be the larger one, -1 where input2 is; likewise. Each may require grad.
        margin: finite.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input1``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        the tensors promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; an infinite margin; ``inplace`` of a tensor with gaps.
        RuntimeError: shapes or devices do not fit; a complex tensor; ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    given = {"input1": input1, "input2": input2, "target": target}
    if all(isinstance(each, Tensor) for each in given.values()):  # the others are refused by the loss
        check_dimensions(MARGIN_RANKING_LOSS.caller, given)
    return MARGIN_RANKING_LOSS(
        given, reduction, inplace, margin=finite_number(MARGIN_RANKING_LOSS.caller, "margin", margin)
    )


class MarginRankingLoss(LossModule):
    """``torch.nn.MarginRankingLoss`` on the kernels.

    Args:
        margin, reduction, inplace: as for :func:`margin_ranking_loss`.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return margin_ranking_loss(input1, input2, target, self.margin, self.reduction, inplace=self.inplace)
