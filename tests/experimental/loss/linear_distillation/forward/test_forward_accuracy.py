# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors of the forward at the size of real models: in norm over the positions, against float64 of the same inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem, pair_forward_reference

from ..host.pairs import BF16, Sizes, pair_of
from ..pair_checks import Array, Launch, launched_forward


def normal(sizes: Sizes, beta: float) -> PairProblem:
    """X ~ N(0, 1), and logits of the student with a deviation of 2, of the teacher with one of 2.5."""
    return replace(pair_of(sizes, dtype=BF16, beta=beta), labels=None, row_weight=None)


def error(result: Array, exact: Array) -> float:
    """Return the relative error in norm over the positions."""
    return float(np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(("sizes", "beta"), [(Sizes(1024, 1024, 1024, 4096), 1.0), (Sizes(256, 256, 512, 5003), 0.0)])
def test_of_a_vocabulary_of_some_thousand_classes(sizes: Sizes, beta: float) -> None:
    """The first one has so long products that the cores share classes."""
    problem = normal(sizes, beta)
    results, exact = launched_forward(problem), pair_forward_reference(problem)
    assert error(results["divergence"], exact.divergence) <= 4.5e-7
    assert error(results["entropy"], exact.entropy) <= 1.5e-7


@pytest.mark.sweep
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_of_a_large_vocabulary(beta: float) -> None:
    problem = normal(Sizes(1024, 1024, 2048, 32_000), beta)
    results, exact = launched_forward(problem), pair_forward_reference(problem)
    assert error(results["divergence"], exact.divergence) <= 5e-7
    assert error(results["entropy"], exact.entropy) <= 1e-7


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_of_a_near_teacher(beta: float) -> None:
    """Each weight is 1% off: the divergence is 1e-4, of log-sum-exps of 10, and as wrong as a float32 number near 1."""
    problem = normal(Sizes(200, 128, 128, 3000), beta)
    noise = 1.0 + 0.01 * np.random.default_rng(1).standard_normal(problem.student.weight.shape)
    weight = (problem.student.weight.astype(np.float64) * noise).astype(BF16)
    problem = replace(problem, teacher=replace(problem.student, weight=weight))
    results, exact = launched_forward(problem), pair_forward_reference(problem)
    assert 5e-5 <= exact.divergence.mean() <= 1e-3
    assert np.abs(results["divergence"].astype(np.float64) - exact.divergence).max() <= 2.5e-7


def test_of_temperatures() -> None:
    problem = normal(Sizes(130, 128, 256, 2000), 1.0)
    for temperature in (0.1, 0.5, 5.0, 20.0):
        models = [replace(model, temperature=temperature) for model in (problem.student, problem.teacher)]
        item = replace(problem, student=models[0], teacher=models[1])
        results, exact = launched_forward(item, Launch(cores=1)), pair_forward_reference(item)
        # A divergence at a high temperature is a small difference of logs.
        np.testing.assert_allclose(
            results["divergence"], exact.divergence, rtol=5e-6 / min(temperature, 1.0), atol=2e-7
        )
