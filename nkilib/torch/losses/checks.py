# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks that losses share: of dtypes, shapes, options that are numbers, and reductions."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.core.host.options import REDUCTIONS, as_float, check_flags, check_reduction
from nkilib.core.rows.checks import LARGEST, LEAST_ARGUMENT_OF_LOG
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller, broadcast_shape
from nkilib.torch.dispatch.operator import TILE_DTYPES

# The sum divided by the size of the first dimension, which some losses have beside the reductions of all.
BATCHMEAN: Final = "batchmean"


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
        if tensor is None or tensor.dtype in TILE_DTYPES:
            continue
        if name not in integers or not is_whole(tensor):
            _refuse_dtype(caller, name, tensor)
        if tensor.dtype == torch.bool and name not in bools:
            raise RuntimeError(f"{caller}: bool inputs not supported, got {name} of torch.bool; pass {name}.float()")


def promoted(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype to which the dtypes of the tensors promote."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def is_whole(tensor: Tensor) -> bool:
    """Return whether the tensor holds integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def _refuse_dtype(caller: Caller, name: str, tensor: Tensor) -> None:
    """Reject a tensor that is neither bfloat16, float16 nor float32.

    Raises:
        RuntimeError: it is complex or integer, as in PyTorch.
        TypeError: it is float64.
    """
    if not tensor.is_floating_point():
        kind = "Complex" if tensor.is_complex() else "Integral"
        raise RuntimeError(f"{caller}: {kind} inputs not supported, got {name} of {tensor.dtype}; pass floats")
    checks.check_float_dtype(caller, name, tensor)


def finite_number(caller: Caller, name: str, value: Any) -> float:
    """Return the value as a Python number.

    Raises:
        TypeError: it is not a number.
        ValueError: it is infinite, NaN or out of the range of float32.
    """
    number = as_float(caller, name, value)
    if not -LARGEST <= number <= LARGEST:  # NaN too
        raise ValueError(f"{caller}: {name} must be finite in float32, got {value}; use {caller.instead}")
    return number


def least_of_log(caller: Caller, name: str, value: Any) -> float:
    """Return the value, a number that is added to the argument of a logarithm or is its lower bound, as a Python
    number.

    Raises:
        TypeError: it is not a number.
        ValueError: it is less than 2^-64, the least argument for which NKI documents the logarithm; or see
            :func:`finite_number`.
    """
    number = finite_number(caller, name, value)
    if number < LEAST_ARGUMENT_OF_LOG:
        raise ValueError(
            f"{caller}: {name} must be at least 2^-64, of which the engines have a logarithm, got {value}; use "
            f"{caller.instead}"
        )
    return number


def warn_of_broadcast(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Warn if the shapes differ, as PyTorch does: the tensors then broadcast, which is rarely intended."""
    if input.shape == target.shape:  # most are, and the loss broadcasts them with a weight
        return
    broadcast_shape(caller, {"input": input.shape, "target": target.shape})
    if not torch.compiler.is_compiling():
        warnings.warn(
            f"{caller}: target has shape {tuple(target.shape)} and input {tuple(input.shape)}: they are broadcast, and "
            f"every loss of the result enters it; reshape one of them if that is not meant",
            stacklevel=4,
        )


def check_weight(caller: Caller, input: Tensor, weight: Tensor | None) -> None:
    """Reject a weight whose shape is not the input's.

    Raises:
        ValueError: if the check fails, as in PyTorch.
    """
    if weight is not None and weight.shape != input.shape:
        raise ValueError(
            f"{caller}: weight must have the shape of input, {tuple(input.shape)}, got {tuple(weight.shape)}; expand it"
        )


def check_dimensions(caller: Caller, tensors: Mapping[str, Tensor]) -> None:
    """Reject tensors with different numbers of dimensions.

    Raises:
        RuntimeError: if the check fails, as in PyTorch.
    """
    if len({tensor.dim() for tensor in tensors.values()}) > 1:
        sizes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise RuntimeError(
            f"{caller}: all input tensors should have the same number of dimensions, got {sizes}; reshape them"
        )


def check_same_size(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Reject a target whose shape is not the input's, where PyTorch does not broadcast.

    Raises:
        ValueError: if the check fails.
    """
    if input.shape != target.shape:
        raise ValueError(
            f"{caller}: target must have the shape of input, {tuple(input.shape)}, got {tuple(target.shape)}; expand it"
        )


def check_expands(caller: Caller, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    """Reject a tensor that does not broadcast to a shape.

    Raises:
        RuntimeError: if the check fails, as in PyTorch.
    """
    if tensor is None:
        return
    if tensor.dim() > len(shape) or any(
        own not in (1, whole) for own, whole in zip(reversed(tensor.shape), reversed(shape), strict=False)
    ):
        raise RuntimeError(
            f"{caller}: {name} of shape {tuple(tensor.shape)} does not broadcast to that of target, {tuple(shape)}; "
            f"reshape it"
        )


def check_reduction_or_batchmean(caller: Caller, reduction: Any) -> None:
    """Reject a reduction that is neither one of all losses nor ``"batchmean"``.

    Raises:
        ValueError: if the check fails.
    """
    known = (*REDUCTIONS, BATCHMEAN)
    if reduction not in known:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass one of {', '.join(known)}")
