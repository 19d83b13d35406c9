"""How far the kernels of the negative log-likelihood may be from the truth, derived: numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2. A loss is one product of exact numbers: 0 of error without a weight. A
sum adds 32 numbers at a time, after those of a partition where the input is streamed. A mean multiplies by a
reciprocal, of a sum with the error of its own. A gradient is the product of an upstream gradient, a weight, and for a
mean the reciprocal of the total weight: three products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.plan_limits import limited_parts
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.indexed.class_tiles import PARTS_MAX, STREAMED_CLASSES_MAX, ClassTiling
from nkilib.experimental.loss.indexed.host.reference import Float64Array, NllLosses
from nkilib.experimental.loss.indexed.positions import PARTITIONS, Shape, number_of_batches
from nkilib.nki import nl


def nll_loss_bound(
    found: NllLosses, shape: tuple[int, ...], reduction: str, dtype: Any, streamed: bool | None = None
) -> Float64Array:
    """Largest accepted error of the loss of an input of that shape, stored in ``dtype`` for ``"none"``."""
    if reduction == "none":
        return 0.5 * UNIT * np.abs(found.losses) + rounding(found.losses, dtype)
    additions = _additions(Shape.of(shape), streamed)
    with np.errstate(all="ignore"):
        error = (additions + 1) * 0.5 * UNIT * np.abs(found.losses).sum()
        if reduction == "mean":
            total = np.abs(found.weights.sum())
            of_weights = additions * 0.5 * UNIT * np.abs(found.weights).sum() / total
            error = error / total + (of_weights + 2.0 * UNIT) * np.abs(found.reduced(reduction))
    return np.asarray(error + SMALLEST_NORMAL)


def _additions(shape: Shape, streamed: bool | None) -> int:
    """Of one sum, one after the other; of a streamed input those of a partition's positions come first."""
    if streamed is False or shape.classes > STREAMED_CLASSES_MAX:
        return LEAF * (levels(number_of_batches(shape)) + levels(PARTITIONS))
    tiling = ClassTiling.of(shape, nl.bfloat16)
    tiles = tiling.number_of_tiles
    most = limited_parts(PARTS_MAX)
    of_part = div_ceil(tiles, most) * tiling.positions
    return of_part + LEAF * (levels(min(tiles, most)) + levels(PARTITIONS))


def nll_loss_gradient_bound(exact: Float64Array, dtype: npt.DTypeLike) -> Float64Array:
    """Largest accepted error of each element of the gradient; where it is 0 it is exact."""
    return np.where(exact == 0.0, SMALLEST_NORMAL, 4.0 * UNIT * np.abs(exact) + rounding(exact, dtype))
