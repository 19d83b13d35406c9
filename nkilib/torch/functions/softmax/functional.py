"""``softmax`` and ``log_softmax``: those of ``torch.nn.functional`` on the kernels."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.autocast import autocast_dtype
from nkilib.torch.dispatch.autograd import Derivative
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import AlongAxis
from nkilib.torch.dispatch.losses import FLOAT_DTYPES
from nkilib.torch.functions.softmax.checks import check_arguments, checked_dim
from nkilib.torch.functions.softmax.operators import (
    LOG_SOFTMAX,
    OF_LOG_SOFTMAX,
    OF_SOFTMAX,
    SOFTMAX,
    name_of,
)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax along a dimension, on the kernels of :mod:`nkilib.experimental.softmax`.

    Equals ``torch.nn.functional.softmax(input, dim, dtype=dtype)``. It is computed in float32 and rounded once, to the
    type of the result; backward takes the result alone, so the input is not kept.

    Args:
        input: any number of dimensions, 0 included; bfloat16, float16 or float32. Any other type with ``dtype``, which
            is cast to float32 first. A dense tensor of any layout is read where it lies (channels last, transposed);
            one with gaps or overlaps is copied.
        dim: along which elements add up to 1; a negative one counts from the end. None chooses as PyTorch does, 0 of 0,
            1 or 3 dimensions and else 1, and warns.
        _stacklevel: of that warning, as in PyTorch.
        dtype: of the result: bfloat16, float16 or float32; None for that of the input. Where PyTorch first casts the
            input to it, this casts nothing: a narrower type is the rounded result of the input as it is.

    Returns:
        The shape of ``input``, and its layout where it is dense. NaN where a row has a NaN, +inf, or nothing but -inf.

    Raises:
        TypeError: an argument has the wrong Python type; float64 for the input or as ``dtype``.
        IndexError: ``dim`` is out of range.
        NotImplementedError: another type of the result, or of an input without ``dtype``; another device; a part of a
            tensor; a derivative in forward mode.
    """
    return _along(SOFTMAX, OF_SOFTMAX, input, dim, _stacklevel, dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """Logarithm of the softmax along a dimension, in nats, on the kernels of :mod:`nkilib.experimental.softmax`.

    Equals ``torch.nn.functional.log_softmax(input, dim, dtype=dtype)``; arguments, result and errors are those of
    :func:`softmax`.

    Args:
        input, dim, _stacklevel, dtype: as for :func:`softmax`.

    Returns:
        The shape of ``input``, and its layout where it is dense: at most 0, -inf where the input is.
    """
    return _along(LOG_SOFTMAX, OF_LOG_SOFTMAX, input, dim, _stacklevel, dtype)


def _along(caller: Caller, derivative: Derivative, input: Any, dim: Any, stacklevel: int, dtype: Any) -> Tensor:
    check_arguments(caller, input, dtype)
    axis = checked_dim(caller, input, _implicit_dim(caller, input, stacklevel) if dim is None else dim)
    x = input if input.dtype in FLOAT_DTYPES else input.to(torch.float32)
    x = x.reshape(1) if x.dim() == 0 else x
    along = AlongAxis.of(x, axis)
    dtype_name = name_of(_result_dtype(x, dtype))
    result: Tensor = derivative.apply(False, along.stored(x), axis=along.axis, dtype=dtype_name)
    return along.restored(result).reshape(input.shape)


def _result_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """What is asked for; else float32 under autocast, as PyTorch has it on accelerators, and not on the CPU."""
    if dtype is not None:
        return dtype
    return torch.float32 if x.device.type != "cpu" and autocast_dtype(x.device) is not None else x.dtype


def _implicit_dim(caller: Caller, input: Tensor, stacklevel: int) -> int:
    """The dimension that PyTorch takes if none is given, with its warning."""
    message = f"{caller}: dim is not given, and which one PyTorch chooses is deprecated; pass dim="
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch import uncompiled  # which imports the compiler

        uncompiled.warn(message)
    else:
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
    return 0 if input.dim() in (0, 1, 3) else 1
