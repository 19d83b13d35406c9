# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The accepted errors of the extended kernels relative to the float64 reference.

Notation as in :mod:`.bounds`: u = 2^-23, z the logits after cap and temperature, m the maximum of a row of
z, log d = lse - m, p the softmax, f the factors of the classes (``ExtendedLoss.factors``). Exponentials,
pairwise sums, log and arguments of the statistics of one row are granted the 16 u that
``bounds.forward_bounds`` derives. The bounds here add:

- a cap c: tanh is granted 3 u (the error of numpy's tanh is 0.9 u with AVX2 and 1.3 u without), and the product with c
  is rounded, so the error of z is 4 u c;
- sums over the classes: the terms f (m - z) have one sign, also chunk by chunk, so 16 u of their sum covers factors,
  products and pairwise additions;
- the entropy log d - E / d, with E = sum of exp(z - m) (z - m): the error of a term of -E exceeds the error of its sum
  by half a unit of (m - z)^2;
- s lse^2 doubles the relative error of lse;
- log sum p^2 = log Q - 2 log d with Q = sum exp(2 (z - m)): a square doubles the error of an exponential, and 2 log d
  has the error of lse twice, so the bound is four times that of lse without its maximum; the maximum is in both terms
  and cancels;
- the mean of z: factors, additions and quotient are 16 u of the mean of abs(z);
- a temperature: 1 / t is rounded, and so is its product with a logit and with the maximum, so the error of the argument
  of an exponential is 2 u abs(z) more. Differences that are scaled after they are formed have a relative error of 1 u.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT

from .bounds import FORWARD_UNITS
from .reference import BackwardInputs, ExtendedLoss, ExtendedResults, Float64Array, extended_forward_reference

CAP_UNITS = 4.0


def extended_forward_bounds(
    logits: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    dtype: Any,
    options: ExtendedLoss,
    expected: ExtendedResults | None = None,
) -> dict[str, Float64Array]:
    """Return the largest accepted errors of each result, [N], by the name of the result, for rows whose results
    are finite.

    Args:
        logits, targets, dtype, options: see ``extended_forward_reference``.
        expected: the result of ``extended_forward_reference`` for them; None to compute it.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        z = options.scores(logits, dtype)
        expected = expected or extended_forward_reference(logits, targets, dtype, options)
        maximum = np.abs(z.max(axis=1))
        log_sum = np.abs(expected.lse - z.max(axis=1))
        below = z.max(axis=1)[:, np.newaxis] - z
        factors = options.factors(targets, z.shape[1])
        p = np.exp(z - expected.lse[:, np.newaxis])
        spread = np.where(factors == 0.0, 0.0, factors * below).sum(axis=1)
        total = factors.sum(axis=1)
        of_cap = CAP_UNITS * UNIT * (options.logit_softcap or 0.0) / options.temperature
        weights = options.weights(z.shape[1])
        second = np.where(p == 0.0, 0.0, p * np.square(below)).sum(axis=1)
        of_scale = 0.0 if options.temperature == 1.0 else 2.0 * UNIT
        of_z = of_scale * (maximum + np.where(p == 0.0, 0.0, p * below).sum(axis=1))
        of_entropy = of_scale * (maximum * 2.0 * (1.0 + expected.entropy) + 2.0 * second)
        lse = FORWARD_UNITS * UNIT * np.maximum(1.0, np.maximum(maximum, log_sum)) + of_cap + of_z
        square = options.lse_square_scale * np.abs(expected.lse) * (2.0 * lse + 4.0 * UNIT * np.abs(expected.lse))
        distance_sum = FORWARD_UNITS * UNIT * (weights * below).sum(axis=1) + of_cap * weights.sum() + SMALLEST_NORMAL
        target_logit = of_cap + SMALLEST_NORMAL + of_scale * np.abs(expected.target_logit)
        unmasked = ~np.isneginf(z)
        size = np.where(unmasked, np.abs(z), 0.0).sum(axis=1) / unmasked.sum(axis=1)
        position_weight = np.full(len(z), SMALLEST_NORMAL)
        if targets.ndim == 2:
            target_logit = FORWARD_UNITS * UNIT * (spread + total * maximum) + of_cap * total
            distance_sum = FORWARD_UNITS * UNIT * spread + of_cap * total + SMALLEST_NORMAL
            position_weight = FORWARD_UNITS * UNIT * total
    return {
        "loss": FORWARD_UNITS * UNIT * (total * np.maximum(1.0, log_sum) + spread)
        + (2.0 * of_cap + of_z) * total
        + square
        + SMALLEST_NORMAL,
        "lse": lse,
        "target_logit": target_logit,
        "position_weight": position_weight,
        "entropy": FORWARD_UNITS * UNIT * np.maximum(1.0, expected.entropy)
        + UNIT * second
        + 2.0 * of_cap * (1.0 + expected.entropy)
        + of_entropy,
        "distance_sum": distance_sum,
        "log_sum_squares": 4.0 * (FORWARD_UNITS * UNIT * np.maximum(1.0, log_sum) + of_cap + of_z),
        "mean_logit": (FORWARD_UNITS * UNIT + of_scale) * size + of_cap + SMALLEST_NORMAL,
    }


def coefficient_sizes(
    targets: npt.NDArray[Any],
    lse: npt.NDArray[Any],
    grad_loss: npt.NDArray[Any],
    options: ExtendedLoss,
    vocabulary: int,
    grad_lse: npt.NDArray[Any] | None = None,
    grad_logprob: npt.NDArray[Any] | None = None,
) -> Float64Array:
    """Return S, [N]: for each position, the sum of the magnitudes of the terms of A.

    A is the coefficient of the softmax in the gradient of z, see
    :mod:`nkilib.experimental.loss.cross_entropy.coefficients`.
    """
    valid, exact_lse = options.is_valid(targets), lse.astype(np.float64)
    of_loss = np.abs(np.where(valid, grad_loss, 0.0).astype(np.float64))
    sizes = of_loss * options.factors(targets, vocabulary).sum(axis=1)
    sizes += np.abs(of_loss * 2.0 * options.lse_square_scale * exact_lse)
    if grad_lse is not None:
        sizes += np.abs(grad_lse.astype(np.float64))
    if grad_logprob is not None:
        sizes += np.where(valid, np.abs(grad_logprob.astype(np.float64)), 0.0)
    return sizes


def extended_gradient_bound(
    logits: npt.NDArray[Any], targets: npt.NDArray[Any], dtype: Any, options: ExtendedLoss, inputs: BackwardInputs
) -> Float64Array:
    """Return the largest accepted errors of a float32 gradient, [N, V].

    Let A, D, g, e, V and w be as in :mod:`nkilib.experimental.loss.cross_entropy.coefficients`, S the sum of
    the magnitudes of the terms of A, dz the gradient of z, and c the cap or 0. The bound is::

        u (S p (12 + |z - lse| + |lse| + 4 c) + 4 |r| + 4 |dz|) + 2^-126

    where r is the amount subtracted from A * p: g times the class factor, and at the target the gradient of its
    log-probability. As ``bounds.gradient_bound`` derives, the relative error of p is u (8 + |z - lse| + |lse|),
    and the terms of A, their sum and the product cost 4 u more. At the target the bound does not grant the
    large part of r: there the kernel computes (A - D) (p - 1) + D p - g (e / V) w, and r is the sum of the
    magnitudes of the terms of A - D, times |1 - p|, plus |g (e / V) w|. The factor 1 - tanh^2 of a cap adds an
    error of 3 u of dz.

    A temperature t doubles |z - lse| + |lse|, divides 4 c by t, and divides the bound by t. The gradient h of
    the entropy H adds h p (log p + H), in which p has the relative error above. For h (log p + H), the
    difference z - m, its product with h, log d - H and the sum are rounded: 4 u (|z - lse| + |lse| + |H| + 1)
    more.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        z = options.scores(logits, dtype)
        positions, vocabulary = z.shape
        valid = options.is_valid(targets)
        exact_lse = inputs.lse.astype(np.float64)[:, np.newaxis]
        p = np.exp(z - exact_lse)
        factors = options.factors(targets, vocabulary)
        of_loss = np.where(valid, inputs.grad_loss, 0.0).astype(np.float64)[:, np.newaxis]
        of_logprob = (
            np.zeros((positions, 1))
            if inputs.grad_logprob is None
            else inputs.grad_logprob.astype(np.float64)[:, np.newaxis]
        )
        sizes = coefficient_sizes(
            targets, inputs.lse, inputs.grad_loss, options, vocabulary, inputs.grad_lse, inputs.grad_logprob
        )[:, np.newaxis]
        drawn = np.abs(of_loss) * factors
        if targets.ndim == 1:
            rows, classes = np.flatnonzero(valid), targets[valid]
            spread = options.label_smoothing / vocabulary * options.weights(vocabulary)
            own = np.abs(of_loss[rows, 0]) * (1.0 - options.label_smoothing) * options.weights(vocabulary)[classes]
            own += np.abs(of_logprob[rows, 0])
            at_target = np.abs(of_loss[rows, 0]) * spread[classes]
            drawn[rows, classes] = at_target + own * np.abs(1.0 - p[rows, classes])
        cap, t = options.logit_softcap or 0.0, options.temperature
        exponent = (np.abs(z - exact_lse) + np.abs(exact_lse)) * (1.0 if t == 1.0 else 2.0) + 4.0 * cap / t
        of_entropy = np.zeros_like(z)
        if inputs.entropy is not None and inputs.grad_entropy is not None:
            of_log_p = np.abs(z - exact_lse + inputs.entropy[:, np.newaxis])
            terms = of_log_p * (12.0 + exponent) + 4.0 * (exponent + np.abs(inputs.entropy[:, np.newaxis]) + 1.0)
            of_entropy = np.abs(inputs.grad_entropy[:, np.newaxis]) * p * terms
        units = np.where(p == 0.0, 0.0, sizes * p * (12.0 + exponent) + of_entropy)
        units += 4.0 * drawn + (4.0 * (sizes * p + drawn) if cap else 0.0)
        return UNIT * units / t + SMALLEST_NORMAL
