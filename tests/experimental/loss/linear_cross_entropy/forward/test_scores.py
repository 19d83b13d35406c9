# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores of the forward beside loss and log-sum-exp: entropy, log sum p^2, mean logit and argmax, of hard rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem

from ..linear_inputs import BF16, FP16, FP32, Array, Sizes, in_layout, normal_problem, problem_of
from .forward_checks import Launch, check, reference_of

SIZES = Sizes(130, 48, 300)
SCORES = ("argmax", "entropy", "log_sum_squares", "mean_logit")
HARD = ("half at 0.999", "spread 50", "masked classes", "duplicate rows")
# Temperature, scale of the logits and cap; among them powers of two, whose products are exact.
RECIPES = ((0.05, 1.0, None), (20.0, 0.5, 30.0), (0.8, 3.0, 5.0), (0.5, 1.0, None))


def scaled(problem: LinearProblem, temperature: float, scale: float, cap: float | None) -> LinearProblem:
    """The problem with these options."""
    options = replace(problem.options, temperature=temperature, logit_softcap=cap)
    return replace(problem, options=options, logit_scale=scale)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", HARD)
def test_hard_rows(kind: str, recipe: tuple[float, float, float | None]) -> None:
    number = HARD.index(kind) + RECIPES.index(recipe)
    sizes = replace(SIZES, dtype=(BF16, FP32, FP16)[number % 3])
    problem = in_layout(scaled(problem_of(kind, sizes), *recipe), ("vd", "dv")[number % 2])
    check(problem, Launch(1 + number % 2, None, 128, SCORES))


@pytest.mark.parametrize("wanted", [*((score,) for score in SCORES), ("entropy", "log_sum_squares")])
@pytest.mark.parametrize("kind", ["normal", "masked classes"])
def test_each_score_by_itself(kind: str, wanted: tuple[str, ...]) -> None:
    check(problem_of(kind, SIZES), Launch(wanted=wanted))


@pytest.mark.parametrize("cap", [None, 4.0])
def test_masked_classes_take_no_part(cap: float | None) -> None:
    """All but one class are masked in the bias of the second launch: nothing is left to choose."""
    problem = scaled(problem_of("masked classes", replace(SIZES, dtype=FP32)), 0.9, 1.0, cap)
    assert problem.bias is not None
    results = check(problem, Launch(class_block=128, wanted=SCORES))
    assert all(np.isfinite(values).all() for values in results.values())
    kept = np.flatnonzero(np.isfinite(problem.bias))
    assert np.isin(results["argmax"], kept).all()
    one = replace(problem, bias=np.where(np.arange(300) == kept[0], problem.bias, -np.inf).astype(np.float32))
    one = replace(one, targets=np.full_like(problem.targets, kept[0]))
    alone = check(one, Launch(class_block=128, wanted=SCORES))
    np.testing.assert_array_equal(alone["argmax"], kept[0])
    for name in ("loss", "entropy", "log_sum_squares"):
        np.testing.assert_allclose(alone[name], 0.0, atol=1e-6)


@pytest.mark.parametrize("cap", [None, 4.0])
def test_rows_whose_classes_are_all_masked(cap: float | None) -> None:
    """The first class, as torch has it; no mean of nothing."""
    problem = scaled(normal_problem(SIZES, np.random.default_rng(0)), 0.9, 1.0, cap)
    masked = replace(problem, bias=np.full(300, -np.inf, np.float32))
    results = Launch(class_block=128, wanted=SCORES).results(masked)
    np.testing.assert_array_equal(results["argmax"], 0)
    assert np.isneginf(results["lse"]).all()
    assert np.isnan(results["mean_logit"]).all()


