"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.guarantee import Guarantee

DISTILLATION_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="host/bounds.py: 2^-21 (8 + |log S| + E|d|/T) of a KL, absolute; 0 for equal logits",
    notes="chunks depend on V alone; sums of a piece in the order of the engine's accumulator, then of the pieces",
)
DISTILLATION_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="student_hbm",
    error="host/bounds.py: 2^-20 (8 + |x|/T) of the larger term, times the upstream gradient, plus the rounding of the result",
    notes="the teacher gets no gradient",
)
