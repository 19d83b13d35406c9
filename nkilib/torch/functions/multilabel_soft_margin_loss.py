# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``multilabel_soft_margin_loss`` and ``MultiLabelSoftMarginLoss``."""

from __future__ import annotations

from math import prod
from typing import Final

from torch import Tensor

from nkilib.experimental.loss import multilabel_soft_margin_loss_backward, multilabel_soft_margin_loss_forward
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.reductions import reduced
from nkilib.torch.losses.modules import WeightedLossModule
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

_LOSS: Final = rowwise_loss(
    Caller("multilabel_soft_margin_loss", "input", "logits", "torch.nn.functional.multilabel_soft_margin_loss"),
    (multilabel_soft_margin_loss_forward, multilabel_soft_margin_loss_backward),
    RowInputs(("input", "target"), optional=("weight",)),
    wanted={"input": True, "target": False, "weight": False},
)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    *,
    inplace: bool = False,
) -> Tensor:
    """Multi-label soft margin loss: the mean over classes of the binary cross-entropy from logits, a row each.

    Equals ``torch.nn.functional.multilabel_soft_margin_loss(input, target, weight, reduction=reduction)``, in float32,
    and sums are float32. No value is looked at, so nothing waits for the device.

    Args:
        input: logits [..., C], bfloat16, float16 or float32.
        target: numbers in [0, 1], in one of these types or of integers; of a shape that broadcasts. It may require
            grad.
        weight: of classes, [C], or of a shape that broadcasts, in one of these types or of integers. It may require
            grad.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shape without C, in the type that those of the
        tensors promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; ``inplace`` of a tensor with gaps.
        IndexError: an input without dimensions.
        RuntimeError: shapes or devices do not fit; a complex tensor, or logits of integers; ``inplace`` of a leaf, or
            under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    given = {"input": input, "target": target, "weight": weight}
    _LOSS.check(given, reduction, inplace, integers=("target", "weight"))
    if input.dim() == 0:
        raise IndexError(f"{_LOSS.caller}: input must have a dimension of classes, got none; pass [C] or [N, C]")
    tensors = [input, target, *([] if weight is None else [weight])]
    shape = broadcast_shape(_LOSS.caller, {name: each.shape for name, each in given.items() if each is not None})
    axis, classes = input.dim() - 1, input.shape[-1]  # PyTorch's, of what may have more dimensions
    first, second, *others = as_floats(tensors)
    first, second = (each.expand(shape).movedim(axis, -1) for each in (first, second))
    if inplace:
        _LOSS.check_inplace(input, first)
    if classes == 0:  # a mean of no classes
        return reduced((first * second).sum(-1) / classes, reduction, (*shape[:axis], *shape[axis + 1 :]))
    shared = [_of_rows(each, shape, axis) for each in others]
    computed = {"input": first, "target": second, "weight": shared[0] if shared else None}
    loss = _LOSS(computed, reduction, inplace)
    return loss if shape[axis] == classes else loss * (shape[axis] / classes)


def _of_rows(weight: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """[1, C] where all rows have the same weights, else those of each row."""
    if weight.numel() == prod(weight.shape[-1:]) and axis == len(shape) - 1:
        return weight.reshape(-1).expand(shape[-1:]).reshape(1, shape[-1])
    return weight.expand(shape).movedim(axis, -1)


class MultiLabelSoftMarginLoss(WeightedLossModule):
    """``torch.nn.MultiLabelSoftMarginLoss`` on the kernels.

    Args:
        weight: of classes, a buffer.
        reduction, inplace: as for :func:`multilabel_soft_margin_loss`.
    """

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(weight, reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return multilabel_soft_margin_loss(input, target, self.weight, self.reduction, inplace=self.inplace)
