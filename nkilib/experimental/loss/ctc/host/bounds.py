"""How far the kernels of CTC may be from the truth, derived: numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number. A step of time rounds a logarithm three times (two
log-adds, and the emission), and softplus adds 2 u of a number below log 2; an error of what went in is averaged, since
the derivatives of log-add sum up to 1. So a step costs at most 2 u of the logarithm. Log-probabilities are at most 0,
so a beginning's logarithm is at least that of the whole, but for states of which the whole hardly consists: those of a
share below e^-20 count with that share. Thus M = loss + 20 bounds the logarithms.

A probability of a state is e to alpha + beta - emission + loss: of two such errors, that of the loss, and four further
roundings. It is relative to the occupancy. The exponential is good to ``EXP_UNITS``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkilib.core.host.function_errors import SIMULATED
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.ctc.host.reference import CtcLosses, Float64Array, Integers, reduction_factors

_STEP_UNITS = 2.0
_UNLIKELY = 20.0
_LOGARITHMS = 3


def _errors(found: CtcLosses, input_lengths: Integers) -> Float64Array:
    """Of each loss; 0 of an infinite one."""
    magnitude = np.where(np.isinf(found.losses), 0.0, found.losses + _UNLIKELY)
    return np.asarray(_STEP_UNITS * UNIT * (input_lengths + 1) * magnitude)


def ctc_loss_bound(
    found: CtcLosses, input_lengths: Integers, target_lengths: Integers, reduction: str, dtype: Any = np.float32
) -> Float64Array:
    """Largest accepted error of the losses, which ``"none"`` stores in ``dtype``; infinite ones are exact."""
    errors = _errors(found, input_lengths)
    losses = np.where(np.isinf(found.losses), 0.0, found.losses)
    if reduction == "none":
        return errors + rounding(losses, dtype)
    factors = reduction_factors(target_lengths, reduction)
    additions = LEAF * (levels(len(losses)) + levels(PARTITIONS)) + 4
    return np.array([(errors * factors).sum() + additions * 0.5 * UNIT * (losses * factors).sum() + SMALLEST_NORMAL])


def ctc_loss_gradient_bound(
    log_probs: Any,
    found: CtcLosses,
    input_lengths: Integers,
    factors: Float64Array,
    exact: Float64Array,
) -> Float64Array:
    """Largest accepted error of each element of the gradient ``exact``, stored in the type of the log-probabilities."""
    relative = np.expm1(_LOGARITHMS * _errors(found, input_lengths))[np.newaxis, :, np.newaxis] + 4.0 * UNIT
    probabilities = np.exp(np.minimum(log_probs.astype(np.float64), 0.0))
    error = relative * found.occupancies + (SIMULATED.exp + 2.0) * UNIT * (probabilities + found.occupancies)
    scaled = np.abs(factors)[np.newaxis, :, np.newaxis] * (error + 2.0**-40)
    return scaled + rounding(np.nan_to_num(exact), log_probs.dtype) + SMALLEST_NORMAL
