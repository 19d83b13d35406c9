# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Token scores in float64, with bounds: log-probabilities of several target ids per position, and their gradients.

N positions, V classes, K target ids per position; z is the logit after cap and temperature, *rows* are positions.

:func:`scores_forward_reference` returns the log-probabilities and other results, :func:`scores_forward_bounds` their
bounds, :func:`scores_backward_reference` the gradients, and :func:`scores_gradients_and_bounds` gradients and their
bounds. :data:`OUTPUTS` are the names of further scores that a caller can ask for, which :func:`checked_outputs` checks.

The log-probability of an id is minus the loss of linear cross-entropy, and has the same bounds. The gradient of the
logit of class v is the one of log-sum-exp and entropy, plus ``sum_k g_k (1[t_k = v] - p_v)`` for upstream gradients g_k
of the ids t_k and the softmax p; all of it is divided by the temperature and multiplied by the derivative of a cap.

The bound on the error of the gradient G of a logit is the bound for a single id whose upstream gradient is S = sum
|g_k|, and, with u = 2^-24: (K + 4) u S at each id, because the g_k are added in different orders; 8 u |G| for the sum
with the other terms; and 2 |tanh| |G| dz / c for a cap c, where dz is the error of a logit (``linear.reference``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.cross_entropy.bounds import CAP_UNITS, FORWARD_UNITS, coefficient_sizes
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs, ExtendedResults, Float64Array
from nkilib.experimental.loss.linear.reference import EVERY_CLASS, ROUNDOFF, GradientRows, LinearGradients, logit_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import (
    bounded_gradients,
    linear_forward_bounds,
    logit_gradient_blocks,
)
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    gradient_of_logits,
    linear_forward_reference,
)

# Results for one target, which token scores do not have.
_OF_LOSS = ("loss", "position_weight", "distance_sum")

OUTPUTS: Final = ("entropy", "lse", "argmax", "log_sum_squares", "mean_logit")


@dataclass(frozen=True)
class ScoreInputs:
    """The arguments of ``linear_token_scores_backward`` besides operands and targets.

    Attributes:
        lse: the log-sum-exp that the kernel received, [N], in the same precision.
        grad_logprob: the upstream gradients of the log-probabilities, [N, K]; None for 0.
        grad_lse: the upstream gradients of lse, [N]; None for 0.
        entropy, grad_entropy: the entropies and their upstream gradients, [N]; None for no gradient of the entropy.
    """

    lse: npt.NDArray[Any]
    grad_logprob: npt.NDArray[Any] | None = None
    grad_lse: npt.NDArray[Any] | None = None
    entropy: npt.NDArray[Any] | None = None
    grad_entropy: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class _AtIds:
    """Values at the target ids, float64 [N, K]; an ignored id counts as class 0.

    Attributes:
        scores: z at the ids.
        below: z at the ids, minus the maximum of z over all classes.
        off: the bound on the error of z that the products cause.
        log_sum: lse minus that maximum, [N, 1].
    """

    scores: Float64Array
    below: Float64Array
    off: Float64Array
    log_sum: Float64Array

    @classmethod
    def of(cls, problem: LinearProblem) -> _AtIds:
        weight, recipe = problem.classes_first, problem.recipe
        classes = np.where(problem.targets == recipe.ignore_index, 0, problem.targets)
        parts: list[list[Float64Array]] = [[], [], [], []]
        for rows in problem.row_blocks():
            of_rows = recipe.of_rows(rows)
            z = of_rows.scores(problem.logits_of(rows, weight), None)
            maximum = z.max(axis=1, keepdims=True)
            off = logit_bounds(problem.layer, rows, weight) / of_rows.element_divisor
            scores = np.take_along_axis(z, classes[rows], axis=1)
            with np.errstate(invalid="ignore"):
                log_sum = np.log(np.exp(z - maximum).sum(axis=1, keepdims=True))
                values = (scores, scores - maximum, np.take_along_axis(off, classes[rows], axis=1), log_sum)
            for part, value in zip(parts, values, strict=True):
                part.append(value)
        return cls(*(np.concatenate(part) for part in parts))


def _of_largest(problem: LinearProblem) -> LinearProblem:
    """Return the problem with one target per position instead of K: the class of the largest logit; no target is
    ignored.

    It is used only to estimate the size of errors.
    """
    weight = problem.classes_first
    largest = [problem.logits_of(rows, weight).argmax(axis=1) for rows in problem.row_blocks()]
    options = replace(problem.options, ignore_index=-100)
    return problem.with_targets(np.concatenate(largest), options)


