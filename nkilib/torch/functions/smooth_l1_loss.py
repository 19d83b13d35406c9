# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``smooth_l1_loss`` and ``SmoothL1Loss``: squared near 0 and absolute beyond."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from nkilib.experimental.loss import smooth_l1_loss_backward, smooth_l1_loss_forward
from nkilib.torch.dispatch.checks import checked_number
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import finite_number
from nkilib.torch.losses.pair import loss_of_pair

SMOOTH_L1_LOSS: Final = elementwise_loss(
    "smooth_l1_loss",
    "predictions",
    (smooth_l1_loss_forward, smooth_l1_loss_backward),
    integers=("input", "target"),
    options={"beta": 1.0},
)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    beta: float = 1.0,
    *,
    inplace: bool = False,
) -> Tensor:
    """Smooth absolute error, on the kernels of :mod:`nkilib.experimental.loss`: ``d^2 / (2 beta)`` up to ``|d| = beta``
    and ``|d| - beta / 2`` beyond, with ``d = input - target``.

    Equals ``torch.nn.functional.smooth_l1_loss(input, target, reduction=reduction, beta=beta)``, in float32, and sums
    are float32. No value is looked at, so nothing waits for the device.

    Args:
        input: predictions, bfloat16, float16, float32 or integers, of any shape.
        target: in one of these types; of a shape that broadcasts with the input's, which warns. It may
            require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        beta: up to which an error is squared, finite; 0: never, as in ``l1_loss``.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        the tensors promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; an infinite beta; ``inplace`` of a tensor with gaps.
        RuntimeError: a negative beta; shapes or devices do not fit; a complex tensor; ``inplace`` of a leaf, or under
            torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    beta = _checked(beta)
    return loss_of_pair(SMOOTH_L1_LOSS, input, target, reduction, inplace, beta=beta)


def _checked(beta: Any) -> float:
    caller = SMOOTH_L1_LOSS.caller
    if not checked_number(caller, "beta", beta) >= 0.0:  # NaN too
        raise RuntimeError(f"{caller}: does not support negative values for beta, got {beta}")
    return finite_number(caller, "beta", beta)


class SmoothL1Loss(LossModule):
    """``torch.nn.SmoothL1Loss`` on the kernels.

    Args:
        reduction, beta, inplace: as for :func:`smooth_l1_loss`.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return smooth_l1_loss(input, target, self.reduction, self.beta, inplace=self.inplace)
