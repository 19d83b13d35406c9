# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Common parts of the calls of all families."""

from __future__ import annotations

from math import expm1
from typing import Any, Final

import numpy as np
import torch

from benchmarks.fuzz.draw import Draw
from benchmarks.fuzz.values import DTYPES, Array
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding

REDUCTIONS: Final = ("mean", "sum", "none")


def machine(draw: Draw) -> dict[str, Any]:
    """Cores and target of a launch: mostly two cores of trn2."""
    return {"cores": 1 if draw.chance(0.2) else 2, "target": "trn3" if draw.chance(0.15) else "trn2"}


def dtype_of(draw: Draw) -> tuple[str, torch.dtype]:
    """A type, and its name; 16 bits mostly."""
    name = draw.one_of(("bf16", "bf16", "fp16", "fp32"))
    return name, DTYPES[name]


def sum_error(numbers: int) -> float:
    """The largest error of a float32 sum of so many numbers, as a share of the sum of their absolute values.

    It holds in whatever order they are added up, which differs between builds of PyTorch and between machines: no
    number goes through more than ``numbers - 1`` additions, each of which rounds by half a unit at most.
    """
    return expm1(0.5 * UNIT * max(numbers - 1, 0))


def stored(value: Array, error: Array, dtype: Any) -> Array:
    """Return the error of a float32 result after rounding it to a type; unchanged for float32 itself."""
    if np.dtype(dtype) == np.float32:
        return error + SMALLEST_NORMAL
    with np.errstate(all="ignore"):
        return error + rounding(np.abs(value) + error, dtype)


def summed(values: Array, errors: Array) -> tuple[float, float]:
    """A float32 sum by PyTorch: its value and its largest error."""
    cost = sum_error(values.size) * (np.abs(values) + errors).sum()
    return float(values.sum()), float(errors.sum() + cost)
