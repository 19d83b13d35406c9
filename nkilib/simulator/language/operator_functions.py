# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions that ``nl.add``, ``nl.exp``, ``nl.max`` and other operators run when they are called on tiles.

Importing this module gives each operator its function; the operators themselves are not aware of tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..isa.operators import OPERATORS
from . import elementwise, movement, reductions, trigonometry

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **elementwise.FUNCTIONS,
    "copy": movement.copy,
    "max": reductions.max_over,
    "mean": reductions.mean,
    "min": reductions.min_over,
    "sin": trigonometry.sin,
    "sum": reductions.sum_over,
}

for _name, _function in _FUNCTIONS.items():
    OPERATORS[_name].bind(_function)

__all__ = ["OPERATORS"]
