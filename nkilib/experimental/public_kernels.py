"""The public kernels of the library, for host code that goes through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from nkilib.experimental import softmax
from nkilib.experimental.loss import cross_entropy, distillation, elementwise, indexed, linear_cross_entropy

FAMILIES: Final[Sequence[ModuleType]] = (
    cross_entropy,
    linear_cross_entropy,
    softmax,
    indexed,
    elementwise,
    distillation,
)
"""The packages that launch kernels: every name in ``__all__`` is one."""


def public_kernels() -> dict[str, Any]:
    """What ``nki.jit`` returned, by name."""
    return {name: getattr(family, name) for family in FAMILIES for name in family.__all__}
