# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reductions that :mod:`nkilib.core.host.reductions` names, computed on PyTorch tensors."""

from __future__ import annotations

from torch import Tensor


def reduced(values: Tensor, reduction: str, shape: tuple[int, ...], divisor: Tensor | int | None = None) -> Tensor:
    """Return the values of rows, reduced as ``reduction`` says.

    Args:
        values: one value for each row.
        reduction: the caller's argument.
        shape: the shape of the rows, for ``"none"``.
        divisor: the divisor of a mean; None for the number of rows.
    """
    if reduction == "none":
        return values.reshape(shape)
    total = values.sum()
    if reduction == "sum":
        return total
    return total / (values.numel() if divisor is None else divisor)
