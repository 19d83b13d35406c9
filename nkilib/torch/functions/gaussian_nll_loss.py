# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``gaussian_nll_loss`` and ``GaussianNLLLoss``: negative log-likelihood of targets, given means and variances."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import check_flags
from nkilib.experimental.loss import gaussian_nll_loss_backward, gaussian_nll_loss_forward
from nkilib.torch.dispatch.checks import check_tensors
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import least_of_log

_NAME: Final = "gaussian_nll_loss"
_NEGATIVE: Final = f"{_NAME}: var has negative entry/entries; pass variances, which are squares"


def _check_variances(call: Call) -> None:
    """Reject negative variances, as PyTorch does."""
    if bool((call.tensor("var") < 0).any()):
        raise ValueError(_NEGATIVE)


GAUSSIAN_NLL_LOSS: Final = elementwise_loss(
    _NAME,
    "means",
    (gaussian_nll_loss_forward, gaussian_nll_loss_backward),
    tensors=("input", "target", "var"),
    integers=("input", "target"),
    options={"full": False, "eps": 1e-6},
    check_values=_check_variances,
    is_float32_under_autocast=False,
)


@hides_unknown
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the negative log-likelihood ``(log v + (x - t)^2 / v) / 2`` of targets t under normal distributions of
    means x and variances ``v = max(var, eps)``, with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.gaussian_nll_loss(input, target, var, full=full, eps=eps,
    reduction=reduction)``, computed in float32 with float32 sums. Values are checked on the CPU only.

    Args:
        input: means, bfloat16, float16, float32 or integers, of any shape.
        target: targets in one of these types or of integers, of a shape that broadcasts with the input's. It may
            require grad.
        var: variances: a tensor of the shape of the input, of that shape without the last dimension, or with one
            dimension of extent 1; or a number. It may require grad; its gradient is that of v, even where v is ``eps``.
        full: add ``log(2 pi) / 2``.
        eps: the lower bound of the variances in the computation, at least 2^-64.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a variance of another shape; a negative variance, on the CPU; ``eps`` less
            than 2^-64; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; complex numbers, or integers as ``var``; ``inplace`` with a leaf
            that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(gaussian_nll_loss, unknown)
    caller = GAUSSIAN_NLL_LOSS.caller
    check_tensors(caller, {"input": input, "target": target})
    check_flags(caller, full=full)
    options = {"full": full, "eps": least_of_log(caller, "eps", eps)}
    tensors = {"input": input, "target": target, "var": _variances(input, var)}
    return GAUSSIAN_NLL_LOSS(tensors, reduction, inplace, **options)


def _variances(input: Tensor, var: Any) -> Any:
    """Return the variances with the dimensions of the input. They must be a float, or a tensor of a shape that PyTorch
    expands; other types are rejected later.
    """
    if isinstance(var, float):
        if var < 0.0:
            raise ValueError(_NEGATIVE)
        return input.new_full(input.shape, var)
    if not isinstance(var, Tensor) or var.shape == input.shape:
        return var
    if var.shape == input.shape[:-1]:
        return var.unsqueeze(-1)
    if var.dim() == input.dim():
        differing = [own for whole, own in zip(input.shape, var.shape, strict=True) if whole != own]
        if sum(differing) == 1:  # one of them, of extent 1
            return var
    raise ValueError(
        f"{_NAME}: var is of incorrect size: it must have the shape of input, {tuple(input.shape)}, lack the last "
        f"dimension, or have one of extent 1, got {tuple(var.shape)}"
    )


class GaussianNLLLoss(LossModule):
    """``torch.nn.GaussianNLLLoss``, computed by the kernels.

    Args:
        full, eps, reduction, inplace: see :func:`gaussian_nll_loss`.
    """

    def __init__(
        self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean", inplace: bool = False
    ) -> None:
        super().__init__(reduction, inplace)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """Return the loss."""
        return gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction, inplace=self.inplace)
