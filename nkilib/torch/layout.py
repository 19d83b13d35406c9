"""PyTorch's shapes and the rows of the kernels: every position is a row, its classes lie next to each other."""

from __future__ import annotations

from torch import Tensor


def class_axis(input: Tensor, class_dim: int) -> int:
    """The dimension of the classes, counted from the front: without a batch there is only one."""
    return class_dim % input.dim() if input.dim() > 1 else 0


def num_classes(input: Tensor, class_dim: int) -> int:
    """V, the size of the dimension of the classes."""
    return input.shape[class_axis(input, class_dim)]


def positions_shape(input: Tensor, class_dim: int) -> tuple[int, ...]:
    """The shape of a loss without reduction, and of class-index targets: that of the input without the classes."""
    axis = class_axis(input, class_dim)
    return (*input.shape[:axis], *input.shape[axis + 1 :])


def as_rows(tensor: Tensor, class_dim: int) -> Tensor:
    """[N, V], contiguous. A view where the classes already lie next to each other and rows follow without a gap.

    Args:
        tensor: logits or class probabilities, [V], [batch, V, ...] or with ``class_dim=-1`` [..., V].
        class_dim: 1 or -1.
    """
    axis = class_axis(tensor, class_dim)
    last = tensor.movedim(axis, -1)
    return last.reshape(-1, tensor.shape[axis]).contiguous() if tensor.numel() else _no_rows(last)


def _no_rows(tensor: Tensor) -> Tensor:
    """As ``as_rows`` for a tensor without elements, of which reshape cannot infer a dimension."""
    rows = 1
    for size in tensor.shape[:-1]:
        rows *= size
    return tensor.reshape(rows, tensor.shape[-1])


def is_view_as_rows(tensor: Tensor, class_dim: int) -> bool:
    """Whether ``as_rows`` gives the tensor's own memory. Decided from shape and strides."""
    return tensor.movedim(class_axis(tensor, class_dim), -1).is_contiguous()
