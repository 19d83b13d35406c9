"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.base.guarantee import Guarantee

DISTILLATION_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="u (a_P + a_Q) (2 + E|log(P/Q)|), absolute, with u = 2^-23 and a = 8 + 2 max|x|/T; a KL of equal logits is 0",
    notes="chunks depend on V, the bytes of a logit of each, and whether it is a KL or Jensen-Shannon; "
    "sums of a piece in the order of the engine's accumulator, then of the pieces",
)
DISTILLATION_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="student_hbm",
    error="u (a_P + a_Q) of each term times the upstream gradient, plus the result's rounding; a as in the forward",
    notes="the teacher gets no gradient",
)
