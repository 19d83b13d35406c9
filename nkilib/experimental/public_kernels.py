# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The public kernels of the library, for host code that iterates over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from nkilib.base.guarantee import Guarantee, guarantee_stated_for
from nkilib.experimental import loss, softmax

_DIRECTIONS: Final = ("_forward", "_backward", "_mixture")
FAMILIES: Final[Sequence[ModuleType]] = (loss, softmax)
"""The packages that export kernels to launch."""


def public_kernels() -> dict[str, Callable[..., Any]]:
    """Return the public kernels by name, as launchable kernels.

    A kernel's name ends with ``_forward``, ``_backward`` or ``_mixture``.
    """
    return {name: getattr(family, name) for family in FAMILIES for name in family.__all__ if name.endswith(_DIRECTIONS)}


def guarantee_of(kernel: Callable[..., Any]) -> Guarantee | None:
    """Return the :class:`Guarantee` registered for a kernel, or None if none is registered."""
    return guarantee_stated_for(getattr(kernel, "func", kernel))
