# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The effect of autocast on the operands of a matrix product."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype in which autocast computes products on a device; None where it is off."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def as_autocast(tensor: Tensor) -> Tensor:
    """Return the tensor as autocast passes it to a product: floating tensors are cast, except for float64."""
    dtype = autocast_dtype(tensor.device)
    if dtype is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype)
