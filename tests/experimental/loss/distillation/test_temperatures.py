# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from logits with a temperature for each position: losses and gradients against float64, temperatures
that are not accepted, and refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation.host import (
    distillation_bound,
    distillation_gradient_bound,
    distillation_gradient_reference,
    distillation_reference,
)
from tests.experimental.loss.distillation.inputs import pair, upstream
from tests.experimental.refusals import DISTILLATION_KERNELS, Kernel, Refusal, assert_refused, parametrized

BETAS = (0.0, 1.0, 0.1)


def _mixed(positions: int) -> Any:
    """Return temperatures from 1e-3 to 1e3, in any order."""
    return np.random.default_rng(positions).permutation(np.geomspace(1e-3, 1e3, positions)).astype(np.float32)


def _pair_of(temperature: Any, classes: int, types: tuple[str, str]) -> tuple[Any, Any]:
    """Draw logits of the size of the temperature in every second row, where a bound tells wrong results."""
    student, teacher = pair(1, (len(temperature), classes))
    size = np.where(np.arange(len(temperature)) % 2 == 0, temperature / 3.0, 1.0)[:, np.newaxis]
    first, second = pair(1, (1, 1), types)
    return (size * student).astype(first.dtype), (size * teacher).astype(second.dtype)


def _launch(student: Any, teacher: Any, temperature: Any, labels: Any = None, cores: int = 2, **options: Any) -> Any:
    given = {"temperature_hbm": temperature, **options}
    results = distillation_forward[cores](student, teacher, labels, **given)
    gradient = distillation_backward[cores](student, teacher, *results[1:], upstream(len(student)), labels, **given)
    return results, gradient


def _assert_within(result: Any, exact: Any, bound: Any) -> None:
    """Assert a result, and that the bound tells wrong ones in every second row."""
    result = np.asarray(result, np.float64).reshape(len(exact), -1)
    exact, bound = exact.reshape(len(exact), -1), bound.reshape(len(exact), -1)
    assert np.all(np.abs(result - exact) <= bound)
    for wrong in (np.zeros_like(exact), -exact):
        assert np.all(np.any(np.abs(wrong - exact) > bound, axis=1)[::2])
    assert np.any(np.abs(np.roll(exact, 1, axis=0) - exact) > bound)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(
    ("types", "cores"),
    [(("float32", "float32"), 1), (("bfloat16", "bfloat16"), 2), (("float16", "float32"), 2)],
)
def test_temperatures_of_positions_within_the_bound(beta: float, types: tuple[str, str], cores: int) -> None:
    temperature = _mixed(33 if cores == 2 else 129)
    student, teacher = _pair_of(temperature, 200, types)
    results, gradient = _launch(student, teacher, temperature, beta=beta, chunk_size=90, cores=cores)
    options = {"beta": beta, "temperature": temperature}
    exact, bound = distillation_reference(student, teacher, **options), distillation_bound(student, teacher, **options)
    _assert_within(results[0], exact, bound)
    grad_loss = upstream(len(student))
    exact = distillation_gradient_reference(student, teacher, grad_loss, **options)
    _assert_within(gradient, exact, distillation_gradient_bound(student, teacher, grad_loss, exact, **options))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("positions", [1, 3])
def test_rows_whose_maximum_comes_late_are_recomputed_at_their_temperature(beta: float, positions: int) -> None:
    temperature = np.array([2.0, 0.25, 8.0], np.float32)[-positions:]
    student, teacher = pair(2, (positions, 1200))
    student[0, 1100], teacher[-1, 900] = 990.0, 930.0
    results, gradient = _launch(student, teacher, temperature, beta=beta)
    options = {"beta": beta, "temperature": temperature}
    exact, bound = distillation_reference(student, teacher, **options), distillation_bound(student, teacher, **options)
    assert np.all(np.abs(results[0] - exact) <= bound)
    assert np.all(exact > 2.0 * bound)
    grad_loss = upstream(positions)
    exact = distillation_gradient_reference(student, teacher, grad_loss, **options)
    bound = distillation_gradient_bound(student, teacher, grad_loss, exact, **options)
    assert np.all(np.abs(gradient - exact) <= bound)


def _flat(launched: tuple[Any, Any]) -> list[Any]:
    results, gradient = launched
    return [*results, gradient]


@pytest.mark.parametrize("beta", BETAS)
def test_one_temperature_of_all_is_that_of_each(beta: float) -> None:
    student, teacher = pair(3, (3, 150))
    of_all, of_each = (_launch(student, teacher, np.full(count, 0.7, np.float32), beta=beta) for count in (1, 3))
    for one, other in zip(_flat(of_all), _flat(of_each), strict=True):
        assert np.any(one != 0.0)
        assert np.array_equal(one, other)


@pytest.mark.parametrize("beta", BETAS)
def test_other_temperatures_are_no_numbers(beta: float) -> None:
    """A row becomes NaN where its temperature is outside of the range; an ignored position may have any."""
    student, teacher = pair(4, (8, 80))
    labels = np.array([1, 1, 1, 1, 1, 1, -100, -100], np.int32)
    temperature = np.array([2.0, 0.0, -1.0, np.inf, np.nan, 1.1e6, 9e-4, np.nan], np.float32)
    is_bad = np.arange(8) % 8 * (labels == 1) > 0
    expected = _launch(student, teacher, np.full(8, 2.0, np.float32), labels, beta=beta)
    results, gradient = _launch(student, teacher, temperature, labels, beta=beta)
    for values, others in ((results[0], expected[0][0]), (results[1], expected[0][1]), (gradient, expected[1])):
        assert np.all(np.isnan(values[is_bad]))
        assert np.array_equal(values[~is_bad], others[~is_bad])
    assert np.all(gradient[labels == -100] == 0.0)
    assert np.any(gradient[0] != 0.0)


_REFUSALS = (
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
        "type of the temperatures",
        "temperature_hbm must be float32, got float16; cast it to float32",
        {"temperature_hbm": np.ones(3, np.float16)},
    ),
    Refusal(
        "type of the temperature",
        "temperature_hbm must be float32, got float16; cast it",
        {"temperature_hbm": np.ones(1, np.float16)},
    ),
)


@parametrized(_REFUSALS, DISTILLATION_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
