# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``multi_margin_loss`` and ``MultiMarginLoss``: the margin between the target class and the other classes."""

from __future__ import annotations

from math import inf
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import as_float
from nkilib.core.host.reductions import check_reduction
from nkilib.experimental.loss import multi_margin_loss_backward, multi_margin_loss_forward
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.losses import as_computed
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
from nkilib.torch.losses.modules import WeightedLossModule

MULTI_MARGIN: Final = Caller("multi_margin_loss", "input", "scores", "torch.nn.functional.multi_margin_loss")


def _check_range(call: Call) -> None:
    target = call.tensor("target").to(torch.int64)
    outside = (target < 0) | (target >= call.first.shape[1])
    if bool(outside.any()):
        position = int(outside.nonzero()[0])
        raise RuntimeError(
            f"{MULTI_MARGIN}: target out of range: row {position} has class {int(target[position])}, and classes are 0 "
            f"to {call.first.shape[1] - 1}"
        )


_DERIVATIVE: Final = indexed_loss(
    MULTI_MARGIN,
    (multi_margin_loss_forward, multi_margin_loss_backward),
    inputs=(SCORES, Input("target", keyword="targets_hbm", dimensions=1), CLASS_WEIGHT),
    options={"p": 1, "margin": 1.0, "reduction": "mean"},
    losses=per_row,
    backward=("input", "target", "grad_loss", "class_weight"),
    arguments=class_targets,
    check_values=_check_range,
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
    _check(input, target, p, margin, weight, reduction)
    computed = as_computed(input, reduction)
    check_inplace(MULTI_MARGIN, input, computed, inplace, {"target": target, "weight": weight})
    rows, classes = rows_and_classes(input)
    class_weight = None if weight is None else weight.to(torch.float32)
    options = {"p": int(p), "margin": float(margin), "reduction": reduction}
    matrix = computed.reshape(rows, classes)
    loss: Tensor = _DERIVATIVE.apply(inplace, matrix, target.reshape(rows), class_weight, **options)
    return unviewed(loss.reshape(())) if target.dim() == 0 else loss


def _check(input: Tensor, target: Tensor, p: Any, margin: Any, weight: Tensor | None, reduction: Any) -> None:
    """Reject arguments that the kernels cannot compute or that PyTorch does not accept, with PyTorch's error types."""
    caller = MULTI_MARGIN
    tensors = {caller.input: input, "target": target, "weight": weight}
    checks.check_tensors(caller, tensors, optional=("weight",))
    check_reduction(caller, reduction)
    if p not in (1, 2):
        raise ValueError(f"{caller}: only p == 1 and p == 2 supported, got {p!r}")
    if not -inf < as_float(caller, "margin", margin) < inf:  # NaN too
        raise ValueError(f"{caller}: margin must be finite, got {margin}; a number near 1 is usual")
    if weight is not None and weight.dim() != 1:
        raise ValueError(f"{caller}: weight must be one-dimensional, got shape {tuple(weight.shape)}")
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
        if p not in (1, 2):
            raise ValueError(f"{MULTI_MARGIN}: only p == 1 and p == 2 supported, got {p!r}")
        if weight is not None and weight.dim() != 1:
            raise ValueError(f"{MULTI_MARGIN}: weight must be one-dimensional, got shape {tuple(weight.shape)}")
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction, inplace=self.inplace)
