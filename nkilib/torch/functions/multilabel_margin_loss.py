# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``multilabel_margin_loss`` and ``MultiLabelMarginLoss``: margins between several target classes and the other
classes.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.reductions import check_reduction
from nkilib.experimental.loss import (
    multilabel_margin_loss_backward,
    multilabel_margin_loss_forward,
)
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.losses import as_computed
from nkilib.torch.dispatch.operator import Call, Input, per_row
from nkilib.torch.losses.indexed import (
    SCORES,
    check_classes,
    check_inplace,
    class_targets,
    indexed_loss,
    rows_and_classes,
)
from nkilib.torch.losses.modules import LossModule

MULTILABEL_MARGIN: Final = Caller(
    "multilabel_margin_loss", "input", "scores", "torch.nn.functional.multilabel_margin_loss"
)


def _check_range(call: Call) -> None:
    target = call.tensor("target").to(torch.int64)
    outside = (target < -1) | (target >= call.first.shape[1])
    if bool(outside.any()):
        row, place = (int(index) for index in outside.nonzero()[0])
        raise RuntimeError(
            f"{MULTILABEL_MARGIN}: argument #2 'target' is out of range: row {row} has {int(target[row, place])}, and "
            f"classes are 0 to {call.first.shape[1] - 1}, with -1 behind the last one"
        )


_DERIVATIVE: Final = indexed_loss(
    MULTILABEL_MARGIN,
    (multilabel_margin_loss_forward, multilabel_margin_loss_backward),
    inputs=(SCORES, Input("target", keyword="targets_hbm", dimensions=2)),
    options={"reduction": "mean"},
    losses=per_row,
    backward=("input", "target", "grad_loss"),
    arguments=class_targets,
    check_values=_check_range,
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
    loss: Tensor = _DERIVATIVE.apply(
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
