# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The shapes and types of the tensors of a launch with one target per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nkilib.core.host.sized_loss import SCALAR, TensorSize


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch on an input [N, C].

    There is one target per row; the upstream gradient and other tensors of a mean are scalars.
    """
    if tensor == "targets":
        return TensorSize(shape[:1], "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR
