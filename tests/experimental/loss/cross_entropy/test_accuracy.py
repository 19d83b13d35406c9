# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss, log-sum-exp and gradient against float64, over real vocabularies and hard rows. The assertions themselves must
fail for wrong results: each mutation here is one that a lax tolerance lets pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.reference import (
    cross_entropy_backward_reference,
    cross_entropy_forward_reference,
)

from .loss_checks import as_nl, assert_gradient, assert_loss_and_lse, backward, check_backward, check_forward, forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, Array, confident_batch, hard_batch, normal_batch, pair_name

# Vocabulary -> (positions_per_batch, chunk_size): whole, even and ragged chunks; batches whole and ragged (hard_batch
# has 18 rows); tiles that fit SBUF twice and once.
TUNINGS = {
    1: (4, 1),
    2: (32, 1),
    507: (5, 100),
    32000: (9, 32000),
    32128: (32, 8192),
    50257: (4, 32768),
    129280: (16, 32320),
    151936: (7, 49152),
    201088: (128, 10007),
    202408: (18, 32768),
}


def _tuning(vocabulary: int) -> dict[str, int]:
    positions_per_batch, chunk_size = TUNINGS[vocabulary]
    return {"positions_per_batch": positions_per_batch, "chunk_size": chunk_size}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize(
    "vocabulary",
    [size if size < 151936 or size > 201088 else pytest.param(size, marks=pytest.mark.sweep) for size in TUNINGS],
)
def test_hard_rows_stay_within_the_bounds(vocabulary: int, logits_dtype: Any, dtype: Any, cores: int) -> None:
    logits, targets = hard_batch(vocabulary)
    logits = logits.astype(logits_dtype)
    options = {"cores": cores, **_tuning(vocabulary)}
    _, lse = check_forward(logits, targets, dtype, FP32, **options)
    in_place = check_backward(logits, targets, lse, dtype, inplace=True, **options)
    apart = check_backward(logits, targets, lse, dtype, inplace=False, **options)
    narrower = BF16 if BF16 in (logits_dtype, dtype) else FP32
    np.testing.assert_array_equal(in_place.astype(narrower), apart.astype(narrower))


@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("vocabulary", [2, 507, 32000])
def test_lse_of_the_default_type_and_reduction_sum(vocabulary: int, logits_dtype: Any, dtype: Any) -> None:
    """The published defaults: an LSE in ``dtype``; the backward's reference starts from that LSE."""
    logits, targets = hard_batch(vocabulary, seed=1)
    logits = logits.astype(logits_dtype)
    options = {"cores": 2, **_tuning(vocabulary)}
    _, lse = check_forward(logits, targets, dtype, dtype, **options)
    for reduction in ("mean", "sum"):
        check_backward(logits, targets, lse, dtype, reduction=reduction, inplace=False, **options)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.999, 0.99999, 1 - 1e-7])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_confident_targets_stay_within_the_bounds(logits_dtype: Any, dtype: Any, probability: float) -> None:
    logits, targets = confident_batch(40, 32000, probability)
    logits = logits.astype(logits_dtype)
    options = {"cores": 2, "positions_per_batch": 32, "chunk_size": 16000}
    _, lse = check_forward(logits, targets, dtype, FP32, **options)
    check_backward(logits, targets, lse, dtype, reduction="sum", inplace=False, **options)


@pytest.mark.sweep
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("vocabulary", TUNINGS)
def test_many_normal_rows_stay_within_the_bounds(vocabulary: int, logits_dtype: Any, dtype: Any) -> None:
    logits, targets = normal_batch(133, vocabulary, seed=2)
    logits = logits.astype(logits_dtype)
    for positions_per_batch, chunk_size in ((64, 32768), (128, 8192), (33, 49152)):
        options = {"cores": 2, "positions_per_batch": positions_per_batch, "chunk_size": min(chunk_size, vocabulary)}
        _, lse = check_forward(logits, targets, dtype, FP32, **options)
        check_backward(logits, targets, lse, dtype, **options)


POSITIONS = VOCABULARY = 64  # square, so that a transposed result has the right shape

# The most confident targets have p = 0.9985, so that p <= 0.999 still holds after rounding to bfloat16.
INPUTS = {
    "normal": lambda: normal_batch(POSITIONS, VOCABULARY),
    "p = 0.9": lambda: confident_batch(POSITIONS, VOCABULARY, 0.9),
    "p = 0.9985": lambda: confident_batch(POSITIONS, VOCABULARY, 0.9985),
}

GRADIENT_MUTATIONS: dict[str, Callable[[Array], Array]] = {
    "zero": np.zeros_like,
    "sign-flipped": np.negative,
    "row-shifted": lambda gradient: np.roll(gradient, 1, axis=0),
    "column-shifted": lambda gradient: np.roll(gradient, 1, axis=1),
    "transposed": lambda gradient: np.ascontiguousarray(gradient.T),
    "unscaled": lambda gradient: (gradient.astype(np.float32) * POSITIONS).astype(gradient.dtype),
    "scaled twice": lambda gradient: (gradient.astype(np.float32) / POSITIONS).astype(gradient.dtype),
    "NaN": lambda gradient: np.full_like(gradient, np.nan),
    "last row missing": lambda gradient: np.concatenate([gradient[:-1], np.zeros_like(gradient[-1:])]),
}

