"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from nkilib.base.guarantee import Guarantee

CTC_LOSS_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="2 u of the logarithm for each time step, u = 2^-23",
    notes="a sum adds 32 losses at a time, in an order that depends on the shape alone; alpha is an output",
)
CTC_LOSS_BACKWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="6 u of the logarithm for each time step, relative to a class's occupancy, and 8 u of the probability, "
    "u = 2^-23, plus the rounding of the gradient",
    notes="groups of sequences, blocks of states and chunks of time depend on the shape and type alone",
)
