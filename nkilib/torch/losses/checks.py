# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses refuse, whose tensors are floating or, some of them, of integers; and the types that they promote to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from nkilib.core.host.reductions import check_reduction
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import check_float_dtype


def check_call(
    caller: Caller,
    tensors: Mapping[str, Tensor | None],
    reduction: Any,
    inplace: Any,
    optional: Collection[str] = (),
    integers: Collection[str] = (),
) -> None:
    """Refuse what the kernels cannot compute or PyTorch does not accept, with PyTorch's types of errors.

    Args:
        caller: who is named in errors.
        tensors: of the call, by name.
        reduction, inplace: of the call.
        optional: names of tensors that may be None.
        integers: names of tensors that PyTorch takes in integer types too.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``.
        RuntimeError: devices do not fit; a complex tensor, or an integer one.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    checks.check_tensors(caller, tensors, optional)
    check_reduction(caller, reduction)
    checks.check_flag(caller, "inplace", inplace)
    first = next(each for each in tensors.values() if each is not None)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, first, tensors)
    for name, tensor in tensors.items():
        if tensor is not None and not (name in integers and is_whole(tensor)):
            check_floating(caller, name, tensor)


def promoted(tensors: Iterable[Tensor]) -> torch.dtype:
    """The type that the types of tensors promote to."""
    return reduce(torch.promote_types, (each.dtype for each in tensors))


def is_whole(tensor: Tensor) -> bool:
    """Its numbers are integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def check_floating(caller: Caller, name: str, tensor: Tensor) -> None:
    """Refuse another than a floating type that the hardware has.

    Raises:
        RuntimeError: complex or integer, as PyTorch has it.
        TypeError: float64.
    """
    if not tensor.is_floating_point():
        kind = "Complex" if tensor.is_complex() else "Integral"
        raise RuntimeError(f"{caller}: {kind} inputs not supported, got {name} of {tensor.dtype}; pass floats")
    check_float_dtype(caller, name, tensor)