VECTOR_MUTATIONS: dict[str, Callable[[Array], Array]] = {
    "zero": np.zeros_like,
    "sign-flipped": np.negative,
    "row-shifted": lambda values: np.roll(values, 1),
    "averaged": lambda values: np.full_like(values, values.astype(np.float32).mean()),
    "unscaled": lambda values: (values.astype(np.float32) * POSITIONS).astype(values.dtype),
    "NaN": lambda values: np.full_like(values, np.nan),
    "last row missing": lambda values: np.concatenate([values[:-1], np.zeros_like(values[-1:])]),
}


def _inputs(name: str, dtype: Any) -> tuple[Array, Array, Array]:
    """Logits of ``dtype``, targets, and a float32 log-sum-exp."""
    logits, targets = INPUTS[name]()
    logits = logits.astype(dtype)
    _, lse = cross_entropy_forward_reference(logits, targets, dtype)
    return logits, targets, lse.astype(np.float32)


def _mutated_at_target(gradient: Array, targets: Array, value: Array) -> Array:
    mutated = gradient.copy()
    mutated[np.arange(POSITIONS), targets] = value
    return mutated


@pytest.mark.parametrize("mutation", GRADIENT_MUTATIONS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_wrong_gradients_are_refused(name: str, dtype: Any, mutation: str) -> None:
    logits, targets, lse = _inputs(name, dtype)
    gradient = backward(
        logits, targets, lse, cores=1, chunk_size=VOCABULARY, dtype=as_nl(dtype), reduction="mean", inplace=False
    )

    def check(result: Array) -> None:
        assert_gradient(result, logits, targets, lse, "mean", dtype, gradient_dtype=dtype)

    check(gradient)
    with pytest.raises(AssertionError, match="gradient: worst error is"):
        check(GRADIENT_MUTATIONS[mutation](gradient))


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_a_gradient_without_its_target_term_is_refused(name: str, dtype: Any) -> None:
    """Zero or p instead of p - 1 at the targets, where p <= 0.999."""
    logits, targets, lse = _inputs(name, dtype)
    exact = cross_entropy_backward_reference(logits, targets, lse, "mean", dtype)
    at_targets = exact[np.arange(POSITIONS), targets]
    assert (-at_targets * POSITIONS).min() >= 0.001
    for wrong in (np.zeros(POSITIONS), at_targets + 1.0 / POSITIONS):
        with pytest.raises(AssertionError, match="gradient: worst error is"):
            assert_gradient(
                _mutated_at_target(exact, targets, wrong).astype(dtype),
                logits,
                targets,
                lse,
                "mean",
                dtype,
                gradient_dtype=dtype,
            )


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_a_gradient_with_one_wrong_element_is_refused(dtype: Any) -> None:
    """One element off by 1% (bfloat16) or by 1e-5 (float32) of itself."""
    logits, targets, lse = _inputs("normal", dtype)
    gradient = cross_entropy_backward_reference(logits, targets, lse, "mean", dtype).astype(dtype)
    assert_gradient(gradient, logits, targets, lse, "mean", dtype, gradient_dtype=dtype)
    gradient[-1, -1] = float(gradient[-1, -1]) * (1.01 if dtype == BF16 else 1 + 1e-5)
    with pytest.raises(AssertionError, match="gradient: worst error is"):
        assert_gradient(gradient, logits, targets, lse, "mean", dtype, gradient_dtype=dtype)


@pytest.mark.parametrize("mutation", VECTOR_MUTATIONS)
@pytest.mark.parametrize("which", ["loss", "lse"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_wrong_losses_and_lse_are_refused(name: str, dtype: Any, which: str, mutation: str) -> None:
    logits, targets, _ = _inputs(name, dtype)
    loss, lse = forward(logits, targets, cores=1, chunk_size=VOCABULARY, dtype=as_nl(dtype))

    def check(loss: Array, lse: Array) -> None:
        assert_loss_and_lse(loss, lse, logits, targets, dtype, loss_dtype=dtype, lse_dtype=dtype)

    check(loss, lse)
    mutate = VECTOR_MUTATIONS[mutation]
    wrong = (mutate(loss), lse) if which == "loss" else (loss, mutate(lse))
    with pytest.raises(AssertionError, match=f"{which}: worst error is"):
        check(*wrong)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_results_of_transposed_logits_and_swapped_results_are_refused(dtype: Any) -> None:
    logits, targets, _ = _inputs("normal", dtype)
    loss, lse = forward(logits, targets, cores=1, chunk_size=VOCABULARY, dtype=as_nl(dtype))
    of_transposed = forward(np.ascontiguousarray(logits.T), targets, cores=1, chunk_size=VOCABULARY, dtype=as_nl(dtype))
    for wrong in (of_transposed, (lse, loss)):
        with pytest.raises(AssertionError, match="loss: worst error is"):
            assert_loss_and_lse(*wrong, logits, targets, dtype, loss_dtype=dtype, lse_dtype=dtype)


def test_wrong_shapes_and_types_are_refused() -> None:
    logits, targets, lse = _inputs("normal", FP32)
    gradient = cross_entropy_backward_reference(logits, targets, lse, "mean", FP32)
    for wrong in (gradient, gradient.astype(BF16), gradient[:-1].astype(FP32)):
        with pytest.raises(AssertionError):
            assert_gradient(wrong, logits, targets, lse, "mean", FP32, gradient_dtype=FP32)
    loss, lse64 = cross_entropy_forward_reference(logits, targets, FP32)
    for wrong_loss in (loss, loss.astype(FP32)[:, np.newaxis]):
        with pytest.raises(AssertionError):
            assert_loss_and_lse(wrong_loss, lse64.astype(FP32), logits, targets, FP32, loss_dtype=FP32, lse_dtype=FP32)
