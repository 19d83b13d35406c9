# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Temperatures of positions, as tensors: distillation from hidden states against float64.

The temperatures of a launch are mixed, from 1e-3 to 1e3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem
from tests.experimental.refusals import PAIR_KERNELS, Kernel, Refusal, assert_refused, parametrized

from .pair_checks import (
    RESULTS,
    Launch,
    check_backward,
    check_forward,
    check_mixture,
    check_wrong_results_are_told,
    gradient_errors,
    launched_backward,
    launched_forward,
    upstream_of,
)
from .pair_inputs import BF16, FP16, FP32, Sizes, pair_of

Array = npt.NDArray[Any]
BETAS = (0.0, 0.5, 1.0)
# What else a launch does to the logits of both models; other units than the teacher's scale.
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "scales": ({"logit_scale": 0.25}, {"logit_scale": 1.5}),
    "softcaps and biases": ({"logit_softcap": 5.0, "with_bias": True}, {"logit_softcap": 3.0}),
}
OUTSIDE = (0.0, -1.0, np.nan, np.inf, 1.1e6, 9e-4)


def mixed(positions: int) -> Array:
    """Temperatures from 1e-3 to 1e3, one of them exactly 1."""
    temperatures = (10.0 ** np.random.default_rng(0).uniform(-3.0, 3.0, positions)).astype(np.float32)
    temperatures[positions // 2] = 1.0
    return temperatures


def at(problem: PairProblem, temperature: Array | float) -> PairProblem:
    """The problem at other temperatures."""
    student, teacher = (replace(model, temperature=temperature) for model in (problem.student, problem.teacher))
    return replace(problem, student=student, teacher=teacher)


def problem_of(sizes: Sizes, recipe: str = "nothing", **options: Any) -> PairProblem:
    """A problem whose positions have mixed temperatures."""
    of_student, of_teacher = RECIPES[recipe]
    problem = pair_of(sizes, **options, **of_student)
    problem = replace(problem, teacher=replace(problem.teacher, **of_teacher))
    return at(problem, mixed(sizes.positions))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("beta", BETAS)
def test_options(beta: float, recipe: str) -> None:
    problem = problem_of(Sizes(130, 16, 24, 150), recipe, beta=beta, dtype=BF16)
    check_forward(problem)
    check_backward(problem)
    if beta == 0.5:
        check_forward(problem, memory_limit=0)
        check_mixture(problem)


@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("beta", BETAS)
def test_wrong_results_are_told(beta: float, dtype: np.dtype[Any]) -> None:
    problem = problem_of(Sizes(40, 40, 24, 40), beta=beta, dtype=dtype, with_bias=True)
    problem = replace(problem, labels=np.maximum(problem.labels, 0))
    names = RESULTS if beta > 0.0 else tuple(name for name in RESULTS if name != "moment")
    check_wrong_results_are_told(check_forward(problem, Launch(cores=1)), problem, (*names, "logprob", "target_logit"))
    upstream = upstream_of(problem)
    results = launched_backward(problem, upstream)
    assert max(gradient_errors(results, problem, upstream).values()) <= 1.0
    # N, Ds and V are alike, so that a transposed result has the shape of the right one.
    for change in (np.zeros_like, np.negative, lambda item: item.T if item.ndim == 2 else item[::-1]):
        wrong = gradient_errors({name: change(value) for name, value in results.items()}, problem, upstream)
        assert min(wrong.values()) > 1.0, wrong


@pytest.mark.parametrize("beta", BETAS)
def test_blocks_of_positions(beta: float) -> None:
    """Each block of positions has its own temperatures: where the program unrolls blocks, and where it loops."""
    problem = problem_of(Sizes(900, 16, 16, 30), beta=beta, dtype=BF16)
    launch = Launch(cores=1, position_block=128, class_block=128)
    results = check_forward(problem, launch)
    for options in ({}, {"memory_limit": 0}) if beta == 0.5 else ({},):
        with shrunk(PlanLimits(positions=128)):
            looped = check_forward(problem, launch, **options)
        assert options or all(np.array_equal(results[name], looped[name]) for name in results)
    with shrunk(PlanLimits(positions=128)):
        split = check_backward(problem, Launch(cores=1))
    assert np.any(split["weight"] != 0.0)


@pytest.mark.parametrize("beta", BETAS)
def test_one_temperature_for_all_positions(beta: float) -> None:
    """A tensor of one element gives the bits of the same number for each position."""
    problem = problem_of(Sizes(20, 16, 16, 40), beta=beta)
    one, each = (at(problem, np.full(count, 0.7, np.float32)) for count in (1, 20))
    upstream = upstream_of(each)
    of_one, of_each = (
        {**launched_forward(given), **launched_backward(given, upstream, Launch(cores=1))} for given in (one, each)
    )
    assert all(of_one[name].tobytes() == of_each[name].tobytes() for name in of_one)
    check_forward(one)


@pytest.mark.parametrize("beta", BETAS)
def test_a_power_of_two_is_that_number(beta: float) -> None:
    """A power of two has an exact inverse: the results are those of the constant."""
    problem = problem_of(Sizes(20, 16, 16, 40), beta=beta)
    number, tensor = at(problem, 0.5), at(problem, np.full(20, 0.5, np.float32))
    of_number, of_tensor = (launched_forward(given) for given in (number, tensor))
    for name in of_number:
        assert np.any(of_number[name] != 0.0) or name == "moment"
        assert of_number[name].tobytes() == of_tensor[name].tobytes(), name


@pytest.mark.parametrize("beta", BETAS)
def test_other_temperatures_are_no_numbers(beta: float) -> None:
    """A position becomes NaN where its temperature is outside of the range; an ignored position may have any."""
    problem = problem_of(Sizes(9, 16, 16, 40), beta=beta)
    labels = np.full(9, 3, np.int32)
    labels[7:] = problem.ignore_index
    problem = replace(problem, labels=labels, row_weight=None)
    expected = launched_forward(at(problem, np.ones(9, np.float32)))
    temperature = np.array([1.0, *OUTSIDE, 0.0, np.nan], np.float32)
    is_nan = np.isin(np.arange(9), np.arange(1, 7))
    for options in ({}, {"memory_limit": 0}) if beta == 0.5 else ({},):
        results = launched_forward(at(problem, temperature), **options)
        for name in set(results) - {"moment"} if beta == 0.0 else results:
            np.testing.assert_array_equal(np.isnan(results[name]), is_nan, err_msg=name)
            np.testing.assert_allclose(results[name][~is_nan], expected[name][~is_nan], rtol=1e-6, atol=1e-6)
    upstream = upstream_of(at(problem, np.ones(9, np.float32)))
    gradients = launched_backward(at(problem, temperature), upstream)
    np.testing.assert_array_equal(np.isnan(gradients["input"]).all(axis=1), is_nan)
    np.testing.assert_array_equal(np.isnan(gradients["input"]).any(axis=1), is_nan)
    assert np.all(gradients["input"][7:] == 0.0)
    temperature[1:7] = 1.0
    gradients = launched_backward(at(problem, temperature), upstream)
    assert all(np.isfinite(values).all() and np.any(values != 0.0) for values in gradients.values())


REFUSED = (
    Refusal(
        "both temperatures",
        "temperature must be 1.0 beside temperature_hbm, got 2.0; pass one of them",
        {"temperature": 2.0, "temperature_hbm": np.ones(3, np.float32)},
    ),
    Refusal(
        "length of the temperatures",
        "temperature_hbm must have shape (3,), got (2,); flatten it as the positions",
        {"temperature_hbm": np.ones(2, np.float32)},
    ),
    Refusal(
        "type of the temperature",
        "temperature_hbm must be float32, got float16; cast it",
        {"temperature_hbm": np.ones(1, np.float16)},
    ),
)


@parametrized(REFUSED, PAIR_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
