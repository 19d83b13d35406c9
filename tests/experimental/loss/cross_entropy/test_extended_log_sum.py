# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``with_log_sum``: maximum and log-sum apart, so that neither shards nor gradients are off by the rounding of lse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss import extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.host.bounds import (
    FORWARD_UNITS,
    bfloat16_allowance,
    error_over_bound,
)
from nkilib.experimental.loss.cross_entropy.host.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)

from .extended_checks import Array, Launch, Upstream, backward, forward
from .loss_inputs import BF16, FP32, normal_batch
from .test_extended_accuracy import OPTIONS, options_of, probabilities, upstream_of, with_ignored

POSITIONS, VOCABULARY = 9, 60
SHARDS = [(0, 25), (25, 26), (26, 60)]
OFFSET = 4096.0  # a unit of float32 there is 2^-11: a log-sum-exp keeps nothing of a loss below that


def _inputs(dtype: Any) -> tuple[Array, Array]:
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    return (logits + OFFSET).astype(dtype), targets


def _maximum_and_log_sum(logits: Array, targets: Array, dtype: Any, **more: Any) -> tuple[Array, Array]:
    arguments = Launch(dtype, 2, 4, min(20, logits.shape[1]))
    results = extended_cross_entropy_forward[arguments.cores](
        logits,
        targets,
        positions_per_batch=arguments.positions_per_batch,
        chunk_size=arguments.chunk_size,
        dtype=dtype,
        with_log_sum=True,
        **more,
    )
    assert [result.dtype for result in results[-2:]] == [np.float32, np.float32]
    return results[-2], results[-1]


@pytest.mark.parametrize("more", [{}, {"with_argmax": True, "with_entropy": True, "with_distance_sum": True}])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_they_are_the_maximum_and_the_log_of_the_sum(dtype: Any, more: dict[str, Any]) -> None:
    logits, targets = _inputs(dtype)
    maximum, log_sum = _maximum_and_log_sum(logits, targets, dtype, **more)
    z = logits.astype(np.float64)
    np.testing.assert_array_equal(maximum, z.max(axis=1))
    exact = np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(log_sum, exact, rtol=0.0, atol=FORWARD_UNITS * UNIT * max(1.0, np.log(VOCABULARY)))


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_shards_keep_the_digits_of_large_logits(dtype: Any) -> None:
    logits, targets = _inputs(dtype)
    z = logits.astype(np.float64)
    parts = [
        _maximum_and_log_sum(logits[:, a:b].copy(), targets, dtype, first_class=a, num_classes=VOCABULARY)
        for a, b in SHARDS
    ]
    top = np.max([maximum for maximum, _ in parts], axis=0)
    total = sum(np.exp((maximum - top) + log_sum) for maximum, log_sum in parts)
    exact = np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1))
    # Twice what one shard may be off by: its own log-sum, and the exponential of the combination.
    bound = 2.0 * FORWARD_UNITS * UNIT * np.log(VOCABULARY)
    np.testing.assert_allclose(np.log(total), exact, rtol=0.0, atol=bound)


def test_a_shard_whose_logits_are_all_masked_adds_nothing() -> None:
    logits, targets = _inputs(FP32)
    logits[:, :25] = -np.inf
    maximum, log_sum = _maximum_and_log_sum(logits[:, :25].copy(), targets, FP32, first_class=0, num_classes=VOCABULARY)
    assert np.isfinite(maximum).all() and (np.exp((maximum - 0.0) + log_sum) == 0.0).all()


def _error_over_bound(gradient: Array, logits: Array, targets: Array, upstream: Upstream, options: ExtendedLoss) -> Any:
    """Return a gradient's largest error over the bound of ``gradient_bounds`` without that of a rounded lse."""
    z = options.scores(logits, logits.dtype)
    lse = extended_forward_reference(logits, targets, logits.dtype, options).lse
    more = (upstream.lse, None if targets.ndim == 2 else upstream.logprob)
    exact = extended_backward_reference(
        logits, targets, logits.dtype, options, BackwardInputs(lse, upstream.loss, *more)
    )
    factors = options.factors(targets, VOCABULARY)
    size = np.abs(upstream.loss) * (factors.sum(axis=1) + 2.0 * options.lse_square_scale * np.abs(lse))
    size = (size + sum(np.abs(array) for array in more if array is not None))[:, np.newaxis]
    distance = np.abs(z - lse[:, np.newaxis])
    bound = UNIT * (size * (np.exp(-distance) * (24.0 + distance) + 8.0 * factors) + 8.0 * np.abs(exact))
    bound = bound + SMALLEST_NORMAL + (bfloat16_allowance(exact) if logits.dtype == BF16 else 0.0)
    return error_over_bound(gradient, exact, bound).max()


@pytest.mark.parametrize("is_probable", [False, True])
@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if "logit_softcap" not in option])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_gradients_keep_the_digits_of_large_logits(dtype: Any, name: str, is_probable: bool) -> None:
    logits, targets = _inputs(dtype)
    targets = probabilities(POSITIONS, VOCABULARY) if is_probable else with_ignored(targets)
    options, upstream = options_of(name, VOCABULARY), upstream_of(POSITIONS, "lse" if is_probable else "lse, logprob")
    launch = Launch(dtype, 2, 4, 20)
    results = forward(logits, targets, options, launch, with_log_sum=True)
    apart = {"maximum_hbm": results["maximum"], "log_sum_hbm": results["log_sum"]}
    gradient = backward(logits.copy(), targets, results["lse"], upstream, options, launch, **apart)
    assert _error_over_bound(gradient, logits, targets, upstream, options) <= 1.0
    for wrong in (np.zeros_like(gradient), -gradient, gradient[::-1]):
        assert _error_over_bound(wrong, logits, targets, upstream, options) > 1.0
    if dtype == FP32:
        of_lse = backward(logits.copy(), targets, results["lse"], upstream, options, launch)
        assert _error_over_bound(of_lse, logits, targets, upstream, options) > 10.0, "what the rounded lse loses"


def test_an_infinite_logit_makes_the_row_of_the_gradient_nan() -> None:
    logits, targets = _inputs(FP32)
    logits[1, 4], logits[2], logits[3, 5] = np.inf, -np.inf, np.nan
    launch, options, upstream = Launch(FP32, 2, 4, 20), ExtendedLoss(), Upstream(np.ones(POSITIONS, np.float32))
    results = forward(logits, targets, options, launch, with_log_sum=True)
    apart = {"maximum_hbm": results["maximum"], "log_sum_hbm": results["log_sum"]}
    gradient = backward(logits, targets, results["lse"], upstream, options, launch, **apart)
    assert np.isnan(gradient).all(axis=1).tolist() == [False, True, True, True] + [False] * 5
    assert np.isfinite(gradient[4:]).all()
