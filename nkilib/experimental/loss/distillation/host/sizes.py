# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The shapes and types of the tensors of a launch, for the row of the registry and for profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nkilib.core.host.sized_loss import TensorSize


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch on logits [N, V]: logits, labels, or a value for each position."""
    if tensor in ("student", "teacher"):
        return TensorSize(shape)
    return TensorSize(shape[:1], "int32" if tensor == "labels" else "float32")
