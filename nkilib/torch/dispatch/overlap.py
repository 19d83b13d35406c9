# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory that tensors share, from addresses, strides and shapes only, for checks that it may be overwritten."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from nkilib.torch.dispatch.memory import address


def overlapping(written: Tensor, others: Mapping[str, Tensor | None], aligned: Collection[str] = ()) -> str | None:
    """Return the name of a tensor that shares memory with a tensor that will be overwritten; None if there is none.

    Args:
        written: the tensor that will be overwritten, without gaps in memory.
        others: other tensors by name.
        aligned: the names of tensors that may be ``written`` itself, the same memory element by element, because
            kernels read an element of them only before they write that element of ``written``.
    """
    for name, other in others.items():
        if other is None or not _share_memory(written, other):
            continue
        if name in aligned and _layout(other) == _layout(written):
            continue
        return name
    return None


def _layout(tensor: Tensor) -> tuple[object, ...]:
    return _start(tensor), tensor.dtype, tensor.shape, tensor.stride()


def _start(tensor: Tensor) -> tuple[object, int]:
    """Return where a tensor starts: its device and address, or its storage and the offset in bytes there."""
    start = address(tensor)
    if start is not None:
        return tensor.device, start
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.element_size()


def _share_memory(dense: Tensor, other: Tensor) -> bool:
    """Return whether an element of ``other`` lies in the memory of a tensor without gaps."""
    (memory, start), (other_memory, at) = _start(dense), _start(other)
    if memory != other_memory or not dense.numel() or not other.numel():
        return False
    strides = sorted(
        ((int(stride), int(length)) for length, stride in zip(other.shape, other.stride(), strict=True)), reverse=True
    )
    size = other.element_size()
    steps = [(length, stride * size) for stride, length in strides if stride and length > 1]
    return _touches(steps, at, size, start, start + dense.numel() * dense.element_size())


def _touches(steps: Sequence[tuple[int, int]], at: int, size: int, start: int, end: int) -> bool:
    """Return whether an element of a tensor touches the bytes from ``start`` to ``end``.

    Args:
        steps: the number of elements of each dimension and their distance in bytes, largest distance first.
        at: the address of the first element.
        size: the bytes of an element.
        start, end: the range of addresses.
    """
    if not steps:
        return at < end and start < at + size
    (length, stride), *inner = steps
    extent = size + sum((count - 1) * step for count, step in inner)
    first = max(0, (start - extent - at) // stride + 1)
    last = min(length - 1, (end - 1 - at) // stride)
    return any(_touches(inner, at + index * stride, size, start, end) for index in range(first, last + 1))
