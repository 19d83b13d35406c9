# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A log of the operators that run."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OperatorLog(TorchDispatchMode):
    """A mode that keeps the names of the operators, and the shapes of what they return.

    Attributes:
        calls: in order, with the shape of what returns one tensor.
        shapes: the shapes of all tensors that were returned, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...] | None]] = []
        self.shapes: list[tuple[int, ...]] = []

    @property
    def names(self) -> list[str]:
        """The names of the operators, in order."""
        return [name for name, _ in self.calls]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func.name(), tuple(result.shape) if isinstance(result, Tensor) else None))
        self.shapes += [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result
