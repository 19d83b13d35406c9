# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Log-probability and entropy where no pass takes the maximum: both forms, ordinary rows and recomputed rows.

A row is recomputed where its sum S under the shift c is above 2^11. So log S and m - c are below 8, and with
sum of p (m - z) = H - log d the sum of p abs(z - c) is at most 8 + H: what is subtracted from log S for the entropy is
off by 16 u of that, and log S by 16 u of max(1, log S), as ``bounds.forward_bounds`` derives it of sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss import Tiling, choose_tiling
from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss, extended_forward_reference
from nkilib.experimental.loss.profiling import profile_launch

from .extended_checks import Array, Launch, Upstream, check_backward, forward
from .loss_inputs import BF16, FP32, confident_batch, normal_batch
from .test_extended_accuracy import with_ignored

SCORES: dict[str, Any] = {"with_entropy": True, "with_log_sum": True}
UNITS, LOG_SUM_MAX = 16.0, 8.0
VOCABULARY = 307


def hard_rows() -> tuple[Array, Array]:
    """Rows whose first chunks say little about the others, and rows that are not finite."""
    rng = np.random.default_rng(3)
    rows = {
        "noise": rng.standard_normal(VOCABULARY) * 3.0,
        "planted": np.r_[rng.standard_normal(VOCABULARY - 1), 200.0],
        "planted a little": np.r_[rng.standard_normal(VOCABULARY - 1), 9.0],
        "ascending": np.linspace(-60.0, 60.0, VOCABULARY),
        "descending": np.linspace(60.0, -60.0, VOCABULARY),
        "masked first": np.r_[np.full(200, -np.inf), rng.standard_normal(VOCABULARY - 200)],
        "masked last": np.r_[rng.standard_normal(100), np.full(VOCABULARY - 100, -np.inf)],
        "masked here and there": np.where(rng.random(VOCABULARY) < 0.5, -np.inf, rng.standard_normal(VOCABULARY)),
        "one left": np.where(np.arange(VOCABULARY) == 250, 2.0, -np.inf),
        "all masked": np.full(VOCABULARY, -np.inf),
        "+inf": np.where(np.arange(VOCABULARY) == 250, np.inf, 0.0),
        "NaN": np.where(np.arange(VOCABULARY) == 250, np.nan, 0.0),
        "all equal": np.full(VOCABULARY, 2.5),
        "far away": rng.standard_normal(VOCABULARY) * 4.0 + 1e4,
    }
    targets = np.full(len(rows), 5, np.int32)
    targets[list(rows).index("one left")] = 250
    return np.array(list(rows.values()), np.float32), targets


def check_scores(logits: Array, targets: Array, options: ExtendedLoss, launch: Launch, exact: bool) -> dict[str, Array]:
    """Loss, lse and entropy of one form against float64."""
    result = forward(logits, targets, options, launch, **SCORES, exact_maximum=exact)
    with np.errstate(all="ignore"):
        expected = extended_forward_reference(logits, targets, launch.dtype, options)
        z = options.scores(logits, launch.dtype)
        maximum, size = np.abs(z.max(axis=1)), 0.0 if options.temperature == 1.0 else 2.0
        of_z = size * UNIT * (maximum + expected.entropy)
        allowed = UNITS * UNIT * (2.0 * LOG_SUM_MAX + expected.entropy)
        bounds = {
            "loss": UNITS * UNIT * np.maximum(LOG_SUM_MAX, expected.loss) + of_z,
            "lse": UNITS * UNIT * np.maximum(LOG_SUM_MAX, maximum + expected.entropy) + of_z,
            "entropy": allowed + 2.0 * (1.0 + expected.entropy) * of_z,
        }
        for name, bound in bounds.items():
            ratio = error_over_bound(result[name], getattr(expected, name), bound)
            assert ratio.max() <= 1.0, f"{name}: {ratio} times the bound"
    return result


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "shifted"])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_hard_rows(dtype: Any, temperature: float, cores: int, exact: bool) -> None:
    logits, targets = hard_rows()
    options = ExtendedLoss(temperature=temperature)
    check_scores(logits.astype(dtype), targets, options, Launch(dtype, cores, 4, 50), exact)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_the_gradient_takes_a_shift_and_its_sum(dtype: Any) -> None:
    logits, targets = hard_rows()
    logits, targets = logits[:10].astype(dtype), with_ignored(targets[:10])
    options, launch = ExtendedLoss(temperature=1.3), Launch(dtype, 2, 4, 50)
    results = check_scores(logits, targets, options, launch, exact=False)
    rng = np.random.default_rng(8)
    loss, logprob, entropy = rng.standard_normal((3, len(logits))).astype(np.float32)
    arguments = {
        "maximum_hbm": results["maximum"],
        "log_sum_hbm": results["log_sum"],
        "entropy_hbm": results["entropy"],
    }
    upstream = Upstream(loss, logprob=logprob, entropy=entropy)
    check_backward(logits, targets, results["lse"], upstream, options, launch, **arguments)


