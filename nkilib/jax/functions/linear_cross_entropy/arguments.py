# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments of ``linear_cross_entropy`` and ``linear_token_scores`` whose shapes and types are checked, as one
object.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from nkilib.experimental.loss.linear.shared.launch import CLASSES_FIRST
from nkilib.jax.functions.cross_entropy.targets import Array


@dataclass(frozen=True)
class LinearArguments:
    """The arguments as the caller passed them.

    Attributes:
        input: hidden states, [..., D].
        linear_weight: [V, D] or [D, V] by ``weight_layout``.
        target: class indices.
        linear_bias: [V], or None.
        weight_layout: ``"vd"`` or ``"dv"``.
    """

    input: Array
    linear_weight: Array
    target: Array
    linear_bias: Array | None
    weight_layout: str

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of ``input`` without the features."""
        return self.input.shape[:-1]

    @property
    def features(self) -> int:
        """The number of features D of the weight."""
        return self.linear_weight.shape[1 if self.weight_layout == CLASSES_FIRST else 0]

    @property
    def classes(self) -> int:
        """The number of classes V."""
        return self.linear_weight.shape[0 if self.weight_layout == CLASSES_FIRST else 1]

    def rounding_dtype(self, compute_dtype: jnp.dtype | None) -> str | None:
        """Return the name of the type that kernels round operands to for the product; None where nothing is rounded."""
        operands = (self.input, self.linear_weight, self.linear_bias)
        if compute_dtype is None or all(operand is None or operand.dtype == compute_dtype for operand in operands):
            return None
        return str(compute_dtype.name)
