# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launching the forward, and holding all of its results against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss import linear_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.host.extended_bounds import CAP_UNITS
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, logit_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference

Array = npt.NDArray[Any]
WANTED = ("target", "argmax", "entropy", "distance_sum", "log_sum", "log_sum_squares", "mean_logit")
_NAMES = {"target": ("target_logit", "position_weight"), "log_sum": ("maximum", "log_sum")}


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
            temperature=options.temperature,
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
    maxima = [problem.recipe.scores(problem.logits_of(rows, weight), None).max(axis=1) for rows in problem.row_blocks()]
    maximum = np.concatenate(maxima)
    with np.errstate(invalid="ignore"):
        return {**exact, "maximum": maximum, "log_sum": exact["lse"] - maximum}


def _check_argmax(problem: LinearProblem, result: Array) -> None:
    """z of what was found is the largest but for rounding."""
    weight, recipe = problem.classes_first, problem.recipe
    for rows in problem.row_blocks():
        logits, off = problem.logits_of(rows, weight), logit_bounds(problem, rows, weight) / recipe.temperature
        z = recipe.scores(logits, None)
        rounding = UNIT * (2.0 * np.abs(z.max(axis=1)) + CAP_UNITS * (recipe.logit_softcap or 0.0) / recipe.temperature)
        chosen = z[np.arange(len(z)), result[rows]]
        assert (z.max(axis=1) - chosen <= 2 * off.max(axis=1) + 2 * rounding).all()
