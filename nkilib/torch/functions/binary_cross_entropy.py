# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``binary_cross_entropy`` and ``BCELoss``: of probabilities."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from nkilib.experimental.loss import binary_cross_entropy_backward, binary_cross_entropy_forward
from nkilib.torch.dispatch.losses import FLOAT_DTYPES
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import WeightedLossModule
from nkilib.torch.losses.shapes import check_expands, check_same_size

_NAME: Final = "binary_cross_entropy"


def _check_probabilities(call: Call) -> None:
    """Refuse numbers outside of [0, 1], and NaN, as PyTorch does."""
    for name in ("input", "target"):
        tensor = call.tensor(name)
        if tensor.numel() > 0 and not bool(((tensor >= 0.0) & (tensor <= 1.0)).all()):
            raise RuntimeError(
                f"{_NAME}: all elements of {name} should be between 0 and 1, got {tensor.min()} to {tensor.max()}; "
                f"pass probabilities, or take binary_cross_entropy_with_logits"
            )


BINARY_CROSS_ENTROPY: Final = elementwise_loss(
    _NAME,
    "probabilities",
    (binary_cross_entropy_forward, binary_cross_entropy_backward),
    optional=("weight",),
    integers=("weight",),
    constant=("weight",),
    typed=("input",),
    check_values=_check_probabilities,
)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", *, inplace: bool = False
) -> Tensor:
    """Binary cross-entropy of probabilities, ``-(t log x + (1 - t) log(1 - x))``, logarithms being at least -100, on
    the kernels of :mod:`nkilib.experimental.loss`.

    Equals ``torch.nn.functional.binary_cross_entropy(input, target, weight, reduction=reduction)``, in float32, and
    sums are float32. On the CPU alone values are looked at.

    Args:
        input: probabilities, bfloat16, float16 or float32, of any shape.
        target: likewise, of the shape and the type of the input. It may require grad.
        weight: of a shape that broadcasts to the target's; losses are multiplied by it, and a mean is over elements. It
            has no gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shape and type of the input.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; a target of another shape; ``inplace`` of a tensor with gaps.
        RuntimeError: numbers outside of [0, 1], on the CPU; types or devices that differ; a weight that does not
            broadcast, or requires grad; integers or complex numbers; ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    caller = BINARY_CROSS_ENTROPY.caller
    check_same_size(caller, input, target)
    if isinstance(target, Tensor):
        check_expands(caller, "weight", weight, tuple(target.shape))
        if isinstance(input, Tensor) and not _is_one_type(input, target):
            raise RuntimeError(
                f"{caller}: target must have the type of input, {input.dtype}, got {target.dtype}; pass "
                f"target.to(input.dtype)"
            )
    return BINARY_CROSS_ENTROPY({"input": input, "target": target, "weight": weight}, reduction, inplace)


def _is_one_type(input: Tensor, target: Tensor) -> bool:
    """Under autocast PyTorch casts both; what the kernels take in no type is refused as such."""
    are_taken = input.dtype in FLOAT_DTYPES and target.dtype in FLOAT_DTYPES
    return input.dtype == target.dtype or not are_taken or torch.is_autocast_enabled(input.device.type)


class BCELoss(WeightedLossModule):
    """``torch.nn.BCELoss`` on the kernels.

    Args:
        weight, reduction, inplace: as for :func:`binary_cross_entropy`; the weight is a buffer.
    """

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(weight, reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return binary_cross_entropy(input, target, self.weight, self.reduction, inplace=self.inplace)
