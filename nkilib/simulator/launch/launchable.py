# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Launchable``: the attributes of a kernel that a launch needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from .schedule import Edge
from .settings import Settings


class Launchable(Protocol):
    """The attributes of a kernel that a launch needs.

    Attributes:
        func: the Python function.
        cores: the number of physical cores asked for by ``kernel[n]``; None if the launch has no grid.
        schedule: extra order between instructions.
        settings: the other settings from ``nki.jit``.
        signature: the signature of the function.
    """

    __name__: str
    func: Callable[..., Any]
    cores: int | None
    schedule: tuple[Edge, ...]
    settings: Settings

    @property
    def signature(self) -> inspect.Signature: ...
