# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Which memory tensors take, from storages, strides and shapes alone: what a gradient in place must not write over."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def refuse_overlap(function: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Refuse tensors of which another one is partly in the memory of the first one, over which a gradient is written.

    One that begins where the first one does is accepted: it is the same memory, element by element, or a kernel gets a
    copy of it.

    Args:
        function: who is named in errors.
        tensors: by name, the first one first.

    Raises:
        RuntimeError: always then, as PyTorch's operators in place.
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
                f"shares memory with it from another element on; pass {other_name}.clone(), or leave inplace off"
            )


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """First byte in its storage, and the end."""
    size, start = tensor.element_size(), int(tensor.storage_offset())
    last = sum(int(length - 1) * int(stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (start + last + 1) * size if tensor.numel() else start * size
