# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Forward and backward after each other, and both in one launch, on inputs that are hard: within derived bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.host.reference import BackwardInputs
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_forward_reference,
)

from .linear_inputs import BF16, FP16, FP32, PROBLEMS, Array, Sizes, arguments_of, problem_of, with_options

# Ragged in all three dimensions: two tiles of positions, two of features, three of classes.
POSITIONS, FEATURES, CLASSES = 150, 160, 310
FORMS = ("two launches", "one launch")
# Gradients in all types, and both forms in bfloat16; the other combinations are swept.
COMBINED = {("two launches", dtype) for dtype in (BF16, FP16, FP32)} | {("one launch", BF16)}


def _launch(problem: LinearProblem, form: str) -> list[Array]:
    """Loss, lse and all gradients of the mean."""
    operands, scale = (problem.input, problem.weight, problem.targets), 1.0 / POSITIONS
    options = arguments_of(problem)
    if problem.bias is None:
        options["bias_hbm"] = np.zeros(CLASSES, np.float32)
    if form == "one launch":
        results = linear_cross_entropy_forward_backward[2](*operands, grad_scale=scale, **options)
    else:
        loss, lse = linear_cross_entropy_forward[2](*operands, **options)
        upstream = np.full(POSITIONS, scale, np.float32)
        results = (loss, lse, *linear_cross_entropy_backward[2](*operands, lse, upstream, **options))
    return [np.asarray(result) for result in results]


def _ratios(problem: LinearProblem, results: list[Array]) -> list[float]:
    """The worst error of each result over its bound; lse of the gradients is the exact one."""
    forward, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
    upstream = BackwardInputs(forward.lse, np.full(POSITIONS, np.float32(1.0 / POSITIONS)))
    gradients, of_gradients = linear_gradients_and_bounds(problem, upstream)
    exact: list[Any] = [forward.loss, forward.lse, *gradients]
    allowed: list[Any] = [bounds["loss"], bounds["lse"], *of_gradients]
    return [float(error_over_bound(*item).max()) for item in zip(results, exact, allowed, strict=True)]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        pytest.param(form, dtype, id=f"{form}-{dtype}", marks=() if (form, dtype) in COMBINED else pytest.mark.sweep)
        for form in FORMS
        for dtype in (BF16, FP16, FP32)
    ],
)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_errors_are_within_their_bounds(kind: str, form: str, dtype: np.dtype[Any]) -> None:
    layout = "dv" if dtype == FP32 else "vd"
    problem = problem_of(kind, Sizes(POSITIONS, FEATURES, CLASSES, dtype), layout=layout)
    results = _launch(problem, form)
    assert max(_ratios(problem, results)) <= 1.0
    if kind != "all ignored":
        assert min(_ratios(problem, [-result for result in results])) > 1.0
        assert min(_ratios(problem, [0 * result for result in results])) > 1.0


@pytest.mark.parametrize("form", FORMS)
def test_nothing_but_zeros_comes_of_ignored_positions(form: str) -> None:
    loss, lse, *gradients = _launch(problem_of("all ignored", Sizes(POSITIONS, FEATURES, CLASSES)), form)
    assert not loss.any() and np.isfinite(lse).all()
    assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("form", FORMS)
def test_a_masked_class_has_no_gradient_and_takes_no_part(form: str) -> None:
    problem = problem_of("masked classes", Sizes(POSITIONS, FEATURES, CLASSES, FP32))
    assert problem.bias is not None
    masked = np.isneginf(problem.bias)
    weight = problem.weight.copy()
    weight[masked] = 7.0
    other = LinearProblem(problem.input, weight, problem.targets, problem.bias)
    result, of_other = _launch(problem, form), _launch(other, form)
    np.testing.assert_allclose(of_other[0], result[0], rtol=1e-5, atol=1e-6)
    assert not result[3][masked].any() and not result[4][masked].any()


@pytest.mark.parametrize("name", ["softcap", "all"])
@pytest.mark.parametrize("form", FORMS)
def test_masked_classes_have_no_gradient_under_a_cap(form: str, name: str) -> None:
    masks = problem_of("masked classes", Sizes(POSITIONS, FEATURES, CLASSES, FP32))
    problem = replace(with_options(masks, name), bias=masks.bias)
    # A smoothed loss is infinite where a class is masked.
    problem = replace(problem, options=replace(problem.options, label_smoothing=0.0))
    assert problem.bias is not None
    result = _launch(problem, form)
    assert max(_ratios(problem, result)) <= 1.0
    masked = np.isneginf(problem.bias)
    assert not result[3][masked].any() and not result[4][masked].any()
