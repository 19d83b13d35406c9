# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward without a pass for the maximum is as exact as with it for any rows, and recomputes only few of them; so
are its log-probability and entropy, of ordinary and of recomputed rows.

A row is recomputed where its sum S under the shift c is above 2^11. So log S and m - c are below 8, and with sum of p
(m - z) = H - log d the sum of p abs(z - c) is at most 8 + H: what is subtracted from log S for the entropy is off by 16
u of that, and log S by 16 u of max(1, log S), as ``bounds.forward_bounds`` derives it of sums.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.core.host.error_bounds import UNIT
from nkilib.experimental.loss import Tiling, choose_tiling, cross_entropy_forward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.reference import (
    ExtendedLoss,
    cross_entropy_forward_reference,
    extended_forward_reference,
)
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import nl
from nkilib.simulator import profile, using

from ...refusals import Kernel, Refusal, assert_refused, parametrized
from .extended_checks import Launch, Upstream, forward
from .extended_checks import check_backward as check_extended_backward
from .extended_checks import check_forward as check_extended
from .loss_checks import as_nl, assert_loss_and_lse, check_backward, check_forward
from .loss_inputs import BF16, DTYPE_PAIRS, FP16, FP32, Array, confident_batch, hard_batch, normal_batch, pair_name
from .test_extended_accuracy import with_ignored
from .test_hard_rows import ROWS, _classes, _torch_results

SHIFT = {"exact_maximum": False}
SHAPES = [
    # positions, vocabulary, positions_per_batch, chunk_size
    (2, 2, 1, 1),
    (7, 50, 2, 16),
    (37, 101, 4, 30),
    (130, 64, 128, 64),
    (3, 300, 2, 1),  # more chunks than columns
    (45, 20, 2, 7),  # several groups
]


def trips_of(logits: Array, targets: Array, cores: int = 2, **options: Any) -> int:
    """Return the iterations of the loop over recomputed positions."""
    profiled = profile(cross_entropy_forward[cores], logits, targets, **SHIFT, **options)
    (trips,) = profiled.trips.values()
    return trips


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loss_and_lse(shape: tuple[int, ...], logits_dtype: Any, dtype: Any, cores: int) -> None:
    positions, vocabulary, rows, chunk = shape
    logits, targets = normal_batch(positions, vocabulary)
    tiling = {"positions_per_batch": rows, "chunk_size": chunk}
    with using(uninitialized="error"):
        check_forward(logits.astype(logits_dtype), targets, dtype, FP32, cores=cores, **tiling, **SHIFT)


@given(st.integers(2, 12), st.integers(2, 60), st.integers(1, 9), st.integers(1, 60), st.integers(0, 99), st.data())
def test_whatever_the_shape_and_the_spread(
    positions: int, vocabulary: int, rows: int, chunk: int, seed: int, data: st.DataObject
) -> None:
    spread = data.draw(st.sampled_from([0.01, 1.0, 10.0, 100.0]))
    logits, targets = normal_batch(positions, vocabulary, seed, spread)
    logits += np.float32(data.draw(st.sampled_from([0.0, 1e4, -1e4])))
    dtype, cores = data.draw(st.sampled_from([BF16, FP32])), data.draw(st.integers(1, 2))
    tiling = {"positions_per_batch": rows, "chunk_size": min(chunk, vocabulary)}
    check_forward(logits, targets, dtype, FP32, cores=cores, **tiling, **SHIFT)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_hard_rows_have_the_bounds_of_all_others(dtype: Any, cores: int) -> None:
    """Sorted both ways, far above at one place, -inf in parts, all equal, near the ends of the range, ..."""
    logits, targets = hard_batch(4000)
    check_forward(logits, targets, dtype, FP32, cores=cores, positions_per_batch=8, chunk_size=700, **SHIFT)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("chunk_size", [1, 3, 4, 8])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_special_rows_are_of_the_class_that_pytorch_gives_them(dtype: Any, chunk_size: int, cores: int) -> None:
    logits = np.array([row for row, _ in ROWS.values()], np.float32)
    targets = np.array([target for _, target in ROWS.values()], np.int32)
    expected_loss, expected_lse, _ = _torch_results(logits, targets, dtype)
    loss, lse = cross_entropy_forward[cores](
        logits,
        targets,
        positions_per_batch=4,
        chunk_size=chunk_size,
        dtype=as_nl(dtype),
        lse_dtype=nl.float32,
        **SHIFT,
    )
    np.testing.assert_array_equal(_classes(loss), _classes(expected_loss), "loss")
    np.testing.assert_array_equal(_classes(lse), _classes(expected_lse), "lse")


