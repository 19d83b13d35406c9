"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.guarantee import Guarantee

NLL_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="0 of a loss without weight, else half a unit of its last place; a mean 4 u more, u = 2^-23",
    notes="sums: 32 numbers at a time, in an order that depends on the shape alone",
)
NLL_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="input_hbm",
    error="4 u of the value, u = 2^-23, plus the rounding of the gradient",
    notes="the gradient is written once; a core scatters into rows whose zeros it has stored",
)