def scores_forward_reference(problem: LinearProblem) -> dict[str, Float64Array]:
    """Return all results of ``linear_token_scores_forward`` except maximum and log-sum, by name.

    Args:
        problem: a problem with targets [N, K].
    """
    of_largest = linear_forward_reference(_of_largest(problem))
    results = {
        result.name: getattr(of_largest, result.name)
        for result in fields(ExtendedResults)
        if result.name not in _OF_LOSS
    }
    valid, ids = problem.targets != problem.options.ignore_index, _AtIds.of(problem)
    results["logprob"] = np.where(valid, ids.below, 0.0) - np.where(valid, ids.log_sum, 0.0)
    results["target_logit"] = np.where(valid, ids.scores, 0.0)
    return results


def scores_forward_bounds(problem: LinearProblem) -> dict[str, Float64Array]:
    """Return the accepted errors of the results of :func:`scores_forward_reference`, by name.

    The bound of a log-probability is the bound of the loss at the class of the largest logit, plus 16 * 2^-23 times the
    distance of the id's z from the largest z.

    Args:
        problem: a problem with targets [N, K].
    """
    bounds, ids = linear_forward_bounds(_of_largest(problem)), _AtIds.of(problem)
    recipe = problem.recipe
    of_cap, of_scale = (
        CAP_UNITS * UNIT * (recipe.logit_softcap or 0.0) / recipe.element_divisor,
        recipe.scale_units * UNIT,
    )
    with np.errstate(invalid="ignore"):
        bounds["logprob"] = bounds["loss"][:, np.newaxis] - FORWARD_UNITS * UNIT * ids.below
        bounds["target_logit"] = of_cap + SMALLEST_NORMAL + of_scale * np.abs(ids.scores) + ids.off
    return {name: values for name, values in bounds.items() if name not in _OF_LOSS}


@dataclass(frozen=True)
class _Ids:
    """The ids of a problem, and the upstream gradients of their log-probabilities.

    Attributes:
        problem: the problem with ids, that is with targets [N, K].
        rest: the same problem with one target per position; all these targets are ignored.
        upstream: the upstream gradients of ``rest``: of log-sum-exp and entropy alone.
        classes: the classes of the ids, [N, K], 0 for an ignored id.
        gradients: the upstream gradients g_k, [N, K], 0 for an ignored id.
    """

    problem: LinearProblem
    rest: LinearProblem
    upstream: BackwardInputs
    classes: npt.NDArray[Any]
    gradients: Float64Array

    @classmethod
    def of(cls, problem: LinearProblem, upstream: ScoreInputs) -> _Ids:
        ignored = problem.options.ignore_index
        valid = problem.targets != ignored
        gradients = np.zeros(problem.targets.shape)
        if upstream.grad_logprob is not None:
            gradients = np.where(valid, upstream.grad_logprob, 0.0).astype(np.float64)
        positions = len(problem.targets)
        rest = problem.with_targets(np.full(positions, ignored, problem.targets.dtype))
        others = BackwardInputs(
            upstream.lse,
            np.zeros(positions),
            upstream.grad_lse,
            None,
            upstream.entropy,
            upstream.grad_entropy,
        )
        return cls(problem, rest, others, np.where(valid, problem.targets, 0), gradients)

    @property
    def sizes(self) -> Float64Array:
        return np.abs(self.gradients)

    def scattered(self, values: Float64Array, rows: slice, vocabulary: int) -> Float64Array:
        """Add each of ``values`` [N, K] at the class of its id; return the sums of positions ``rows``, [positions,
        vocabulary].
        """
        classes = self.classes[rows]
        sums = np.zeros((len(classes), vocabulary))
        np.add.at(sums, (np.arange(len(classes))[:, np.newaxis], classes), values[rows])
        return sums

    def gradient(self, rows: slice, weight: Float64Array) -> Float64Array:
        problem, recipe = self.problem, self.problem.recipe.of_rows(rows)
        logits, lse = problem.logits_of(rows, weight), self.upstream.lse[rows].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            p = np.exp(recipe.scores(logits, None) - np.where(np.isfinite(lse), lse, np.nan)[:, np.newaxis])
        drawn = self.scattered(self.gradients, rows, len(weight))
        gradient = (drawn - self.gradients[rows].sum(axis=1, keepdims=True) * p) / recipe.element_divisor
        if recipe.logit_softcap is not None:
            gradient *= 1.0 - np.square(np.tanh(logits / recipe.logit_softcap))
        of_rest: Float64Array = gradient_of_logits(self.rest, self.upstream, rows, weight)
        return gradient + of_rest

    def bounded(self) -> Iterator[GradientRows]:
        """Yield the gradients of logits and the bounds on their errors, in blocks of positions."""
        problem, recipe, weight = self.problem, self.problem.recipe, self.problem.classes_first
        options = problem.options
        if recipe.ignore_index >= 0:
            options = replace(options, ignore_index=-100)
        first = problem.with_targets(self.classes[:, 0], options)
        upstream = replace(self.upstream, grad_logprob=self.sizes.sum(axis=1))
        sizes = coefficient_sizes(
            first.targets,
            upstream.lse,
            upstream.grad_loss,
            first.options,
            first.vocab_size,
            upstream.grad_lse,
            upstream.grad_logprob,
        )
        of_sums = (
            (self.classes.shape[1] + 4)
            * ROUNDOFF
            * np.broadcast_to(self.sizes.sum(axis=1, keepdims=True), self.sizes.shape)
        )
        for block in logit_gradient_blocks(first, upstream, sizes, weight):
            gradient = self.gradient(block.rows, weight)
            divisor = recipe.of_rows(block.rows).element_divisor
            off = block.off + self.scattered(of_sums, block.rows, len(weight)) / divisor
            off += 8.0 * ROUNDOFF * np.abs(gradient)
            if recipe.logit_softcap is not None:
                logits = problem.logits_of(block.rows, weight)
                of_cap = np.abs(np.tanh(logits / recipe.logit_softcap)) / recipe.logit_softcap
                of_logits = logit_bounds(problem.layer, block.rows, weight)
                off += 2.0 * np.abs(gradient) * np.where(np.isfinite(logits), of_cap * of_logits, 0.0)
            yield GradientRows(block.rows, gradient, off)


