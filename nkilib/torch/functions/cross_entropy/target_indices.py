"""Class indices of any integer type, made what the kernels take: int32, and never in range by wrapping around."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# What the kernels are told to ignore where the caller's ignore_index cannot be handed on.
_IGNORED: Final = -100
_INT32: Final = torch.iinfo(torch.int32)


def is_ignored(target: Tensor, ignore_index: int) -> Tensor:
    """[N] bool, which class indices are ``ignore_index``; compared as int64, since PyTorch wraps a larger scalar."""
    return target.to(torch.int64) == ignore_index


def kernel_target(target: Tensor, ignore_index: int, num_classes: int) -> tuple[Tensor, int]:
    """The target and the ignore_index that a kernel gets.

    An int32 target passes through. Of others only what they mean is kept: a class, ignored, or out of range. A plain
    cast would bring 2^32 + 3 into range.

    Args:
        target: [N] of any integer type, or [N, V] class probabilities, floating.
        ignore_index: the caller's, any integer.
        num_classes: V.

    Returns:
        [N] int32 and the ignore_index for it; probabilities as float32 or bfloat16, contiguous.
    """
    if target.is_floating_point():
        exact = target.dtype in (torch.float32, torch.bfloat16)
        return (target if exact else target.float()).contiguous(), _IGNORED
    if target.dtype == torch.int32 and _INT32.min <= ignore_index <= _INT32.max:
        return target.contiguous(), ignore_index
    in_reach = target.to(torch.int64).clamp(-1, num_classes)
    return torch.where(is_ignored(target, ignore_index), _IGNORED, in_reach).to(torch.int32), _IGNORED


def check_range(caller: str, target: Tensor, ignore_index: int, num_classes: int) -> None:
    """Refuse a class that does not exist. It looks at the values, so it is for the CPU only.

    Raises:
        IndexError: as PyTorch does, for the first target outside [0, num_classes) that is not ``ignore_index``.
    """
    if target.is_floating_point():
        return
    wide = target.to(torch.int64)
    outside = ((wide < 0) | (wide >= num_classes)) & ~is_ignored(target, ignore_index)
    if bool(outside.any()):
        position = int(outside.nonzero()[0])
        raise IndexError(
            f"{caller}: Target {int(wide[position])} is out of bounds: position {position} must have a class from 0 to "
            f"{num_classes - 1} or ignore_index, {ignore_index}"
        )
