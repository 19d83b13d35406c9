"""Launching the extended kernels, and how far their results may be from the float64 oracle.

Notation as in ``bounds``: u = 2^-23, m the maximum of a row of z, log d = lse - m, p the softmax, f the factors of the
classes (``ExtendedLoss.factors``). Exponentials, pairwise sums, log and arguments of one row of statistics are granted
the 16 u that ``bounds.forward_bounds`` derives; what is added here:

- a cap c: tanh is good to 3 u in numpy, and the product with c is rounded, so that a z is off by 4 u c;
- sums over the classes: terms f (m - z) are of one sign, chunk by chunk too, so 16 u of their sum covers factors,
  products and pairwise additions;
- the entropy log d - E / d: a term exp(z - m) (m - z) is off by half a unit of (m - z)^2 more than its sum;
- s lse^2 doubles the relative error of lse;
- a temperature: 1 / t is rounded, and so is its product with a logit and with the maximum, so that the argument of an
  exponential is off by 2 u abs(z) more. Differences that are scaled once they are formed are off by 1 u of themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss import extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.host.bounds import (
    SMALLEST_NORMAL,
    UNIT,
    bfloat16_allowance,
    error_over_bound,
)
from nkilib.experimental.loss.cross_entropy.host.reference import (
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.simulator import using

from .loss_checks import as_nl
from .loss_inputs import BF16

Array = npt.NDArray[Any]
Bounds = dict[str, Array]
UNITS = 16.0
CAP_UNITS = 4.0


@dataclass(frozen=True)
class Launch:
    """How the kernels are launched; nothing of it changes the truth."""

    dtype: Any
    cores: int = 2
    positions_per_batch: int = 8
    chunk_size: int = 30

    def arguments(self, options: ExtendedLoss) -> dict[str, Any]:
        """Keyword arguments of both kernels; the class weights are among them."""
        return {
            "positions_per_batch": self.positions_per_batch,
            "chunk_size": self.chunk_size,
            "dtype": as_nl(self.dtype),
            "class_weight_hbm": options.class_weight,
            "ignore_index": options.ignore_index,
            "label_smoothing": options.label_smoothing,
            "logit_softcap": options.logit_softcap,
            "lse_square_scale": options.lse_square_scale,
            "temperature": options.temperature,
        }


@dataclass(frozen=True)
class Upstream:
    """Gradients of what the forward returns."""

    loss: Array
    lse: Array | None = None
    logprob: Array | None = field(default=None)
    entropy: Array | None = field(default=None)


def forward(logits: Array, targets: Array, options: ExtendedLoss, launch: Launch, **more: Any) -> dict[str, Array]:
    """The results of the forward by name."""
    with using(uninitialized="error"):
        results = extended_cross_entropy_forward[launch.cores](logits, targets, **launch.arguments(options), **more)
    names = ["loss", "lse", "target_logit", "position_weight"]
    names += [name for name in ("argmax", "entropy", "distance_sum") if more.get(f"with_{name}")]
    names += ["maximum", "log_sum"] if more.get("with_log_sum") else []
    assert len(results) == len(names)
    return dict(zip(names, results, strict=True))


def backward(
    logits: Array, targets: Array, lse: Array, upstream: Upstream, options: ExtendedLoss, launch: Launch, **more: Any
) -> Array:
    """The gradient."""
    with using(uninitialized="error"):
        return extended_cross_entropy_backward[launch.cores](
            logits,
            targets,
            lse,
            upstream.loss,
            grad_lse_hbm=upstream.lse,
            grad_logprob_hbm=upstream.logprob,
            grad_entropy_hbm=upstream.entropy,
            **launch.arguments(options),
            **more,
        )


def check_forward(
    logits: Array, targets: Array, options: ExtendedLoss, launch: Launch, **more: Any
) -> dict[str, Array]:
    """Run the forward, hold every result against the oracle, and return them by name."""
    results = forward(logits, targets, options, launch, **more)
    truth = extended_forward_reference(logits, targets, launch.dtype, options)
    bounds = forward_bounds(logits, targets, launch.dtype, options)
    for name, values in results.items():
        assert values.shape == logits.shape[:1], name
        if name in ("maximum", "log_sum"):  # held by test_extended_log_sum
            continue
        if name == "argmax":
            assert values.dtype == np.int32
            np.testing.assert_array_equal(values, truth.argmax)
            continue
        assert values.dtype == np.float32, name
        with np.errstate(over="ignore"):  # a sum beyond the range of float32 is infinite
            exact = getattr(truth, name)
            exact = np.where(np.isinf(exact.astype(np.float32)), np.copysign(np.inf, exact), exact)
        ratio = error_over_bound(values, exact, bounds[name]).max()
        assert ratio <= 1.0, f"{name}: worst error is {ratio:.3g} times the bound"
    return results


def forward_bounds(logits: Array, targets: Array, dtype: Any, options: ExtendedLoss) -> Bounds:
    """Largest accepted errors by name, [N] each, for rows whose results are finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        z = options.scores(logits, dtype)
        truth = extended_forward_reference(logits, targets, dtype, options)
        maximum = np.abs(z.max(axis=1))
        log_sum = np.abs(truth.lse - z.max(axis=1))
        below = z.max(axis=1)[:, np.newaxis] - z
        factors = options.factors(targets, z.shape[1])
        p = np.exp(z - truth.lse[:, np.newaxis])
        spread = np.where(factors == 0.0, 0.0, factors * below).sum(axis=1)
        total = factors.sum(axis=1)
        of_cap = CAP_UNITS * UNIT * (options.logit_softcap or 0.0) / options.temperature
        weights = options.weights(z.shape[1])
        second = np.where(p == 0.0, 0.0, p * np.square(below)).sum(axis=1)
        of_scale = 0.0 if options.temperature == 1.0 else 2.0 * UNIT
        of_z = of_scale * (maximum + np.where(p == 0.0, 0.0, p * below).sum(axis=1))
        of_entropy = of_scale * (maximum * 2.0 * (1.0 + truth.entropy) + 2.0 * second)
        lse = UNITS * UNIT * np.maximum(1.0, np.maximum(maximum, log_sum)) + of_cap + of_z
        square = options.lse_square_scale * np.abs(truth.lse) * (2.0 * lse + 4.0 * UNIT * np.abs(truth.lse))
        distance_sum = UNITS * UNIT * (weights * below).sum(axis=1) + of_cap * weights.sum() + SMALLEST_NORMAL
        target_logit = of_cap + SMALLEST_NORMAL + of_scale * np.abs(truth.target_logit)
        position_weight = np.full(len(z), SMALLEST_NORMAL)
        if targets.ndim == 2:
            target_logit = UNITS * UNIT * (spread + total * maximum) + of_cap * total
            distance_sum = UNITS * UNIT * spread + of_cap * total + SMALLEST_NORMAL
            position_weight = UNITS * UNIT * total
    return {
        "loss": UNITS * UNIT * (total * np.maximum(1.0, log_sum) + spread)
        + (2.0 * of_cap + of_z) * total
        + square
        + SMALLEST_NORMAL,
        "lse": lse,
        "target_logit": target_logit,
        "position_weight": position_weight,
        "entropy": UNITS * UNIT * np.maximum(1.0, truth.entropy)
        + UNIT * second
        + 2.0 * of_cap * (1.0 + truth.entropy)
        + of_entropy,
        "distance_sum": distance_sum,
    }


