# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments of ``linear_cross_entropy`` that are checked by tensor and shape, as one object."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nkilib.torch.dispatch.autocast import autocast_dtype


@dataclass(frozen=True)
class LinearArguments:
    """The arguments of a call of ``linear_cross_entropy``, as the caller passed them.

    Attributes:
        input: the hidden states [..., D].
        linear_weight: the weight [V, D], or [V, d1, ..., D] for a loss of several dimensions.
        target: class indices, or class probabilities of the shape of the logits.
        linear_bias: the bias, of the shape of ``linear_weight`` without D.
        weight: the class weights [V].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalizer: the divisor of the mean.
        grad_weight_sum: the tensor to which the gradient of ``linear_weight`` is added.
    """

    input: Tensor
    linear_weight: Tensor
    target: Tensor
    linear_bias: Tensor | None
    weight: Tensor | None
    reduction: str
    normalizer: Tensor | None
    grad_weight_sum: Tensor | None

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the arguments that are or may be tensors, by name."""
        return {
            "input": self.input,
            "linear_weight": self.linear_weight,
            "target": self.target,
            "linear_bias": self.linear_bias,
            "weight": self.weight,
            "normalizer": self.normalizer,
            "grad_weight_sum": self.grad_weight_sum,
        }

    @property
    def logits_shape(self) -> tuple[int, ...]:
        """The shape of the logits that ``torch.nn.functional.cross_entropy`` would get."""
        return (*self.input.shape[:-1], *self.linear_weight.shape[:-1])

    @property
    def has_probabilities(self) -> bool:
        """True if the targets are class probabilities, which PyTorch recognises by their shape."""
        return tuple(self.target.shape) == self.logits_shape

    def rounding_dtype(self, compute_dtype: torch.dtype | None) -> torch.dtype | None:
        """Return the dtype that kernels round the operands to for the product; None where nothing has to be rounded.

        Args:
            compute_dtype: the caller's argument; None means autocast's dtype if autocast is on.
        """
        dtype = compute_dtype or autocast_dtype(self.input.device)
        operands = (self.input, self.linear_weight, self.linear_bias)
        return None if all(tensor is None or tensor.dtype == dtype for tensor in operands) else dtype
