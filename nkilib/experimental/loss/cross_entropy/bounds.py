# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The accepted errors of the cross-entropy kernels relative to the float64 reference, and the measurement of their
errors.

The bounds of plain kernels are :func:`forward_bounds` and :func:`gradient_bound`, of extended kernels
:func:`extended_forward_bounds` and :func:`extended_gradient_bound`. The constants ``..._UNITS`` are their factors;
:func:`bfloat16_allowance` and :func:`float16_allowance` are the errors that rounding to a type may add.
:func:`error_over_bound`, :func:`forward_error_over_bound` and :func:`gradient_error_over_bound` measure errors relative
to the bounds.

Notation: u = 2^-23, the spacing of float32 above 1, so one rounding changes a value y by at most |y| u/2; m the maximum
of a row, d the sum of exp(x - m) over it, p = exp(x - lse). The bounds are stated against :mod:`.reference`, which
starts from the same rounded logits and, in the backward, from the same log-sum-exp.

The bounds hold for the simulator, where numpy sums a row pairwise. 2.6 u are allowed for float32 ``exp``: the error of
numpy's ``exp`` is at most 1.8 u (2.54 units in the last place) on any CPU (:mod:`nkilib.core.host.error_bounds`).
Hardware sums and evaluates ``exp`` in its own way: whether the hardware's errors stay within these bounds was never
measured.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT

from .reference import (
    BackwardInputs,
    ExtendedLoss,
    ExtendedResults,
    Float64Array,
    RowStatistics,
    as_numpy_dtype,
    extended_forward_reference,
    gradient_of_rows,
    gradient_scale,
    probabilities,
    rounded_to,
    row_blocks,
    row_statistics,
)

# The errors of loss and log-sum-exp, in u of their size.
FORWARD_UNITS = 16.0
# The errors of the gradient whatever the logit is, in u of p; and what is added at the target, in u of 1 - p.
GRADIENT_UNITS = 8.0
TARGET_UNITS = 2.0
# The error of rounding to bfloat16, and likewise to float16, in units of the last place of that type.
BFLOAT16_ULPS = 0.51
# The error of a capped logit, in u of the cap.
CAP_UNITS = 4.0

_FLOAT16_SMALLEST_NORMAL = 2.0**-14
# From here on float16 is infinite: half a unit above its largest number, 65504.
_FLOAT16_END = 65520.0
_BFLOAT16_FRACTION_BITS, _FLOAT16_FRACTION_BITS = 7, 10
_FLOAT64_EXPONENT_MASK = np.int64(0x7FF0_0000_0000_0000)


def _power_of_two(exact: Float64Array, least: float) -> Float64Array:
    exponent_only = np.ascontiguousarray(exact, np.float64).view(np.int64) & _FLOAT64_EXPONENT_MASK
    return np.maximum(exponent_only.view(np.float64), least)


def bfloat16_allowance(exact: Float64Array) -> Float64Array:
    """Return 0.51 ulp of bfloat16 at ``exact``: the error that rounding to bfloat16 may add; not finite where ``exact``
    is not.

    Rounding to nearest changes a number by at most half an ulp, 0.5 ulp. The number that is rounded is not ``exact``
    but a float32 result near it. It may lie above the next power of two, where the ulp doubles; its rounded value is
    then close to that power, and the float32 bound plus 0.01 ulp covers the rest. Below 2^-126 the ulp stays 2^-133.
    """
    return _power_of_two(exact, SMALLEST_NORMAL) * (BFLOAT16_ULPS * 2.0**-_BFLOAT16_FRACTION_BITS)


def float16_allowance(exact: Float64Array) -> Float64Array:
    """Return 0.51 ulp of float16 at ``exact``, see :func:`bfloat16_allowance`. Below 2^-14 the ulp stays 2^-24."""
    return _power_of_two(exact, _FLOAT16_SMALLEST_NORMAL) * (BFLOAT16_ULPS * 2.0**-_FLOAT16_FRACTION_BITS)


# The error that rounding to a type may add.
_ALLOWANCES = {np.dtype(ml_dtypes.bfloat16): bfloat16_allowance, np.dtype(np.float16): float16_allowance}


def _rounding_allowance(exact: Float64Array, rounded: set[np.dtype[Any]]) -> Float64Array | float:
    return sum((_ALLOWANCES[dtype](exact) for dtype in rounded if dtype in _ALLOWANCES), 0.0)


