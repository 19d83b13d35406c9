# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Temperatures of positions, as tensors: cross-entropy of logits and of hidden states against float64.

The temperatures of a launch are mixed, from 1e-3 to 1e3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import (
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
    linear_cross_entropy_forward,
)
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss
from nkilib.nki import nl
from tests.experimental.loss.cross_entropy import extended_checks
from tests.experimental.loss.cross_entropy.loss_inputs import BF16, DTYPE_PAIRS, FP32, normal_batch, pair_name
from tests.experimental.loss.linear_cross_entropy import launch_checks
from tests.experimental.loss.linear_cross_entropy.linear_inputs import FP16, Sizes, problem_of, with_options
from tests.experimental.loss.linear_cross_entropy.test_backward import launched as backward_launched
from tests.experimental.loss.linear_cross_entropy.test_backward_scores import given_to, pair_of, wrong_results
from tests.experimental.loss.linear_cross_entropy.test_one_launch import launched

Array = npt.NDArray[Any]
EVERYTHING = {"with_argmax": True, "with_entropy": True, "with_distance_sum": True, "with_log_sum": True}
SCORES = ("target", "argmax", "entropy", "log_sum", "log_sum_squares", "mean_logit")
# What else a launch does to its logits; the class weights are made for it.
RECIPES = {
    "nothing": {},
    "softcap": {"logit_softcap": 5.0},
    "all": {"logit_softcap": 15.0, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "class_weight": True},
}
OUTSIDE = (0.0, -1.0, np.nan, np.inf, 1e7, 1e-7)


