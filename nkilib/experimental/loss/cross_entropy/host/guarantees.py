"""What the kernels promise; tests hold each claim."""

from __future__ import annotations

from typing import Any

from nkilib.base.guarantee import Guarantee
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil


def forward_workspace_bytes(
    logits_hbm: Any, positions_per_batch: int = PARTITIONS, exact_maximum: bool | None = None, cores: int = 1, **_: Any
) -> int:
    """The targets' logits, which the form without the exact maximum keeps for rows that are computed anew."""
    if exact_maximum:
        return 0
    batches = div_ceil(logits_hbm.shape[0], positions_per_batch) + cores - 1  # a core may have a short one of its own
    return FLOAT32_BYTES * PARTITIONS * batches


_FORWARD_NOTES = (
    "logits are rounded to dtype on loading; exact_maximum=None chooses the form by the batches of a core: with True "
    "or False one core and two give the same bits"
)
_WORKSPACE = "512 (ceil(N / positions_per_batch) + 1); 0 with exact_maximum=True"
_BACKWARD_NOTES = "logits are rounded to dtype on loading; a target's p - 1 is subtracted in float32"

CROSS_ENTROPY_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace=_WORKSPACE,
    in_place=None,
    error="loss: 16 u max(1, m - x_t, log d); lse: 16 u max(1, |m|, log d); u = 2^-23, plus the rounding of the result",
    workspace_bytes=forward_workspace_bytes,
    notes=_FORWARD_NOTES,
)
CROSS_ENTROPY_BACKWARD = Guarantee(
    math="float32",
    accumulator="none",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="logits_hbm",
    error=(
        "scale u (p (8 + |x - lse| + |lse| + |log scale|) + 2 (1 - p) at the target), u = 2^-23, plus the rounding of "
        "the result"
    ),
    notes=_BACKWARD_NOTES,
)
EXTENDED_CROSS_ENTROPY_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=False,
    workspace=_WORKSPACE,
    in_place=None,
    error=(
        "loss: 16 u (F max(1, log d) + sum f (m - z)), F the sum of the factors f; lse: 16 u max(1, |m|, log d); "
        "u = 2^-23; with a cap c of logits 4 u c more of each z; argmax exact"
    ),
    workspace_bytes=forward_workspace_bytes,
    notes=_FORWARD_NOTES,
)
EXTENDED_CROSS_ENTROPY_BACKWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place="logits_hbm",
    error=(
        "u (S p (12 + |z - lse| + |lse| + 4 c) + 4 |r| + 4 |dz|), u = 2^-23, S the sizes of all terms of the factor of "
        "p, r what is subtracted, c the cap of logits; plus the rounding of the result"
    ),
    notes=_BACKWARD_NOTES,
)
