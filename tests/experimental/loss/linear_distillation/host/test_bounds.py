# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The derived bounds hold for logits that are off by what a product may be off by, and refuse wrong results."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.reference import Float64Array
from nkilib.experimental.loss.linear.reference import LinearGradients, logit_bounds
from nkilib.experimental.loss.linear_distillation.host.bounds import (
    StatisticsErrors,
    mixture_bounds,
    pair_forward_bounds,
    pair_gradients_and_bounds,
)
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ExactResults,
    ModelProblem,
    PairProblem,
    PairUpstream,
    mixture_reference,
    pair_backward_reference,
    pair_forward_reference,
)

from ..pair_inputs import BF16, FP16, pair_of

BETAS = (0.0, 1e-3, 0.3, 1.0 - 1e-3, 1.0)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"with_bias": True, "temperature": 0.5, "logit_softcap": 4.0, "logit_scale": 0.7},
    {"dtype": BF16, "temperature": 3.0, "logit_scale": 2.0},
)


class OffModel(ModelProblem):
    """A model of which every product is off by what it may be off by, either way."""

    def logits_of(self, rows: slice, weight: Float64Array) -> Float64Array:
        exact = super().logits_of(rows, weight)
        signs = np.random.default_rng(rows.start + len(weight[0])).choice((-1.0, 1.0), exact.shape)
        return np.asarray(exact + signs * logit_bounds(ModelProblem(self.input, self.weight, self.bias), rows, weight))


def _off(problem: PairProblem) -> PairProblem:
    """The problem with both models off."""
    student, teacher = (
        OffModel(**{field.name: getattr(model, field.name) for field in fields(ModelProblem)})
        for model in (problem.student, problem.teacher)
    )
    return replace(problem, student=student, teacher=teacher)


def _upstream(problem: PairProblem, results: ExactResults) -> PairUpstream:
    of_divergence, of_logprob = np.random.default_rng(2).standard_normal((2, problem.num_positions))
    return PairUpstream.of_results(results, of_divergence, of_logprob)


def _worst(float64array: Float64Array, exact: Float64Array, bound: Float64Array) -> float:
    return float((np.abs(float64array - exact) / bound).max())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_results_of_products_that_are_off_are_within_bounds(beta: float, options: dict[str, Any]) -> None:
    problem = pair_of(beta=beta, **options)
    exact, result = pair_forward_reference(problem), pair_forward_reference(_off(problem))
    bounds = pair_forward_bounds(problem)
    for field in fields(ExactResults):
        value, error = getattr(exact, field.name), bounds[field.name]
        assert _worst(getattr(result, field.name), value, error) < 1.0 + 1e-9, field.name
        if np.any(value):
            assert _worst(0.0 * value, value, error) > 1.0, field.name
            assert _worst(-value, value, error) > 1.0, field.name


@pytest.mark.parametrize("beta", BETAS[1:4])
def test_sums_of_a_mixture_are_within_bounds(beta: float) -> None:
    problem = pair_of(beta=beta, with_bias=True, temperature=0.7)
    statistics = pair_forward_reference(problem)
    exact, results = mixture_reference(problem, statistics), mixture_reference(_off(problem), statistics)
    for value, other, error in zip(exact, results, mixture_bounds(problem, statistics), strict=True):
        assert _worst(other, value, error) < 1.0
        assert _worst(0.0 * value, value, error) > 1.0


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_gradients_of_products_that_are_off_are_within_bounds(beta: float, options: dict[str, Any]) -> None:
    problem = pair_of(beta=beta, **options)
    statistics = pair_forward_reference(problem)
    upstream = _upstream(problem, statistics)
    exact, bounds = pair_gradients_and_bounds(problem, upstream)
    results = pair_backward_reference(_off(problem), upstream)
    for value, other, error in zip(exact, results, bounds, strict=True):
        assert _worst(other, value, error) < 1.0
    off = pair_forward_reference(_off(problem))
    errors = StatisticsErrors.of_forward(pair_forward_bounds(problem))
    _, bounds = pair_gradients_and_bounds(problem, upstream, errors=errors)
    results = pair_backward_reference(_off(problem), _upstream(problem, off))
    for value, other, error in zip(exact, results, bounds, strict=True):
        assert _worst(other, value, error) < 1.0


@pytest.mark.parametrize("beta", BETAS)
def test_gradients_beside_bounds_are_those_of_the_reference_to_the_bit(beta: float) -> None:
    problem = pair_of(beta=beta, **OPTIONS[1])
    upstream, classes = _upstream(problem, pair_forward_reference(problem)), slice(20, 60)
    exact, _ = pair_gradients_and_bounds(problem, upstream, classes)
    for value, other in zip(exact, pair_backward_reference(problem, upstream, classes), strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("beta", BETAS)
def test_wrong_gradients_are_refused(beta: float) -> None:
    problem = pair_of(beta=beta, dtype=BF16)
    problem = replace(problem, student=replace(problem.student, input=problem.student.input[:24]))
    problem = replace(problem, teacher=replace(problem.teacher, input=problem.teacher.input[:24]))
    problem = replace(problem, labels=problem.labels[:24], row_weight=problem.row_weight[:24])
    upstream = _upstream(problem, pair_forward_reference(problem))
    upstream = replace(upstream, grad_logprob=None)
    exact, bounds = pair_gradients_and_bounds(problem, upstream)
    for wrong in (
        LinearGradients(*(0.0 * item for item in exact)),
        LinearGradients(*(-item for item in exact)),
        LinearGradients(exact.input.T, exact.weight[::-1], exact.bias[::-1]),
    ):
        for value, other, error in zip(exact, wrong, bounds, strict=True):
            assert _worst(other, value, error) > 2.0


def test_gradients_of_float16_keep_what_underflows() -> None:
    """The bound has half of the spacing of float16 subnormals, relative to the largest coefficient's power of two."""
    problem = pair_of(dtype=FP16)
    upstream = _upstream(problem, pair_forward_reference(problem))
    half, single = (pair_gradients_and_bounds(problem, upstream, input_dtype=item)[1] for item in (FP16, np.float32))
    assert (half.input > single.input + 2.0**-26).all()
