# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of the kernels on a problem, and checks of all their results and gradients against float64.

:class:`Launch` is one of the forward for a single target, :class:`ScoreLaunch` one of the kernels of several target
ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._program_size import program_instructions
from nkilib.core.host.error_bounds import UNIT
from nkilib.experimental.loss import (
    linear_cross_entropy_forward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.cross_entropy.bounds import CAP_UNITS, error_over_bound
from nkilib.experimental.loss.linear.reference import LinearGradients, logit_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)
from nkilib.simulator import profile
from tests.experimental.loss.cross_entropy.extended_checks import temperature_of

Array = npt.NDArray[Any]
# The results that may be asked for, in the order in which the kernels return them; some are two vectors.
WANTED = ("target", "argmax", "entropy", "distance_sum", "log_sum", "log_sum_squares", "mean_logit")
_NAMES = {"target": ("target_logit", "position_weight"), "log_sum": ("maximum", "log_sum")}

SCORES_WANTED = ("target", "argmax", "entropy", "log_sum", "log_sum_squares", "mean_logit")
_SCORE_NAMES = {"target": ("target_logit",), "log_sum": ("maximum", "log_sum")}


@dataclass(frozen=True)
class Launch:
    """How the kernel is launched; nothing of it changes the reference.

    Attributes:
        cores: the number of cores of the launch.
        position_block, class_block: the block sizes of the tiling; None for the default.
        wanted: further results.
    """

    cores: int = 2
    position_block: int | None = None
    class_block: int | None = None
    wanted: tuple[str, ...] = ()

    def results(self, problem: LinearProblem, **shard: int) -> dict[str, Array]:
        """Launch the kernel and return its results by name."""
        options = problem.options
        result = linear_cross_entropy_forward[self.cores](
            problem.input,
            problem.weight,
            problem.targets,
            problem.bias,
            options.class_weight,
            weight_layout=problem.weight_layout,
            position_block=self.position_block,
            class_block=self.class_block,
            ignore_index=options.ignore_index,
            label_smoothing=options.label_smoothing,
            logit_softcap=options.logit_softcap,
            lse_square_scale=options.lse_square_scale,
            **temperature_of(options),
            logit_scale=problem.logit_scale,
            **{f"with_{name}": True for name in self.wanted},
            **shard,
        )
        names = ["loss", "lse"]
        for name in WANTED:
            if name in self.wanted:
                names += _NAMES.get(name, (name,))
        return dict(zip(names, result, strict=True))


def check(problem: LinearProblem, launch: Launch) -> dict[str, Array]:
    """Hold the results against float64; the results."""
    results = launch.results(problem)
    expected, bounds = reference_of(problem), linear_forward_bounds(problem)
    for name, values in results.items():
        if name == "argmax":
            _check_argmax(problem, values)
        elif name == "position_weight":
            np.testing.assert_array_equal(values, expected[name].astype(np.float32))
        else:
            worst = error_over_bound(values, expected[name], bounds[name]).max()
            assert worst <= 1.0, f"{name}: {worst} of its bound"
    return results


def reference_of(problem: LinearProblem) -> dict[str, Array]:
    """All results in float64."""
    exact = vars(linear_forward_reference(problem))
    weight = problem.classes_first
    maxima = [
        problem.recipe.of_rows(rows).scores(problem.logits_of(rows, weight), None).max(axis=1)
        for rows in problem.row_blocks()
    ]
    maximum = np.concatenate(maxima)
    with np.errstate(invalid="ignore"):
        return {**exact, "maximum": maximum, "log_sum": exact["lse"] - maximum}


def _check_argmax(problem: LinearProblem, result: Array) -> None:
    """z of what was found is the largest but for rounding."""
    weight, recipe = problem.classes_first, problem.recipe
    for rows in problem.row_blocks():
        of_rows = recipe.of_rows(rows)
        logits, off = (
            problem.logits_of(rows, weight),
            logit_bounds(problem.layer, rows, weight) / of_rows.element_divisor,
        )
        z = of_rows.scores(logits, None)
        rounding = UNIT * (2.0 * np.abs(z.max(axis=1)) + CAP_UNITS * (recipe.logit_softcap or 0.0) / of_rows.divisor)
        chosen = z[np.arange(len(z)), result[rows]]
        assert (z.max(axis=1) - chosen <= 2 * off.max(axis=1) + 2 * rounding).all()


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
class ScoreLaunch:
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
            **temperature_of(options),
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
        for name in SCORES_WANTED:
            if name in self.wanted:
                names += _SCORE_NAMES.get(name, (name,))
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


def check_forward(problem: LinearProblem, launch: ScoreLaunch) -> dict[str, Array]:
    """Compare all results with float64; the results."""
    results = launch.results(problem)
    expected, bounds = scores_forward_reference(problem), scores_forward_bounds(problem)
    for name, values in results.items():
        if name not in ("maximum", "log_sum", "argmax"):
            assert values.shape == expected[name].shape
            worst = error_over_bound(values, expected[name], bounds[name]).max()
            assert worst <= 1.0, f"{name}: {worst} of its bound"
    return results


def check_backward(
    problem: LinearProblem, launch: ScoreLaunch, upstream: ScoreInputs, **further: Any
) -> dict[str, Array]:
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


def instructions_of_core(kernel: Any, *args: Any, **kwargs: Any) -> int:
    """Instructions of the program of the core that has most, of a launch on shapes; loops have one copy of a body."""
    return program_instructions(lambda: profile(kernel, *args, **kwargs))