def forward_bounds(statistics: RowStatistics, loss_dtype: Any, lse_dtype: Any) -> tuple[Float64Array, Float64Array]:
    """Return the largest accepted errors of loss and log-sum-exp, [N] each. The head of the module defines u, m, d and
    p.

    For float32 results::

        loss: 16 u max(1, |m - x_target|, log d)        lse: 16 u max(1, |m|, log d)

    For bfloat16 results, :func:`bfloat16_allowance` is added; for float16 results, :func:`float16_allowance`.

    Derivation. m and x_target are exact. The loss is computed as (m - x_target) + log d, never as lse - x_target, so
    |m| does not enter its bound. The absolute error of log d is the relative error of d, which consists of

    - arguments: x - m_chunk and m_chunk - m are rounded to half a unit each, which changes a term of d by at most |x -
      m| u/2 of the term, and thus d by at most u/2 * sum p |x - m| of d. Since sum p (m - x) = entropy - log d <= log V
      - log d, this is at most 6.2 u for V < 2^18;
    - exp: 2.6 u for the terms and 2.6 u for the factor exp(m_chunk - m) of a chunk;
    - the pairwise sum: a term passes through 18 additions in its block of 128 and log2(V / 128) after that, 29 for V <
      2^18, each off by at most u/2. Errors of the same sign would add up to 14.5 u, but independent roundings grow with
      the square root of their number: 5 standard deviations of 29 are sqrt(29 / 3) 5 u/2 = 7.8 u. If a position is
      split over partitions, the sums of its pieces are added, then the sums of at most 128 partitions. A term then
      passes through 23 additions in a piece of 4096 columns, and through 23 more in these two sums: 9.8 u. A piece has
      the factor exp(m_piece - m) in place of a chunk's.

    log, the subtraction and the last addition add at most 2 u of the largest of |m - x_target| (|m| for the LSE), log d
    and 1. All extremes together would exceed 16 u, but they exclude each other: a large average |x - m| needs very many
    small terms, over which the errors of single arguments, exponentials and early additions average out. If the terms
    were added one after the other instead of pairwise, the error could reach V u/2.
    """
    log_sum = statistics.log_sum
    with np.errstate(invalid="ignore"):
        distance = np.abs(statistics.maximum - statistics.target_logit)
    loss_bound = FORWARD_UNITS * UNIT * np.maximum(np.maximum(1.0, distance), log_sum)
    lse_bound = FORWARD_UNITS * UNIT * np.maximum(np.maximum(1.0, np.abs(statistics.maximum)), log_sum)
    return (
        loss_bound + _rounding_allowance(statistics.loss, {as_numpy_dtype(loss_dtype)}),
        lse_bound + _rounding_allowance(statistics.lse, {as_numpy_dtype(lse_dtype)}),
    )


def gradient_bound(
    logits: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    lse_state: npt.NDArray[Any],
    scale: float,
    dtype: Any,
    result_dtype: Any,
) -> Float64Array:
    """Return the largest accepted error of every element of the gradient of the R rows passed, [R, V].

    For float32 results::

        scale u (p (8 + |x - lse| + |lse| + |log scale|) + 2 (1 - p) at the target only) + 2^-126

    If ``dtype`` or ``result_dtype`` is bfloat16, :func:`bfloat16_allowance` of the exact gradient is added; if one of
    them is float16, :func:`float16_allowance`. The tile is rounded to ``dtype`` and the stored gradient to
    ``result_dtype``; the two may differ if the kernel works in place.

    Derivation. An element is scale * exp(x - lse), or exp(x - lse + log scale) with the scale folded into the
    exponent. Rounding the bias -lse + log scale costs up to (|lse| + |log scale|) u/2, log scale itself
    |log scale| u/2, and the argument (|x - lse| + |log scale|) u/2. An absolute error of the argument is a relative
    error of the result; together at most u (|x - lse| + |lse| + 3 |log scale|) / 2. ``exp`` adds 2.6 u and a
    multiplication u/2; the 8 covers all of this up to |log scale| = 9.8, N of about 18,000. At the target the
    subtraction p - 1, the product with the scale and the scale's own rounding cost u/2 of scale |p - 1| each,
    1.5 u of the 2 granted. A log-sum-exp rounded below x makes p > 1 and the last term negative; then
    p - 1 < p, and 8 p - 2 (p - 1) covers it. 2^-126, the smallest normal number, covers results that underflow.
    """
    p = probabilities(logits, lse_state, dtype)
    lse = lse_state.astype(np.float64)[:, np.newaxis]
    with np.errstate(invalid="ignore"):
        units = np.abs(rounded_to(logits, dtype) - lse)
        units += GRADIENT_UNITS + np.abs(lse) + abs(np.log(scale))
        units *= p
    units[p == 0.0] = 0.0  # a logit of -inf: 0 * inf, and the gradient is exactly 0
    at_target = (np.arange(len(p)), targets)
    units[at_target] += TARGET_UNITS * (1.0 - p[at_target])
    units *= scale * UNIT
    units += SMALLEST_NORMAL
    rounded = {as_numpy_dtype(dtype), as_numpy_dtype(result_dtype)}
    if rounded != {np.dtype(np.float32)}:
        units += _rounding_allowance(gradient_of_rows(logits, targets, lse_state, scale, dtype), rounded)
    return units


