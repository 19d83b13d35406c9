# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``huber_loss`` and ``HuberLoss``: squared near 0 and linear beyond."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from nkilib.core.rows.numbers import LEAST_NORMAL
from nkilib.experimental.loss import huber_loss_backward, huber_loss_forward
from nkilib.torch.dispatch.checks import checked_number
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import finite_number
from nkilib.torch.losses.pair import loss_of_pair

HUBER_LOSS: Final = elementwise_loss(
    "huber_loss",
    "predictions",
    (huber_loss_forward, huber_loss_backward),
    optional=("weight",),
    integers=("target", "weight"),
    typed=("input", "weight"),
    options={"delta": 1.0},
)


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
    *,
    inplace: bool = False,
) -> Tensor:
    """Huber's error, on the kernels of :mod:`nkilib.experimental.loss`: ``d^2 / 2`` up to ``|d| = delta`` and
    ``delta (|d| - delta / 2)`` beyond, with ``d = input - target``.

    Equals ``torch.nn.functional.huber_loss(input, target, reduction=reduction, delta=delta, weight=weight)``, in
    float32, and sums are float32. No value is looked at, so nothing waits for the device.

    Args:
        input: predictions, bfloat16, float16 or float32, of any shape.
        target: in one of these types or of integers; of a shape that broadcasts with the input's, which warns. It may
            require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        delta: up to which an error is squared, positive and finite.
        weight: of the shape of the input; losses are multiplied by it, and a mean is over elements. It may require
            grad.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        input and weight promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` of a tensor with gaps.
        RuntimeError: a delta that is not positive; shapes or devices do not fit; a complex tensor; ``inplace`` of a
            leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    delta = _checked(delta)
    return loss_of_pair(HUBER_LOSS, input, target, reduction, inplace, weight, delta=delta)


def _checked(delta: Any) -> float:
    caller = HUBER_LOSS.caller
    if not checked_number(caller, "delta", delta) > 0.0:  # NaN too
        raise RuntimeError(f"{caller}: does not support non-positive values for delta, got {delta}")
    return max(finite_number(caller, "delta", delta), LEAST_NORMAL)


class HuberLoss(LossModule):
    """``torch.nn.HuberLoss`` on the kernels.

    Args:
        reduction, delta, inplace: as for :func:`huber_loss`.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return huber_loss(input, target, self.reduction, self.delta, inplace=self.inplace)
