"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from typing import Any, Final

from nkilib.base.guarantee import Guarantee, TermError
from nkilib.experimental.loss.rowwise.host import term_errors

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


def _forward(*bounds: TermError, notes: str = "") -> Guarantee:
    return Guarantee(
        **_COMMON,
        accumulator="float32",
        in_place=None,
        error=f"{'; '.join(map(str, bounds))}; n additions in a row, u = 2^-23",
        notes=_ROWS + notes,
        term_errors=bounds,
    )


TRIPLET_FORWARD = _forward(
    *term_errors.TRIPLET.values(),
    term_errors.another_norm(4.0),
    notes="; p of at least 1, of which 4 stands for those other than 1, 2 and infinity",
)
TRIPLET_BACKWARD = Guarantee(
    **_COMMON,
    accumulator="none",
    in_place="anchor_hbm",
    error="4 u of each derivative of a distance, and what the coefficients of the forward are off by, and half a ulp; "
    "for p other than 1, 2 and infinity (p - 1) times what d and the distance are off by, and their logarithms, u each",
    notes="gradients are computed on request; p of at least 1",
)
COSINE_FORWARD = _forward(term_errors.COSINE)
COSINE_BACKWARD = Guarantee(
    **_COMMON,
    accumulator="none",
    in_place="input1_hbm",
    error="4 u of either term, and what the coefficients of the forward are off by, and half a ulp",
    notes="gradients are computed on request",
)
MULTILABEL_SOFT_FORWARD = _forward(term_errors.MULTILABEL_SOFT_MARGIN, term_errors.WEIGHTED_MULTILABEL_SOFT_MARGIN)
MULTILABEL_SOFT_BACKWARD = Guarantee(
    **_COMMON,
    accumulator="float32",
    in_place="input_hbm",
    error="6 u of sigmoid(x) + t or of x, times weight and upstream gradient, u = 2^-23, and half a ulp; of a weight "
    "(n / 2 + 7 / 2) u of the sum of terms, n additions in a row",
    notes="gradients of target and weight are computed on request; a weight of all rows: tiles of rows in order, even "
    "and odd ones apart, then the rows of a partition, the partitions, and both",
)
