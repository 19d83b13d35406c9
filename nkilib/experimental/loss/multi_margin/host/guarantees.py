"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.base.guarantee import Guarantee

_SUMS = (
    "a row is summed in chunks, each in the order of the engine's accumulator; how rows and columns are divided "
    "depends on the shape alone"
)

MULTI_MARGIN_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="u (|m| + (|x_t| + h) / 2) a term h of p = 1, u = 2^-23, and 2 h times that one of p = 2; u / 2 of the sum "
    "of a row, with the target's own term, for each of its additions, at most 4,096 a chunk; and half a ulp",
    notes=f"{_SUMS}; the target's own term is computed alike, and subtracted",
)
MULTI_MARGIN_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="p = 1: 2 u of the value, u = 2^-23, where no hinge is within its error of 0; p = 2: twice the errors of the "
    "hinges, times the upstream gradient; at the target the sum of these; plus the rounding of the gradient",
    notes=f"{_SUMS}; the element at the target is written last, by the core that has written its row",
)
