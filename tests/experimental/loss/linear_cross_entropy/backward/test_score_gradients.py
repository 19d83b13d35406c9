# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gradients of log-probabilities and entropies, as trainers ask for them: how large their errors are, and their bias.

X ~ N(0, 1), W ~ N(0, (2.5 / sqrt D)^2), uniform targets, upstream gradients N(0, 1) of the log-probability and a tenth
of that of the entropy; the reference is float64 of the very inputs. A gradient of bfloat16 products is rounded twice,
each tile of the logits' gradient and the result, by 1.7e-3 of itself each in norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import linear_cross_entropy_backward
from nkilib.experimental.loss.cross_entropy.host.reference import BackwardInputs
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    linear_backward_reference,
    linear_forward_reference,
)
from tests.experimental.loss.linear_cross_entropy.linear_inputs import BF16, FP32, Array, Sizes, normal_problem

# Of dX and dW: in norm and of the worst row, relative, at the size that peers were measured at. The best of them has
# 2.33e-3 and 4.3e-3 of dW there; at most 1.01 and 1.1 of that.
LARGE = Sizes(2048, 2048, 32000)
OF_INPUT, OF_WEIGHT = (2.35e-3, 4.5e-3), (1.01 * 2.33e-3, 1.1 * 4.3e-3)
# Of few positions and classes a sum has fewer terms, and what they are rounded by is less equal.
SMALL, OF_SMALL = Sizes(256, 256, 2000), (2.45e-3, 5.0e-3)
OF_FLOAT32 = 1.8e-3
BATCHES, STANDARD_ERRORS = 64, 4.0
BIAS = {BF16: 1e-4, FP32: 1e-6}

Gradients = dict[str, Array]


def gradients(sizes: Sizes, seed: int, *, unrounded: bool = False) -> tuple[Gradients, Gradients]:
    """Return the gradients of a launch, and those of the reference."""
    rng = np.random.default_rng(seed)
    problem = normal_problem(sizes, rng, spread=2.5)
    of_logprob = rng.standard_normal(sizes.positions).astype(np.float32)
    of_entropy = (0.1 * rng.standard_normal(sizes.positions)).astype(np.float32)
    forward = linear_forward_reference(problem)
    further: dict[str, Any] = {}
    if unrounded:
        further["grad_weight_sum_hbm"] = np.zeros(problem.weight.shape, np.float32)
    results = linear_cross_entropy_backward[2](
        problem.input,
        problem.weight,
        problem.targets,
        forward.lse.astype(np.float32),
        None,
        grad_logprob_hbm=of_logprob,
        entropy_hbm=forward.entropy.astype(np.float32),
        grad_entropy_hbm=of_entropy,
        grad_input_float32=unrounded,
        **further,
    )
    nothing = np.zeros(sizes.positions, np.float32)
    inputs = BackwardInputs(forward.lse, nothing, None, of_logprob, forward.entropy, of_entropy)
    expected = linear_backward_reference(problem, inputs)
    names = ("input", "weight")
    return (
        {name: np.asarray(result, np.float64) for name, result in zip(names, results, strict=True)},
        {name: getattr(expected, name) for name in names},
    )


def errors(result: Array, expected: Array) -> tuple[float, float]:
    """Relative: in norm, and of the worst row."""
    off = result - expected
    worst = np.linalg.norm(off, axis=1) / np.linalg.norm(expected, axis=1)
    return float(np.linalg.norm(off) / np.linalg.norm(expected)), float(worst.max())


def biases(sizes: Sizes) -> Iterator[tuple[str, float, float]]:
    """The mean over the batches of the error along each gradient, relative, and its standard error."""
    shares: dict[str, list[float]] = {}
    for seed in range(BATCHES):
        result, expected = gradients(sizes, seed)
        for name, exact in expected.items():
            along = float(((result[name] - exact) * exact).sum() / np.square(exact).sum())
            shares.setdefault(name, []).append(along)
    for name, values in shares.items():
        yield name, float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(BATCHES))


def test_errors_are_those_of_two_roundings() -> None:
    result, expected = gradients(SMALL, 0)
    for name, exact in expected.items():
        norm, worst = errors(result[name], exact)
        assert norm <= OF_SMALL[0] and worst <= OF_SMALL[1], (name, norm, worst)
        for wrong in (0.0 * exact, -exact, np.roll(exact, 1, axis=0)):
            assert errors(wrong, exact)[0] > 0.5


def test_errors_of_unrounded_gradients_are_those_of_one() -> None:
    result, expected = gradients(SMALL, 0, unrounded=True)
    for name, exact in expected.items():
        assert errors(result[name], exact)[0] <= OF_FLOAT32, name


@pytest.mark.sweep
def test_errors_at_the_size_of_a_model() -> None:
    result, expected = gradients(LARGE, 0)
    for name, (most, worst) in (("input", OF_INPUT), ("weight", OF_WEIGHT)):
        norm, of_row = errors(result[name], expected[name])
        assert norm <= most and of_row <= worst, (name, norm, of_row)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("sizes", [(48, 32, 160), pytest.param((256, 256, 2000), marks=pytest.mark.sweep)], ids=str)
def test_training_has_no_bias(sizes: tuple[int, int, int], dtype: Any) -> None:
    for name, mean, standard_error in biases(Sizes(*sizes, dtype)):
        assert abs(mean) <= max(STANDARD_ERRORS * standard_error, BIAS[dtype]), (name, mean, standard_error)


def test_a_bias_would_be_found() -> None:
    """Rounding towards zero, as bits that are cut off have it, is more than the limit allows."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(BATCHES):
        exact = rng.standard_normal(4000).astype(np.float32)
        cut_off = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
        shares.append(float(((cut_off - exact) * exact).sum() / np.square(exact).sum()))
    standard_error = np.std(shares, ddof=1) / np.sqrt(BATCHES)
    assert abs(np.mean(shares)) > max(STANDARD_ERRORS * standard_error, BIAS[BF16])