def check_backward(
    logits: Array,
    targets: Array,
    lse: Array,
    upstream: Upstream,
    options: ExtendedLoss,
    launch: Launch,
    *,
    inplace: bool = False,
    **more: Any,
) -> Array:
    """Run the backward on a copy of ``logits``, hold it against the oracle, and return the gradient."""
    given = logits.copy()
    gradient = backward(given, targets, lse, upstream, options, launch, inplace=inplace, **more)
    assert gradient.shape == logits.shape
    assert (gradient is given) == inplace
    if inplace:
        assert gradient.dtype == logits.dtype
    else:
        assert gradient.dtype == launch.dtype
        assert given.tobytes() == logits.tobytes(), "not in place, the logits keep every byte"
    assert_gradient(gradient, logits, targets, lse, upstream, options, launch.dtype, more.get("entropy_hbm"))
    return gradient


def assert_gradient(
    gradient: Array,
    logits: Array,
    targets: Array,
    lse: Array,
    upstream: Upstream,
    options: ExtendedLoss,
    dtype: Any,
    entropy: Array | None = None,
) -> None:
    """Errors of a gradient are within :func:`gradient_bounds`."""
    inputs = (logits, targets, lse, upstream.loss, dtype, options, upstream.lse, upstream.logprob)
    truth = extended_backward_reference(*inputs, entropy, upstream.entropy)
    bounds = gradient_bounds(logits, targets, lse, upstream, options, dtype, entropy)
    if BF16 in (dtype, gradient.dtype):
        bounds = bounds + bfloat16_allowance(truth)
    ratio = error_over_bound(gradient, truth, bounds).max()
    assert ratio <= 1.0, f"gradient: worst error is {ratio:.3g} times the bound"


