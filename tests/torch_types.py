# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Types of PyTorch by name: cases outside of tests/torch name them, so that collecting these does not import it."""

from __future__ import annotations

from typing import Any


def named_type(value: Any) -> Any:
    """The type of PyTorch that a name such as ``torch.float32`` stands for; anything else is returned as it is."""
    if not isinstance(value, str) or not value.startswith("torch."):
        return value
    import torch

    return getattr(torch, value.removeprefix("torch."))
