# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Launchable``: what a launch has to know of a kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from .schedule import Edge
from .settings import Settings


class Launchable(Protocol):
    """What a launch has to know of a kernel.

    Attributes:
        func: the Python function.
        cores: physical cores asked for by ``kernel[n]``; None if the launch has no grid.
        schedule: extra order between instructions.
        settings: what else ``nki.jit`` was told.
        signature: of the function.
    """

    __name__: str
    func: Callable[..., Any]
    cores: int | None
    schedule: tuple[Edge, ...]
    settings: Settings

    @property
    def signature(self) -> inspect.Signature: ...
