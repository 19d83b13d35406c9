# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""References of the kernels in float64, computed from the same inputs that the kernels get, and derived error
bounds.

Numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number. A time step rounds a logarithm three times
(two log-adds and the emission), and softplus adds 2 u of a number below log 2. Errors of the operands are
averaged, because the derivatives of log-add sum up to 1. So a step costs at most 2 u of the logarithm.
Log-probabilities are at most 0, so the logarithm of the probability of a prefix is at least the logarithm
of the whole target's, which is -loss. The exception are states that contribute next to nothing to the
whole: a state with a share below e^-20 counts with that share. Thus M = loss + 20 bounds the magnitudes of
the logarithms.

The probability of a state is e to the power alpha + beta - emission + loss. It has the errors of alpha and
beta, the error of the loss, and four further roundings. This error is relative to the occupancy. The
exponential has an error of ``SIMULATED.exp`` units.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nkilib.core.host.exact import Float64Array
from nkilib.core.host.function_errors import SIMULATED
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels

Integers: TypeAlias = npt.NDArray[Any]


class CtcLosses(NamedTuple):
    """The losses and occupancies of all sequences.

    Attributes:
        losses: [N], infinite where there is no alignment.
        occupancies: [T, N, C], the probability that an alignment is at that class at that time; 0 without an alignment.
    """

    losses: Float64Array
    occupancies: Float64Array


def ctc_loss_reference(
    log_probs: npt.NDArray[Any], targets: Integers, input_lengths: Integers, target_lengths: Integers, blank: int = 0
) -> CtcLosses:
    """Compute the losses and occupancies by their definition, with a recursion over all states.

    PyTorch equivalent of the losses: ``F.ctc_loss(log_probs.double(), targets, input_lengths, target_lengths, blank,
    reduction="none")``.

    Args:
        log_probs: the log-probabilities, [T, N, C].
        targets: the labels of the targets, [N, S].
        input_lengths, target_lengths: [N].
        blank: class of the blank.
    """
    exact = log_probs.astype(np.float64)
    losses, occupancies = np.zeros(exact.shape[1]), np.zeros(exact.shape)
    for n, (steps, labels) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        classes = np.full(2 * labels + 1, blank)
        classes[1::2] = targets[n, :labels]
        losses[n] = _sequence(exact[:steps, n], classes, blank, occupancies[:steps, n])
    return CtcLosses(losses, occupancies)


def _sequence(log_probs: Float64Array, classes: Integers, blank: int, occupancies: Float64Array) -> float:
    """Return the loss of a sequence, and add its occupancies to ``occupancies``, which the caller has set to 0."""
    if len(log_probs) == 0:
        return 0.0 if len(classes) == 1 else np.inf
    emissions = log_probs[:, classes]
    may_skip = np.zeros(len(classes), bool)
    may_skip[2:] = (classes[2:] != blank) & (classes[2:] != classes[:-2])
    with np.errstate(all="ignore"):
        alphas = _alphas(emissions, may_skip)
        backwards = np.zeros_like(may_skip)
        backwards[2:] = may_skip[2:][::-1]
        betas = _alphas(emissions[::-1, ::-1], backwards)[::-1, ::-1]
        log_likelihood = np.logaddexp.reduce(alphas[-1, -2:])
        if log_likelihood == -np.inf:
            return np.inf
        posteriors = np.exp(np.where(emissions == -np.inf, -np.inf, alphas + betas - emissions) - log_likelihood)
    for state, number in enumerate(classes):
        occupancies[:, number] += posteriors[:, state]
    return -float(log_likelihood)


def _alphas(emissions: Float64Array, may_skip: npt.NDArray[np.bool_]) -> Float64Array:
    """Return the alphas, [T, states]: the logarithm of the probability of the prefix that ends in each state at
    each time.
    """
    alphas = np.full(emissions.shape, -np.inf)
    alphas[0, :2] = emissions[0, :2]
    for t in range(1, len(emissions)):
        stays, enters, skips = alphas[t - 1], np.full_like(alphas[0], -np.inf), np.full_like(alphas[0], -np.inf)
        enters[1:] = stays[:-1]
        skips[2:] = np.where(may_skip[2:], stays[:-2], -np.inf)
        alphas[t] = np.logaddexp(np.logaddexp(stays, enters), skips) + emissions[t]
    return alphas


