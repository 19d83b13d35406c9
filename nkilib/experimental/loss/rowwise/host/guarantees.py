"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from typing import Any, Final

from nkilib.guarantee import Guarantee

_ROWS: Final = (
    "rows: runs of 1024 elements in the order of the engine's accumulator, and then the runs; their sum: rows of a "
    "partition, then 32 numbers at a time; the tiling depends on shape and types alone"
)
_COMMON: Final[dict[str, Any]] = {
    "math": "float32",
    "deterministic": True,
    "same_bits_on_cores": True,
    "workspace": "0",
}

TRIPLET_FORWARD = Guarantee(
    **_COMMON,
    accumulator="float32",
    in_place=None,
    error="(n + 8) u / 2 of each distance, n additions in a row, u = 2^-23, and u of margin and distances",
    notes=_ROWS + "; p = 1, 2 or infinity",
)
TRIPLET_BACKWARD = Guarantee(
    **_COMMON,
    accumulator="none",
    in_place="anchor_hbm",
    error="4 u of each derivative of a distance, and what the coefficients of the forward are off by, and half a ulp",
    notes="gradients are computed on request; p = 1, 2 or infinity",
)
