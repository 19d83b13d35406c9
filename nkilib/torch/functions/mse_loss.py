# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``mse_loss`` and ``MSELoss``: the squared error."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nkilib.experimental.loss import mse_loss_backward, mse_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.pair import loss_of_pair

MSE_LOSS: Final = elementwise_loss(
    "mse_loss",
    "predictions",
    (mse_loss_forward, mse_loss_backward),
    optional=("weight",),
    integers=("input", "target", "weight"),
)


def mse_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None, *, inplace: bool = False
) -> Tensor:
    """Squared error ``(input - target)^2``, on the kernels of :mod:`nkilib.experimental.loss`.

    Equals ``torch.nn.functional.mse_loss(input, target, reduction=reduction, weight=weight)``, in float32, and sums are
    float32. No value is looked at, so nothing waits for the device.

    Args:
        input: predictions, bfloat16, float16 or float32, of any shape.
        target: in one of these types or of integers; of a shape that broadcasts with the input's, which warns. It may
            require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: of the shape of the input; losses are multiplied by it, and a mean divides by its sum. It may require
            grad.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        the tensors promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` of a tensor with gaps.
        RuntimeError: shapes or devices do not fit; a complex tensor; ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    return loss_of_pair(MSE_LOSS, input, target, reduction, inplace, weight, divides_by_weight=True)


class MSELoss(LossModule):
    """``torch.nn.MSELoss`` on the kernels.

    Args:
        reduction, inplace: as for :func:`mse_loss`.
    """

    def __init__(self, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return mse_loss(input, target, self.reduction, inplace=self.inplace)
