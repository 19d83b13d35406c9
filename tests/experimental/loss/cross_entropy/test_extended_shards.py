# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Shards of the vocabulary, whose results combine to those of the whole, and targets out of range; ``with_log_sum``:
maximum and log-sum apart, so that neither shards nor gradients are off by the rounding of lse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss import extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.bounds import FORWARD_UNITS, bfloat16_allowance, error_over_bound
from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)

from .extended_checks import Array, Launch, Upstream, backward, check_backward, check_forward, forward
from .loss_checks import names_row_and_target
from .loss_inputs import BF16, FP32, normal_batch
from .test_extended_accuracy import OPTIONS, class_weights, options_of, probabilities, upstream_of, with_ignored

POSITIONS, VOCABULARY = 37, 120
SHARDS = [(0, 50), (50, 51), (51, 120)]


def _inputs() -> tuple[Array, Array]:
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets[:3] = [0, 50, VOCABULARY - 1]
    return logits, with_ignored(targets)


def _part(options: ExtendedLoss, start: int, end: int) -> ExtendedLoss:
    weights = None if options.class_weight is None else options.class_weight[start:end].copy()
    return ExtendedLoss(
        weights, options.ignore_index, options.label_smoothing, options.logit_softcap, options.lse_square_scale
    )


SHARD_OPTIONS = {
    "off": ExtendedLoss(),
    "ignored class": ExtendedLoss(ignore_index=7),
    "smoothing": ExtendedLoss(label_smoothing=0.1),
    "everything": ExtendedLoss(class_weights(VOCABULARY), -100, 0.2, 10.0, 1e-2),
}


def _inputs_for(options: ExtendedLoss) -> tuple[Array, Array]:
    logits, targets = _inputs()
    targets[targets == -100] = options.ignore_index
    return logits, targets