PLANTED = 200.0
TILING = {"positions_per_batch": 32, "chunk_size": 64}


def batch_with(positions: int, rows: Any, value: float = PLANTED) -> tuple[Array, Array]:
    """Ordinary rows, and some that have one logit at their end which is not the target's."""
    logits, targets = normal_batch(positions, 300)
    targets %= 290
    logits[rows, -1] = value
    return logits, targets


@pytest.mark.parametrize(
    ("of_core_0", "of_core_1", "trips"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (0, 256, 1), (0, 257, 2), (270, 2, 2), (270, 270, 2)],
)
def test_cores_with_unlike_numbers_of_such_rows_run_equally_often(of_core_0: int, of_core_1: int, trips: int) -> None:
    rows = [*range(0, 2 * of_core_0, 2), *range(1, 2 * of_core_1, 2)]
    logits, targets = batch_with(541, rows)
    check_forward(logits, targets, BF16, FP32, cores=2, **TILING, **SHIFT)
    assert trips_of(logits, targets, **TILING) == trips
    own = max(of_core_0 + of_core_1, 0)
    assert trips_of(logits, targets, cores=1, **TILING) == -(-own // 256)


@pytest.mark.parametrize(
    ("dtype", "value", "trips"),
    [
        (BF16, 15.0, 0),
        (BF16, 24.0, 1),
        (BF16, 60.0, 1),
        (BF16, 200.0, 1),
        (BF16, -np.inf, 0),
        (BF16, np.inf, 1),
        (BF16, np.nan, 1),
        (FP32, 4.0, 0),
        (FP32, 12.0, 1),
        (FP32, -np.inf, 0),
        (FP32, np.inf, 1),
        (FP32, np.nan, 1),
    ],
)
def test_causes_for_which_a_row_is_recomputed(dtype: Any, value: float, trips: int) -> None:
    logits, targets = batch_with(40, 7, value)
    assert trips_of(logits, targets, dtype=as_nl(dtype), **TILING) == trips


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_causes_for_which_a_row_is_not_recomputed(dtype: Any) -> None:
    """The largest logit at the target, wherever that is; all equal; sorted downwards; a first chunk of -inf."""
    logits, targets = batch_with(5, 0)
    targets[0] = 299
    logits[1] = 7.0
    logits[2] = np.sort(logits[2])[::-1]
    logits[3, :64] = -np.inf
    logits[3, 64:] = 1.0
    targets[3] = 100
    assert trips_of(logits, targets, dtype=as_nl(dtype), **TILING) == 0
    check_forward(logits, targets, dtype, FP32, cores=2, **TILING, **SHIFT)


def test_rows_of_minus_infinity_alone_are_recomputed() -> None:
    logits, targets = batch_with(5, 0)
    targets[0] = 299
    assert trips_of(logits, targets, **TILING) == 0
    logits[3] = -np.inf
    assert trips_of(logits, targets, **TILING) == 1


def test_rows_beside_recomputed_rows_keep_every_bit() -> None:
    """Recomputed rows are bitwise identical to those of the exact form, which is checked against float64."""
    ordinary, targets = batch_with(64, [])
    some, _ = batch_with(64, range(0, 64, 3))
    every, _ = batch_with(64, range(64))
    launch = {"dtype": nl.float32, **TILING}
    without, _ = cross_entropy_forward[2](ordinary, targets, **launch, **SHIFT)
    mixed, _ = cross_entropy_forward[2](some, targets, **launch, **SHIFT)
    recomputed, recomputed_lse = cross_entropy_forward[2](every, targets, **launch, **SHIFT)
    exact, exact_lse = cross_entropy_forward[2](
        every, targets, positions_per_batch=32, chunk_size=32, dtype=nl.float32, exact_maximum=True
    )
    is_planted = np.arange(64) % 3 == 0
    np.testing.assert_array_equal(mixed[~is_planted], without[~is_planted])
    np.testing.assert_array_equal(mixed[is_planted], recomputed[is_planted])
    np.testing.assert_array_equal((recomputed, recomputed_lse), (exact, exact_lse))
    check_forward(some, targets, FP32, FP32, cores=2, **TILING, **SHIFT)
    assert_loss_and_lse(recomputed, recomputed_lse, every, targets, FP32, loss_dtype=FP32, lse_dtype=FP32)


@pytest.mark.parametrize("probability", [0.9, 0.999, 1 - 1e-6])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_confident_losses_are_as_exact_as_with_the_maximum(probability: float, dtype: Any) -> None:
    """The error is at most 2^-21, and at most a tenth of the smallest loss, above that of the exact form.

    The exact form itself is within the 16 units that ``forward_bounds`` derives, and within half of the
    smallest loss, which tells the losses of the rows apart.
    """
    logits, targets = confident_batch(64, 5000, probability)
    launch = {"dtype": as_nl(dtype), "positions_per_batch": 32, "chunk_size": 1500}
    exact, _ = cross_entropy_forward_reference(logits, targets, dtype)
    if dtype == BF16:  # the loss is to be compared before it is rounded
        losses = [
            extended_cross_entropy_forward[2](logits, targets, exact_maximum=form, **launch)[0]
            for form in (False, True)
        ]
    else:
        losses = [cross_entropy_forward[2](logits, targets, exact_maximum=form, **launch)[0] for form in (False, True)]
    shifted, with_maximum = (np.abs(loss.astype(np.float64) - exact).max() for loss in losses)
    assert with_maximum <= min(2.0**-20, 0.5 * exact.min())
    assert shifted <= with_maximum + min(2.0**-21, 0.1 * exact.min())
    assert (losses[0] >= 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_backward_takes_its_lse(reduction: str) -> None:
    logits, targets = batch_with(37, [2, 5, 9])
    _, lse = check_forward(logits, targets, BF16, FP32, cores=2, **TILING, **SHIFT)
    check_backward(logits, targets, lse, FP32, reduction=reduction, cores=2, **TILING)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        ExtendedLoss(),
        ExtendedLoss(class_weight=np.linspace(0.0, 2.0, 300, dtype=np.float32)),
        ExtendedLoss(lse_square_scale=0.01, ignore_index=3),
    ],
    ids=["none", "weights", "z-loss"],
)
@pytest.mark.parametrize("with_log_sum", [False, True])
def test_the_extended_forward(options: ExtendedLoss, with_log_sum: bool, cores: int) -> None:
    logits, targets = batch_with(67, [0, 5, 8, 66])
    targets[[5, 11]] = options.ignore_index
    logits = logits.astype(ml_dtypes.bfloat16)
    launch = Launch(positions_per_batch=8, chunk_size=64, dtype=BF16, cores=cores)
    actual = check_extended(logits, targets, options, launch, **SHIFT)
    if with_log_sum:
        results = extended_cross_entropy_forward[cores](
            logits, targets, **launch.arguments(options), with_log_sum=True, **SHIFT
        )
        maximum, log_sum = (result.astype(np.float64) for result in results[-2:])
        lse = actual["lse"].astype(np.float64)
        np.testing.assert_allclose(maximum + log_sum, lse, atol=2e-5)
        assert (log_sum >= 0).all() and (log_sum <= 16).all()


