# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``kl_div`` and ``KLDivLoss``: the divergence of a distribution from another."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nkilib.experimental.loss import kl_div_backward, kl_div_forward
from nkilib.torch.dispatch.checks import check_flag, check_tensors
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.reductions import BATCHMEAN, check_reduction_or_batchmean

KL_DIV: Final = elementwise_loss(
    "kl_div",
    "log-probabilities",
    (kl_div_forward, kl_div_backward),
    options={"log_target": False, "reduction": "mean"},
    wanted=("input", "target"),
)


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False, *, inplace: bool = False
) -> Tensor:
    """Kullback-Leibler divergence, element by element, on the kernels of :mod:`nkilib.experimental.loss`.

    ``target * (log(target) - input)``, or with ``log_target`` ``exp(target) * (target - input)``. Equals
    ``torch.nn.functional.kl_div(input, target, reduction=reduction, log_target=log_target)``, in float32, and sums are
    float32. No value is looked at, so nothing waits for the device.

    Args:
        input: log-probabilities, bfloat16, float16 or float32, of any shape.
        target: probabilities, or log-probabilities, in one of these types; of a shape that broadcasts with the input's.
            It may require grad.
        reduction: ``"mean"`` (over elements), ``"batchmean"`` (the sum over ``input.size(0)``), ``"sum"`` or
            ``"none"``.
        log_target: the target holds log-probabilities.
        inplace: the backward writes the gradient over the memory of ``input``, which is dense, neither broadcast nor
            cast, and not to be used afterwards: an operation whose derivative takes it, as that of a log-softmax does,
            raises.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        input and target promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; ``inplace`` where the kernel would get a copy.
        RuntimeError: shapes or devices do not fit; an integer or complex tensor, as in PyTorch; ``inplace`` of a
            leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    caller = KL_DIV.caller
    check_tensors(caller, {"input": input, "target": target})
    check_reduction_or_batchmean(caller, reduction)
    check_flag(caller, "log_target", log_target)
    batch = input.shape[0] if input.dim() > 0 else 1
    kernel_reduction = "sum" if reduction == BATCHMEAN else reduction
    loss = KL_DIV({"input": input, "target": target}, kernel_reduction, inplace, log_target=log_target)
    return loss / batch if reduction == BATCHMEAN else loss


class KLDivLoss(LossModule):
    """``torch.nn.KLDivLoss`` on the kernels; ``forward(input, target)`` in that order, as there.

    Args:
        reduction, log_target, inplace: as for :func:`kl_div`.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return kl_div(input, target, self.reduction, self.log_target, inplace=self.inplace)
