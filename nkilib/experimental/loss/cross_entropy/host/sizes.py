# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the tensors of a launch are, for the row of the registry and for profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nkilib.core.host.sized_loss import TensorSize


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Of a tensor of a launch on logits [N, V]: targets that are classes, and numbers of each position."""
    if tensor == "logits":
        return TensorSize(shape)
    return TensorSize(shape[:1], "int32" if tensor == "targets" else "float32")
