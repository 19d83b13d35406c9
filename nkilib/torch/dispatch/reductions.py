# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reductions of :mod:`nkilib.core.host.reductions`, of tensors."""

from __future__ import annotations

from torch import Tensor


def reduced(values: Tensor, reduction: str, shape: tuple[int, ...], divisor: Tensor | int | None = None) -> Tensor:
    """The values of rows as ``reduction`` wants them.

    Args:
        values: one for each row.
        reduction: of the caller's arguments.
        shape: of the rows, for ``"none"``.
        divisor: of a mean; None for the number of rows.
    """
    if reduction == "none":
        return values.reshape(shape)
    total = values.sum()
    if reduction == "sum":
        return total
    return total / (values.numel() if divisor is None else divisor)
