# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors of one shape as the rows that kernels take, and losses of rows back in the shape that they have."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor

from nkilib.torch.dispatch.layout import stored_order
from nkilib.torch.dispatch.operator import Shape


@dataclass(frozen=True)
class Rows:
    """Rows along the last dimension of tensors of a shape, in the order in which they lie in memory.

    Attributes:
        order: the dimensions before the last one, the outermost in memory first.
        shape: their extents, in that order.
    """

    order: tuple[int, ...]
    shape: Shape

    @classmethod
    def of(cls, tensor: Tensor) -> Rows:
        """Of a tensor of one or more dimensions; where its rows are not contiguous, it will be copied."""
        last, order = tensor.dim() - 1, stored_order(tensor)
        lead = order[:-1] if order[-1] == last else tuple(range(last))
        return cls(lead, tuple(tensor.shape[dim] for dim in lead))

    def matrix(self, tensor: Tensor) -> Tensor:
        """[rows, columns] of a tensor of that shape, a view where it can be one."""
        last = tensor.dim() - 1
        return tensor.permute(*self.order, last).reshape(prod(self.shape), tensor.shape[last])

    def vector(self, values: Tensor) -> Tensor:
        """[rows] of a number for each row."""
        return values.permute(self.order).reshape(prod(self.shape))

    def restored(self, losses: Tensor) -> Tensor:
        """Numbers of rows in the shape of the tensor without its last dimension."""
        return losses.reshape(self.shape).permute([self.order.index(dim) for dim in range(len(self.order))])

    def is_view(self, tensor: Tensor) -> bool:
        """Whether :meth:`matrix` needs no copy. Decided from shape and strides."""
        return tensor.permute(*self.order, tensor.dim() - 1).is_contiguous()
