# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Class indices of any integer type, made what the kernels take: int32, and never in range by wrapping around.

Neuron devices compute with 32 bits: a 64-bit integer may lose its upper half in any operation, and 2^32 + 3 would be
class 3. So nothing here computes with 64 bits where memory can be read: the halves of an integer are two int32. In a
graph, and on XLA, there may be no memory to read like this. There, what is done is right with 64 bits, and with 32 for
all that an int32 holds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from nkilib.torch.dispatch.memory import is_traced
from nkilib.torch.dispatch.operator import TILE_DTYPES

INDEX_DTYPES: Final = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
)
# What the kernels are told to ignore where the caller's ignore_index cannot be handed on.
_IGNORED: Final = -100
_INT32: Final = torch.iinfo(torch.int32)
_BITS: Final = 32


class _Halves(NamedTuple):
    """Integers as two int32 each: ``high * 2^32 + low``, where ``low`` counts as unsigned."""

    low: Tensor
    high: Tensor

    @property
    def fit(self) -> Tensor:
        """Which of them ``low`` alone is, as an int32."""
        return self.high == self.low >> (_BITS - 1)

    def are(self, value: int) -> Tensor:
        """Which of them are ``value``, of 64 bits."""
        high, low = value >> _BITS, value & (1 << _BITS) - 1
        return (self.low == (low if low <= _INT32.max else low - (1 << _BITS))) & (self.high == high)


def _halves(target: Tensor) -> _Halves | None:
    """Of integers of 64 bits, or of unsigned ones of 32, as they lie in memory; None where it cannot be read."""
    if is_traced(target) or target.device.type == "xla":
        return None
    if target.itemsize < torch.int64.itemsize:  # uint32
        return _Halves(target.contiguous().view(torch.int32), torch.zeros_like(target, dtype=torch.int32))
    whole = target.contiguous()
    if whole.stride()[-1:] != (1,):  # a dimension of one element, or none, is contiguous with any stride
        whole = whole.clone(memory_format=torch.contiguous_format)
    halves = whole.view(torch.int32).reshape(*target.shape, 2)
    return _Halves(halves[..., 0], halves[..., 1])


def _is_narrow(target: Tensor) -> bool:
    """Whether every value of the type is an int32."""
    limits = torch.iinfo(target.dtype)
    return _INT32.min <= limits.min and limits.max <= _INT32.max


def is_ignored(target: Tensor, ignore_index: int) -> Tensor:
    """Bool of the shape of the target, which class indices are ``ignore_index``, any integer of 64 bits."""
    limits = torch.iinfo(target.dtype)
    if not limits.min <= ignore_index <= limits.max:  # PyTorch would wrap the number into the type
        return torch.zeros_like(target, dtype=torch.bool)
    if _is_narrow(target):
        return target == ignore_index
    halves = _halves(target)
    return target.to(torch.int64) == ignore_index if halves is None else halves.are(ignore_index)


def kernel_target(target: Tensor, ignore_index: int, num_classes: int) -> tuple[Tensor, int]:
    """The target and the ignore_index that a kernel gets.

    An int32 target passes through. Of others only what they mean is kept: a class, ignored, or out of range. A plain
    cast would bring 2^32 + 3 into range.

    Args:
        target: [N] of any integer type, or [N, V] class probabilities, floating.
        ignore_index: the caller's, any integer.
        num_classes: V.

    Returns:
        [N] int32 and the ignore_index for it; probabilities in a type of the kernels, contiguous.
    """
    if target.is_floating_point():
        return (target if target.dtype in TILE_DTYPES else target.float()).contiguous(), _IGNORED
    if target.dtype == torch.int32 and _INT32.min <= ignore_index <= _INT32.max:
        return target.contiguous(), ignore_index
    return torch.where(is_ignored(target, ignore_index), _IGNORED, _in_reach(target, num_classes)), _IGNORED


def class_indices(target: Tensor, num_classes: int) -> Tensor:
    """int32 for a kernel that ignores no class: what is none stays none, whatever integer type it has."""
    return target.contiguous() if target.dtype == torch.int32 else _in_reach(target, num_classes).contiguous()


def _in_reach(target: Tensor, num_classes: int) -> Tensor:
    """int32: the classes, and -1 or ``num_classes`` for what is none."""
    if _is_narrow(target):
        return target.to(torch.int32).clamp(-1, num_classes)
    halves = _halves(target)
    if halves is None:
        return target.to(torch.int64).clamp(-1, num_classes).to(torch.int32)
    return torch.where(halves.fit, halves.low, num_classes).clamp(-1, num_classes)


def int32_targets(target: Tensor, num_classes: int, ignore_index: int = -100) -> Tensor:
    """Class indices checked on the host and made int32, which kernels take as they are: move the result to the device.

    On a Neuron device no value is looked at, and 64-bit integers may be computed with 32 bits. So this is the place for
    labels to be checked, where they come from the loader.

    Example::

        target = int32_targets(batch["labels"], vocabulary).to("neuron")

    Args:
        target: class indices on the CPU, of any integer type and shape.
        num_classes: V; every index must be below.
        ignore_index: the one value outside of [0, V) that may be among them; it must be an int32.

    Returns:
        int32 of the same shape; the target itself if it is that already.

    Raises:
        TypeError: no tensor, or not of an integer type.
        ValueError: not on the CPU; ``ignore_index`` is no int32.
        IndexError: a class out of range.
    """
    caller = "int32_targets"
    if not isinstance(target, Tensor) or target.dtype not in INDEX_DTYPES:
        got = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(f"{caller}: target must be a tensor of an integer type, got {got}; pass class indices")
    if target.device.type != "cpu":
        raise ValueError(
            f"{caller}: target must be on the CPU, where its values can be looked at, got {target.device}; call it "
            f"before the transfer"
        )
    if not _INT32.min <= ignore_index <= _INT32.max:
        raise ValueError(f"{caller}: ignore_index must be an int32, got {ignore_index}; mark positions with another")
    check_range(caller, target.reshape(-1), ignore_index, num_classes)
    return target.to(torch.int32)


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
