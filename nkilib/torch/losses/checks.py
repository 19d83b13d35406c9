# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks that several sorts of losses share.

:func:`check_call` checks the tensors and flags of a call; :func:`finite_number` an option that is a number;
:func:`check_reduction_or_batchmean` a reduction that may be :data:`BATCHMEAN`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.core.host.options import REDUCTIONS, as_float, check_flags, check_reduction
from nkilib.core.rows.checks import LARGEST
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import TILE_DTYPES

# The sum divided by the size of the first dimension, which some losses have beside the reductions of all.
BATCHMEAN: Final = "batchmean"


def _is_integral(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _refuse_dtype(caller: Caller, name: str, tensor: Tensor) -> None:
    """Check that a tensor is bfloat16, float16 or float32.

    Raises:
        RuntimeError: the dtype is complex or integer, as in PyTorch.
        TypeError: the dtype is float64.
    """
    if not tensor.is_floating_point():
        kind = "Complex" if tensor.is_complex() else "Integral"
        raise RuntimeError(f"{caller}: {kind} inputs not supported, got {name} of {tensor.dtype}; pass floats")
    checks.check_float_dtype(caller, name, tensor)


def check_call(
    caller: Caller,
    tensors: Mapping[str, Tensor | None],
    reduction: Any,
    inplace: Any,
    optional: Collection[str] = (),
    integers: Collection[str] = (),
    bools: Collection[str] = (),
) -> None:
    """Check the tensors and flags of a call, with PyTorch's error types.

    Args:
        caller: the function that error messages name.
        tensors: the tensors of the call, by name.
        reduction, inplace: the arguments of the call.
        optional: names of tensors that may be None.
        integers: names of tensors that PyTorch takes in integer types too.
        bools: names of those in ``integers`` that PyTorch takes as bool too; it does not subtract bools.

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
        if tensor is None or tensor.dtype in TILE_DTYPES:
            continue
        if name not in integers or not _is_integral(tensor):
            _refuse_dtype(caller, name, tensor)
        if tensor.dtype == torch.bool and name not in bools:
            raise RuntimeError(f"{caller}: bool inputs not supported, got {name} of torch.bool; pass {name}.float()")


def finite_number(caller: Caller, name: str, value: Any) -> float:
    """Return the option ``name`` as a Python number, after a check that it is finite.

    Raises:
        TypeError: the value is not a number.
        ValueError: the value is infinite, NaN or out of the range of float32.
    """
    number = as_float(caller, name, value)
    if not -LARGEST <= number <= LARGEST:  # NaN too
        raise ValueError(f"{caller}: {name} must be finite in float32, got {value}; use {caller.instead}")
    return number


def check_reduction_or_batchmean(caller: Caller, reduction: Any) -> None:
    """Check that a reduction is ``"mean"``, ``"sum"``, ``"none"`` or ``"batchmean"``.

    Raises:
        ValueError: the reduction is something else.
    """
    known = (*REDUCTIONS, BATCHMEAN)
    if reduction not in known:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass one of {', '.join(known)}")