def in_range(exact: Float64Array, dtype: Any) -> Float64Array:
    """Return ``exact``, with infinity in place of values beyond the range of float16 (magnitudes from 65520 on).

    For another ``dtype`` than float16, return ``exact`` itself.
    """
    if as_numpy_dtype(dtype) != np.dtype(np.float16):
        return exact
    return np.where(np.abs(exact) >= _FLOAT16_END, np.copysign(np.inf, exact), exact)


def error_over_bound(actual: npt.NDArray[Any], exact: Float64Array, bound: Float64Array) -> Float64Array:
    """Return |actual - exact| / bound, elementwise; an element of at most 1 is within the bound.

    Where ``actual`` or ``exact`` is not finite, the element is 0 if both are +inf, both -inf or both NaN, else inf.

    Raises:
        ValueError: if ``actual`` and ``exact`` differ in shape: broadcasting would compare the wrong elements.
    """
    if actual.shape != exact.shape:
        raise ValueError(f"error_over_bound: actual must have the shape of exact, {exact.shape}, got {actual.shape}")
    values = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        ratio = np.abs(values - exact) / bound
    finite = np.isfinite(values) & np.isfinite(exact)
    if finite.all():
        return ratio
    same_class = (values == exact) | (np.isnan(values) & np.isnan(exact))
    return np.where(finite, ratio, np.where(same_class, 0.0, np.inf))


def forward_error_over_bound(
    loss: npt.NDArray[Any], lse: npt.NDArray[Any], logits: npt.NDArray[Any], targets: npt.NDArray[Any], dtype: Any
) -> tuple[float, float]:
    """Return the largest :func:`error_over_bound` of the loss and of the log-sum-exp over all rows.

    Args:
        loss: [N], the loss that the kernel returned; its type selects the bound.
        lse: [N], the log-sum-exp that the kernel returned; its type selects the bound.
        logits: [N, V], the logits that the kernel received.
        targets: [N], the targets that the kernel received.
        dtype: the kernel's ``dtype``.
    """
    statistics = row_statistics(logits, targets, dtype)
    loss_bound, lse_bound = forward_bounds(statistics, loss.dtype, lse.dtype)
    return (
        float(error_over_bound(loss, in_range(statistics.loss, loss.dtype), loss_bound).max()),
        float(error_over_bound(lse, in_range(statistics.lse, lse.dtype), lse_bound).max()),
    )


def gradient_error_over_bound(
    gradient: npt.NDArray[Any],
    logits: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    lse_state: npt.NDArray[Any],
    reduction: str,
    dtype: Any,
) -> float:
    """Return the largest :func:`error_over_bound` of all elements of a gradient.

    Args:
        gradient: [N, V], the gradient that the kernel returned; its type selects the bound.
        logits: [N, V], the logits that the kernel received (a copy, if the kernel worked in place).
        targets: [N], the targets that the kernel received.
        lse_state: [N], the log-sum-exp that the kernel received.
        reduction: "mean" or "sum".
        dtype: the kernel's ``dtype``.

    Raises:
        ValueError: if ``gradient`` and ``logits`` differ in shape, or ``reduction`` is neither "mean" nor "sum".
    """
    if gradient.shape != logits.shape:
        raise ValueError(
            f"gradient_error_over_bound: gradient must have the shape of logits, {logits.shape}, got {gradient.shape}"
        )
    scale = gradient_scale(reduction, logits.shape[0])
    worst = 0.0
    for rows in row_blocks(logits):
        inputs = (logits[rows], targets[rows], lse_state[rows], scale, dtype)
        ratio = error_over_bound(gradient[rows], gradient_of_rows(*inputs), gradient_bound(*inputs, gradient.dtype))
        worst = float(np.maximum(worst, ratio.max()))  # unlike max(), it keeps a NaN
    return worst


