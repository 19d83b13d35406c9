"""What calls of all families have in common."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from benchmarks.fuzz.draw import Draw
from benchmarks.fuzz.values import DTYPES, Array
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding

REDUCTIONS: Final = ("mean", "sum", "none")
# Additions in a row, at most, of a float32 sum of PyTorch on a CPU: it adds up runs of 16 in four levels, in several
# registers of up to 16 numbers, which it adds up then.
_ADDITIONS_OF_PYTORCH: Final = 96


def machine(draw: Draw) -> dict[str, Any]:
    """Cores and target of a launch: mostly two cores of trn2."""
    return {"cores": 1 if draw.chance(0.2) else 2, "target": "trn3" if draw.chance(0.15) else "trn2"}


def dtype_of(draw: Draw) -> tuple[str, torch.dtype]:
    """A type, and its name; 16 bits mostly."""
    name = draw.one_of(("bf16", "bf16", "fp16", "fp32"))
    return name, DTYPES[name]


def additions_of_pytorch(numbers: int) -> int:
    """Additions in a row of a sum of so many float32 numbers by PyTorch."""
    return min(numbers, _ADDITIONS_OF_PYTORCH)


def stored(value: Array, error: Array, dtype: Any) -> Array:
    """The error of a float32 result that is rounded to a type; no more for float32 itself."""
    if np.dtype(dtype) == np.float32:
        return error + SMALLEST_NORMAL
    with np.errstate(all="ignore"):
        return error + rounding(np.abs(value) + error, dtype)


def summed(values: Array, errors: Array) -> tuple[float, float]:
    """A float32 sum by PyTorch: its value and its largest error."""
    cost = 0.5 * UNIT * additions_of_pytorch(values.size) * np.abs(values).sum()
    return float(values.sum()), float(errors.sum() + cost)
