# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of losses as PyTorch has them: their dtype, shape and reduction.

- For operators that return a reduced loss, or the loss of each element or row (:func:`is_each`): :func:`loss_output`,
  and :func:`kernel_gradient` for the backward.
- For operators that always return the loss of each row: :func:`reduced`, and :func:`in_shape_of_rows` for other
  results.
- The dtype of a loss: :func:`promoted` of its tensors, or under autocast :func:`as_computed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.checks import autocast_dtype
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, Call, Output, Shape


def is_each(call: Call) -> bool:
    """Return whether the call asks for the loss of each element or row: its reduction is ``"none"``."""
    return bool(call.options["reduction"] == "none")


def _dtype_of_first(call: Call) -> torch.dtype:
    return call.first.dtype


def loss_output(
    shape: Callable[[Call], Shape],
    depends_on: tuple[str, ...],
    dtype: Callable[[Call], torch.dtype] = _dtype_of_first,
) -> Output:
    """Return the description of an operator's first result, the loss.

    The mean of no elements is NaN, as in PyTorch.

    Args:
        shape: a function that returns the shape of the loss with reduction ``"none"``; with another reduction the loss
            is one number.
        depends_on: the names of the inputs with respect to which the loss has a derivative.
        dtype: a function that returns the dtype of the loss with reduction ``"none"``, by default that of the first
            input; with another reduction the loss is float32.
    """

    def reduced_shape(call: Call) -> Shape:
        return shape(call) if is_each(call) else ()

    def computed(call: Call, results: Mapping[str, Any]) -> Tensor:
        loss: Tensor = results["loss"]
        return loss.reshape(reduced_shape(call))

    return Output(
        "loss",
        lambda call: dtype(call) if is_each(call) else torch.float32,
        reduced_shape,
        fill=lambda call: torch.nan if call.options["reduction"] == "mean" else 0.0,
        computed=computed,
        depends_on=depends_on,
    )


def kernel_gradient(call: Call) -> dict[str, Any]:
    """Return the kernel argument ``grad_loss_hbm`` for the upstream gradient of a call of the backward.

    The gradient has one number for each loss with reduction ``"none"``; for a reduced loss it is float32 [1].
    """
    grad = call.tensor("grad_loss").detach()
    return {"grad_loss_hbm": grad.contiguous() if is_each(call) else grad.to(torch.float32).reshape(1)}


def in_shape_of_rows(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``values``, one for each row, in ``shape``, the shape of the rows.

    The result is a copy: a backward may keep ``values``, and a caller may change the result in place.
    """
    return values.reshape(shape).clone()


def reduced(
    values: Tensor,
    reduction: str,
    shape: tuple[int, ...],
    divisor: Tensor | int | None = None,
    is_empty: Tensor | None = None,
) -> Tensor:
    """Return the mean or the sum of ``values``; for ``"none"``, the values in the shape of the rows.

    Args:
        values: one value for each row.
        reduction: the caller's argument.
        shape: the shape of the rows, for ``"none"``.
        divisor: the divisor of a mean; None for the number of rows.
        is_empty: a bool tensor without dimensions, true if no row is valid. The mean is then NaN and its gradient 0, as
            in PyTorch. (The gradient of a division by 0 would be infinite or NaN, an error under
            ``torch.autograd.detect_anomaly()``.) None: at least one row is valid.
    """
    if reduction == "none":
        return in_shape_of_rows(values, shape)
    total = values.sum()
    if reduction == "sum":
        return total
    divisor = values.numel() if divisor is None else divisor
    if is_empty is None:
        return total / divisor
    return torch.where(is_empty, torch.nan, total / torch.where(is_empty, 1, divisor))


def promoted(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype to which the dtypes of all tensors together promote."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def as_computed(tensor: Tensor, reduction: str) -> Tensor:
    """Return the tensor, in float32 if the reduction is ``"none"`` and autocast is on, where PyTorch's losses are
    float32.
    """
    is_cast = reduction == "none" and autocast_dtype(tensor.device) is not None
    return tensor.float() if is_cast and tensor.dtype in FLOAT_DTYPES else tensor
