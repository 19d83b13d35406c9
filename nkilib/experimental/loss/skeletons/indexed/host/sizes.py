# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the tensors of a launch are: of one target a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nkilib.core.host.sized_loss import SCALAR, TensorSize


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Of a tensor of a launch on an input [N, C]: a target a row; what belongs to a mean is one number."""
    if tensor == "targets":
        return TensorSize(shape[:1], "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR
