"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.guarantee import Guarantee

_RUNS = (
    "sums: runs of 512 elements in the order of the engine's accumulator, then 32 at a time; the tiling depends on "
    "shape and types alone"
)

KL_DIV_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="2 u t max(|log t|, |x|) + 2^-63 an element, u = 2^-23, plus the rounding of the result",
    notes=_RUNS,
)
KL_DIV_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="2 u of the largest term of the derivative times the upstream gradient, plus the rounding of the result",
    notes="the gradient of a target is computed on request",
)
