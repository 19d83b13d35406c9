# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Margins between the scores of target classes and of other classes: ``multi_margin_loss`` for one target per row,
``multilabel_margin_loss`` and ``multilabel_soft_margin_loss`` for several.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_float, check_reduction, hides_unknown, refuse_unknown
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller, broadcast_shape, counterpart
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.operator import Call, Input, per_row
from nkilib.torch.functions.cross_entropy.checks import check_weight
from nkilib.torch.losses.indexed import (
    CLASS_WEIGHT,
    SCORES,
    check_classes,
    check_inplace,
    class_targets,
    indexed_loss,
    rows_and_classes,
)
from nkilib.torch.losses.modules import LossModule, WeightedLossModule
from nkilib.torch.losses.outputs import as_computed, reduced
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

MULTI_MARGIN: Final = Caller("multi_margin_loss", "input", "scores", "torch.nn.functional.multi_margin_loss")


def _check_target_classes(call: Call) -> None:
    target = call.tensor("target").to(torch.int64)
    outside = (target < 0) | (target >= call.first.shape[1])
    if bool(outside.any()):
        position = int(outside.nonzero()[0])
        raise RuntimeError(
            f"{MULTI_MARGIN}: target out of range: row {position} has class {int(target[position])}, and classes are 0 "
            f"to {call.first.shape[1] - 1}"
        )


_MULTI_MARGIN_DERIVATIVE: Final = indexed_loss(
    MULTI_MARGIN,
    inputs=(SCORES, Input("target", keyword="targets_hbm", dimensions=1), CLASS_WEIGHT),
    options={"p": 1, "margin": 1.0, "reduction": "mean"},
    losses=per_row,
    backward=("input", "target", "grad_loss", "class_weight"),
    arguments=class_targets,
    check_values=_check_target_classes,
)


@hides_unknown
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the multi-class margin loss with the kernels of :mod:`nkilib.experimental.loss`.

    The loss of a row is the sum of ``weight[t] * relu(input[j] - input[t] + margin)^p`` over the classes j other than
    the target t, divided by C. The result equals ``torch.nn.functional.multi_margin_loss(input, target, p, margin,
    weight, reduction=reduction)``, in float32. On the CPU only, targets are checked for their range.

    Args:
        input: scores, bfloat16, float16 or float32: [C] or [N, C].
        target: class indices of any integer type, each in [0, C): [N]; a single index for an input [C].
        p: 1 or 2.
        margin: a finite number.
        weight: [C] floating, a factor for each class, used in float32; None means 1. A mean divides by N in any case.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape of the target, in the type of the
        input.

    Raises:
        TypeError: an argument has the wrong Python type, or the input is float64.
        ValueError: unknown ``reduction``; ``p`` is neither 1 nor 2; ``margin`` is not finite; ``weight`` does not have
            one dimension; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices, as in PyTorch; ``weight`` requires grad; on the CPU, a target out
            of range; ``inplace`` with a leaf that requires grad, with another tensor that overlaps it in memory, or
            under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); an integer input; forward-mode
            differentiation.
        AssertionError: more than 1,048,576 rows in one call.
    """
    if unknown:
        refuse_unknown(multi_margin_loss, unknown)
    _check_multi_margin(input, target, p, weight, reduction)
    options = {"p": int(p), "margin": _finite_margin(margin), "reduction": reduction}
    computed = as_computed(input, reduction)
    check_inplace(MULTI_MARGIN, input, computed, inplace, {"target": target, "weight": weight})
    rows, classes = rows_and_classes(input)
    class_weight = None if weight is None else weight.to(torch.float32)
    matrix = computed.reshape(rows, classes)
    loss: Tensor = _MULTI_MARGIN_DERIVATIVE.apply(inplace, matrix, target.reshape(rows), class_weight, **options)
    return unviewed(loss.reshape(())) if target.dim() == 0 else loss


def _finite_margin(margin: Any) -> float:
    number = as_float(MULTI_MARGIN, "margin", margin)
    if not -inf < number < inf:  # NaN too
        raise ValueError(f"{MULTI_MARGIN}: margin must be finite, got {margin}; a number near 1 is usual")
    return number


def _check_multi_margin(input: Tensor, target: Tensor, p: Any, weight: Tensor | None, reduction: Any) -> None:
    """Reject arguments that the kernels cannot compute or that PyTorch does not accept, with PyTorch's error types."""
    caller = MULTI_MARGIN
    tensors = {caller.input: input, "target": target, "weight": weight}
    checks.check_tensors(caller, tensors, optional=("weight",))
    check_reduction(caller, reduction)
    _check_p_and_weight(p, weight)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target, "weight": weight})
    check_classes(caller, input, target)
    rows, classes = rows_and_classes(input)
    if target.dim() > 1 or target.numel() != rows:
        raise RuntimeError(
            f"{caller}: target tensor should be 1-D with size equal to the number of input samples (batch size). "
            f"Expected target size [{rows}], but got {list(target.shape)}. Input size: {list(input.shape)}"
        )
    check_weight(caller, weight, classes, soft=False)


def _check_p_and_weight(p: Any, weight: Tensor | None) -> None:
    """Check what PyTorch checks when its module is made, too.

    Raises:
        ValueError: ``p`` is neither 1 nor 2; ``weight`` does not have one dimension.
    """
    if p not in (1, 2):
        raise ValueError(f"{MULTI_MARGIN}: only p == 1 and p == 2 supported, got {p!r}")
    if weight is not None and weight.dim() != 1:
        raise ValueError(f"{MULTI_MARGIN}: weight must be one-dimensional, got shape {tuple(weight.shape)}")