def integers(classes: int, logits: Array) -> LinearProblem:
    """Products that are exact: a class has the logit of its column, less one for all positions but the first."""
    features = np.zeros((classes, 16), np.float32)
    features[:, 0], features[:, 1] = np.floor(logits / 128), logits % 128
    rows = np.zeros((130, 16), np.float32)
    rows[:, 0], rows[:, 1] = 128.0, 1.0
    rows[1:, 2], features[:, 2] = 1.0, -1.0
    targets = np.zeros(130, np.int32)
    return LinearProblem(rows.astype(BF16), features.astype(BF16), targets)


def first_of_largest(problem: LinearProblem) -> Array:
    """The argmax of z in float32, as the kernel computes it from exact products."""
    recipe = problem.recipe
    scores = problem.logits_of(slice(None), problem.classes_first).astype(np.float32)
    scale = (1.0 if recipe.logit_softcap is None else recipe.logit_softcap) / recipe.temperature
    if recipe.logit_softcap is not None:
        scores = np.tanh(scores * np.float32(1.0 / recipe.logit_softcap))
    result: Array = (scores * np.float32(scale)).argmax(axis=1)
    return result


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "recipe",
    # Tangents of 200 and 300 are both 1 in float32 in the third one, and unlike in the last.
    [(1.0, 1.0, None), (0.7, 1.0, None), (0.7, 0.3, 2.0), (1.0, 1.0, 64.0)],
)
def test_of_equal_z_the_first_class(recipe: tuple[float, float, float | None], cores: int) -> None:
    """Equal ones in a block, across blocks, and across cores; under a cap larger logits behind some of them."""
    rng = np.random.default_rng(3)
    for places in ((5, 100, 290), (130, 140, 600), (899, 320), (700, 701)):
        logits = rng.integers(0, 20, 900).astype(np.float32)
        logits[list(places)] = 200.0
        if recipe[2] is not None:
            logits[[max(places) - 1, 880]] = 300.0
        problem = scaled(integers(900, logits), *recipe)
        result = Launch(cores, None, 128, ("argmax",)).results(problem)["argmax"]
        np.testing.assert_array_equal(result, first_of_largest(problem))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_temperature_makes_neighbours_equal(cores: int) -> None:
    """Integers of 2^23 and more are neighbours in float32, and 1.25 times two of them may be one number."""
    logits = np.full(500, 59.0 * 2**18)
    rows, features = np.zeros((130, 16), np.float32), np.zeros((500, 16), np.float32)
    rows[:, 0], rows[:, 1] = 2.0**18, 1.0
    features[:, 0] = 59.0
    features[:, 1] = np.random.default_rng(4).integers(0, 200, 500)
    features[[7, 450], 1], features[[90, 300], 1] = 220.0, 221.0
    problem = LinearProblem(rows.astype(BF16), features.astype(BF16), np.zeros(130, np.int32))
    problem = replace(problem, options=ExtendedLoss(temperature=0.8))
    expected = first_of_largest(problem)
    assert expected[0] != int((logits + features[:, 1]).argmax())
    result = Launch(cores, None, 128, ("argmax",)).results(problem)["argmax"]
    np.testing.assert_array_equal(result, expected)


def test_shards_have_the_scores_of_their_own_softmax() -> None:
    problem = scaled(problem_of("masked classes", Sizes(140, 64, 500, FP32)), 0.7, 1.0, None)
    assert problem.bias is not None
    for first, last in ((0, 200), (200, 500)):
        part: dict[str, Any] = {"weight": problem.weight[first:last], "bias": problem.bias[first:last]}
        own = replace(problem, **part, targets=np.zeros_like(problem.targets))
        result = Launch(wanted=SCORES, class_block=128).results(own, first_class=first, num_classes=500)
        exact, bounds = reference_of(own), linear_forward_bounds(own)
        for name in ("entropy", "log_sum_squares", "mean_logit"):
            assert error_over_bound(result[name], exact[name], bounds[name]).max() <= 1.0, name
            for wrong in (0.0 * result[name], -result[name], result[name][::-1]):
                assert np.median(error_over_bound(wrong, exact[name], bounds[name])) > 10, name
