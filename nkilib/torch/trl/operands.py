# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operands that TRL's functions take of a model (hidden states and output layer), and TRL's reading of a
softcap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

# Tensors in the order of TRL's arguments; a bias may be missing.
Operands: TypeAlias = Sequence[Tensor | None]


class Head(NamedTuple):
    """The output layer of a model, and the hidden states that it is applied to.

    Attributes:
        hidden: the hidden states [N, D].
        weight: the weight [V, D].
        bias: the bias [V], or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, operands: Operands) -> Head:
        """Return the head for hidden states, weight and bias.

        Raises:
            TypeError: hidden states or weight are missing.
        """
        hidden, weight, bias = operands
        if hidden is None or weight is None:
            raise TypeError("nkilib.torch.trl: hidden states and weight must be tensors, got None; pass both")
        return cls(hidden, weight, bias)

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The weight and the bias."""
        return self.weight, self.bias

    @property
    def num_classes(self) -> int:
        """V, the number of classes. For a weight that ZeRO-3 keeps without elements, it is read from the shape that
        DeepSpeed stores beside it.
        """
        shape = getattr(self.weight, "ds_shape", self.weight.shape)
        return int(shape[0])


class _Rounded(torch.autograd.Function):
    """A bias rounded to another type, in float32; its gradient is not rounded to that type."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = bias.dtype
        return bias.to(dtype).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.dtype), None


def rounded(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias with the values that it has in another type, as TRL's token scores read it.

    The gradient, in the type of ``bias``, is that of the rounded values, without rounding.
    """
    if bias.dtype == dtype:
        return bias
    function: Callable[..., Tensor] = _Rounded.apply
    return function(bias, dtype)


def read_cap(softcap: float | None) -> float | None:
    """Return the cap as TRL reads it: 0 means 1, and the sign does not matter."""
    return None if softcap is None else abs(float(softcap)) or 1.0
