# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What autocast makes of the operands of a matrix product."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast has products on a device computed in; None where it is off."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def as_autocast(tensor: Tensor) -> Tensor:
    """The tensor as autocast hands it to a product: floating ones cast, but for float64."""
    dtype = autocast_dtype(tensor.device)
    if dtype is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype)