@pytest.mark.parametrize("name", SHARD_OPTIONS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_shards_combine_to_the_whole(dtype: Any, name: str) -> None:
    options = SHARD_OPTIONS[name]
    logits, targets = _inputs_for(options)
    exact = extended_forward_reference(logits, targets, dtype, options)
    launch = Launch(dtype, 2, 8, 1)
    results = [
        forward(
            logits[:, start:end].copy(),
            targets,
            _part(options, start, end),
            Launch(dtype, 2, 8, min(20, end - start)),
            first_class=start,
            num_classes=VOCABULARY,
            with_argmax=True,
            with_entropy=True,
            with_distance_sum=True,
            with_log_sum=True,
        )
        for start, end in SHARDS
    ]
    lse = np.logaddexp.reduce([result["lse"].astype(np.float64) for result in results])
    np.testing.assert_allclose(lse, exact.lse, rtol=1e-5)
    for result in ("target_logit", "position_weight"):
        total = sum(item[result].astype(np.float64) for item in results)
        np.testing.assert_allclose(total, getattr(exact, result), rtol=1e-5, atol=1e-4, err_msg=result)
    weights = options.weights(VOCABULARY)
    maximum, log_sum, distance_sum, entropy = _combined(results, [weights[start:end].sum() for start, end in SHARDS])
    np.testing.assert_allclose(maximum + log_sum, exact.lse, rtol=1e-5)
    np.testing.assert_allclose(distance_sum, exact.distance_sum, rtol=1e-5)
    np.testing.assert_allclose(entropy, exact.entropy, rtol=1e-5)
    for element, (start, end) in zip(results, SHARDS, strict=True):
        kept = (targets >= start) & (targets < end) & (targets != options.ignore_index)
        assert (element["position_weight"][~kept] == 0.0).all() and (element["target_logit"][~kept] == 0.0).all()
        rounded = logits.astype(dtype)[:, start:end]
        np.testing.assert_array_equal(element["argmax"], start + rounded.argmax(axis=1))
    _check_gradients(logits, targets, exact.lse.astype(np.float32), options, launch)


def _combined(results: list[dict[str, Array]], factors: list[Any]) -> tuple[Array, Array, Array, Array]:
    """Combine what the shards return, with the formulas of docs/explanation/cross_entropy_extended.md."""
    parts = [{name: values.astype(np.float64) for name, values in result.items()} for result in results]
    maximum = np.max([part["maximum"] for part in parts], axis=0)
    shares = [np.exp(part["maximum"] - maximum + part["log_sum"]) for part in parts]
    total = sum(shares)
    distance_sum = sum(
        part["distance_sum"] + of_shard * (maximum - part["maximum"])
        for part, of_shard in zip(parts, factors, strict=True)
    )
    terms = [
        share * (part["entropy"] + (maximum - part["maximum"]) - part["log_sum"])
        for part, share in zip(parts, shares, strict=True)
    ]
    return maximum, np.log(total), distance_sum, np.log(total) + sum(terms) / total


def _check_gradients(logits: Array, targets: Array, lse: Array, options: ExtendedLoss, launch: Launch) -> None:
    rng = np.random.default_rng(1)
    loss, of_lse, of_logprob = rng.standard_normal((3, POSITIONS)).astype(np.float32)
    exact = extended_backward_reference(
        logits, targets, launch.dtype, options, BackwardInputs(lse, loss, of_lse, of_logprob)
    )
    weights = options.weights(VOCABULARY)
    valid = options.is_valid(targets)
    array = np.where(valid, weights[np.where(valid, targets, 0)], np.nan).astype(np.float32)
    parts = [
        backward(
            logits[:, start:end].copy(),
            targets,
            lse,
            Upstream(loss, of_lse, of_logprob),
            _part(options, start, end),
            Launch(launch.dtype, 2, 8, min(20, end - start)),
            first_class=start,
            num_classes=VOCABULARY,
            target_weight_hbm=None if options.class_weight is None else array,
            weight_sum=float(weights.sum()),
        )
        for start, end in SHARDS
    ]
    tolerance = 2.0**-8 if launch.dtype == BF16 else 1e-5
    result = np.concatenate([part.astype(np.float64) for part in parts], axis=1)
    np.testing.assert_allclose(result, exact, rtol=tolerance, atol=1e-6)


def test_shards_of_probabilities() -> None:
    logits, _ = _inputs()
    y = np.random.default_rng(2).random((POSITIONS, VOCABULARY)).astype(np.float32)
    options = SHARD_OPTIONS["everything"]
    exact = extended_forward_reference(logits, y, FP32, options)
    loss = np.random.default_rng(1).standard_normal(POSITIONS).astype(np.float32)
    lse = exact.lse.astype(np.float32)
    expected = extended_backward_reference(logits, y, FP32, options, BackwardInputs(lse, loss))
    results = []
    for start, end in SHARDS:
        part = _part(options, start, end)
        launch = Launch(FP32, 2, 8, min(20, end - start))
        shard: dict[str, Any] = {"first_class": start, "num_classes": VOCABULARY}
        own, own_y = logits[:, start:end].copy(), y[:, start:end].copy()
        results.append(
            forward(own, own_y, part, launch, with_distance_sum=True, with_entropy=True, with_log_sum=True, **shard)
        )
        sums = options.factors(y, VOCABULARY).sum(axis=1).astype(np.float32)
        gradient = backward(own, own_y, lse, Upstream(loss), part, launch, target_weight_hbm=sums, **shard)
        np.testing.assert_allclose(gradient, expected[:, start:end], rtol=1e-4, atol=1e-5)
    for result in ("target_logit", "position_weight"):
        total = sum(item[result].astype(np.float64) for item in results)
        np.testing.assert_allclose(total, getattr(exact, result), rtol=1e-5, atol=1e-3, err_msg=result)
    maximum, log_sum, distance_sum, _ = _combined(results, [result["position_weight"] for result in results])
    of_targets = distance_sum + exact.position_weight * log_sum
    np.testing.assert_allclose(of_targets + options.lse_square_scale * (maximum + log_sum) ** 2, exact.loss, rtol=1e-5)


def test_what_is_given_is_not_summed_again() -> None:
    """A weight sum of the whole vocabulary works too: results are as good, class weights are read once less."""
    options = SHARD_OPTIONS["everything"]
    logits, targets = _inputs()
    launch = Launch(FP32, 1, 37, 50)
    lse = check_forward(logits, targets, options, launch)["lse"]
    upstream = Upstream(np.ones(POSITIONS, np.float32))
    read = []
    for more in ({}, {"weight_sum": float(options.weights(VOCABULARY).sum())}):
        with nkilib.simulator.recording() as record:
            check_backward(logits, targets, lse, upstream, options, launch, **more)
        read.append(record.hbm_read_bytes)
    assert read[1] < read[0]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("row", [0, 17, POSITIONS - 1])
@pytest.mark.parametrize("target", [-1, -99, VOCABULARY, 2**30, -(2**30), 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("is_shard", [False, True])
def test_a_target_that_is_no_class_is_refused(is_shard: bool, target: int, row: int, cores: int) -> None:
    logits, targets = _inputs()
    targets[row] = target
    start, end = (51, 100) if is_shard else (0, VOCABULARY)
    shard: dict[str, Any] = {"first_class": start, "num_classes": VOCABULARY}
    own, launch = logits[:, start:end].copy(), Launch(FP32, cores, 8, 30)
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(row, target)):
        forward(own, targets, ExtendedLoss(), launch, **shard)
    upstream = Upstream(np.ones(POSITIONS, np.float32))
    before = own.copy()
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(row, target)):
        backward(own, targets, np.ones(POSITIONS, np.float32), upstream, ExtendedLoss(), launch, **shard)
    np.testing.assert_array_equal(own, before)


def test_every_class_is_a_target_once() -> None:
    logits, _ = normal_batch(VOCABULARY, VOCABULARY)
    targets = np.arange(VOCABULARY, dtype=np.int32)[::-1].copy()
    for dtype in (BF16, FP32):
        launch = Launch(dtype, 2, 128, 50)
        lse = check_forward(logits, targets, SHARD_OPTIONS["everything"], launch)["lse"]
        upstream = Upstream(np.full(VOCABULARY, -0.5, np.float32))
        check_backward(logits, targets, lse, upstream, SHARD_OPTIONS["everything"], launch)


LOG_SUM_POSITIONS, LOG_SUM_VOCABULARY = 9, 60
LOG_SUM_SHARDS = [(0, 25), (25, 26), (26, 60)]
OFFSET = 4096.0  # a unit of float32 there is 2^-11: a log-sum-exp keeps nothing of a loss below that


def _large_inputs(dtype: Any) -> tuple[Array, Array]:
    logits, targets = normal_batch(LOG_SUM_POSITIONS, LOG_SUM_VOCABULARY)
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
    logits, targets = _large_inputs(dtype)
    maximum, log_sum = _maximum_and_log_sum(logits, targets, dtype, **more)
    z = logits.astype(np.float64)
    np.testing.assert_array_equal(maximum, z.max(axis=1))
    exact = np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(
        log_sum, exact, rtol=0.0, atol=FORWARD_UNITS * UNIT * max(1.0, np.log(LOG_SUM_VOCABULARY))
    )


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_shards_keep_the_digits_of_large_logits(dtype: Any) -> None:
    logits, targets = _large_inputs(dtype)
    z = logits.astype(np.float64)
    parts = [
        _maximum_and_log_sum(logits[:, a:b].copy(), targets, dtype, first_class=a, num_classes=LOG_SUM_VOCABULARY)
        for a, b in LOG_SUM_SHARDS
    ]
    top = np.max([maximum for maximum, _ in parts], axis=0)
    total = sum(np.exp((maximum - top) + log_sum) for maximum, log_sum in parts)
    exact = np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1))
    # Twice what one shard may be off by: its own log-sum, and the exponential of the combination.
    bound = 2.0 * FORWARD_UNITS * UNIT * np.log(LOG_SUM_VOCABULARY)
    np.testing.assert_allclose(np.log(total), exact, rtol=0.0, atol=bound)


