# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bounds of plain and extended kernels: their values at points that can be worked out by hand and where a term
vanishes, and what the checks refuse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.bounds import (
    bfloat16_allowance,
    error_over_bound,
    extended_forward_bounds,
    float16_allowance,
    forward_bounds,
    gradient_bound,
    gradient_error_over_bound,
    in_range,
)
from nkilib.experimental.loss.cross_entropy.reference import (
    ExtendedLoss,
    cross_entropy_backward_reference,
    row_statistics,
)

from .loss_inputs import BF16, FP32, normal_batch

U = 2.0**-23


def test_forward_bound_takes_the_largest_of_its_terms() -> None:
    logits = np.zeros((4, 2981), np.float32)  # log d = log 2981 = 8.0000
    logits[1] += 100  # |m| = 100 counts for the LSE only
    logits[2, 1:] = -50  # log d = 0; m - x_target = 50 counts for the loss only
    logits[3, 1:] = -0.5
    logits[3, 2:] = -np.inf
    targets = np.array([0, 0, 1, 1], np.int32)
    loss_bound, lse_bound = forward_bounds(row_statistics(logits, targets, FP32), FP32, FP32)
    log_v = np.log(2981.0)
    np.testing.assert_allclose(loss_bound / (16 * U), [log_v, log_v, 50, 1], rtol=1e-12)
    np.testing.assert_allclose(lse_bound / (16 * U), [log_v, 100, 1, 1], rtol=1e-12)


def test_forward_bound_of_bfloat16_adds_half_an_ulp_for_that_result_only() -> None:
    statistics = row_statistics(np.zeros((1, 16), np.float32), np.zeros(1, np.int32), FP32)
    float32_bound = 16 * U * np.log(16.0)
    ulp = 2.0**-6  # loss and LSE are log 16 = 2.77
    for loss_dtype, lse_dtype in ((BF16, FP32), (FP32, BF16)):
        bounds = forward_bounds(statistics, loss_dtype, lse_dtype)
        for bound, dtype in zip(bounds, (loss_dtype, lse_dtype), strict=True):
            np.testing.assert_allclose(bound, float32_bound + (0.51 * ulp if dtype == BF16 else 0), rtol=1e-12)


def test_gradient_bound_of_float32_by_hand() -> None:
    logits = np.array([np.log([1, 3, 4]), [0, np.log(3), -np.inf]], np.float32)
    lse = np.log(np.array([8, 4], np.float32))
    bound = gradient_bound(logits, np.array([1, 0]), lse, 0.5, FP32, FP32)
    x, log_scale = logits.astype(np.float64), np.log(2.0)
    for row, column, p, at_target in ((0, 0, 1 / 8, 0), (0, 1, 3 / 8, 1), (0, 2, 4 / 8, 0), (1, 0, 1 / 4, 1)):
        of_p = p * (8 + abs(x[row, column] - lse[row]) + lse[row] + log_scale)
        expected = 0.5 * U * (of_p + at_target * 2 * (1 - p)) + 2.0**-126
        assert bound[row, column] == pytest.approx(expected, rel=1e-6)
    assert bound[1, 2] == 2.0**-126


@pytest.mark.parametrize(("dtype", "result_dtype"), [(BF16, BF16), (BF16, FP32), (FP32, BF16)])
def test_gradient_bound_of_bfloat16_adds_half_an_ulp_of_the_exact_value(dtype: Any, result_dtype: Any) -> None:
    logits, targets = normal_batch(3, 5)
    logits = logits.astype(BF16)
    lse = row_statistics(logits, targets, FP32).lse
    inputs = (logits, targets, lse, 1 / 3)
    exact = cross_entropy_backward_reference(logits, targets, lse, "mean", dtype)
    added = gradient_bound(*inputs, dtype, result_dtype) - gradient_bound(*inputs, FP32, FP32)
    np.testing.assert_allclose(added, bfloat16_allowance(exact), rtol=1e-3)


@pytest.mark.parametrize(
    ("exact", "ulp"),
    [(1.0, 2.0**-7), (1.999, 2.0**-7), (-2.0, 2.0**-6), (0.75, 2.0**-8), (0.0, 2.0**-133), (1e-40, 2.0**-133)],
)
def test_bfloat16_allowance(exact: float, ulp: float) -> None:
    assert bfloat16_allowance(np.array([exact]))[0] == pytest.approx(0.51 * ulp, rel=1e-15)


