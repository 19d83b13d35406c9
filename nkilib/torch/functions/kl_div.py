# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``kl_div`` and ``KLDivLoss``: the Kullback-Leibler divergence between two distributions."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import check_flags
from nkilib.experimental.loss import kl_div_backward, kl_div_forward
from nkilib.torch.dispatch.checks import check_tensors
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


@hides_unknown
def kl_div(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    log_target: bool = False,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the elementwise Kullback-Leibler divergence with the kernels of :mod:`nkilib.experimental.loss`.

    The loss is ``target * (log(target) - input)``, or with ``log_target`` ``exp(target) * (target - input)``. It equals
    ``torch.nn.functional.kl_div(input, target, reduction=reduction, log_target=log_target)``, computed in float32 with
    float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: log-probabilities, bfloat16, float16 or float32, of any shape.
        target: probabilities or log-probabilities, in one of these types, of a shape that broadcasts with the input's.
            It may require grad.
        reduction: ``"mean"`` (over elements), ``"batchmean"`` (the sum over ``input.size(0)``), ``"sum"`` or
            ``"none"``.
        log_target: whether the target holds log-probabilities.
        inplace: the backward writes the gradient over the memory of ``input``, which must be dense, neither broadcast
            nor cast, and must not be used afterwards: an operation whose derivative needs it, such as log-softmax,
            raises.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that those of
        input and target promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``inplace`` where the kernel would get a copy.
        RuntimeError: incompatible shapes or devices; an integer or complex tensor, as in PyTorch; ``inplace`` with a
            leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(kl_div, unknown)
    caller = KL_DIV.caller
    check_tensors(caller, {"input": input, "target": target})
    check_reduction_or_batchmean(caller, reduction)
    check_flags(caller, log_target=log_target)
    batch = input.shape[0] if input.dim() > 0 else 1
    kernel_reduction = "sum" if reduction == BATCHMEAN else reduction
    loss = KL_DIV({"input": input, "target": target}, kernel_reduction, inplace, log_target=log_target)
    return loss / batch if reduction == BATCHMEAN else loss


class KLDivLoss(LossModule):
    """``torch.nn.KLDivLoss``, computed by the kernels; ``forward(input, target)`` takes its arguments in PyTorch's
    order.

    Args:
        reduction, log_target, inplace: see :func:`kl_div`.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return kl_div(input, target, self.reduction, self.log_target, inplace=self.inplace)
