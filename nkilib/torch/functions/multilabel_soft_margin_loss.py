# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``multilabel_soft_margin_loss`` and ``MultiLabelSoftMarginLoss``: the row mean of binary cross-entropies of
logits.
"""

from __future__ import annotations

from math import prod
from typing import Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.experimental.loss import multilabel_soft_margin_loss_backward, multilabel_soft_margin_loss_forward
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller, counterpart
from nkilib.torch.dispatch.reductions import reduced
from nkilib.torch.losses.modules import WeightedLossModule
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

_LOSS: Final = rowwise_loss(
    Caller("multilabel_soft_margin_loss", "input", "logits", counterpart("multilabel_soft_margin_loss")),
    (multilabel_soft_margin_loss_forward, multilabel_soft_margin_loss_backward),
    RowInputs(("input", "target"), optional=("weight",)),
    wanted={"input": True, "target": False, "weight": False},
)


@hides_unknown
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the multi-label soft margin loss: for each row, the mean over classes of the binary cross-entropy of
    logits.

    The result equals ``torch.nn.functional.multilabel_soft_margin_loss(input, target, weight, reduction=reduction)``,
    computed in float32 with float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: logits [..., C], bfloat16, float16 or float32.
        target: numbers in [0, 1], in one of these types or of integers, of a shape that broadcasts with the input's. It
            may require grad.
        weight: class weights [C], or a tensor of a shape that broadcasts, in one of these types or of integers. It may
            require grad.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape without C, in the dtype that
        the tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``inplace`` with a tensor that has gaps in memory.
        IndexError: an input without dimensions.
        RuntimeError: incompatible shapes or devices; a complex tensor, or integer logits; ``inplace`` with a leaf that
            requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(multilabel_soft_margin_loss, unknown)
    arguments = {"input": input, "target": target, "weight": weight}
    _LOSS.check(arguments, reduction, inplace, integers=("target", "weight"), bools=("weight",))
    if input.dim() == 0:
        raise IndexError(f"{_LOSS.caller}: input must have a dimension of classes, got none; pass [C] or [N, C]")
    tensors = [input, target, *([] if weight is None else [weight])]
    shape = broadcast_shape(
        _LOSS.caller, {name: tensor.shape for name, tensor in arguments.items() if tensor is not None}
    )
    axis, classes = input.dim() - 1, input.shape[-1]  # as in PyTorch; the broadcast shape may have more
    first, second, *others = as_floats(tensors)
    first, second = (tensor.expand(shape).movedim(axis, -1) for tensor in (first, second))
    if inplace:
        _LOSS.check_inplace(arguments, first)
    if classes == 0:  # a mean of no classes
        return reduced((first * second).sum(-1) / classes, reduction, (*shape[:axis], *shape[axis + 1 :]))
    shared = [_of_rows(tensor, shape, axis) for tensor in others]
    computed = {"input": first, "target": second, "weight": shared[0] if shared else None}
    loss = _LOSS(computed, reduction, inplace)
    return loss if shape[axis] == classes else loss * (shape[axis] / classes)


def _of_rows(weight: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """Return the weights as [1, C] if all rows have the same weights, else the weights of each row."""
    if weight.numel() == prod(weight.shape[-1:]) and axis == len(shape) - 1:
        return weight.reshape(-1).expand(shape[-1:]).reshape(1, shape[-1])
    return weight.expand(shape).movedim(axis, -1)


class MultiLabelSoftMarginLoss(WeightedLossModule):
    """``torch.nn.MultiLabelSoftMarginLoss``, computed by the kernels.

    Args:
        weight: the class weights, a buffer.
        reduction, inplace: see :func:`multilabel_soft_margin_loss`.
    """

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(weight, reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return multilabel_soft_margin_loss(input, target, self.weight, self.reduction, inplace=self.inplace)