def test_rounding_to_bfloat16_stays_within_the_allowance() -> None:
    values = np.random.default_rng(0).standard_normal(10_000) * np.logspace(-39, 38, 10_000)
    error = np.abs(values.astype(BF16).astype(np.float64) - values)
    ratio = error / bfloat16_allowance(values)
    assert 0.95 < ratio.max() <= 1.0
    truncated = (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert (np.abs(truncated - values) / bfloat16_allowance(values)).max() > 1.5, "truncation must not pass"


@pytest.mark.parametrize(
    ("exact", "ulp"),
    [(1.0, 2.0**-10), (-2.0, 2.0**-9), (65504.0, 2.0**5), (2.0**-14, 2.0**-24), (1e-6, 2.0**-24), (0.0, 2.0**-24)],
)
def test_float16_allowance(exact: float, ulp: float) -> None:
    assert float16_allowance(np.array([exact]))[0] == pytest.approx(0.51 * ulp, rel=1e-15)


def test_rounding_to_float16_stays_within_the_allowance_and_its_range() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 10_000) * np.logspace(-9, 4.8, 10_000)
    rounded = values.astype(np.float16).astype(np.float64)
    ratio = error_over_bound(rounded, values, float16_allowance(values))
    assert 0.95 < ratio.max() <= 1.0
    beyond = np.array([65519.9, 65520.0, -65520.0, np.nan])
    np.testing.assert_array_equal(in_range(beyond, np.float16), [65519.9, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(in_range(beyond, FP32), beyond)
    with np.errstate(over="ignore"):
        assert np.isfinite(beyond.astype(np.float16)).tolist() == [True, False, False, False]


def test_non_finite_values_must_agree_in_class() -> None:
    exact = np.array([np.inf, -np.inf, np.nan, np.inf, np.nan, 1.0, 1.0, 1.0, np.nan])
    actual = np.array([np.inf, -np.inf, np.nan, -np.inf, np.inf, np.nan, np.inf, 1.5, 0.0], np.float32)
    ratio = error_over_bound(actual, exact, np.full(9, 0.25))
    np.testing.assert_array_equal(ratio, [0, 0, 0, np.inf, np.inf, np.inf, np.inf, 2.0, np.inf])


def test_another_shape_is_refused() -> None:
    logits, targets = normal_batch(4, 4)
    with pytest.raises(ValueError, match=r"shape of exact, \(4,\), got \(4, 1\)"):
        error_over_bound(np.zeros((4, 1), np.float32), np.zeros(4), np.ones(4))
    with pytest.raises(ValueError, match=r"shape of logits, \(4, 4\), got \(4, 3\)"):
        gradient_error_over_bound(logits[:, :3], logits, targets, np.zeros(4), "mean", FP32)


OPTIONS = ExtendedLoss(lse_square_scale=0.25)


def bounds_of(row: list[float], options: ExtendedLoss) -> dict[str, float]:
    """Return the bounds of one position, whose target is the first class."""
    logits, targets = np.array([row], np.float32), np.zeros(1, np.int32)
    results = extended_forward_bounds(logits, targets, FP32, options)
    return {name: float(values[0]) for name, values in results.items()}


@pytest.mark.parametrize("row", [[0.0], [0.0, -200.0]])
def test_a_log_sum_of_zero_has_a_bound_and_its_square_adds_nothing(row: list[float]) -> None:
    """A bound that is NaN refuses every result."""
    results, without = bounds_of(row, OPTIONS), bounds_of(row, replace(OPTIONS, lse_square_scale=0.0))
    assert np.isfinite(list(results.values())).all()
    assert results["loss"] == without["loss"] > 0.0


@pytest.mark.parametrize("logit", [-3.0, 0.5, 40.0])
def test_the_square_of_the_log_sum_adds_its_errors(logit: float) -> None:
    """scale lse^2: of each factor the error of lse, and four roundings of u each."""
    row = [logit, logit]
    lse = logit + np.log(2.0)
    results, without = bounds_of(row, OPTIONS), bounds_of(row, replace(OPTIONS, lse_square_scale=0.0))
    expected = 0.25 * abs(lse) * (2.0 * results["lse"] + 4.0 * U * abs(lse))
    assert results["loss"] - without["loss"] == pytest.approx(expected, rel=1e-6)