@pytest.mark.parametrize("probability", [0.9, 0.999])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "shifted"])
def test_confident_tokens(exact: bool, probability: float) -> None:
    """The target is the largest logit, so that the shift is the maximum, wherever the target stands."""
    logits, targets = confident_batch(20, 2000, probability)
    results = check_scores(logits, targets, ExtendedLoss(), Launch(FP32, 2, 16, 300), exact)
    np.testing.assert_array_equal(results["maximum"], logits.max(axis=1))


def test_more_chunks_than_columns() -> None:
    logits, targets = normal_batch(3, 300)
    for exact in (True, False):
        check_scores(logits, targets, ExtendedLoss(), Launch(FP32, 1, 2, 1), exact)


@given(st.integers(1, 20), st.integers(3, 70), st.integers(1, 9), st.data(), st.sampled_from([BF16, FP32]))
def test_any_shape(positions: int, vocabulary: int, rows: int, data: st.DataObject, dtype: Any) -> None:
    chunk_size, cores = data.draw(st.integers(1, vocabulary - 1)), data.draw(st.integers(1, min(2, positions)))
    logits, targets = normal_batch(positions, vocabulary, seed=positions + vocabulary)
    launch = Launch(dtype, cores, rows, chunk_size)
    check_scores(logits.astype(dtype), with_ignored(targets), ExtendedLoss(), launch, exact=False)


@pytest.mark.parametrize(
    ("positions", "vocabulary", "dtype", "is_shifted"),
    [(4096, 129280, BF16, True), (512, 32768, BF16, False), (4096, 129280, FP32, False)],
)
def test_by_default_long_rows_of_bfloat16_take_the_shift(
    positions: int, vocabulary: int, dtype: Any, is_shifted: bool
) -> None:
    """A launch with only recomputed rows takes at most 2.3 times that of the exact form."""
    launch = positions, vocabulary, dtype.name, "forward"
    tiling = choose_tiling(*launch, extended=True)
    profiled = profile_launch(*launch, tiling, extended=True, **SCORES)
    assert bool(profiled.trips) == is_shifted
    if is_shifted:
        exact = profile_launch(*launch, tiling, extended=True, **SCORES, exact_maximum=True)
        assert profiled.with_all_trips is not None
        assert profiled.with_all_trips.time_us <= 2.3 * exact.time_us


def test_scores_of_a_long_vocabulary_are_within_their_goals() -> None:
    """Times with a fused sum, and with no maximum, are modelled relative to the plain forward with the maximum."""
    launch = 4096, 129280, "bfloat16", "forward"
    plain = profile_launch(*launch, Tiling(128, 25856), exact_maximum=True)
    tiling = choose_tiling(*launch, extended=True)
    times = [
        profile_launch(*launch, tiling, extended=True, trips="none", **SCORES, exact_maximum=exact).time_us
        / plain.time_us
        for exact in (True, False)
    ]
    assert times[0] <= 2.4 and times[1] <= 1.35


@pytest.mark.parametrize("wrong", ["zero", "flipped", "moved"])
def test_the_check_refuses_wrong_scores(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = normal_batch(20, 100)
    spoil = {"zero": np.zeros_like, "flipped": np.negative, "moved": lambda values: np.roll(values, 1)}[wrong]

    launched = forward

    def spoilt(*arguments: Any, **more: Any) -> dict[str, Array]:
        results = launched(*arguments, **more)
        return {**results, "entropy": spoil(results["entropy"])}

    monkeypatch.setitem(check_scores.__globals__, "forward", spoilt)
    with pytest.raises(AssertionError, match="entropy"):
        check_scores(logits, targets, ExtendedLoss(), Launch(FP32), exact=False)
