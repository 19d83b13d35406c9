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
COSINE_FORWARD = Guarantee(
    **_COMMON,
    accumulator="float32",
    in_place=None,
    error="(n + 10) u of 1, n additions in a row, u = 2^-23, and u of margin and cosine",
    notes=_ROWS,
)
COSINE_BACKWARD = Guarantee(
    **_COMMON,
    accumulator="none",
    in_place="input1_hbm",
    error="4 u of either term, and what the coefficients of the forward are off by, and half a ulp",
    notes="gradients are computed on request",
)
MULTILABEL_SOFT_FORWARD = Guarantee(
    **_COMMON,
    accumulator="float32",
    in_place=None,
    error="(n / 2 + 6) u of the sum of terms, n additions in a row, u = 2^-23",
    notes=_ROWS,
)
MULTILABEL_SOFT_BACKWARD = Guarantee(
    **_COMMON,
    accumulator="float32",
    in_place="input_hbm",
    error="6 u of sigmoid(x) + t or of x, times weight and upstream gradient, u = 2^-23, and half a ulp; of a weight "
    "(n / 2 + 6) u of the sum of terms, n additions in a row",
    notes="gradients of target and weight are computed on request; a weight of all rows: tiles of rows in order, even "
    "and odd ones apart, then the rows of a partition, the partitions, and both",
)
