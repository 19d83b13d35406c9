# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory of tensors: its address, whether tensors share it, and whether a backward has written over it.

- :func:`is_traced`, :func:`address`: whether a tensor has memory now, and where;
- :func:`overlapping`: the name of a tensor that shares memory with one that will be overwritten;
- :class:`ReusedMemory`: memory that a forward saves and over which its backward writes gradients.

This module reads no values, only addresses, strides, shapes and versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def is_traced(tensor: Tensor) -> bool:
    """Return whether a tensor is a stand-in while a graph is traced: fake, functional or a tensor of the compiler.

    At run time the real tensor may have another layout.
    """
    return torch.compiler.is_compiling() or type(tensor) not in _PLAIN


def address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's first element; None if the tensor has no memory, as in XLA and in a traced
    graph.
    """
    if is_traced(tensor):
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # what PyTorch raises for a tensor without storage
        return None


def _weakly(tensor: Tensor) -> StorageWeakRef:
    # References to the same storage are equal.
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class ReusedMemory:
    """Memory that a forward saves and over which its backward writes gradients, so that only one backward is possible.

    PyTorch raises an error if a saved tensor was changed in place, but not under saved-tensor hooks, which may return
    the changed memory. This object raises the error there too: it records the backward's write, and compares versions.

    Args:
        operator: the name of the backward's operator, for error messages.
        remedy: the way to get another backward, for error messages.
        tensor: the tensor whose version is compared; None if no other code can write to the memory.

    Attributes:
        is_spent: whether a backward has written gradients over the memory.
    """

    def __init__(self, operator: str, remedy: str, tensor: Tensor | None = None) -> None:
        self.is_spent = False
        self._operator, self._remedy = operator, remedy
        self._saved = None if tensor is None else (_weakly(tensor), tensor._version)

    def check(self, unpacked: Tensor | None = None) -> None:
        """Check that the memory still holds what the forward saved.

        Args:
            unpacked: the saved tensor as the backward gets it; None before saved tensors are unpacked. Its version
                counts only if it has the memory that the forward saved; a hook may have returned a copy.

        Raises:
            RuntimeError: a backward or other code has written over the memory.
        """
        if self.is_spent:
            self._refuse("a backward has written gradients over it")
        if self._saved is not None and unpacked is not None:
            storage, version = self._saved
            if _weakly(unpacked) == storage and unpacked._version != version:
                self._refuse(f"it is at version {unpacked._version}; expected version {version} instead")

    def _refuse(self, reason: str) -> NoReturn:
        raise RuntimeError(
            f"{self._operator}: one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: {reason}; {self._remedy}"
        )


def _touches(steps: Sequence[tuple[int, int]], at: int, size: int, start: int, end: int) -> bool:
    """Return whether an element of a tensor overlaps a range of addresses.

    Args:
        steps: for each dimension a pair (number of elements, distance in bytes), the largest distance first.
        at: the address of the first element.
        size: the bytes of an element.
        start, end: the first address of the range, and the address after the last.
    """
    if not steps:
        return at < end and start < at + size
    (length, stride), *inner = steps
    extent = size + sum((count - 1) * step for count, step in inner)
    first = max(0, (start - extent - at) // stride + 1)
    last = min(length - 1, (end - 1 - at) // stride)
    return any(_touches(inner, at + index * stride, size, start, end) for index in range(first, last + 1))


def _start(tensor: Tensor) -> tuple[object, int]:
    """Return the device and the address of a tensor's first element; if it has no address, its storage and the
    offset in bytes.
    """
    start = address(tensor)
    if start is not None:
        return tensor.device, start
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.element_size()


def _share_memory(dense: Tensor, other: Tensor) -> bool:
    """Return whether an element of ``other`` lies in the memory of ``dense``, a tensor without gaps."""
    (memory, start), (other_memory, at) = _start(dense), _start(other)
    if memory != other_memory or not dense.numel() or not other.numel():
        return False
    strides = sorted(
        ((int(stride), int(length)) for length, stride in zip(other.shape, other.stride(), strict=True)), reverse=True
    )
    size = other.element_size()
    steps = [(length, stride * size) for stride, length in strides if stride and length > 1]
    return _touches(steps, at, size, start, start + dense.numel() * dense.element_size())


def _layout(tensor: Tensor) -> tuple[object, ...]:
    return _start(tensor), tensor.dtype, tensor.shape, tensor.stride()


def overlapping(written: Tensor, others: Mapping[str, Tensor | None], aligned: Collection[str] = ()) -> str | None:
    """Return the name of a tensor that shares memory with a tensor that will be overwritten; None if no tensor does.

    Args:
        written: the tensor that will be overwritten, without gaps in memory.
        others: other tensors by name.
        aligned: the names of tensors that may be ``written`` itself, the same memory element by element, because
            kernels read an element of such a tensor only before they write that element of ``written``.
    """
    for name, other in others.items():
        if other is None or not _share_memory(written, other):
            continue
        if name in aligned and _layout(other) == _layout(written):
            continue
        return name
    return None
