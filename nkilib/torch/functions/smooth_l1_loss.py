# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``smooth_l1_loss`` and ``SmoothL1Loss``: the error squared near 0 and absolute beyond."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import as_float
from nkilib.experimental.loss import smooth_l1_loss_backward, smooth_l1_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import finite_number
from nkilib.torch.losses.pair import loss_of_pair

SMOOTH_L1_LOSS: Final = elementwise_loss(
    "smooth_l1_loss",
    "predictions",
    (smooth_l1_loss_forward, smooth_l1_loss_backward),
    integers=("input", "target"),
    bools=("input", "target"),
    options={"beta": 1.0},
)


@hides_unknown
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    beta: float = 1.0,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the smooth absolute error with the kernels of :mod:`nkilib.experimental.loss`: ``d^2 / (2 beta)`` up to
    ``|d| = beta`` and ``|d| - beta / 2`` beyond, with ``d = input - target``.

    The result equals ``torch.nn.functional.smooth_l1_loss(input, target, reduction=reduction, beta=beta)``, computed in
    float32 with float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: predictions, bfloat16, float16, float32 or integers, of any shape.
        target: targets in one of these types, of a shape that broadcasts with the input's; if the shapes differ, there
            is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        beta: the error up to which the loss is quadratic, finite; with 0 it is never quadratic, as in ``l1_loss``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; an infinite beta; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: a negative beta; incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that
            requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(smooth_l1_loss, unknown)
    beta = _checked(beta)
    return loss_of_pair(SMOOTH_L1_LOSS, input, target, reduction, inplace, beta=beta)


def _checked(beta: Any) -> float:
    caller = SMOOTH_L1_LOSS.caller
    if not as_float(caller, "beta", beta) >= 0.0:  # NaN too
        raise RuntimeError(f"{caller}: does not support negative values for beta, got {beta}")
    return finite_number(caller, "beta", beta)


class SmoothL1Loss(LossModule):
    """``torch.nn.SmoothL1Loss``, computed by the kernels.

    Args:
        reduction, beta, inplace: see :func:`smooth_l1_loss`.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return smooth_l1_loss(input, target, self.reduction, self.beta, inplace=self.inplace)
