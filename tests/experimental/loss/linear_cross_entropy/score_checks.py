# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launching the kernels of several target ids, and comparing all results and gradients with float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nkilib.experimental.loss import linear_token_scores_backward, linear_token_scores_forward
from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.linear.host.reference import LinearGradients
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)

from .linear_inputs import Array

WANTED = ("target", "argmax", "entropy", "log_sum", "log_sum_squares", "mean_logit")
_NAMES = {"target": ("target_logit",), "log_sum": ("maximum", "log_sum")}


def with_ids(problem: LinearProblem, ids: int, seed: int = 5, ignored: float = 0.2) -> LinearProblem:
    """The problem with so many ids a position: its target twice, others, and ignored ones.

    Where there is room also the first and the last class, and neighbours.
    """
    rng, positions, classes = np.random.default_rng(seed), len(problem.targets), problem.vocab_size
    allowed = np.arange(classes)
    if problem.bias is not None:
        allowed = np.flatnonzero(np.isfinite(problem.bias))
    result = rng.choice(allowed, (positions, ids)).astype(np.int32)
    result[rng.random(result.shape) < ignored] = problem.options.ignore_index
    if ids > 4:
        result[:, 1], result[:, 2], result[:, 3] = allowed[0], allowed[-1], allowed[len(allowed) // 2]
        result[1::2, 4] = allowed[len(allowed) // 2 - 1]
    result[:, 0] = result[:, -1] = problem.targets
    return replace(problem, targets=result)


def upstream_of(
    problem: LinearProblem, lse: Array, entropy: Array | None = None, *, of_lse: bool = False, seed: int = 6
) -> ScoreInputs:
    """Different gradients for all ids, and where they are asked for of lse and entropy."""
    rng, (positions, ids) = np.random.default_rng(seed), problem.targets.shape
    of_ids = rng.standard_normal((positions, ids)).astype(np.float32)
    of_positions = rng.standard_normal((2, positions)).astype(np.float32)
    return ScoreInputs(
        lse,
        of_ids,
        of_positions[0] if of_lse else None,
        entropy,
        None if entropy is None else of_positions[1],
    )


@dataclass(frozen=True)
class Launch:
    """How the kernels are launched; nothing of it changes the reference.

    Attributes:
        cores: the number of cores of the launch.
        position_block, class_block: the block sizes of the tiling; None for the default.
        wanted: further results.
    """

    cores: int = 2
    position_block: int | None = None
    class_block: int | None = None
    wanted: tuple[str, ...] = ()

    def arguments(self, problem: LinearProblem) -> dict[str, Any]:
        """Keywords of both kernels."""
        options = problem.options
        return {
            "bias_hbm": problem.bias,
            "weight_layout": problem.weight_layout,
            "position_block": self.position_block,
            "class_block": self.class_block,
            "ignore_index": options.ignore_index,
            "logit_softcap": options.logit_softcap,
            "temperature": options.temperature,
            "logit_scale": problem.logit_scale,
        }

    def results(self, problem: LinearProblem, **shard: int) -> dict[str, Array]:
        """Launch the forward and return its results by name."""
        result = linear_token_scores_forward[self.cores](
            problem.input,
            problem.weight,
            problem.targets,
            **self.arguments(problem),
            **{f"with_{name}": True for name in self.wanted},
            **shard,
        )
        names = ["logprob", "lse"]
        for name in WANTED:
            if name in self.wanted:
                names += _NAMES.get(name, (name,))
        return dict(zip(names, result, strict=True))

    def gradients(self, problem: LinearProblem, upstream: ScoreInputs, **further: Any) -> dict[str, Array]:
        """Launch the backward and return its results by name; the upstream gradient of ignored ids is NaN."""
        array = upstream.grad_logprob
        if array is not None:
            array = np.where(problem.targets == problem.options.ignore_index, np.float32(np.nan), array)
        results = linear_token_scores_backward[self.cores](
            problem.input,
            problem.weight,
            problem.targets,
            upstream.lse,
            array,
            grad_lse_hbm=upstream.grad_lse,
            entropy_hbm=upstream.entropy,
            grad_entropy_hbm=upstream.grad_entropy,
            **self.arguments(problem),
            **further,
        )
        names = ["input", "weight"] if problem.bias is None else ["input", "weight", "bias"]
        names = [name for name in names if further.get(f"grad_{name}_wanted", True)]
        return dict(zip(names, results, strict=True))


def check_forward(problem: LinearProblem, launch: Launch) -> dict[str, Array]:
    """Compare all results with float64; the results."""
    results = launch.results(problem)
    expected, bounds = scores_forward_reference(problem), scores_forward_bounds(problem)
    for name, values in results.items():
        if name not in ("maximum", "log_sum", "argmax"):
            assert values.shape == expected[name].shape
            worst = error_over_bound(values, expected[name], bounds[name]).max()
            assert worst <= 1.0, f"{name}: {worst} of its bound"
    return results


def check_backward(problem: LinearProblem, launch: Launch, upstream: ScoreInputs, **further: Any) -> dict[str, Array]:
    """Compare all gradients with float64; the gradients."""
    result = launch.gradients(problem, upstream, **further)
    check_gradients(result, *scores_gradients_and_bounds(problem, upstream))
    return result


def check_gradients(results: dict[str, Array], references: LinearGradients, bounds: LinearGradients) -> None:
    """Each is within its bound."""
    for name, values in results.items():
        off = np.abs(values.astype(np.float64) - getattr(references, name))
        bound = getattr(bounds, name)
        assert (off <= bound).all(), f"{name}: {np.nanmax(off / bound)} of its bound, {np.isnan(off).sum()} NaN"