def test_a_shard_of_the_vocabulary() -> None:
    """Targets of other shards have no logit here; lse is that of the columns; the loss of a shard is undefined."""
    logits, targets = batch_with(20, [3, 4])
    launch = {"positions_per_batch": 4, "chunk_size": 64, "first_class": 100, "num_classes": 700}
    shifted = extended_cross_entropy_forward[2](logits, targets + np.int32(150), **launch, **SHIFT)
    exact = extended_cross_entropy_forward[2](logits, targets + np.int32(150), **launch, exact_maximum=True)
    rounded = logits.astype(BF16).astype(np.float64)
    np.testing.assert_allclose(shifted[1], np.logaddexp.reduce(rounded, axis=1), rtol=1e-6)
    has_target = targets < 250
    chosen = rounded[np.arange(20), np.where(has_target, targets + 50, 0)]
    np.testing.assert_array_equal(shifted[2], np.where(has_target, chosen, 0.0))
    np.testing.assert_array_equal(shifted[2], exact[2])
    np.testing.assert_array_equal(shifted[3], exact[3])


NEEDS_MAXIMUM = {
    "label_smoothing": ({"label_smoothing": 0.1}, "with label_smoothing, which sums distances from it"),
    "cap": ({"logit_softcap": 30.0}, "with logit_softcap"),
    "argmax": ({"with_argmax": True}, "with with_argmax"),
    "distance sum": ({"with_distance_sum": True}, "with with_distance_sum"),
    "probabilities": ({"targets_hbm": np.full((3, 100), 0.01, np.float32)}, "for class probabilities"),
}
FORWARDS = ("cross_entropy_forward", "extended_cross_entropy_forward")
REFUSALS = [
    Refusal("no flag", "exact_maximum must be True, False or None, got yes", {"exact_maximum": "yes"}, FORWARDS),
    *(
        Refusal(
            name,
            f"exact_maximum must be True or None {reason}, got False",
            {"exact_maximum": False, **options},
            FORWARDS[1:],
        )
        for name, (options, reason) in NEEDS_MAXIMUM.items()
    ),
]