class MultiMarginLoss(WeightedLossModule):
    """``torch.nn.MultiMarginLoss``, computed by the kernels; ``forward(input, target)`` takes its arguments in
    PyTorch's order.

    Args:
        weight: [C] floating, kept as a buffer that moves with the module; None means 1.
        p, margin, reduction, inplace: see :func:`multi_margin_loss`.

    Raises:
        ValueError: ``p`` is neither 1 nor 2; ``weight`` does not have one dimension.
    """

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(weight, reduction, inplace)
        _check_p_and_weight(p, weight)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction, inplace=self.inplace)


MULTILABEL_MARGIN: Final = Caller(
    "multilabel_margin_loss", "input", "scores", "torch.nn.functional.multilabel_margin_loss"
)


def _check_target_lists(call: Call) -> None:
    target = call.tensor("target").to(torch.int64)
    outside = (target < -1) | (target >= call.first.shape[1])
    if bool(outside.any()):
        row, place = (int(index) for index in outside.nonzero()[0])
        raise RuntimeError(
            f"{MULTILABEL_MARGIN}: argument #2 'target' is out of range: row {row} has {int(target[row, place])}, and "
            f"classes are 0 to {call.first.shape[1] - 1}, with -1 behind the last one"
        )


_MULTILABEL_MARGIN_DERIVATIVE: Final = indexed_loss(
    MULTILABEL_MARGIN,
    inputs=(SCORES, Input("target", keyword="targets_hbm", dimensions=2)),
    options={"reduction": "mean"},
    losses=per_row,
    backward=("input", "target", "grad_loss"),
    arguments=class_targets,
    check_values=_check_target_lists,
)


@hides_unknown
def multilabel_margin_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", *, inplace: bool = False, **unknown: Unpack[NoKeywords]
) -> Tensor:
    """Compute the margin loss with several targets per row, with the kernels of :mod:`nkilib.experimental.loss`.

    The loss of a row is the sum of ``relu(1 - (input[t] - input[j]))`` over its targets t and the classes j that are
    not targets, divided by C. The result equals ``torch.nn.functional.multilabel_margin_loss(input, target,
    reduction=reduction)``, in float32. On the CPU only, targets are checked for their range.

    Args:
        input: scores, bfloat16, float16 or float32: [C] or [N, C]; at most 4,096 classes.
        target: a tensor of the shape of the input, of any integer type: each row holds its targets, in [0, C), up to
            the first -1; the elements behind it are ignored.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"`` and an input [N, C], one loss per row, in the dtype of the
        input.

    Raises:
        TypeError: an argument has the wrong Python type, or the input is float64.
        ValueError: unknown ``reduction``; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices, as in PyTorch; on the CPU, a target out of range; ``inplace`` with
            a leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); an integer input; forward-mode
            differentiation.
        AssertionError: more than 4,096 classes, or 262,144 rows.
    """
    if unknown:
        refuse_unknown(multilabel_margin_loss, unknown)
    caller = MULTILABEL_MARGIN
    tensors = {caller.input: input, "target": target}
    checks.check_tensors(caller, tensors)
    check_reduction(caller, reduction)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target})
    check_classes(caller, input, target)
    rows, classes = rows_and_classes(input)
    if target.dim() > 2 or target.numel() != rows * classes or (input.dim() == 2 and target.shape != input.shape):
        raise RuntimeError(
            f"{caller}: inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}; fill "
            f"rows with -1"
        )
    computed = as_computed(input, reduction)
    check_inplace(caller, input, computed, inplace, {"target": target})
    loss: Tensor = _MULTILABEL_MARGIN_DERIVATIVE.apply(
        inplace, computed.reshape(rows, classes), target.reshape(rows, classes), reduction=reduction
    )
    return loss if input.dim() == 2 else unviewed(loss.reshape(()))


class MultiLabelMarginLoss(LossModule):
    """``torch.nn.MultiLabelMarginLoss``, computed by the kernels; ``forward(input, target)`` takes its arguments in
    PyTorch's order.

    Args:
        reduction, inplace: see :func:`multilabel_margin_loss`.
    """

    def __init__(self, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return multilabel_margin_loss(input, target, self.reduction, inplace=self.inplace)


_SOFT_MARGIN_LOSS: Final = rowwise_loss(
    Caller("multilabel_soft_margin_loss", "input", "logits", counterpart("multilabel_soft_margin_loss")),
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
    caller = _SOFT_MARGIN_LOSS.caller
    arguments = {"input": input, "target": target, "weight": weight}
    _SOFT_MARGIN_LOSS.check(arguments, reduction, inplace, integers=("target", "weight"), bools=("weight",))
    if input.dim() == 0:
        raise IndexError(f"{caller}: input must have a dimension of classes, got none; pass [C] or [N, C]")
    tensors = [input, target, *([] if weight is None else [weight])]
    shape = broadcast_shape(caller, {name: tensor.shape for name, tensor in arguments.items() if tensor is not None})
    axis, classes = input.dim() - 1, input.shape[-1]  # as in PyTorch; the broadcast shape may have more
    first, second, *others = as_floats(tensors)
    first, second = (tensor.expand(shape).movedim(axis, -1) for tensor in (first, second))
    if inplace:
        _SOFT_MARGIN_LOSS.check_inplace(arguments, first)
    if classes == 0:  # a mean of no classes
        return reduced((first * second).sum(-1) / classes, reduction, (*shape[:axis], *shape[axis + 1 :]))
    shared = [_row_weights(tensor, shape, axis) for tensor in others]
    computed = {"input": first, "target": second, "weight": shared[0] if shared else None}
    loss = _SOFT_MARGIN_LOSS(computed, reduction, inplace)
    return loss if shape[axis] == classes else loss * (shape[axis] / classes)


def _row_weights(weight: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
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
