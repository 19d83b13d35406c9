# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Shapes that broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from nkilib.torch.dispatch.caller import Caller


def broadcast_shape(caller: Caller, shapes: Mapping[str, torch.Size]) -> torch.Size:
    """The shape of an elementwise result of tensors of these shapes, as ``torch.broadcast_shapes``.

    Args:
        caller: whom errors speak for.
        shapes: by the name of the argument.

    Raises:
        RuntimeError: there is none, as in PyTorch.
    """
    for back in range(1, max(map(len, shapes.values())) + 1):
        longer = [each[-back] for each in shapes.values() if len(each) >= back and each[-back] != 1]
        if any(size != longer[0] for size in longer):
            got = ", ".join(f"{name} {tuple(each)}" for name, each in shapes.items())
            raise RuntimeError(
                f"{caller}: shapes must broadcast, and sizes of dimension -{back} do not, got {got}; reshape them"
            )
    found = torch.broadcast_shapes(*shapes.values())  # type: ignore[no-untyped-call]
    return cast(torch.Size, found)
