# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A log of the operators that run."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorLog(TorchDispatchMode):
    """A mode that keeps the names of the operators, and the shapes of what returns one tensor.

    Attributes:
        calls: in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...] | None]] = []

    @property
    def names(self) -> list[str]:
        """The names of the operators, in order."""
        return [name for name, _ in self.calls]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func.name(), tuple(result.shape) if isinstance(result, Tensor) else None))
        return result
