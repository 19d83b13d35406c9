# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The conversion of tensors of one shape to the rows that kernels take, and of row-wise losses back to that shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor

from nkilib.torch.dispatch.layout import stored_order, unviewed
from nkilib.torch.dispatch.operator import Shape


@dataclass(frozen=True)
class Rows:
    """The order in which the rows of tensors of one shape, which run along the last dimension, lie in memory.

    Attributes:
        order: the dimensions before the last one, outermost in memory first.
        shape: the extents of these dimensions, in that order.
    """

    order: tuple[int, ...]
    shape: Shape

    @classmethod
    def of(cls, tensor: Tensor) -> Rows:
        """Return the rows of a tensor of one or more dimensions; if its rows are not contiguous, it will be copied."""
        last, order = tensor.dim() - 1, stored_order(tensor)
        lead = order[:-1] if order[-1] == last else tuple(range(last))
        return cls(lead, tuple(tensor.shape[dim] for dim in lead))

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return a tensor of that shape as [rows, columns], a view if possible."""
        last = tensor.dim() - 1
        return tensor.permute(*self.order, last).reshape(prod(self.shape), tensor.shape[last])

    def vector(self, values: Tensor) -> Tensor:
        """Return a tensor with one number for each row as [rows]."""
        return values.permute(self.order).reshape(prod(self.shape))

    def restored(self, losses: Tensor) -> Tensor:
        """Return losses [rows], one for each row in memory order, in the shape of the tensor without its last
        dimension.
        """
        return unviewed(losses.reshape(self.shape).permute([self.order.index(dim) for dim in range(len(self.order))]))

    def is_view(self, tensor: Tensor) -> bool:
        """Return whether :meth:`matrix` needs no copy, decided from shape and strides."""
        return tensor.permute(*self.order, tensor.dim() - 1).is_contiguous()
