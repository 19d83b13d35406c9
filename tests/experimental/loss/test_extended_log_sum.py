"""``with_log_sum``: maximum and log-sum apart, so that shards of the vocabulary combine without rounding lse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import extended_cross_entropy_forward
from nkilib.experimental.loss.bounds import FORWARD_UNITS, UNIT

from .extended_checks import Array, Launch
from .loss_inputs import BF16, FP32, normal_batch

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
