# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reductions that :mod:`nkilib.core.host.reductions` names, computed on PyTorch tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def reduced(
    values: Tensor,
    reduction: str,
    shape: tuple[int, ...],
    divisor: Tensor | int | None = None,
    is_empty: Tensor | None = None,
) -> Tensor:
    """Return the values of rows, reduced as ``reduction`` says.

    Args:
        values: one value for each row.
        reduction: the caller's argument.
        shape: the shape of the rows, for ``"none"``.
        divisor: the divisor of a mean; None for the number of rows.
        is_empty: a bool tensor without dimensions, whether no row is valid. The mean is then NaN and its gradient 0, as
            in PyTorch; a division by 0 would have an infinite gradient, or NaN, which is an error under
            ``torch.autograd.detect_anomaly()``. None: there is a valid row.
    """
    if reduction == "none":
        return per_row(values, shape)
    total = values.sum()
    if reduction == "sum":
        return total
    divisor = values.numel() if divisor is None else divisor
    if is_empty is None:
        return total / divisor
    return torch.where(is_empty, torch.nan, total / torch.where(is_empty, 1, divisor))


def per_row(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return one value for each row in the shape of the rows: a copy, because a backward may keep the values, which a
    caller may change in place.
    """
    return values.reshape(shape).clone()