@parametrized(REFUSALS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        (1, "for fewer than 2 positions, one a core"),
        (600, "for more than 256 batches a core, got 300"),
    ],
)
def test_refused_on_two_cores(positions: int, reason: str) -> None:
    logits, targets = np.ones((positions, 10), np.float32), np.zeros(positions, np.int32)
    with pytest.raises(AssertionError) as caught:
        cross_entropy_forward[2](logits, targets, positions_per_batch=1, chunk_size=5, **SHIFT)
    assert str(caught.value) == f"cross_entropy_forward: exact_maximum must be True or None {reason}, got False"


@pytest.mark.parametrize("options", [options for options, _ in NEEDS_MAXIMUM.values()], ids=list(NEEDS_MAXIMUM))
def test_options_that_need_the_maximum_have_it_unless_asked_otherwise(options: dict[str, Any]) -> None:
    logits = nkilib.simulator.spec((4096, 32128), nl.bfloat16)
    arguments = {"targets_hbm": nkilib.simulator.spec((4096,), nl.int32), **options}
    if "targets_hbm" in options:
        arguments["targets_hbm"] = nkilib.simulator.spec((4096, 32128), nl.float32)
    profiled = profile(extended_cross_entropy_forward[2], logits, positions_per_batch=128, trips="none", **arguments)
    assert profiled.trips == {}


@pytest.mark.parametrize(
    ("positions", "vocabulary", "chunk_size", "dtype", "target", "is_shifted"),
    [
        (4096, 32128, 8032, BF16, "trn2", False),
        (512, 129280, 8032, BF16, "trn2", False),
        (4096, 129280, 32768, BF16, "trn2", True),
        (4096, 129280, 32768, FP16, "trn2", True),
        (512, 129280, 32768, BF16, "trn2", True),
        (512, 32768, 32768, BF16, "trn2", False),
        (4096, 32128, 8032, FP32, "trn2", False),
        (1, 202408, 32768, BF16, "trn2", False),
        (4096, 1000, 1000, BF16, "trn2", False),
        (4096, 32128, 8032, BF16, "trn3", True),
        (512, 50257, 8032, BF16, "trn3", False),
    ],
)
def test_by_default_large_launches_take_the_shift_where_gpsimd_cannot_share_the_maxima(
    positions: int, vocabulary: int, chunk_size: int, dtype: Any, target: str, is_shifted: bool
) -> None:
    """It folds chunks that leave room for folds; on trn3 exponentials of bfloat16 take less time than that."""
    logits = nkilib.simulator.spec((positions, vocabulary), as_nl(dtype))
    targets = nkilib.simulator.spec((positions,), nl.int32)
    tiling = {"positions_per_batch": 128, "chunk_size": chunk_size, "dtype": as_nl(dtype)}
    with nkilib.simulator.using(target=target):
        profiled = profile(cross_entropy_forward[2], logits, targets, trips="none", **tiling)
    assert bool(profiled.trips) == is_shifted


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("vocabulary", [32128, 129280, 202408])
def test_vocabularies_of_models(vocabulary: int, dtype: Any) -> None:
    logits, targets = normal_batch(256, vocabulary)
    logits[5, -1] = PLANTED
    check_forward(logits, targets, dtype, FP32, cores=2, positions_per_batch=128, chunk_size=8192, **SHIFT)


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
    check_extended_backward(logits, targets, results["lse"], upstream, options, launch, **arguments)


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
    plain = profile_launch(*launch, Tiling(128, 12928), exact_maximum=True)
    tiling = choose_tiling(*launch, extended=True)
    times = [
        profile_launch(*launch, tiling, extended=True, trips="none", **SCORES, exact_maximum=exact).time_us
        / plain.time_us
        for exact in (True, False)
    ]
    assert times[0] <= 2.05 and times[1] <= 1.7


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
