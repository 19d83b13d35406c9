# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The partitions in which an on-chip view lies, and those in which it may start."""

from __future__ import annotations

from .view import View


def partition_elements(tensor: View) -> int:
    """Return the stride of the storage's partitions, in elements of the view's type."""
    storage = tensor.storage
    if tensor.dtype is storage.dtype:  # most are
        return storage.partition_elements
    return storage.partition_bytes // storage.width_of(tensor.dtype)


def start_partition(tensor: View) -> int:
    """Return the partition of the tensor's own storage in which an on-chip view starts."""
    return tensor.offset // partition_elements(tensor) if tensor.offset else 0


def first_partition(tensor: View) -> int | None:
    """Return the partition in which an on-chip view starts, or None if the kernel leaves this to the compiler."""
    address = tensor.storage.address
    return None if address is None else address[0] + start_partition(tensor)


def first_lane(tensor: View) -> int:
    """Return :func:`first_partition`, with unplaced tensors assumed to start at partition 0."""
    placed = first_partition(tensor)
    return start_partition(tensor) if placed is None else placed


def allowed_starts(partitions: int) -> tuple[int, ...]:
    """Return the partitions at which a compute engine's access to ``partitions`` partitions may start."""
    return (0, 32, 64, 96) if partitions <= 32 else (0, 64) if partitions <= 64 else (0,)


def possible_starts(tensor: View) -> tuple[int, ...]:
    """Return where an on-chip view may start: where the kernel placed it, else wherever a compiler may place it."""
    placed = first_partition(tensor)
    if placed is not None:
        return (placed,)
    start = start_partition(tensor)
    return tuple(first + start for first in allowed_starts(tensor.storage.shape[0]))
