# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The broadcasting of shapes, with PyTorch's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from nkilib.torch.dispatch.caller import Caller


def broadcast_shape(caller: Caller, shapes: Mapping[str, torch.Size]) -> torch.Size:
    """Return the shape to which tensors of these shapes broadcast, as ``torch.broadcast_shapes`` does.

    Args:
        caller: the function that error messages name.
        shapes: the shapes by the name of the argument.

    Raises:
        RuntimeError: the shapes do not broadcast, as in PyTorch.
    """
    for back in range(1, max(map(len, shapes.values())) + 1):
        longer = [shape[-back] for shape in shapes.values() if len(shape) >= back and shape[-back] != 1]
        if any(size != longer[0] for size in longer):
            got = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            raise RuntimeError(
                f"{caller}: shapes must broadcast, and sizes of dimension -{back} do not, got {got}; reshape them"
            )
    result = torch.broadcast_shapes(*shapes.values())  # type: ignore[no-untyped-call]
    return cast(torch.Size, result)
