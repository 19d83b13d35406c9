# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bounds on the errors of the linear cross-entropy kernels against the float64 results of :mod:`.reference`.

:func:`linear_forward_bounds` returns the bounds of all results of the forward, :func:`linear_gradients_and_bounds` the
bounds of the gradients. The bounds of the gradients follow from the gradients of the logits and their bounds
(:func:`logit_gradient_blocks`), by :func:`bounded_gradients`, which token scores use too.

N positions, V classes; z is the logit after cap and temperature, G the gradient of a logit, u = 2^-24, and dz the bound
on the error of a logit. :mod:`nkilib.experimental.loss.linear.reference` derives dz, and the errors of dX and dW, the
products of G with weight and input.

- Loss and statistics: the errors of cross-entropy for exact logits (``cross_entropy.bounds``), plus the effect of a
  change of every logit by its dz: on lse at most the largest dz, on the loss twice that. A temperature divides dz as it
  divides the logit.
- log sum p^2: each of its two sums of exponentials moves by at most twice the largest dz.
- The mean of z moves by the mean of dz. Its running sum, with one addition for each window of blocks of at least 128
  classes, adds u times the mean of |z| for each addition.
- G: the error of cross-entropy for exact logits, and the effect of dz. The softmax p has a further relative error of
  expm1(dz + max dz), from the logit and from lse. The derivative 1 - tanh^2 of a cap c has a further relative error of
  2 |tanh| dz / c. An upstream gradient h of the entropy H adds the error of h p (log p + H): p has the error above, and
  log p one of dz + max dz. A temperature divides all these errors, and dz, except in the derivative of a cap.

The bounds hold for the simulator; hardware was never measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from nkilib.core.hardware import div_ceil
from nkilib.experimental.loss.cross_entropy.bounds import (
    coefficient_sizes,
    extended_forward_bounds,
    extended_gradient_bound,
)
from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    Float64Array,
)
from nkilib.experimental.loss.linear.block_schedule import WINDOW
from nkilib.experimental.loss.linear.reference import (
    EVERY_CLASS,
    OF_PRODUCTS,
    ROUNDOFF,
    GradientRows,
    LinearGradients,
    ResultTypes,
    gradients_and_bounds,
    logit_bounds,
)
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, gradient_of_logits

_LANES: Final = 128


def _means(values: Float64Array, z: Float64Array) -> Float64Array:
    """Return, for each position, the mean of ``values`` over the classes that are not masked (z is not -inf), [N]."""
    unmasked = ~np.isneginf(z)
    means: Float64Array = np.where(unmasked, values, 0.0).sum(axis=1) / unmasked.sum(axis=1)
    return means


def _forward_bounds_of(problem: LinearProblem, rows: slice, weight: Float64Array) -> dict[str, Float64Array]:
    """Return the bounds on the errors of the forward's results by name, for the positions ``rows``."""
    options, targets = problem.recipe.of_rows(rows), problem.targets[rows]
    logits, off = problem.logits_of(rows, weight), logit_bounds(problem.layer, rows, weight) / options.element_divisor
    bounds = extended_forward_bounds(logits, targets, None, options, problem.forward.of_rows(rows))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        z = options.scores(logits, None)
        maximum = z.max(axis=1)
        lse = maximum + np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1))
        log_p = z - lse[:, np.newaxis]
        p = np.exp(log_p)
        entropy = -np.where(p == 0.0, 0.0, p * log_p).sum(axis=1)
        most = off.max(axis=1)
        factors, weights = options.factors(targets, len(weight)), options.weights(len(weight))
        spread = np.where(p == 0.0, 0.0, p * np.abs(log_p + entropy[:, np.newaxis]) * off).sum(axis=1)
    valid = options.is_valid(targets)
    at_target = np.where(valid, off[np.arange(len(z)), np.where(valid, targets, 0)], 0.0)
    bounds["loss"] = bounds["loss"] + 2.0 * most * factors.sum(axis=1)
    bounds["loss"] += options.lse_square_scale * (2.0 * np.abs(lse) + most) * most
    bounds["lse"] = bounds["lse"] + most
    bounds["target_logit"] = bounds["target_logit"] + at_target
    bounds["entropy"] = bounds["entropy"] + 2.0 * spread + np.square(most)
    bounds["distance_sum"] = bounds["distance_sum"] + (weights * (off + most[:, np.newaxis])).sum(axis=1)
    bounds["log_sum_squares"] = bounds["log_sum_squares"] + 4.0 * most
    combined = div_ceil(len(weight), WINDOW * _LANES) * ROUNDOFF
    bounds["mean_logit"] = bounds["mean_logit"] + _means(off + combined * np.abs(z), z)
    bounds["maximum"] = most + bounds["lse"]
    bounds["log_sum"] = most + bounds["lse"]
    return bounds


