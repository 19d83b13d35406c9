"""PyTorch's shapes and the rows of kernels: along one dimension a row, whose elements lie next to each other."""

from __future__ import annotations

from math import prod

from torch import Tensor


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


def stored_order(tensor: Tensor) -> tuple[int, ...]:
    """The order of dimensions in which a dense tensor lies in memory; that of the dimensions where it is not dense.

    Functions of elements take tensors in this order: ``tensor.permute(order)`` is contiguous, and nothing is copied.
    """
    dims = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return dims
    strides = tensor.stride()
    order = tuple(sorted(dims, key=lambda dim: (-strides[dim], dim)))
    return order if tensor.permute(order).is_contiguous() else dims
