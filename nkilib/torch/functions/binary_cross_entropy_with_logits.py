# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``binary_cross_entropy_with_logits`` and ``BCEWithLogitsLoss``."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nkilib.experimental.loss import (
    binary_cross_entropy_with_logits_backward,
    binary_cross_entropy_with_logits_forward,
)
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import WeightedLossModule
from nkilib.torch.losses.shapes import check_expands, check_same_size

BINARY_CROSS_ENTROPY_WITH_LOGITS: Final = elementwise_loss(
    "binary_cross_entropy_with_logits",
    "logits",
    (binary_cross_entropy_with_logits_forward, binary_cross_entropy_with_logits_backward),
    optional=("weight", "pos_weight"),
    constant=("weight", "pos_weight"),
    integers=("weight", "pos_weight"),
    typed=("target",),
)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
    *,
    inplace: bool = False,
) -> Tensor:
    """Binary cross-entropy of logits, ``(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))`` with p the ``pos_weight``, on
    the kernels of :mod:`nkilib.experimental.loss`.

    Equals ``torch.nn.functional.binary_cross_entropy_with_logits(input, target, weight, pos_weight=pos_weight,
    reduction=reduction)``, in float32, and sums are float32. A confident logit keeps its small loss, where PyTorch's
    float32 is 0. No value is looked at, so nothing waits for the device.

    Args:
        input: logits, bfloat16, float16 or float32, of any shape.
        target: of the shape of the input, in any of these types. It may require grad.
        weight: of a shape that broadcasts to the target's; losses are multiplied by it, and a mean is over elements. It
            has no gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: the weight of positive examples, of a shape that broadcasts to the target's. It has no gradient.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shape of the input and the type of the target.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; a target of another shape; ``inplace`` of a tensor with gaps.
        RuntimeError: devices differ; a weight that does not broadcast, or requires grad; integers or complex numbers;
            ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    caller = BINARY_CROSS_ENTROPY_WITH_LOGITS.caller
    check_same_size(caller, input, target)
    if isinstance(target, Tensor):
        for name, each in (("weight", weight), ("pos_weight", pos_weight)):
            check_expands(caller, name, each, tuple(target.shape))
    tensors = {"input": input, "target": target, "weight": weight, "pos_weight": pos_weight}
    return BINARY_CROSS_ENTROPY_WITH_LOGITS(tensors, reduction, inplace)


class BCEWithLogitsLoss(WeightedLossModule):
    """``torch.nn.BCEWithLogitsLoss`` on the kernels.

    Args:
        weight, reduction, pos_weight, inplace: as for :func:`binary_cross_entropy_with_logits`; weights are buffers.
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(weight, reduction, inplace)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return binary_cross_entropy_with_logits(
            input, target, self.weight, self.reduction, self.pos_weight, inplace=self.inplace
        )
