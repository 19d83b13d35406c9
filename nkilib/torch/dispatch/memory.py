# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of whether a tensor has memory that this process can address, or belongs to a traced graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def is_traced(tensor: Tensor) -> bool:
    """Return whether a graph is being traced with this tensor: it is fake, functional or the compiler's, and at run
    time the tensor may have another layout.
    """
    return torch.compiler.is_compiling() or type(tensor) not in _PLAIN


def address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's first element; None if it has no memory, as in XLA and in a traced graph."""
    if is_traced(tensor):
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # what PyTorch raises for a tensor without storage
        return None