def test_a_shard_whose_logits_are_all_masked_adds_nothing() -> None:
    logits, targets = _large_inputs(FP32)
    logits[:, :25] = -np.inf
    maximum, log_sum = _maximum_and_log_sum(
        logits[:, :25].copy(), targets, FP32, first_class=0, num_classes=LOG_SUM_VOCABULARY
    )
    assert np.isfinite(maximum).all() and (np.exp((maximum - 0.0) + log_sum) == 0.0).all()


def _error_over_bound(gradient: Array, logits: Array, targets: Array, upstream: Upstream, options: ExtendedLoss) -> Any:
    """Return a gradient's largest error over the bound of ``gradient_bounds`` without that of a rounded lse."""
    z = options.scores(logits, logits.dtype)
    lse = extended_forward_reference(logits, targets, logits.dtype, options).lse
    more = (upstream.lse, None if targets.ndim == 2 else upstream.logprob)
    exact = extended_backward_reference(
        logits, targets, logits.dtype, options, BackwardInputs(lse, upstream.loss, *more)
    )
    factors = options.factors(targets, LOG_SUM_VOCABULARY)
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
    logits, targets = _large_inputs(dtype)
    targets = probabilities(LOG_SUM_POSITIONS, LOG_SUM_VOCABULARY) if is_probable else with_ignored(targets)
    options, upstream = (
        options_of(name, LOG_SUM_VOCABULARY),
        upstream_of(LOG_SUM_POSITIONS, "lse" if is_probable else "lse, logprob"),
    )
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
    logits, targets = _large_inputs(FP32)
    logits[1, 4], logits[2], logits[3, 5] = np.inf, -np.inf, np.nan
    launch, options, upstream = (
        Launch(FP32, 2, 4, 20),
        ExtendedLoss(),
        Upstream(np.ones(LOG_SUM_POSITIONS, np.float32)),
    )
    results = forward(logits, targets, options, launch, with_log_sum=True)
    apart = {"maximum_hbm": results["maximum"], "log_sum_hbm": results["log_sum"]}
    gradient = backward(logits, targets, results["lse"], upstream, options, launch, **apart)
    assert np.isnan(gradient).all(axis=1).tolist() == [False, True, True, True] + [False] * 5
    assert np.isfinite(gradient[4:]).all()