def linear_forward_bounds(problem: LinearProblem) -> dict[str, Float64Array]:
    """Return the largest accepted errors by result name, [N] each, for rows whose results are finite."""
    weight = problem.classes_first
    blocks = [_forward_bounds_of(problem, rows, weight) for rows in problem.row_blocks()]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def bounded_gradients(
    problem: LinearProblem,
    blocks: Iterable[GradientRows],
    largest: float,
    classes: slice = EVERY_CLASS,
    types: ResultTypes = OF_PRODUCTS,
) -> tuple[LinearGradients, LinearGradients]:
    """Return dX, dW and db in float64, computed from gradients of logits, and the bounds on their errors.

    Args:
        problem: the problem, with all classes.
        blocks: gradients of logits and the bounds on their errors before they are rounded, in blocks that cover all
            positions.
        largest: the largest coefficient of a gradient of logits, before the temperature; the power of two of float16
            depends on it.
        classes: see ``linear_backward_reference``.
        types: the dtypes of dX and dW.
    """
    return gradients_and_bounds(problem.layer, blocks, largest / float(np.min(problem.recipe.divisor)), classes, types)


def logit_gradient_blocks(
    problem: LinearProblem, upstream: BackwardInputs, sizes: Float64Array, weight: Float64Array
) -> Iterator[GradientRows]:
    """Yield the gradients of the logits with the bounds on their errors, in blocks that cover the positions.

    Args:
        problem: the inputs and options of the launch.
        upstream: the upstream gradients and the saved results of the forward.
        sizes: for each position, the sum of the magnitudes of all terms in the factor of the softmax, [N].
        weight: ``problem.classes_first``.
    """
    cap = problem.recipe.logit_softcap
    for rows in problem.row_blocks():
        options = problem.recipe.of_rows(rows)
        row_upstream, targets = upstream.of_rows(rows), problem.targets[rows]
        logits, off = problem.logits_of(rows, weight), logit_bounds(problem.layer, rows, weight)
        gradient = gradient_of_logits(problem, upstream, rows, weight)
        bound = extended_gradient_bound(
            logits,
            targets,
            None,
            options,
            row_upstream,
        )
        with np.errstate(invalid="ignore", over="ignore"):
            log_p = options.scores(logits, None) - row_upstream.lse.astype(np.float64)[:, np.newaxis]
            p, of_log_p = np.exp(log_p), (off + off.max(axis=1, keepdims=True)) / options.element_divisor
            of_p = sizes[rows, np.newaxis] * p * np.expm1(of_log_p) / options.element_divisor
            if row_upstream.entropy is not None and row_upstream.grad_entropy is not None:
                terms = np.abs(log_p + row_upstream.entropy[:, np.newaxis]) * np.expm1(of_log_p) + of_log_p * np.exp(
                    of_log_p
                )
                of_entropy = np.abs(row_upstream.grad_entropy[:, np.newaxis]) * np.where(p == 0.0, 0.0, p * terms)
                of_p = of_p + of_entropy / options.element_divisor
            if cap is not None:
                tangents = np.tanh(logits / cap)
                of_p = of_p * (1.0 - np.square(tangents)) + np.abs(gradient) * 2.0 * np.abs(tangents) * off / cap
        yield GradientRows(rows, gradient, bound + of_p)


def linear_gradients_and_bounds(
    problem: LinearProblem,
    upstream: BackwardInputs,
    classes: slice = EVERY_CLASS,
    *,
    input_dtype: npt.DTypeLike | None = None,
    weight_dtype: npt.DTypeLike | None = None,
) -> tuple[LinearGradients, LinearGradients]:
    """Return the gradients of ``linear_backward_reference``, and the bounds on the errors of all their elements.

    The bounds hold for the lse that the kernel received or computed.

    Args:
        problem: the problem, with X and W in the dtype of the products: rounded to it, where the kernel rounds them.
        upstream, classes: see ``linear_backward_reference``.
        input_dtype, weight_dtype: the dtypes of dX and dW; None for the dtype of the products.
    """
    weight = problem.classes_first
    sizes = coefficient_sizes(
        problem.targets,
        upstream.lse,
        upstream.grad_loss,
        problem.options,
        problem.vocab_size,
        upstream.grad_lse,
        upstream.grad_logprob,
    )
    largest = float(sizes.max(initial=0.0))
    if upstream.grad_entropy is not None:
        largest += float(np.abs(upstream.grad_entropy.astype(np.float64)).max(initial=0.0))
    blocks = logit_gradient_blocks(problem, upstream, sizes, weight)
    return bounded_gradients(problem, blocks, largest, classes, ResultTypes(input_dtype, weight_dtype))