def mixed(positions: int, seed: int = 0) -> Array:
    """Temperatures from 1e-3 to 1e3, one of them exactly 1."""
    temperatures = (10.0 ** np.random.default_rng(seed).uniform(-3.0, 3.0, positions)).astype(np.float32)
    temperatures[positions // 2] = 1.0
    return temperatures


def recipe_of(name: str, vocabulary: int, temperature: Array) -> ExtendedLoss:
    options: dict[str, Any] = dict(RECIPES[name])
    if options.pop("class_weight", False):
        weight = np.random.default_rng(5).uniform(0.5, 1.5, vocabulary).astype(np.float32)
        return ExtendedLoss(class_weight=weight, temperature=temperature, **options)
    return ExtendedLoss(temperature=temperature, **options)


def batch(positions: int, vocabulary: int, dtype: Any) -> tuple[Array, Array]:
    """Logits, some masked and some far away, and targets, a third of them ignored."""
    logits, targets = normal_batch(positions, vocabulary)
    logits[2, 5:] = -np.inf
    logits[3, :120] = -np.inf
    logits[5] += 1e3
    targets[2:6] = 1, 130, 1, 2
    targets[6::3] = -100
    return logits.astype(dtype), targets


def upstream_of(positions: int, further: bool) -> extended_checks.Upstream:
    loss, lse, logprob, entropy = np.random.default_rng(7).standard_normal((4, positions)).astype(np.float32)
    return extended_checks.Upstream(loss, lse, logprob, entropy) if further else extended_checks.Upstream(loss)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_logits(logits_dtype: Any, dtype: Any, name: str) -> None:
    """Several groups of batches, of which each has its own tile of temperatures; gradients of all results."""
    logits, targets = batch(39, 307, logits_dtype)
    options, launch = recipe_of(name, 307, mixed(39)), extended_checks.Launch(dtype, 2, 5, 100)
    results = extended_checks.check_forward(logits, targets, options, launch, **EVERYTHING)
    summands = {"maximum_hbm": results["maximum"], "log_sum_hbm": results["log_sum"]}
    of_entropy = {"entropy_hbm": results["entropy"]}
    for upstream, given in (
        (upstream_of(39, False), {}),
        (upstream_of(39, True), of_entropy),
        (upstream_of(39, True), {**of_entropy, **summands}),
    ):
        extended_checks.check_backward(logits, targets, results["lse"], upstream, options, launch, **given)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_class_probabilities(dtype: Any) -> None:
    logits, _ = normal_batch(19, 307)
    targets = np.random.default_rng(6).random((19, 307)).astype(np.float32)
    targets /= targets.sum(axis=1, keepdims=True)
    options, launch = ExtendedLoss(temperature=mixed(19), label_smoothing=0.1), extended_checks.Launch(dtype, 2, 5, 100)
    results = extended_checks.check_forward(logits.astype(dtype), targets, options, launch, with_entropy=True)
    upstream = replace(upstream_of(19, True), logprob=None)
    extended_checks.check_backward(
        logits.astype(dtype), targets, results["lse"], upstream, options, launch, entropy_hbm=results["entropy"]
    )


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_shifts_and_recomputed_rows(dtype: Any, with_entropy: bool) -> None:
    """Rows whose first chunk says little about the others are gathered again, with their temperatures."""
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((12, 300)).astype(np.float32)
    logits[::3, -1] = 100.0
    temperatures = mixed(12)
    temperatures[::3] = (0.5, 1.0, 2.0, 0.25)
    options, launch = ExtendedLoss(temperature=temperatures), extended_checks.Launch(dtype, 2, 4, 50)
    targets = np.full(12, 5, np.int32)
    exact, shifted = (
        extended_checks.check_forward(
            logits.astype(dtype), targets, options, launch, exact_maximum=is_exact, with_entropy=with_entropy
        )
        for is_exact in (True, False)
    )
    np.testing.assert_allclose(exact["loss"], shifted["loss"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("one_core", [False, True])
def test_one_temperature_for_all_positions(one_core: bool) -> None:
    """A tensor of one element gives the bits of the same number for each position."""
    logits, targets = batch(23, 200, np.float32)
    launch = extended_checks.Launch(FP32, 1 if one_core else 2, 8, 64)
    one, each = (ExtendedLoss(temperature=np.full(count, 0.7, np.float32)) for count in (1, 23))
    first = extended_checks.check_forward(logits, targets, one, launch, **EVERYTHING)
    second = extended_checks.check_forward(logits, targets, each, launch, **EVERYTHING)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    of_one, of_each = (
        extended_checks.check_backward(logits, targets, first["lse"], upstream_of(23, False), options, launch)
        for options in (one, each)
    )
    assert of_one.tobytes() == of_each.tobytes()


def test_a_power_of_two_is_that_number() -> None:
    """The inverse is exact, so the results are those of the constant, bit for bit."""
    logits, targets = batch(23, 200, np.float32)
    launch = extended_checks.Launch(FP32, 2, 8, 64)
    number, tensor = ExtendedLoss(temperature=0.5), ExtendedLoss(temperature=np.full(23, 0.5, np.float32))
    ours, constants = (
        extended_checks.forward(logits, targets, options, launch, with_entropy=True) for options in (tensor, number)
    )
    for name in ("loss", "lse", "target_logit"):
        assert ours[name].tobytes() == constants[name].tobytes(), name


def test_other_temperatures_are_no_numbers() -> None:
    """A value outside of the range makes its position NaN, and no other one; an ignored position has no loss."""
    temperatures = np.array([1.0, *OUTSIDE, 2.0, 0.0], np.float32)
    logits, targets = normal_batch(9, 64)
    targets[-1] = -100
    arguments = {"dtype": nl.float32, "chunk_size": 64, "temperature_hbm": temperatures}
    is_nan = np.array([False] + [True] * 6 + [False, True])
    loss, lse, target_logit, _, entropy = extended_cross_entropy_forward[2](
        logits, targets, with_entropy=True, **arguments
    )
    for values in (lse, entropy):
        np.testing.assert_array_equal(np.isnan(values), is_nan)
    for values in (loss, target_logit):
        np.testing.assert_array_equal(np.isnan(values), is_nan & (targets != -100))
    gradient = extended_cross_entropy_backward[2](logits, targets, lse, np.ones(9, np.float32), **arguments)
    np.testing.assert_array_equal(np.isnan(gradient).all(axis=1), is_nan)
    np.testing.assert_array_equal(np.isnan(gradient).any(axis=1), is_nan)


# Of scale and cap.
LINEAR = ((1.0, None), (2.5, 8.0))


@pytest.mark.parametrize("scale", LINEAR, ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_hidden_states(dtype: Any, scale: tuple[float, float | None]) -> None:
    """All results; gradients of all of them, with the pair of maximum and sum and without."""
    logit_scale, cap = scale
    problem = problem_of("masked classes" if dtype == FP32 else "30% ignored", Sizes(150, 64, 300, dtype))
    options = replace(problem.options, temperature=mixed(150), logit_softcap=cap)
    problem = replace(problem, options=options, logit_scale=logit_scale)
    launch_checks.check(problem, launch_checks.Launch(2, None, 128, SCORES))
    for pair in ({}, pair_of(problem)):
        backward_launched(problem, given_to(problem), **pair).check()
    launched(problem).check()


@pytest.mark.parametrize("name", ["all", "weights, smoothing"])
def test_hidden_states_with_options(name: str) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(140, 64, 300, BF16)), name)
    problem = replace(problem, options=replace(problem.options, temperature=mixed(140)))
    launch_checks.check(problem, launch_checks.Launch(1, None, 128, SCORES))
    backward_launched(problem, given_to(problem)).check()


@pytest.mark.parametrize("each", [False, True])
def test_positions_in_parts(each: bool) -> None:
    """More positions than a part has: each part has its own temperatures, or the one of all."""
    problem = problem_of("normal", Sizes(400, 32, 300, FP32))
    temperature = mixed(400) if each else np.full(1, 0.7, np.float32)
    problem = replace(problem, options=replace(problem.options, temperature=temperature))
    whole = backward_launched(problem, given_to(problem))
    with shrunk(PlanLimits(positions=256)):
        split = backward_launched(problem, given_to(problem))
    np.testing.assert_array_equal(whole.found["input"], split.found["input"])
    whole.check()
    launch_checks.check(problem, launch_checks.Launch(2, 128, 128))
    launched(problem, scratch_bytes=128 * 300 * 4).check()


def test_the_bounds_refuse_other_gradients() -> None:
    problem = problem_of("normal", Sizes(150, 64, 300, BF16))
    problem = replace(problem, options=replace(problem.options, temperature=mixed(150)))
    for wrong in wrong_results(backward_launched(problem, given_to(problem))):
        with pytest.raises(AssertionError):
            wrong.check()


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_several_target_ids(dtype: Any) -> None:
    problem = launch_checks.with_ids(problem_of("normal", Sizes(150, 48, 300, dtype)), 9)
    problem = replace(problem, options=replace(problem.options, temperature=mixed(150)))
    launch = launch_checks.ScoreLaunch(class_block=128, wanted=SCORES)
    results = launch_checks.check_forward(problem, launch)
    upstream = launch_checks.upstream_of(problem, results["lse"], results["entropy"])
    launch_checks.check_backward(problem, launch, upstream)


REFUSED = {
    "both": (
        {"temperature": 2.0, "temperature_hbm": np.ones(8, np.float32)},
        "temperature must be 1.0 beside temperature_hbm, got 2.0; pass one of them",
    ),
    "a shape": ({"temperature_hbm": np.ones((8, 1), np.float32)}, "temperature_hbm must have shape"),
    "too few": ({"temperature_hbm": np.ones(7, np.float32)}, "temperature_hbm must have shape"),
    "a type": ({"temperature_hbm": np.ones(1, np.int32)}, "temperature_hbm must be float32, got int32; cast it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    arguments, message = REFUSED[name]
    logits, targets = normal_batch(8, 64)
    with pytest.raises(AssertionError, match=message):
        extended_cross_entropy_forward(logits, targets, chunk_size=64, **arguments)
    with pytest.raises(AssertionError, match=f"linear_cross_entropy_forward: {message}"):
        linear_cross_entropy_forward(np.ones((8, 16), np.float32), np.ones((64, 16), np.float32), targets, **arguments)
