# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The errors of distillation from hidden states stay where they are: at the rounding of float32 and of bfloat16."""

from __future__ import annotations

import pytest

from benchmarks.linear_distillation_errors import LARGE, Errors, Sizes, errors_of, problem_of

# G, and dX or dW, are rounded to bfloat16 once each: 2.30e-3 and 2.36e-3 in norm, for so many positions that it evens
# out, and to three digits.
INPUT, WEIGHT, WORST_ROW = 2.305e-3, 2.365e-3, 4.6e-3
OF_FEW = 1.05


def _check(errors: Errors, divergence: float, factor: float = 1.0) -> None:
    assert 0.0 < errors.divergence <= divergence
    assert errors.entropy <= 1e-7
    assert errors.input is not None and errors.weight is not None and errors.worst_row is not None
    assert 1e-3 < errors.input <= factor * INPUT and 1e-3 < errors.weight <= factor * WEIGHT
    assert errors.worst_row <= WORST_ROW


@pytest.mark.parametrize("beta", (0.0, 0.5, 1.0))
def test_errors_of_a_few_thousand_classes(beta: float) -> None:
    _check(errors_of(problem_of(Sizes(128, 128, 256, 4096), beta)), 4.5e-7, OF_FEW)


def test_errors_of_a_near_teacher_are_absolute_ones_of_float32() -> None:
    """A KL of 2e-4 is a difference of logs of 10, and its error some 1e-7; a mixture's has no such difference."""
    sizes = Sizes(128, 128, 128, 4096)
    assert errors_of(problem_of(sizes, 1.0, is_near=True), with_gradients=False).divergence <= 1e-3
    assert errors_of(problem_of(sizes, 0.5, is_near=True), with_gradients=False).divergence <= 2e-4


@pytest.mark.sweep
@pytest.mark.parametrize("beta", (0.0, 0.5, 1.0))
def test_errors_of_a_large_vocabulary(beta: float) -> None:
    _check(errors_of(problem_of(LARGE, beta)), 5e-7)
