# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of losses that take floating tensors, and some of them integer tensors too; and the dtypes to which dtypes
of tensors promote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from nkilib.core.host.options import check_flags
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
    bools: Collection[str] = (),
) -> None:
    """Reject arguments that the kernels cannot compute or that PyTorch does not accept, with PyTorch's error types.

    Args:
        caller: the function that error messages name.
        tensors: the tensors of the call, by name.
        reduction, inplace: the arguments of the call.
        optional: names of tensors that may be None.
        integers: names of tensors that PyTorch takes in integer types too.
        bools: names of those among them that PyTorch takes as bool too; it does not subtract bools.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``.
        RuntimeError: devices differ; a complex tensor, or an integer or bool tensor that is not allowed.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    checks.check_tensors(caller, tensors, optional)
    check_reduction(caller, reduction)
    check_flags(caller, inplace=inplace)
    first = next(value for value in tensors.values() if value is not None)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, first, tensors)
    for name, tensor in tensors.items():
        if tensor is not None and not (name in integers and is_whole(tensor)):
            check_floating(caller, name, tensor)
        elif tensor is not None and tensor.dtype == torch.bool and name not in bools:
            raise RuntimeError(f"{caller}: bool inputs not supported, got {name} of torch.bool; pass {name}.float()")


def promoted(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype to which the dtypes of the tensors promote."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def is_whole(tensor: Tensor) -> bool:
    """Return whether the tensor holds integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def check_floating(caller: Caller, name: str, tensor: Tensor) -> None:
    """Reject a tensor without a floating dtype that the hardware has.

    Raises:
        RuntimeError: it is complex or integer, as in PyTorch.
        TypeError: it is float64.
    """
    if not tensor.is_floating_point():
        kind = "Complex" if tensor.is_complex() else "Integral"
        raise RuntimeError(f"{caller}: {kind} inputs not supported, got {name} of {tensor.dtype}; pass floats")
    check_float_dtype(caller, name, tensor)
