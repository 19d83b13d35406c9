# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``poisson_nll_loss`` and ``PoissonNLLLoss``: counts, and the rate or its logarithm."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nkilib.experimental.loss import poisson_nll_loss_backward, poisson_nll_loss_forward
from nkilib.torch.dispatch.checks import check_flag
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import least_of_log

POISSON_NLL_LOSS: Final = elementwise_loss(
    "poisson_nll_loss",
    "rates or their logarithms",
    (poisson_nll_loss_forward, poisson_nll_loss_backward),
    integers=("input", "target"),
    options={"log_input": True, "full": False, "eps": 1e-8},
    takes_integers_alone=True,
)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
    *,
    inplace: bool = False,
) -> Tensor:
    """Negative log-likelihood of Poisson's distribution, ``exp(x) - t x``, or ``x - t log(x + eps)`` without
    ``log_input``, on the kernels of :mod:`nkilib.experimental.loss`.

    Equals ``torch.nn.functional.poisson_nll_loss(input, target, log_input=log_input, full=full, eps=eps,
    reduction=reduction)``, in float32, and sums are float32. No value is looked at, so nothing waits for the device.

    Args:
        input: the rate or its logarithm, bfloat16, float16, float32 or integers, of any shape.
        target: counts, in one of these types or of integers; of a shape that broadcasts with the input's. It may
            require grad.
        log_input: the input is the logarithm of the rate.
        full: add Stirling's estimate of ``log t!`` where t > 1.
        eps: added to a rate before its logarithm is taken, at least 2^-64: the engines have no logarithm of less.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type that those of
        the tensors promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; a smaller ``eps``; ``inplace`` of a tensor with gaps.
        RuntimeError: shapes or devices do not fit; a complex tensor; ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    caller = POISSON_NLL_LOSS.caller
    check_flag(caller, "log_input", log_input)
    check_flag(caller, "full", full)
    options = {"log_input": log_input, "full": full, "eps": least_of_log(caller, "eps", eps)}
    return POISSON_NLL_LOSS({"input": input, "target": target}, reduction, inplace, **options)


class PoissonNLLLoss(LossModule):
    """``torch.nn.PoissonNLLLoss`` on the kernels.

    Args:
        log_input, full, eps, reduction, inplace: as for :func:`poisson_nll_loss`.
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(reduction, inplace)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """The loss; the first argument is the rate or its logarithm, named as PyTorch names it."""
        return poisson_nll_loss(
            log_input, target, self.log_input, self.full, self.eps, self.reduction, inplace=self.inplace
        )
