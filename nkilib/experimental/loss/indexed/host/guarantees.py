"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.base.guarantee import Guarantee

NLL_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="0 of a loss without weight, else half a ulp; a sum u / 2 of what is summed for each of at most 160 "
    "additions, and of up to 1,024 for each tile of a streamed input, u = 2^-23; a mean 2 u more",
    notes="sums: 32 numbers at a time, in an order that depends on shape and type alone; of a streamed input first the "
    "positions of a partition in the order of the engine's accumulator",
)
NLL_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="4 u of the value, u = 2^-23, plus the rounding of the gradient",
    notes="the gradient is written once; a core scatters into rows whose zeros it has stored, or makes it on chip",
)
