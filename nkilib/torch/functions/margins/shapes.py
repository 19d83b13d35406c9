"""What both losses of classes take and refuse alike: rows of classes, or one row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import check_float_dtype
from nkilib.torch.functions.cross_entropy.target_indices import INDEX_DTYPES


def rows_and_classes(input: Tensor) -> tuple[int, int]:
    """N and C of [N, C], [C] or a number, which is one class."""
    if input.dim() == 2:
        return int(input.shape[0]), int(input.shape[1])
    return 1, int(input.shape[0]) if input.dim() else 1


def check_classes(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Refuse shapes and types of input and target, with PyTorch's types of errors.

    Raises:
        RuntimeError: no classes, or more than two dimensions; a target of no integers.
        NotImplementedError: an input of integers.
        TypeError: float64.
    """
    if input.dim() > 2 or (input.dim() and rows_and_classes(input)[1] == 0):
        raise RuntimeError(
            f"{caller}: Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}; flatten what is beside the classes"
        )
    if target.dtype not in INDEX_DTYPES:
        raise RuntimeError(f"{caller}: expected target dtype to be an integer type, but got {target.dtype}")
    if not input.is_floating_point():
        raise NotImplementedError(f"{caller}: not implemented for {caller.noun} of {input.dtype}; pass input.float()")
    check_float_dtype(caller, caller.input, input)


def check_inplace(caller: Caller, input: Tensor, computed: Tensor, inplace: Any) -> None:
    """Refuse ``inplace`` where the gradient cannot be written over the input.

    Raises:
        TypeError: it is no bool.
        ValueError: the kernel would work on a copy.
        RuntimeError: a leaf that requires grad, or a view of one; torch.compile is at work.
    """
    if not isinstance(inplace, bool):
        raise TypeError(f"{caller}: argument 'inplace' must be bool, not {type(inplace).__name__}")
    if not inplace:
        return
    checks.check_inplace(caller, input)
    if computed.dtype != input.dtype or not input.is_contiguous():
        raise ValueError(
            f"{caller}: inplace=True needs a contiguous input in the type in which the loss is computed, got "
            f"{input.dtype} of {tuple(input.shape)}, strides {input.stride()}; leave inplace off"
        )
