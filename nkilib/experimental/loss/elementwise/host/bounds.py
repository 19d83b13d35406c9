"""How far the kernels of losses of elements may be from the truth, derived: numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number, an activation function is allowed u of its result, and an
exponential u more for its argument's last place. Every input is exact in float32.

kl_div, with l = log t: log u |l|, the difference u / 2 |l - x|, the product u / 2 of itself:

    |error| <= u t (|l| + |l - x|) + 2^-63        probabilities; 2^-64 is added to t, which adds at most as much to t l
    |error| <= 3 u e^t |t - x|                    log-probabilities: e^t 2 u, difference and product u / 2 each

Sums add what rounding costs: a run of 512 elements and then 32 numbers at a time, each addition u / 2 of what is
summed. Gradients: the terms of the derivative likewise, and two products with the upstream gradient. What is stored is
rounded once to the type of the result.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.flat import PARTITIONS
from nkilib.experimental.loss.elementwise.host.reference import (
    Float64Array,
    KlDivGradients,
    kl_div_gradients_reference,
    kl_div_reference,
)
from nkilib.experimental.loss.elementwise.kind import RUN_COLUMNS
from nkilib.experimental.loss.elementwise.kl_div import LEAST_TARGET

UNIT: Final = 2.0**-23
SMALLEST_NORMAL: Final = 2.0**-126
# Half a unit of the last place, relative; and absolute where numbers are subnormal.
_HALF_ULP: Final = {
    "float32": (2.0**-24, SMALLEST_NORMAL),
    "bfloat16": (2.0**-8, SMALLEST_NORMAL),
    "float16": (2.0**-11, 2.0**-25),
}


def rounding(exact: npt.NDArray[Any], dtype: Any) -> Float64Array:
    """What rounding to a type may change."""
    relative, absolute = _HALF_ULP[np.dtype(dtype).name]
    with np.errstate(all="ignore"):
        return relative * np.abs(exact) + absolute


def kl_div_bound(
    input: npt.NDArray[Any], target: npt.NDArray[Any], log_target: bool, dtype: Any = np.float32
) -> Float64Array:
    """Largest accepted error of each loss that is stored in ``dtype``."""
    x, t = input.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        if log_target:
            error = 3.0 * UNIT * np.exp(t) * np.abs(t - x)
        else:
            logarithm = np.log(t + LEAST_TARGET)
            error = UNIT * t * (np.abs(logarithm) + np.abs(logarithm - x)) + 2.0 * LEAST_TARGET
    return error + SMALLEST_NORMAL + rounding(kl_div_reference(input, target, log_target), dtype)


def sum_bound(losses: Float64Array, errors: Float64Array, columns: int) -> float:
    """Of a sum of losses, whose own errors are bounded by ``errors``, in tiles of so many columns."""
    tiles = div_ceil(losses.size, PARTITIONS * columns) + 2
    additions = RUN_COLUMNS + div_ceil(columns, RUN_COLUMNS) + LEAF * (levels(tiles) + levels(PARTITIONS))
    return float(errors.sum() + additions * 0.5 * UNIT * np.abs(losses).sum()) + SMALLEST_NORMAL


def kl_div_gradient_bounds(
    input: npt.NDArray[Any],
    target: npt.NDArray[Any],
    upstream: npt.NDArray[Any],
    log_target: bool,
) -> KlDivGradients:
    """Largest accepted errors of the gradients, each in the type of its tensor; ``upstream`` with its factor."""
    x, t, grad = input.astype(np.float64), target.astype(np.float64), np.abs(upstream.astype(np.float64))
    exact = kl_div_gradients_reference(input, target, log_target)
    with np.errstate(all="ignore"):
        by_input = 4.0 * UNIT * np.abs(exact.input)
        if log_target:
            by_target = 6.0 * UNIT * np.exp(t) * (np.abs(t - x) + 1.0)
        else:  # a raised target's logarithm is a difference of two numbers of at most 2 |l|
            by_target = UNIT * (4.0 * np.abs(np.log(t)) + 1.0 + 3.0 * np.abs(exact.target))
        return KlDivGradients(
            grad * by_input + SMALLEST_NORMAL + rounding(grad * exact.input, input.dtype),
            grad * by_target + SMALLEST_NORMAL + rounding(grad * exact.target, target.dtype),
        )