def extended_forward_bounds(
    logits: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    dtype: Any,
    options: ExtendedLoss,
    expected: ExtendedResults | None = None,
) -> dict[str, Float64Array]:
    """Return the largest accepted errors of each result, [N], by the name of the result, for rows whose results are
    finite.

    Let z be the logits after cap and temperature, m the maximum of a row of z, log d = lse - m, and f the factors of
    the classes (``ExtendedLoss.factors``). Exponentials, pairwise sums, log and arguments of the statistics of one row
    are granted the 16 u that :func:`forward_bounds` derives. Besides, there are these errors:

    - a cap c: tanh is granted 3 u (the error of numpy's tanh is 0.9 u with AVX2 and 1.3 u without), and the product
      with c is rounded, so the error of z is 4 u c;
    - sums over the classes: the terms f (m - z) have one sign, also chunk by chunk, so 16 u of their sum covers
      factors, products and pairwise additions;
    - the entropy log d - E / d, with E = sum of exp(z - m) (z - m): the rounding of the arguments z - m adds at most u
      * sum p (m - z)^2 to the bound of the sum;
    - s lse^2 doubles the relative error of lse;
    - log sum p^2 = log Q - 2 log d with Q = sum exp(2 (z - m)): a square doubles the error of an exponential, and 2 log
      d has the error of lse twice, so the bound is four times the bound of lse without |m|: m is in both logs and
      cancels;
    - the mean of z: factors, additions and quotient are 16 u of the mean of abs(z);
    - a temperature: 1 / t is rounded, and so is its product with a logit and with the maximum, so the error of the
      argument of an exponential is 2 u abs(z) more. Differences that are scaled after they are formed have a relative
      error of 1 u. A temperature of a tensor is inverted on the device, whose reciprocal is granted 2 u more.

    Args:
        logits, targets, dtype, options: see ``extended_forward_reference``.
        expected: the result of ``extended_forward_reference`` for these arguments; None to compute it.
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
        of_cap = CAP_UNITS * UNIT * (options.logit_softcap or 0.0) / options.divisor
        weights = options.weights(z.shape[1])
        second = np.where(p == 0.0, 0.0, p * np.square(below)).sum(axis=1)
        of_scale = options.scale_units * UNIT
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
    """Return S, float64 [N]: for each position, the sum of the magnitudes of the terms of A.

    A is the coefficient of the softmax in the gradient of z
    (:mod:`nkilib.experimental.loss.cross_entropy.coefficients`).
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
    log-probability. As :func:`gradient_bound` derives, the relative error of p is u (8 + |z - lse| + |lse|), and the
    terms of A, their sum and the product cost 4 u more. At the target r is smaller, because the kernel computes (A - D)
    (p - 1) + D p - g (e / V) w there: r is the sum of the magnitudes of the terms of A - D, times |1 - p|, plus |g (e /
    V) w|. The factor 1 - tanh^2 of a cap adds an error of 3 u of dz.

    With a temperature t, 4 c and the bound are divided by t, and |z - lse| + |lse| is doubled. With a tensor of
    temperatures it is trebled, and 2 u of dz are added.

    An upstream gradient h of the entropy H adds h p (log p + H), in which p has the relative error above. In h (log p +
    H), the difference z - m, its product with h, log d - H and the sum are rounded, which adds 4 u (|z - lse| + |lse| +
    |H| + 1).
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
        cap, t = options.logit_softcap or 0.0, options.element_divisor
        exponent = (np.abs(z - exact_lse) + np.abs(exact_lse)) * (1.0 + 0.5 * options.scale_units) + 4.0 * cap / t
        of_entropy = np.zeros_like(z)
        if inputs.entropy is not None and inputs.grad_entropy is not None:
            of_log_p = np.abs(z - exact_lse + inputs.entropy[:, np.newaxis])
            terms = of_log_p * (12.0 + exponent) + 4.0 * (exponent + np.abs(inputs.entropy[:, np.newaxis]) + 1.0)
            of_entropy = np.abs(inputs.grad_entropy[:, np.newaxis]) * p * terms
        of_softmax = np.where(p == 0.0, 0.0, sizes * p * (12.0 + exponent) + of_entropy)
        units = of_softmax + 4.0 * drawn + (4.0 * (sizes * p + drawn) if cap else 0.0)
        if options.scale_units > 2.0:  # of_softmax is at least 12 times what the softmax adds to dz
            units += 2.0 * (of_softmax / 12.0 + drawn)
        return UNIT * units / t + SMALLEST_NORMAL
