# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""PyTorch's shapes and the rows of kernels: along one dimension a row, whose elements lie next to each other."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from torch import Tensor

from nkilib.torch.dispatch.operator import Shape

KERNEL_DIMENSIONS: Final = 8  # what kernels take at most


def axis_of(tensor: Tensor, dim: int) -> int:
    """The dimension of a row, counted from the front: 0 where there is no other."""
    return dim % tensor.dim() if tensor.dim() > 1 else 0


def row_length(tensor: Tensor, dim: int) -> int:
    """Elements of a row."""
    return tensor.shape[axis_of(tensor, dim)]


def rows_shape(tensor: Tensor, dim: int) -> tuple[int, ...]:
    """The shape of a result of a number for each row: that of the tensor without the dimension."""
    axis = axis_of(tensor, dim)
    return (*tensor.shape[:axis], *tensor.shape[axis + 1 :])


def as_rows(tensor: Tensor, dim: int) -> Tensor:
    """[rows, row_length], contiguous. A view where rows already follow each other without a gap.

    Args:
        tensor: of any shape with at least one dimension.
        dim: that of a row, 1 or -1.
    """
    last = tensor.movedim(axis_of(tensor, dim), -1)
    if tensor.numel() == 0:  # reshape cannot infer a dimension
        return last.reshape(prod(last.shape[:-1]), last.shape[-1])
    return last.reshape(-1, last.shape[-1]).contiguous()


def is_view_as_rows(tensor: Tensor, dim: int) -> bool:
    """Whether ``as_rows`` gives the tensor's own memory. Decided from shape and strides."""
    return tensor.movedim(axis_of(tensor, dim), -1).is_contiguous()


@dataclass(frozen=True)
class AlongAxis:
    """A tensor with its dimensions as they lie in memory, for an operator that works along one of them.

    Attributes:
        order: the dimensions, the outermost in memory first.
        shape: their extents, in that order.
        dim: along which the operator works, as the tensor has it.
    """

    order: tuple[int, ...]
    shape: Shape
    dim: int

    @classmethod
    def of(cls, tensor: Tensor, dim: int) -> AlongAxis:
        """Of a tensor of one or more dimensions; ``dim`` counts from the front."""
        order = stored_order(tensor)
        return cls(order, tuple(tensor.shape[each] for each in order), dim)

    @property
    def axis(self) -> int:
        """Where the dimension is in what :meth:`stored` gives."""
        return self.order.index(self.dim) if self._fits else 1

    @property
    def _fits(self) -> bool:
        return len(self.order) <= KERNEL_DIMENSIONS

    def stored(self, tensor: Tensor) -> Tensor:
        """A tensor of that shape so: a view. Of more dimensions than kernels take, those on either side are one."""
        permuted = tensor.permute(self.order)
        if self._fits:
            return permuted
        axis = self.order.index(self.dim)
        return permuted.reshape(prod(self.shape[:axis]), self.shape[axis], prod(self.shape[axis + 1 :]))

    def restored(self, result: Tensor) -> Tensor:
        """What was made of it, in the shape of the tensor, and as that lies in memory."""
        return result.reshape(self.shape).permute([self.order.index(each) for each in range(len(self.order))])


def stored_order(tensor: Tensor) -> tuple[int, ...]:
    """The order of dimensions in which a dense tensor lies in memory; that of the dimensions where it is not dense.

    Functions of elements take tensors in this order: ``tensor.permute(order)`` is contiguous, and nothing is copied.
    """
    dims = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return dims
    strides = tensor.stride()

    def is_outside(dim: int, other: int) -> bool:
        return bool(strides[dim] > strides[other] or (strides[dim] == strides[other] and dim < other))

    # By counts, which are integers where strides are those of a graph of any size: they have no order to sort by.
    order = tuple(sorted(dims, key=lambda dim: sum(1 for other in dims if is_outside(other, dim))))
    return order if tensor.permute(order).is_contiguous() else dims
