# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What TRL's functions take of a model: its hidden states and output layer, and how they read a softcap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

# Tensors in the order of TRL's arguments; a bias may be missing.
Operands: TypeAlias = Sequence[Tensor | None]


class Head(NamedTuple):
    """The output layer of a model, and what it takes.

    Attributes:
        hidden: [N, D].
        weight: [V, D].
        bias: [V], or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, operands: Operands) -> Head:
        """The layer of hidden states, weight and bias.

        Raises:
            TypeError: hidden states or weight are missing.
        """
        hidden, weight, bias = operands
        if hidden is None or weight is None:
            raise TypeError("nkilib.torch.trl: hidden states and weight must be tensors, got None; pass both")
        return cls(hidden, weight, bias)

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """Weight and bias."""
        return self.weight, self.bias

    @property
    def num_classes(self) -> int:
        """V, of a weight that ZeRO-3 holds without elements too: DeepSpeed keeps its shape beside it."""
        shape = getattr(self.weight, "ds_shape", self.weight.shape)
        return int(shape[0])


def read_cap(softcap: float | None) -> float | None:
    """The cap as TRL reads it: 0 means 1, and of a negative one the function is the same."""
    return None if softcap is None else abs(float(softcap)) or 1.0
