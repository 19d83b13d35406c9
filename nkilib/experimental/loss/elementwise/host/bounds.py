"""How far the kernels of losses of elements may be from the truth, derived: numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number. A logarithm is allowed 4 u of its result and an
exponential 3 u, what float32 implementations are documented to need. Every input is exact in float32.

kl_div, with l = log t: the logarithm, the difference u / 2 |l - x|, the product u / 2 of itself:

    |error| <= u t (4 |l| + |l - x|) + 2^-63      probabilities; 2^-64 is added to t, which adds at most as much to t l
    |error| <= 4 u e^t |t - x|                    log-probabilities: e^t 3 u, difference and product u / 2 each

Sums add what rounding costs: a run of 512 elements and then 32 numbers at a time, each addition u / 2 of what is
summed. Gradients: the terms of the derivative likewise, and two products with the upstream gradient. What is stored is
rounded once to the type of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.experimental.loss.elementwise.host.reference import (
    Float64Array,
    KlDivGradients,
    kl_div_gradients_reference,
    kl_div_reference,
)
from nkilib.experimental.loss.elementwise.host.truth import EXP_UNITS, LOG_UNITS
from nkilib.experimental.loss.elementwise.kinds.kl_div import LEAST_TARGET


def kl_div_bound(
    input: npt.NDArray[Any], target: npt.NDArray[Any], log_target: bool, dtype: Any = np.float32
) -> Float64Array:
    """Largest accepted error of each loss that is stored in ``dtype``."""
    x, t = input.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        if log_target:
            error = (EXP_UNITS + 1.0) * UNIT * np.exp(t) * np.abs(t - x)
        else:
            logarithm = np.log(t + LEAST_TARGET)
            error = UNIT * t * (LOG_UNITS * np.abs(logarithm) + np.abs(logarithm - x)) + 2.0 * LEAST_TARGET
    return error + SMALLEST_NORMAL + rounding(kl_div_reference(input, target, log_target), dtype)


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
        by_input = (EXP_UNITS + 1.0) * UNIT * np.abs(exact.input)
        if log_target:
            by_target = (EXP_UNITS + 3.0) * UNIT * np.exp(t) * (np.abs(t - x) + 1.0)
        else:  # a raised target's logarithm is a difference of two numbers of at most 2 |l|
            by_target = UNIT * ((2.0 * LOG_UNITS + 1.0) * np.abs(np.log(t)) + 1.0 + 3.0 * np.abs(exact.target))
        return KlDivGradients(
            grad * by_input + SMALLEST_NORMAL + rounding(grad * exact.input, input.dtype),
            grad * by_target + SMALLEST_NORMAL + rounding(grad * exact.target, target.dtype),
        )