def reduction_factors(target_lengths: Integers, reduction: str) -> Float64Array:
    """Return the factor of each loss in the reduction."""
    if reduction != "mean":
        return np.ones(len(target_lengths))
    return 1.0 / (np.maximum(target_lengths, 1) * float(len(target_lengths)))


def reduced(losses: Float64Array, target_lengths: Integers, reduction: str, zero_infinity: bool) -> Float64Array:
    """Reduce losses as ``F.ctc_loss`` does."""
    counted = np.where(np.isinf(losses), 0.0, losses) if zero_infinity else losses
    if reduction == "none":
        return counted
    return np.array([(counted * reduction_factors(target_lengths, reduction)).sum()])


def ctc_loss_gradient_reference(
    log_probs: npt.NDArray[Any],
    reference: CtcLosses,
    input_lengths: Integers,
    factors: Float64Array,
    zero_infinity: bool,
) -> Float64Array:
    """Return the gradient with respect to the log-probabilities, as PyTorch defines it.

    It is ``(exp(log_probs) - occupancies) * factors``.

    Args:
        factors: [N], the upstream gradient of each loss.
    """
    is_inside = np.arange(len(log_probs))[:, np.newaxis] < input_lengths
    without = 0.0 if zero_infinity else np.nan
    of_sequence = np.where(np.isinf(reference.losses), without, factors)
    with np.errstate(all="ignore"):
        gradient = (np.exp(log_probs.astype(np.float64)) - reference.occupancies) * of_sequence[
            np.newaxis, :, np.newaxis
        ]
    return np.where(is_inside[:, :, np.newaxis], gradient, 0.0)


_STEP_UNITS = 2.0
_UNLIKELY = 20.0
_LOGARITHMS = 3
_PARTITIONS = 128


def _errors(reference: CtcLosses, input_lengths: Integers) -> Float64Array:
    """Return the error of each loss; 0 for an infinite one."""
    magnitude = np.where(np.isinf(reference.losses), 0.0, reference.losses + _UNLIKELY)
    return np.asarray(_STEP_UNITS * UNIT * (input_lengths + 1) * magnitude)


def ctc_loss_bound(
    reference: CtcLosses, input_lengths: Integers, target_lengths: Integers, reduction: str, dtype: Any = np.float32
) -> Float64Array:
    """Return the largest accepted error of losses, stored in ``dtype`` for ``"none"``; infinite losses must be
    exact.
    """
    errors = _errors(reference, input_lengths)
    losses = np.where(np.isinf(reference.losses), 0.0, reference.losses)
    if reduction == "none":
        return errors + rounding(losses, dtype)
    factors = reduction_factors(target_lengths, reduction)
    additions = LEAF * (levels(len(losses)) + levels(_PARTITIONS)) + 4
    return np.array([(errors * factors).sum() + additions * 0.5 * UNIT * (losses * factors).sum() + SMALLEST_NORMAL])


def ctc_loss_gradient_bound(
    log_probs: Any,
    reference: CtcLosses,
    input_lengths: Integers,
    factors: Float64Array,
    exact: Float64Array,
) -> Float64Array:
    """Return the largest accepted errors of a gradient whose exact values are ``exact``, in the log-probabilities'
    type.
    """
    relative = np.expm1(_LOGARITHMS * _errors(reference, input_lengths))[np.newaxis, :, np.newaxis] + 4.0 * UNIT
    probabilities = np.exp(np.minimum(log_probs.astype(np.float64), 0.0))
    error = relative * reference.occupancies + (SIMULATED.exp + 2.0) * UNIT * (probabilities + reference.occupancies)
    scaled = np.abs(factors)[np.newaxis, :, np.newaxis] * (error + 2.0**-40)
    return scaled + rounding(np.nan_to_num(exact), log_probs.dtype) + SMALLEST_NORMAL
