# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``poisson_nll_loss`` and ``PoissonNLLLoss``: the negative log-likelihood of counts, given the rate or its
logarithm.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import check_flags
from nkilib.experimental.loss import poisson_nll_loss_backward, poisson_nll_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import least_of_log

POISSON_NLL_LOSS: Final = elementwise_loss(
    "poisson_nll_loss",
    "rates or their logarithms",
    (poisson_nll_loss_forward, poisson_nll_loss_backward),
    integers=("input", "target"),
    bools=("input", "target"),
    options={"log_input": True, "full": False, "eps": 1e-8},
    takes_integers_alone=True,
)


@hides_unknown
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the negative log-likelihood of counts t under Poisson distributions, ``exp(x) - t x`` for an input x that
    is the logarithm of the rate, or ``x - t log(x + eps)`` without ``log_input``, with the kernels of
    :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.poisson_nll_loss(input, target, log_input=log_input, full=full, eps=eps,
    reduction=reduction)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not
    wait for the device.

    Args:
        input: the rate or its logarithm, bfloat16, float16, float32 or integers, of any shape.
        target: counts, in one of these types or of integers, of a shape that broadcasts with the input's. It may
            require grad.
        log_input: whether the input is the logarithm of the rate.
        full: whether to add Stirling's estimate of ``log t!`` where t > 1.
        eps: the number that is added to a rate before its logarithm is taken, at least 2^-64: NKI documents no
            logarithm of smaller numbers.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``eps`` less than 2^-64; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(poisson_nll_loss, unknown)
    caller = POISSON_NLL_LOSS.caller
    check_flags(caller, log_input=log_input)
    check_flags(caller, full=full)
    options = {"log_input": log_input, "full": full, "eps": least_of_log(caller, "eps", eps)}
    return POISSON_NLL_LOSS({"input": input, "target": target}, reduction, inplace, **options)


class PoissonNLLLoss(LossModule):
    """``torch.nn.PoissonNLLLoss``, computed by the kernels.

    Args:
        log_input, full, eps, reduction, inplace: see :func:`poisson_nll_loss`.
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
        """Return the loss; the first argument is the rate or its logarithm, with PyTorch's name."""
        return poisson_nll_loss(
            log_input, target, self.log_input, self.full, self.eps, self.reduction, inplace=self.inplace
        )