def gradient_bounds(
    logits: Array,
    targets: Array,
    lse: Array,
    upstream: Upstream,
    options: ExtendedLoss,
    dtype: Any,
    entropy: Array | None = None,
) -> Array:
    """Largest accepted errors of a float32 gradient, [N, V].

    With S the sum of the sizes of all terms of A, and c the cap or 0::

        u (S p (12 + |z - lse| + |lse| + 4 c) + 4 |r| + 4 |dz|) + 2^-126

    where r is what is subtracted from A * p: g times the factor, and gp. As ``bounds.gradient_bound`` derives it, p is
    off by u (8 + |z - lse| + |lse|) of itself, and the terms of A, their sum and the product cost 4 u more. At the
    target the large part of r is not granted: there the kernel computes (A - D) (p - 1) + D p - g (e / V) w, and r is
    the sizes of the terms of A - D times |1 - p|, and |g (e / V) w|. The factor 1 - tanh^2 is off by 3 u, of dz.

    A temperature t doubles what stands in the exponent, 12 apart, and divides all by t. The gradient h of the entropy H
    adds h p (log p + H), relative to which p is off as above. Of log p + H the difference z - m, its product with h,
    log d - H and the sum are rounded: 4 u (|z - lse| + |lse| + |H| + 1) more.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        z = options.scores(logits, dtype)
        positions, vocabulary = z.shape
        valid = options.is_valid(targets)
        exact_lse = lse.astype(np.float64)[:, np.newaxis]
        p = np.exp(z - exact_lse)
        factors = options.factors(targets, vocabulary)
        of_loss = np.where(valid, upstream.loss, 0.0).astype(np.float64)[:, np.newaxis]
        of_lse, of_logprob = (
            np.zeros((positions, 1)) if given is None else given.astype(np.float64)[:, np.newaxis]
            for given in (upstream.lse, upstream.logprob)
        )
        square = np.abs(of_loss * 2.0 * options.lse_square_scale * exact_lse)
        sizes = np.abs(of_loss) * factors.sum(axis=1, keepdims=True) + square + np.abs(of_lse)
        sizes += np.where(valid[:, np.newaxis], np.abs(of_logprob), 0.0)
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
        if entropy is not None and upstream.entropy is not None:
            of_log_p = np.abs(z - exact_lse + entropy[:, np.newaxis])
            terms = of_log_p * (12.0 + exponent) + 4.0 * (exponent + np.abs(entropy[:, np.newaxis]) + 1.0)
            of_entropy = np.abs(upstream.entropy[:, np.newaxis]) * p * terms
        units = np.where(p == 0.0, 0.0, sizes * p * (12.0 + exponent) + of_entropy)
        units += 4.0 * drawn + (4.0 * (sizes * p + drawn) if cap else 0.0)
        return UNIT * units / t + SMALLEST_NORMAL
