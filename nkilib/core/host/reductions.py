# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reductions that losses have, under the names of PyTorch."""

from __future__ import annotations

from typing import Any, Final

REDUCTIONS: Final = ("mean", "sum", "none")


def check_reduction(caller: object, reduction: Any) -> None:
    """Refuse another.

    Raises:
        ValueError: always then.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")
