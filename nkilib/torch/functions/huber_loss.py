# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``huber_loss`` and ``HuberLoss``: the error squared near 0 and linear beyond."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import as_float
from nkilib.core.rows.numbers import LEAST_NORMAL
from nkilib.experimental.loss import huber_loss_backward, huber_loss_forward
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
    bools=("target", "weight"),
    typed=("input", "weight"),
    options={"delta": 1.0},
)


@hides_unknown
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute Huber's error with the kernels of :mod:`nkilib.experimental.loss`: ``d^2 / 2`` up to ``|d| = delta`` and
    ``delta (|d| - delta / 2)`` beyond, with ``d = input - target``.

    The result equals ``torch.nn.functional.huber_loss(input, target, reduction=reduction, delta=delta,
    weight=weight)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not wait for
    the device.

    Args:
        input: predictions, bfloat16, float16 or float32, of any shape.
        target: targets in one of these types or of integers, of a shape that broadcasts with the input's; if the shapes
            differ, there is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        delta: the error up to which the loss is quadratic, positive and finite.
        weight: a tensor of the shape of the input. The losses are multiplied by it; a mean still divides by the number
            of elements. It may require grad.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that those of
        input and weight promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: a delta that is not positive; incompatible shapes or devices; a complex tensor; ``inplace`` with a
            leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(huber_loss, unknown)
    delta = _checked(delta)
    return loss_of_pair(HUBER_LOSS, input, target, reduction, inplace, weight, delta=delta)


def _checked(delta: Any) -> float:
    caller = HUBER_LOSS.caller
    if not as_float(caller, "delta", delta) > 0.0:  # NaN too
        raise RuntimeError(f"{caller}: does not support non-positive values for delta, got {delta}")
    return max(finite_number(caller, "delta", delta), LEAST_NORMAL)


class HuberLoss(LossModule):
    """``torch.nn.HuberLoss``, computed by the kernels.

    Args:
        reduction, delta, inplace: see :func:`huber_loss`.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return huber_loss(input, target, self.reduction, self.delta, inplace=self.inplace)
