# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nll_loss`` and ``NLLLoss``: the negative log-likelihood of the target class."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import as_int, check_flags
from nkilib.core.host.reductions import check_reduction
from nkilib.experimental.loss import nll_loss_backward, nll_loss_forward
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import rows_shape, unviewed
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, as_computed, check_inplace
from nkilib.torch.dispatch.operator import Call, Input, Output, Shape
from nkilib.torch.functions.cross_entropy.checks import check_indices, check_weight
from nkilib.torch.losses.indexed import CLASS_WEIGHT, check_float_input, indexed_loss
from nkilib.torch.losses.modules import WeightedLossModule
from nkilib.torch.losses.target_indices import check_range, kernel_target

NLL_LOSS: Final = Caller("nll_loss", "input", "log-probabilities", "torch.nn.functional.nll_loss")


def _classes(call: Call) -> int:
    return int(call.first.shape[1])


def _check_classes(call: Call) -> None:
    """Reject class indices out of range."""
    check_range(str(NLL_LOSS), call.tensor("target").reshape(-1), call.options["ignore_index"], _classes(call))


def _targets(call: Call) -> dict[str, Any]:
    target, ignore_index = kernel_target(call.tensor("target"), call.options["ignore_index"], _classes(call))
    return {"targets_hbm": target.detach(), "ignore_index": ignore_index}


def _as_target(call: Call) -> Shape:
    return tuple(call.tensor("target").shape)


# The input is [N, C] or [N, C, d1, ...], the target [N] or [N, d1, ...].
_DERIVATIVE: Final = indexed_loss(
    NLL_LOSS,
    (nll_loss_forward, nll_loss_backward),
    inputs=(Input("input", dtypes=FLOAT_DTYPES), Input("target", keyword="targets_hbm"), CLASS_WEIGHT),
    options={"ignore_index": -100, "reduction": "mean"},
    losses=_as_target,
    saved=(Output("total_weight", shape=lambda call: (1,)),),
    backward=("input", "target", "grad_loss", "total_weight", "class_weight"),
    arguments=_targets,
    check_values=_check_classes,
)


@hides_unknown
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the negative log-likelihood, ``-weight[t] * input[t]``, with the kernels of
    :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.nll_loss(input, target, weight, ignore_index=ignore_index,
    reduction=reduction)``, in float32. Only the input elements at the targets are read; the backward writes the
    gradient once. Tensor values are never read, so the call does not wait for the device; only on the CPU are targets
    checked for their range.

    Args:
        input: log-probabilities, bfloat16, float16 or float32: [C], [N, C] or [N, C, d1, ...].
        target: class indices of any integer type, each in [0, C) or ``ignore_index``, of the shape of ``input`` without
            the classes.
        weight: [C] floating, a factor for each class, used in float32; None means 1.
        ignore_index: class index of ignored positions, which have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored, ``"sum"`` does
            not, ``"none"`` returns one loss per position.
        inplace: the backward writes the gradient over the memory of ``input``, which must be contiguous and must not be
            used afterwards: an operation whose derivative needs it, such as log-softmax, raises.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape of the target, in the dtype of the
        input. If every position is ignored the mean is NaN and the gradient 0, as in PyTorch.

    Raises:
        TypeError: an argument has the wrong Python type, or the input is float64.
        ValueError: unknown ``reduction``; batch sizes differ; no dimension; ``ignore_index`` does not fit 64 bits;
            ``inplace`` where the kernel would get a copy.
        RuntimeError: incompatible shapes or devices, as in PyTorch; ``weight`` requires grad; ``inplace`` with a leaf
            that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        IndexError: on the CPU, a target out of range.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); an integer input; forward-mode
            differentiation.
        AssertionError: more than a few million positions in one call.
    """
    if unknown:
        refuse_unknown(nll_loss, unknown)
    _check(input, target, weight, ignore_index, reduction)
    check_flags(NLL_LOSS, inplace=inplace)
    original, input = input, as_computed(input, reduction)
    if inplace:
        check_inplace(NLL_LOSS, original, input, original, {"target": target, "weight": weight})
    has_rows = input.dim() > 1
    rows, classes = (input, target) if has_rows else (input.unsqueeze(0), target.reshape(1))
    class_weight = None if weight is None else weight.to(torch.float32)
    options = {"ignore_index": int(ignore_index), "reduction": reduction}
    loss, _ = _DERIVATIVE.apply(inplace, rows, classes, class_weight, **options)
    reduced: Tensor = loss
    return reduced if has_rows or reduction != "none" else unviewed(reduced.reshape(()))


def _check(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: Any, reduction: Any) -> None:
    """Reject arguments that the kernels cannot compute or that PyTorch does not accept, with PyTorch's error types."""
    caller = NLL_LOSS
    tensors = {caller.input: input, "target": target, "weight": weight}
    checks.check_tensors(caller, tensors, optional=("weight",))
    check_reduction(caller, reduction)
    _check_ignore_index(ignore_index)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target, "weight": weight})
    if input.dim() == 0:
        raise ValueError(f"{caller}: Expected 1 or more dimensions (got 0); the classes are one of them")
    check_indices(caller, tuple(input.shape), rows_shape(input, 1), target, takes_probabilities=False)
    check_float_input(caller, input)
    check_weight(caller, weight, input.shape[min(1, input.dim() - 1)], soft=False)


def _check_ignore_index(ignore_index: Any) -> None:
    if not -(2**63) <= as_int(NLL_LOSS, "ignore_index", ignore_index) < 2**63:
        raise ValueError(f"{NLL_LOSS}: ignore_index must fit 64 bits, got {ignore_index}")


class NLLLoss(WeightedLossModule):
    """``torch.nn.NLLLoss``, computed by the kernels; ``forward(input, target)`` takes its arguments in PyTorch's order.

    Args:
        weight: [C] floating, kept as a buffer that moves with the module; None means 1.
        ignore_index, reduction, inplace: see :func:`nll_loss`.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(weight, reduction, inplace)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction, inplace=self.inplace)
