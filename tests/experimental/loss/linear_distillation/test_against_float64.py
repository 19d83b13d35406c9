# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results of any shape, type and option are within derived bounds of float64, and wrong results are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem

from .pair_checks import (
    RESULTS,
    Launch,
    check_backward,
    check_forward,
    check_mixture,
    check_wrong_results_are_told,
    gradient_errors,
    in_layouts,
    launched_backward,
    upstream_of,
)
from .pair_inputs import BF16, FP16, FP32, PROBLEMS, Sizes, pair_of

TYPES = st.sampled_from((BF16, FP16, FP32))
LAYOUTS = st.sampled_from(("vd", "dv"))
BETAS = (0.0, 0.5, 1.0)
MIXED = (1e-3, 0.3, 0.5, 1.0 - 1e-3)
ALL_BETAS = (0.0, *MIXED, 1.0)


@st.composite
def options_of(draw: st.DrawFn) -> dict[str, Any]:
    """Types and options of a problem."""
    results: dict[str, Any] = {"dtype": draw(TYPES), "teacher_dtype": draw(TYPES), "with_bias": draw(st.booleans())}
    results["temperature"] = draw(st.sampled_from((1.0, 0.1, 0.7, 3.0, 20.0)))
    if draw(st.booleans()):
        results["logit_scale"] = draw(st.sampled_from((0.25, 1.5)))
    if draw(st.booleans()):
        results["logit_softcap"] = draw(st.sampled_from((3.0, 30.0)))
    return results


@st.composite
def problems(draw: st.DrawFn, betas: tuple[float, ...] = ALL_BETAS) -> PairProblem:
    """Problems of any kind."""
    sizes = Sizes(
        draw(st.integers(1, 200)), draw(st.integers(16, 150)), draw(st.integers(16, 150)), draw(st.integers(1, 700))
    )
    kind = draw(st.sampled_from(sorted(PROBLEMS)))
    options = {**draw(options_of()), "beta": draw(st.sampled_from(betas))}
    problem = PROBLEMS[kind](sizes, draw(st.integers(0, 99)), options)
    teacher_cap = draw(st.sampled_from((None, 5.0)))
    if kind not in ("equal teacher", "near teacher") and teacher_cap is not None:
        problem = replace(problem, teacher=replace(problem.teacher, logit_softcap=teacher_cap))
    if draw(st.booleans()):
        problem = replace(problem, labels=None)
    if draw(st.booleans()):
        problem = replace(problem, row_weight=None)
    return in_layouts(problem, draw(LAYOUTS), draw(LAYOUTS))


launches = st.builds(
    Launch,
    cores=st.sampled_from((1, 2)),
    position_block=st.sampled_from((None, 128)),
    class_block=st.sampled_from((None, 128, 256)),
    compute_dtype=st.sampled_from((None, None, BF16, FP16, FP32)),
)


@settings(max_examples=14)
@given(problem=problems(), launch=launches)
def test_forward_is_within_its_bounds(problem: PairProblem, launch: Launch) -> None:
    check_forward(problem, launch)


@settings(max_examples=14)
@given(problem=problems(), launch=launches)
def test_backward_is_within_its_bounds(problem: PairProblem, launch: Launch) -> None:
    check_backward(problem, launch)


@settings(max_examples=10)
@given(problem=problems(betas=MIXED), launch=launches)
def test_sums_of_a_mixture_are_within_their_bounds(problem: PairProblem, launch: Launch) -> None:
    check_mixture(problem, launch)


@settings(max_examples=6)
@given(problem=problems(betas=MIXED), launch=launches)
def test_products_that_run_twice_are_within_the_same_bounds(problem: PairProblem, launch: Launch) -> None:
    check_forward(problem, launch, memory_limit=0)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_wrong_results_are_reported(beta: float, dtype: np.dtype[Any]) -> None:
    problem = pair_of(Sizes(60, 40, 56, 300), dtype=dtype, beta=beta, temperature=0.7)
    problem = replace(problem, labels=np.maximum(problem.labels, 0))
    names = RESULTS if beta > 0.0 else tuple(name for name in RESULTS if name != "moment")
    check_wrong_results_are_told(check_forward(problem), problem, (*names, "logprob", "target_logit"))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_wrong_gradients_are_reported(beta: float, dtype: np.dtype[Any]) -> None:
    problem = pair_of(Sizes(40, 40, 56, 40), dtype=dtype, beta=beta, temperature=0.7, with_bias=True)
    upstream = upstream_of(problem, with_logprob=False)
    results = launched_backward(problem, upstream)
    assert max(gradient_errors(results, problem, upstream).values()) <= 1.0
    # N, Ds and V are alike, so that a transposed result has the shape of the right one.
    for change in (np.zeros_like, np.negative, lambda item: item.T if item.ndim == 2 else item[::-1]):
        wrong = gradient_errors({name: change(value) for name, value in results.items()}, problem, upstream)
        assert min(wrong.values()) > 2.0, wrong


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("beta", BETAS)
def test_backward_of_hard_inputs(kind: str, beta: float) -> None:
    for temperature in (0.1, 1.0, 20.0):
        sizes = Sizes(40, 32, 48, 310)
        check_backward(PROBLEMS[kind](sizes, 3, {"beta": beta, "temperature": temperature, "dtype": BF16}))


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("beta", BETAS)
def test_forward_of_hard_inputs(kind: str, beta: float) -> None:
    for temperature in (0.1, 1.0, 20.0):
        sizes = Sizes(40, 32, 48, 310)
        check_forward(PROBLEMS[kind](sizes, 3, {"beta": beta, "temperature": temperature, "dtype": BF16}))


@pytest.mark.parametrize("beta", BETAS)
def test_the_divergence_from_an_equal_teacher_is_nothing(beta: float) -> None:
    for dtype in (BF16, FP32):
        problem = PROBLEMS["equal teacher"](Sizes(40, 64, 64, 500), 0, {"beta": beta, "dtype": dtype})
        results = check_forward(replace(problem, row_weight=None))
        assert float(results["divergence"].max()) <= 1e-6 and float(results["divergence"].min()) >= 0.0
        assert float(np.abs(results["moment"]).max()) <= 1e-6


def test_a_class_that_is_masked_in_one_model_alone_makes_a_divergence_infinite() -> None:
    for beta, name in ((0.0, "student"), (1.0, "teacher")):
        problem = pair_of(Sizes(20, 32, 32, 100), beta=beta)
        bias = np.zeros(100, np.float32)
        bias[7] = -np.inf
        model = replace(getattr(problem, name), bias=bias)
        problem = replace(problem, **{name: model}, labels=np.arange(10, 30, dtype=np.int32))
        results = check_forward(problem)
        assert np.isposinf(results["divergence"]).all()
        for other in set(results) - {"divergence", "moment"}:
            assert np.isfinite(results[other]).all(), other


@pytest.mark.parametrize("cap", (None, 5.0))
def test_the_gradient_of_a_class_that_only_the_student_masks_is_that_of_its_formula(cap: float | None) -> None:
    """Q - P is -P for it; under a softcap, whose derivative is 0 there, nothing."""
    problem = pair_of(Sizes(20, 32, 32, 100), logit_softcap=cap)
    bias = np.zeros(100, np.float32)
    bias[7] = -np.inf
    problem = replace(problem, student=replace(problem.student, bias=bias), labels=None, row_weight=None)
    upstream = upstream_of(problem)
    results = launched_backward(problem, upstream)
    assert max(gradient_errors(results, problem, upstream).values()) <= 1.0
    assert (results["bias"][7] < 0.0) if cap is None else results["bias"][7] == 0.0
