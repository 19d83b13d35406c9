# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Margins between the scores of target classes and of other classes: ``multi_margin_loss`` for one target per row,
``multilabel_margin_loss`` for several, and their modules.

``multilabel_soft_margin_loss`` has no margin: it is a mean of binary cross-entropies (:mod:`.binary_cross_entropy`).
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_float, check_reduction, hides_unknown, refuse_unknown
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.operator import Call, Input, per_row
from nkilib.torch.functions.cross_entropy.checks import check_weight
from nkilib.torch.losses.indexed import (
    CLASS_WEIGHT,
    SCORES,
    check_classes,
    check_inplace_scores,
    class_targets,
    indexed_loss,
    rows_and_classes,
)
from nkilib.torch.losses.modules import LossModule, WeightedLossModule
from nkilib.torch.losses.outputs import as_computed

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


def _finite_margin(margin: Any) -> float:
    number = as_float(MULTI_MARGIN, "margin", margin)
    if not -inf < number < inf:  # NaN too
        raise ValueError(f"{MULTI_MARGIN}: margin must be finite, got {margin}; a number near 1 is usual")
    return number


def _check_p_and_weight(p: Any, weight: Tensor | None) -> None:
    """Check ``p`` and ``weight`` as PyTorch's module does when it is created.

    Raises:
        ValueError: ``p`` is neither 1 nor 2; ``weight`` does not have one dimension.
    """
    if p not in (1, 2):
        raise ValueError(f"{MULTI_MARGIN}: only p == 1 and p == 2 supported, got {p!r}")
    if weight is not None and weight.dim() != 1:
        raise ValueError(f"{MULTI_MARGIN}: weight must be one-dimensional, got shape {tuple(weight.shape)}")


def _check_multi_margin(input: Tensor, target: Tensor, p: Any, weight: Tensor | None, reduction: Any) -> None:
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
    check_inplace_scores(MULTI_MARGIN, input, computed, inplace, {"target": target, "weight": weight})
    rows, classes = rows_and_classes(input)
    class_weight = None if weight is None else weight.to(torch.float32)
    matrix = computed.reshape(rows, classes)
    loss: Tensor = _MULTI_MARGIN_DERIVATIVE.apply(inplace, matrix, target.reshape(rows), class_weight, **options)
    return unviewed(loss.reshape(())) if target.dim() == 0 else loss


class MultiMarginLoss(WeightedLossModule):
    """Multi-class margin loss as a module, in place of ``torch.nn.MultiMarginLoss``: :func:`multi_margin_loss`,
    computed by the kernels.

    Call the module with ``(input, target)``: scores [N, C] and class indices [N], or [C] and a single index. The loss
    is a float32 scalar tensor, or with ``"none"`` a tensor of the shape of the target. The weight is a buffer: it moves
    with the module to a device or dtype, and is in the state dict.

    Args:
        p: 1 or 2, the power to which each margin is raised.
        margin: the distance, a finite number, by which the score of the target should exceed every other score.
        weight: a factor for each class, [C], floating, used in float32; None means 1.
        reduction: ``"mean"`` over the rows, ``"sum"``, or ``"none"``: a loss for each row.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

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
        target: a tensor of the shape of the input, of any integer type: each row holds its targets, in [0, C), before
            the first -1; the elements after that are ignored.
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
        AssertionError: more than 4,096 classes, or more than 262,144 rows.
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
    check_inplace_scores(caller, input, computed, inplace, {"target": target})
    loss: Tensor = _MULTILABEL_MARGIN_DERIVATIVE.apply(
        inplace, computed.reshape(rows, classes), target.reshape(rows, classes), reduction=reduction
    )
    return loss if input.dim() == 2 else unviewed(loss.reshape(()))


class MultiLabelMarginLoss(LossModule):
    """Margin loss with several targets per row as a module, in place of ``torch.nn.MultiLabelMarginLoss``:
    :func:`multilabel_margin_loss`, computed by the kernels.

    Call the module with ``(input, target)``: scores [C] or [N, C], and class indices of the same shape, where each row
    has its targets and behind them -1. The loss is a float32 scalar tensor, or with ``"none"`` one loss per row. The
    module keeps its options, and has neither parameters nor buffers.

    Args:
        reduction: ``"mean"`` over the rows, ``"sum"``, or ``"none"``: a loss for each row.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return multilabel_margin_loss(input, target, self.reduction, inplace=self.inplace)