def scores_backward_reference(
    problem: LinearProblem, upstream: ScoreInputs, classes: slice = EVERY_CLASS
) -> LinearGradients:
    """Return all gradients of ``linear_token_scores_backward``, with the log-sum-exp that the kernel received.

    Args:
        problem: a problem with all classes and targets [N, K].
        upstream: the upstream gradients and statistics as the kernel received them.
        classes: the classes of a vocabulary shard: dX is then the sum over these classes, and dW and db are those of
            these classes.
    """
    weight, ids = problem.classes_first, _Ids.of(problem, upstream)
    blocks = ((rows, ids.gradient(rows, weight)) for rows in problem.row_blocks())
    return problem.layer.gradients(blocks, weight, classes)


def scores_gradients_and_bounds(
    problem: LinearProblem, upstream: ScoreInputs, classes: slice = EVERY_CLASS
) -> tuple[LinearGradients, LinearGradients]:
    """Return the gradients of :func:`scores_backward_reference`, and the bounds on the errors of all their elements."""
    ids = _Ids.of(problem, upstream)
    sizes = ids.sizes.sum(axis=1)
    if upstream.grad_lse is not None:
        sizes = sizes + np.abs(upstream.grad_lse.astype(np.float64))
    largest = float(sizes.max(initial=0.0))
    if upstream.grad_entropy is not None:
        largest += float(np.abs(upstream.grad_entropy.astype(np.float64)).max(initial=0.0))
    return bounded_gradients(problem, ids.bounded(), largest, classes)


def checked_outputs(caller: object, outputs: Any) -> tuple[str, ...]:
    """Return the names in ``outputs``, in the order of :data:`OUTPUTS`; ``caller`` is named in error messages.

    Raises:
        TypeError: if ``outputs`` is not an iterable, or is a string.
        ValueError: for an unknown name.
    """
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        remedy = f"; pass ({outputs!r},)" if isinstance(outputs, str) else ""
        raise TypeError(f"{caller}: argument 'outputs' must be an iterable of names, not {outputs!r}{remedy}")
    names = tuple(outputs)
    for name in names:
        if name not in OUTPUTS:
            raise ValueError(
                f"{caller}: outputs must be among {', '.join(OUTPUTS)}, got {name!r}; leave it out, the "
                f"log-probability is always there"
            )
    return tuple(name for name in OUTPUTS if name in names)
