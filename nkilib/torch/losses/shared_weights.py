# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Weights that elements share, such as ``pos_weight`` of classes: kernels take them unexpanded, [rows, 1] or [1,
columns].

The tensors of the loss are viewed as a matrix, whose rows are the first dimensions and whose columns are the others.
The split is chosen so that as little as possible of the weights is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from nkilib.torch.dispatch.operator import Shape

# A partition of the hardware has whole rows or a part of one: with fewer rows than this, many would be idle.
_FEWEST_ROWS: Final = 512


def compact(weight: Tensor, dimensions: int) -> Tensor:
    """Return a view of a weight with the given number of dimensions, in which a dimension of stride 0 (made by
    ``expand``) has one element again.
    """
    whole = weight[(None,) * (dimensions - weight.dim())]
    return whole[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in whole.stride())]


def sum_of(weight: Tensor) -> Tensor:
    """Return the sum of a weight, float32. PyTorch's sum of an expanded weight is off by up to 4e-3 on the CPU."""
    if weight.requires_grad:
        return weight.contiguous().sum(dtype=torch.float32)
    numbers = compact(weight, weight.dim())
    return numbers.sum(dtype=torch.float32) * (weight.numel() // max(numbers.numel(), 1))


@dataclass(frozen=True)
class Matrix:
    """The tensors of a loss as [rows, columns].

    Attributes:
        shape: the shape of the tensors.
        split: the number of dimensions that make up the rows; the others make up the columns.
    """

    shape: Shape
    split: int

    @classmethod
    def of(cls, shape: Shape, weights: Sequence[Tensor]) -> Matrix | None:
        """Return the split that repeats the least of the weights; each dimension of a weight has the extent of
        ``shape`` or 1.

        Return None if no weight is shared, or no weight could be used unexpanded.
        """
        if 0 in shape or all(tuple(weight.shape) == shape for weight in weights):
            return None
        splits = [split for split in range(1, len(shape)) if prod(shape[:split]) >= _FEWEST_ROWS]
        ranked = sorted((*cls(shape, split)._repeats(weights), split) for split in splits)
        if not ranked or ranked[0][0] == len(weights):
            return None
        return cls(shape, ranked[0][-1])

    def elements(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the shape as [rows, columns]: a view if it is contiguous."""
        return tensor.reshape(self._rows, self._columns)

    def weight(self, weight: Tensor) -> Tensor:
        """Return a weight as [rows, 1] or [1, columns]; [rows, columns] if it is neither."""
        if self._is_of_rows(weight):
            return weight.expand(*self.shape[: self.split], *weight.shape[self.split :]).reshape(self._rows, 1)
        if self._is_of_columns(weight):
            return weight.expand(*weight.shape[: self.split], *self.shape[self.split :]).reshape(1, self._columns)
        return self.elements(weight.expand(self.shape))

    @property
    def _rows(self) -> int:
        return prod(self.shape[: self.split])

    @property
    def _columns(self) -> int:
        return prod(self.shape[self.split :])

    def _is_of_rows(self, weight: Tensor) -> bool:
        return all(size == 1 for size in weight.shape[self.split :])

    def _is_of_columns(self, weight: Tensor) -> bool:
        return all(size == 1 for size in weight.shape[: self.split])

    def _repeats(self, weights: Sequence[Tensor]) -> tuple[int, int]:
        """Return the number of weights that would have to be expanded to all elements, and the number of dimensions
        along which the others would be repeated.
        """
        whole, dimensions = 0, 0
        for weight in weights:
            if self._is_of_rows(weight):
                own = range(self.split)
            elif self._is_of_columns(weight):
                own = range(self.split, len(self.shape))
            else:
                whole += 1
                continue
            dimensions += sum(1 for dim in own if weight.shape[dim] == 1 and self.shape[dim] != 1)
        return whole, dimensions
