# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The conversion between PyTorch's tensors and the tensors that kernels read, which have no gaps in memory.

- :func:`as_rows`: rows along one dimension; :func:`axis_of`, :func:`row_length`, :func:`rows_shape` and
  :func:`is_view_as_rows` describe the rows;
- :func:`stored_order`: the dimensions in memory order; :class:`AlongAxis`: the same for an operator along one
  dimension;
- :func:`unviewed`: a result that PyTorch does not treat as a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from nkilib.torch.dispatch.operator import Shape

KERNEL_DIMENSIONS: Final = 8  # the most that kernels take
_UNSAFE_VIEW: Final = torch.ops.aten._unsafe_view.default


def axis_of(tensor: Tensor, dim: int) -> int:
    """Return the dimension along which rows run, counted from the front, for ``dim`` 1 or -1; 0 if there is only one
    dimension.
    """
    return dim % tensor.dim() if tensor.dim() > 1 else 0


def row_length(tensor: Tensor, dim: int) -> int:
    """Return the number of elements of a row along ``dim``, which is 1 or -1."""
    return tensor.shape[axis_of(tensor, dim)]


def rows_shape(tensor: Tensor, dim: int) -> tuple[int, ...]:
    """Return the shape of a tensor with one number for each row along ``dim``: the tensor's shape without that
    dimension.
    """
    axis = axis_of(tensor, dim)
    return (*tensor.shape[:axis], *tensor.shape[axis + 1 :])


def as_rows(tensor: Tensor, dim: int) -> Tensor:
    """Return the tensor as [rows, row_length], contiguous; a view if rows already follow each other without a gap.

    Args:
        tensor: a tensor with at least one dimension.
        dim: the dimension of a row, 1 or -1.
    """
    last = tensor.movedim(axis_of(tensor, dim), -1)
    if tensor.numel() == 0:  # reshape cannot infer a dimension
        return last.reshape(prod(last.shape[:-1]), last.shape[-1])
    return last.reshape(-1, last.shape[-1]).contiguous()


def is_view_as_rows(tensor: Tensor, dim: int) -> bool:
    """Return whether :func:`as_rows` would return a view of the tensor, not a copy."""
    return tensor.movedim(axis_of(tensor, dim), -1).is_contiguous()


def unviewed(view: Tensor) -> Tensor:
    """Return a tensor that has the memory and strides of ``view``, but that PyTorch does not treat as a view.

    In-place arithmetic, ``detach_()`` and ``requires_grad_()`` then work as on the result of one of PyTorch's own
    operators. The base of ``view`` has another version counter than the result, so PyTorch does not notice if the
    result's memory is changed in place. If a backward saves the base, copy ``view`` instead of calling this function.
    """
    tensor: Tensor = _UNSAFE_VIEW(view, view.shape)
    return tensor


def stored_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions of a dense tensor in memory order, outermost first; the original order if it is not dense.

    Elementwise functions pass tensors to their kernels in this order: ``tensor.permute(order)`` is contiguous, so
    nothing is copied.
    """
    dims = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return dims
    strides = tensor.stride()

    def is_outside(dim: int, other: int) -> bool:
        return bool(strides[dim] > strides[other] or (strides[dim] == strides[other] and dim < other))

    # Sorted by counts, which are integers even in a graph of any size, whose symbolic strides cannot be sorted.
    order = tuple(sorted(dims, key=lambda dim: sum(1 for other in dims if is_outside(other, dim))))
    return order if tensor.permute(order).is_contiguous() else dims


@dataclass(frozen=True)
class AlongAxis:
    """The dimensions of a tensor in memory order, for an operator that works along one dimension.

    Attributes:
        order: the dimensions, outermost in memory first.
        shape: the sizes of these dimensions, in the same order.
        dim: the dimension along which the operator works, as numbered in the tensor.
    """

    order: tuple[int, ...]
    shape: Shape
    dim: int

    @classmethod
    def of(cls, tensor: Tensor, dim: int) -> AlongAxis:
        """Return the memory order of a tensor of one or more dimensions. ``dim`` is counted from the front."""
        order = stored_order(tensor)
        return cls(order, tuple(tensor.shape[axis] for axis in order), dim)

    @property
    def axis(self) -> int:
        """The number of the operator's dimension in the views that :meth:`stored` returns."""
        return self.order.index(self.dim) if self._fits else 1

    @property
    def _fits(self) -> bool:
        return len(self.order) <= KERNEL_DIMENSIONS

    def stored(self, tensor: Tensor) -> Tensor:
        """Return a view of ``tensor`` with its dimensions in memory order. Its shape and strides are the original's.

        If the tensor has more dimensions than kernels take, the view has three: the dimensions before :attr:`dim` are
        merged into one, and so are those after :attr:`dim`.
        """
        permuted = tensor.permute(self.order)
        if self._fits:
            return permuted
        axis = self.order.index(self.dim)
        return permuted.reshape(prod(self.shape[:axis]), self.shape[axis], prod(self.shape[axis + 1 :]))

    def restored(self, result: Tensor) -> Tensor:
        """Return a result of the operator in the shape and the memory layout of the original tensor."""
        return result.reshape(self.shape).permute([self.order.index(axis) for axis in range(len(self.order))])
