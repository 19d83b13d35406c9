"""What softmax and log_softmax refuse, with errors of PyTorch's types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.checks import check_devices, check_plain, check_tensors
from nkilib.torch.dispatch.losses import FLOAT_DTYPES

_NAMES = "bfloat16, float16 or float32"


def check_arguments(caller: Caller, input: Any, dtype: Any) -> None:
    """Refuse what is no tensor, where no kernel runs, and types that the kernels do not write.

    Raises:
        TypeError: the wrong Python type; float64.
        NotImplementedError: another type, device or kind of tensor.
    """
    check_tensors(caller, {caller.input: input})
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"{caller}: argument 'dtype' must be torch.dtype, not {type(dtype).__name__}; pass torch.float32"
        )
    check_plain(caller, {caller.input: input})
    if input.layout != torch.strided:
        raise NotImplementedError(f"{caller}: input must be a dense tensor, got {input.layout}; pass input.to_dense()")
    check_devices(caller, input, {})
    _check_type(caller, input, dtype)


def _check_type(caller: Caller, input: Tensor, dtype: torch.dtype | None) -> None:
    result = input.dtype if dtype is None else dtype
    if result in FLOAT_DTYPES:
        return
    asked = f"input of {result}" if dtype is None else f"dtype={result}"
    if result == torch.float64:
        remedy = "input.float()" if dtype is None else "dtype=torch.float32"
        raise TypeError(f"{caller}: the kernels write {_NAMES}, got {asked}; pass {remedy}, as there is no float64")
    raise NotImplementedError(
        f"{caller}: not implemented for {asked}; pass dtype=torch.float32 for a result in {_NAMES}"
    )


def checked_dim(caller: Caller, input: Tensor, dim: Any) -> int:
    """``dim`` counted from the front; a tensor without dimensions has one.

    Raises:
        TypeError: no integer.
        IndexError: out of range.
    """
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"{caller}: argument 'dim' must be int, not {type(dim).__name__}; pass one dimension")
    count = max(input.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(
            f"{caller}: dim must be from {-count} to {count - 1} for input of shape {tuple(input.shape)}, got {dim}; "
            f"pass one of its dimensions"
        )
    return dim % count
