# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether a tensor has memory that this process can tell, or is one that a graph is traced with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def is_traced(tensor: Tensor) -> bool:
    """Whether a graph is being made: the tensor is fake, functional or of the compiler, and may get another layout."""
    return torch.compiler.is_compiling() or type(tensor) not in _PLAIN


def address(tensor: Tensor) -> int | None:
    """Where the elements of a tensor start; None where it has no memory, as in XLA and in a traced graph."""
    if is_traced(tensor):
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # what PyTorch raises for a tensor without storage
        return None
