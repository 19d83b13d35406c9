"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.base.guarantee import Guarantee

MULTILABEL_MARGIN_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="u / 2 of |1 - x_t| and of a term, u = 2^-23; u / 2 of the sum of a row for each of its additions, at most C "
    "and the targets; and half a ulp",
    notes="the terms of a target in the order of the engine's accumulator, then the targets of a row",
)
MULTILABEL_MARGIN_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="u of the value, u = 2^-23, where no term is within its error of 0, plus the rounding of the gradient",
    notes="counts of positive terms are exact: C is at most 4,096",
)
