# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory ranges of tensors, from storages, strides and shapes only, for checks that an in-place gradient is
safe.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def refuse_overlap(function: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Reject tensors that partly overlap the memory of the first one, over which a gradient is written.

    A tensor that starts at the first one's address is accepted: either it is the same memory, element by element, or a
    kernel gets a copy of it.

    Args:
        function: the function that error messages name.
        tensors: the tensors by name, the overwritten one first.

    Raises:
        RuntimeError: if the check fails, as for PyTorch's in-place operators.
    """
    (name, first), *others = tensors.items()
    if first is None:
        return
    start, end = _bytes_of(first)
    for other_name, other in others:
        if other is None or other.untyped_storage()._cdata != first.untyped_storage()._cdata:
            continue
        other_start, other_end = _bytes_of(other)
        if other_start != start and other_start < end and start < other_end:
            raise RuntimeError(
                f"{function}: inplace=True would write the gradient of {name} over a part of {other_name}, which "
                f"shares memory with it at an offset; pass {other_name}.clone(), or leave inplace off"
            )


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Return the offsets in its storage, in bytes, at which the tensor starts and ends."""
    size, start = tensor.element_size(), int(tensor.storage_offset())
    last = sum(int(length - 1) * int(stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (start + last + 1) * size if tensor.numel() else start * size
