# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``l1_loss`` and ``L1Loss``: the absolute error."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.experimental.loss import l1_loss_backward, l1_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.pair import loss_of_pair

L1_LOSS: Final = elementwise_loss(
    "l1_loss",
    "predictions",
    (l1_loss_forward, l1_loss_backward),
    optional=("weight",),
    integers=("input", "target", "weight"),
    bools=("weight",),
    takes_integers_alone=True,
)


@hides_unknown
def l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    weight: Tensor | None = None,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the absolute error ``|input - target|`` with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.l1_loss(input, target, reduction=reduction, weight=weight)``, computed in
    float32 with float32 sums. Gradients at 0 and at NaN are 0, as in PyTorch. Tensor values are never read, so the call
    does not wait for the device.

    Args:
        input: predictions, bfloat16, float16, float32 or integers, of any shape.
        target: targets in one of these types, of a shape that broadcasts with the input's; if the shapes differ, there
            is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: a tensor of the shape of the input. The losses are multiplied by it, and a mean divides by its sum. It
            may require grad.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(l1_loss, unknown)
    return loss_of_pair(L1_LOSS, input, target, reduction, inplace, weight, divides_by_weight=True)


class L1Loss(LossModule):
    """``torch.nn.L1Loss``, computed by the kernels.

    Args:
        reduction, inplace: see :func:`l1_loss`.
    """

    def __init__(self, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return l1_loss(input, target, self.reduction, inplace=self.inplace)
