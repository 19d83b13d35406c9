# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The launches that happen in a call: kernels with their arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from nkilib.simulator import using
from nkilib.simulator.launch.containers import map_leaves
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.machine.core import current_core_or_none


class Captured(NamedTuple):
    """A launch.

    Attributes:
        kernel: the kernel with its grid.
        args, kwargs: the arguments, as they were when the launch began.
    """

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def captured_launches(call: Callable[[], object]) -> list[Captured]:
    """Run ``call`` and return the launches that it makes from outside of kernels."""
    results: list[Captured] = []
    launch = Kernel.__call__

    def noting(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        if current_core_or_none() is None:
            results.append(Captured(kernel, *map_leaves((args, kwargs), "", lambda leaf, _: _copied(leaf))))
        return launch(kernel, *args, **kwargs)

    with patch.object(Kernel, "__call__", noting), using(replay=False):
        call()
    return results


def _copied(leaf: Any) -> Any:
    """Copy arrays; return anything else as it is."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return copy.copy(leaf) if hasattr(leaf, "dtype") and hasattr(leaf, "copy") else leaf
