# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reductions of losses, under the names of PyTorch."""

from __future__ import annotations

from typing import Any, Final

REDUCTIONS: Final = ("mean", "sum", "none")


def check_reduction(caller: object, reduction: Any) -> None:
    """Check that a reduction is one of :data:`REDUCTIONS`.

    Raises:
        ValueError: another reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")
