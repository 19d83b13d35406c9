# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients beside those of PyTorch, on inputs like those that peers were measured on.

256 positions, 512 features and 4,096 classes, bfloat16, mean over the positions, logits of spread 2: errors against
float64 of the very inputs, of both forms, and of PyTorch with float32 logits, which is what is called accurate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.cross_entropy.host.reference import BackwardInputs
from nkilib.experimental.loss.linear.host.reference import LinearGradients
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)

from .linear_inputs import FP32, Array, Sizes, normal_problem, problem_of

SIZES = Sizes(256, 512, 4096)
# Relative, of the mean; and of the worst row of dW, where the best peer has 4e-3 to 8e-3 and the others 3e-2.
OF_LOSS, OF_WORST_ROW = 1e-6, 5e-3
KINDS = ("normal", "half at 0.999")
FORMS = ("two launches", "one launch")


@dataclass(frozen=True)
class Computed:
    """The mean loss, and its gradients."""

    loss: float
    input: Array
    weight: Array

    def errors(self, expected: Computed) -> Errors:
        """Against the reference."""
        worst = np.linalg.norm(self.weight - expected.weight, axis=1) / np.linalg.norm(expected.weight, axis=1)
        return Errors(
            abs(self.loss - expected.loss) / expected.loss,
            _relative(self.input, expected.input),
            _relative(self.weight, expected.weight),
            float(worst.max()),
        )


@dataclass(frozen=True)
class Errors:
    """Relative: of the loss, of gradients in norm, of the worst row of dW."""

    loss: float
    input: float
    weight: float
    worst_row: float


def _relative(result: Array, expected: Array) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


@cache
def problem(kind: str) -> LinearProblem:
    """Return the inputs of a kind."""
    return problem_of(kind, SIZES)


@cache
def expected(kind: str) -> Computed:
    """Compute loss and gradients in float64."""
    inputs, scale = problem(kind), 1.0 / SIZES.positions
    forward = linear_forward_reference(inputs)
    result = linear_backward_reference(inputs, BackwardInputs(forward.lse, np.full(SIZES.positions, scale)))
    return Computed(float(forward.loss.mean()), result.input, result.weight)


@cache
def computed(kind: str, form: str) -> Computed:
    """Compute loss and gradients by the kernels, with the default tiling on two cores."""
    inputs, scale = problem(kind), 1.0 / SIZES.positions
    operands = inputs.input, inputs.weight, inputs.targets
    if form == "one launch":
        loss, _, *gradients = linear_cross_entropy_forward_backward[2](*operands, grad_scale=scale)
    else:
        loss, lse = linear_cross_entropy_forward[2](*operands)
        upstream = np.full(SIZES.positions, scale, np.float32)
        gradients = linear_cross_entropy_backward[2](*operands, lse, upstream)
    result = LinearGradients(*(np.asarray(gradient, np.float64) for gradient in gradients), np.zeros(0))
    return Computed(float(np.asarray(loss, np.float64).mean()), result.input, result.weight)


@cache
def of_torch(kind: str) -> Computed:
    """Compute loss and gradients in PyTorch, with bfloat16 products whose logits become float32 for the loss."""
    import torch
    import torch.nn.functional as F

    inputs = problem(kind)
    x, w = (_leaf(values) for values in (inputs.input, inputs.weight))
    loss = F.cross_entropy(F.linear(x, w).float(), torch.from_numpy(inputs.targets).long())
    loss.backward()  # type: ignore[no-untyped-call]
    return Computed(loss.item(), x.grad.double().numpy(), w.grad.double().numpy())


def _leaf(values: Array) -> Any:
    import torch

    return torch.from_numpy(values.astype(np.float32)).bfloat16().requires_grad_()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_float32_logits_and_less(kind: str, form: str) -> None:
    errors, usual = computed(kind, form).errors(expected(kind)), of_torch(kind).errors(expected(kind))
    assert errors.loss <= OF_LOSS
    assert errors.input <= usual.input and errors.weight <= usual.weight
    assert errors.worst_row <= OF_WORST_ROW < usual.worst_row


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_have_the_same_accuracy(kind: str) -> None:
    two, one = (computed(kind, form).errors(expected(kind)) for form in FORMS)
    assert one.input == pytest.approx(two.input, rel=0.05)
    assert one.weight == pytest.approx(two.weight, rel=0.05)


def test_float32_with_steep_logits() -> None:
    """Standard normal operands: logits of spread 22, up to 90. The page says what their float32 errors come from."""
    sizes = Sizes(64, 512, 1024, FP32)
    inputs = normal_problem(sizes, np.random.default_rng(0), spread=float(np.sqrt(sizes.features)))
    upstream = np.full(sizes.positions, 1.0 / sizes.positions, np.float32)
    _, lse = linear_cross_entropy_forward[2](inputs.input, inputs.weight, inputs.targets)
    results = linear_cross_entropy_backward[2](inputs.input, inputs.weight, inputs.targets, lse, upstream)
    of_exact_lse = BackwardInputs(linear_forward_reference(inputs).lse, upstream)
    exact, bounds = linear_gradients_and_bounds(inputs, of_exact_lse)
    for name, values in zip(("input", "weight"), results, strict=False):
        right = np.asarray(values, np.float64)
        reference_of_it, allowed = getattr(exact, name), getattr(bounds, name)
        assert (np.abs(right - reference_of_it) <= allowed).all(), name
        for wrong in (0.0 * right, -right, right[::-1]):
            assert (np.abs(wrong - reference_of_it) > allowed).mean() > 0.5, name


def test_wrong_results_have_errors() -> None:
    right, exact = computed("normal", FORMS[0]), expected("normal")
    for wrong in (
        Computed(0.0, 0.0 * right.input, 0.0 * right.weight),
        Computed(-right.loss, -right.input, -right.weight),
        Computed(2.0 * right.loss, right.input[::-1], right.weight[::-1]),
    ):
        errors = wrong.errors(exact)
        assert min(errors.loss, errors.input, errors.weight, errors.worst_row) > 0.5
