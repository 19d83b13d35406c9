"""The public kernels of the library, for host code that goes through all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from nkilib.base.guarantee import Guarantee, stated_guarantee
from nkilib.experimental import softmax
from nkilib.experimental.loss import (
    cross_entropy,
    ctc,
    distillation,
    elementwise,
    indexed,
    linear_cross_entropy,
    linear_distillation,
    multi_margin,
    multilabel_margin,
    rowwise,
)

_DIRECTIONS: Final = ("_forward", "_backward", "_mixture")
FAMILIES: Final[Sequence[ModuleType]] = (
    cross_entropy,
    linear_cross_entropy,
    softmax,
    indexed,
    multi_margin,
    multilabel_margin,
    ctc,
    elementwise,
    rowwise,
    distillation,
    linear_distillation,
)
"""The packages that launch kernels."""


def public_kernels() -> dict[str, Callable[..., Any]]:
    """What ``nki.jit`` returned, by name; the names of kernels end with a direction."""
    return {name: getattr(family, name) for family in FAMILIES for name in family.__all__ if name.endswith(_DIRECTIONS)}


def guarantee_of(kernel: Callable[..., Any]) -> Guarantee | None:
    """What was stated of the function of a kernel; None if nothing was."""
    return stated_guarantee(getattr(kernel, "func", kernel))
