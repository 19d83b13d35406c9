# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Logits of float16: its precision lies between that of the other types, and its range ends at 65504.

So sums, statistics and coefficients are float32, and a gradient is rounded once; what is special is -inf beside an
entropy, which no number of the type can stand for where the maximum is near its lowest, or under a high temperature.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import choose_tiling
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss
from nkilib.experimental.loss.profiling import profile_launch

from . import extended_checks
from .extended_checks import Launch, Upstream
from .loss_checks import as_nl, backward, check_backward, check_forward, forward, same_bits
from .loss_inputs import BF16, FP16, FP32, Array, confident_batch, hard_batch, normal_batch, pair_name
from .test_hard_rows import INF, ROWS, _assert_classes
from .test_shifted_forward import check_scores

VOCABULARY = 307
TILING: dict[str, Any] = {"positions_per_batch": 7, "chunk_size": 64}
SHARES = {"exact": True, "shifted": False}
LOWEST, HIGHEST = -65504.0, 65504.0


def half_batch() -> tuple[Array, Array]:
    """The hard rows as float16 has them; numbers beyond its range are infinite."""
    logits, targets = hard_batch(VOCABULARY)
    with np.errstate(over="ignore"):
        return logits.astype(FP16), targets


def edge_rows() -> tuple[Array, Array]:
    """Rows at the ends of the range, with -inf beside maxima from which no float16 is far away."""
    rng = np.random.default_rng(1)
    masked = rng.random(VOCABULARY) < 0.5
    masked[:3] = False
    rows = {
        "both ends": np.where(masked, HIGHEST, LOWEST),
        "highest, and -inf": np.where(masked, -INF, HIGHEST),
        "lowest, and -inf": np.where(masked, -INF, LOWEST),
        "around -6e4, and -inf": np.where(masked, -INF, -6e4 + 32.0 * rng.integers(-3, 3, VOCABULARY)),
        "around -6e4": -6e4 + 32.0 * rng.integers(-3, 3, VOCABULARY),
        "around 6e4": 6e4 + 32.0 * rng.integers(-3, 3, VOCABULARY),
        "noise, and -inf": np.where(masked, -INF, rng.standard_normal(VOCABULARY)),
        "noise, and the lowest": np.where(masked, LOWEST, rng.standard_normal(VOCABULARY)),
        "1e4 apart": np.where(masked, -5e3, 5e3),
        "below the smallest normal number": 2.0**-24 * rng.integers(-9, 9, VOCABULARY),
        "one left": np.where(np.arange(VOCABULARY) == 1, -7.0, -INF),
        "a late maximum": np.r_[rng.standard_normal(VOCABULARY - 1), 200.0],
    }
    return np.array(list(rows.values())).astype(FP16), np.full(len(rows), 1, np.int32)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("exact_maximum", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("dtype", [FP16, FP32, BF16], ids=pair_name)
def test_loss_and_gradient_stay_within_the_bounds(dtype: Any, exact_maximum: bool, cores: int) -> None:
    for logits, targets in (half_batch(), edge_rows()):
        options = {"cores": cores, **TILING}
        _, lse = check_forward(logits, targets, dtype, FP32, exact_maximum=exact_maximum, **options)
        apart = check_backward(logits, targets, lse, dtype, inplace=False, **options)
        in_place = check_backward(logits, targets, lse, dtype, inplace=True, **options)
        if dtype == FP16:
            assert same_bits(apart, in_place)


def test_results_of_float16_are_infinite_beyond_its_range() -> None:
    logits, targets = edge_rows()
    loss, lse = check_forward(logits, targets, FP16, FP16, cores=2, **TILING)
    assert np.isinf(loss).sum() == 1 and np.isfinite(lse).all()  # from one end of the range to the other
    check_backward(logits, targets, lse, FP16, reduction="sum", cores=2, **TILING)


@pytest.mark.parametrize("probability", [0.9, 0.999, 1 - 1e-6])
def test_a_confident_target_keeps_its_gradient(probability: float) -> None:
    """p - 1 is taken before it is rounded: p = 0.9999 is 1 in float16."""
    logits, targets = confident_batch(9, 2000, probability)
    logits = logits.astype(FP16)
    options = {"cores": 2, "positions_per_batch": 8, "chunk_size": 600}
    _, lse = check_forward(logits, targets, FP16, FP32, **options)
    gradient = check_backward(logits, targets, lse, FP16, reduction="sum", inplace=False, **options)
    assert (gradient[np.arange(9), targets] < 0).all()


@pytest.mark.parametrize("chunk_size", [1, 3, 8])
def test_special_rows_have_the_class_of_torch(chunk_size: int) -> None:
    with np.errstate(over="ignore"):
        logits = np.array([row for row, _ in ROWS.values()], np.float32).astype(FP16)
    targets = np.array([target for _, target in ROWS.values()], np.int32)
    _assert_classes(logits, targets, FP16, cores=2, positions_per_batch=16, chunk_size=chunk_size)


@pytest.mark.parametrize("exact_maximum", SHARES.values(), ids=SHARES)
def test_results_are_bitwise_identical_on_one_core_and_two(exact_maximum: bool) -> None:
    logits, targets = half_batch()
    first, second = (
        forward(logits, targets, cores=cores, dtype=as_nl(FP16), exact_maximum=exact_maximum, **TILING)
        for cores in (1, 2)
    )
    assert all(same_bits(one, other) for one, other in zip(first, second, strict=True))
    gradients = [
        backward(logits.copy(), targets, first[1], cores=cores, dtype=as_nl(FP16), **TILING) for cores in (1, 2)
    ]
    assert same_bits(*gradients)


OPTIONS = {
    "off": ExtendedLoss(),
    "weights, smoothing, z-loss": ExtendedLoss(np.linspace(0.5, 1.5, VOCABULARY, dtype=np.float32), 4, 0.1, None, 1e-2),
    "cap": ExtendedLoss(logit_softcap=30.0),
    "high temperature": ExtendedLoss(temperature=1e4),
    "low temperature": ExtendedLoss(temperature=0.01),
}


def check_gradient(logits: Array, targets: Array, options: ExtendedLoss, upstream: Upstream, entropy: Array) -> None:
    """The gradient of loss, log-sum-exp, log-probability and entropy, against float64."""
    launch = Launch(FP16, 2, 7, 64)
    lse = extended_checks.forward(logits, targets, options, launch)["lse"]
    more = {} if upstream.entropy is None else {"entropy_hbm": entropy}
    for inplace in (False, True):
        extended_checks.check_backward(logits, targets, lse, upstream, options, launch, inplace=inplace, **more)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_extended_kernels(name: str) -> None:
    options = OPTIONS[name]
    finite = np.isfinite(edge_rows()[0]).all(1) if options.label_smoothing else slice(None)
    for logits, targets in ((edge_rows()[0][finite], edge_rows()[1][finite]), confident_batch(9, VOCABULARY, 0.999)):
        array = logits.astype(FP16)
        extended_checks.check_forward(array, targets, options, Launch(FP16, 2, 7, 64), with_argmax=True)
        rng = np.random.default_rng(2)
        loss, further, *_ = rng.standard_normal((3, len(array)), np.float32)
        check_gradient(array, targets, options, Upstream(loss, further), further)


@pytest.mark.parametrize("exact_maximum", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("temperature", [1.0, 1e4, 1e-2])
def test_an_entropy_beside_masked_logits(temperature: float, exact_maximum: bool) -> None:
    """-inf adds nothing, though no float16 is far below 6e4 * 1e-4, nor below a maximum of -65504."""
    logits, targets = edge_rows()
    options, launch = ExtendedLoss(temperature=temperature), Launch(FP16, 2, 7, 64)
    results = check_scores(logits, targets, options, launch, exact_maximum)
    assert np.isfinite(results["entropy"]).all()
    upstream = Upstream(*(np.random.default_rng(3).standard_normal((4, len(logits)), np.float32)))
    check_gradient(logits, targets, options, upstream, results["entropy"])


def test_class_probabilities_of_float16() -> None:
    logits, _ = normal_batch(9, VOCABULARY)
    probabilities = np.random.default_rng(4).random((9, VOCABULARY), np.float32)
    probabilities = (probabilities / probabilities.sum(1, keepdims=True)).astype(FP16)
    options, launch = ExtendedLoss(label_smoothing=0.1), Launch(FP16, 2, 7, 64)
    results = extended_checks.check_forward(logits.astype(FP16), probabilities, options, launch)
    upstream = Upstream(np.linspace(-1, 1, 9, dtype=np.float32))
    extended_checks.check_backward(logits.astype(FP16), probabilities, results["lse"], upstream, options, launch)


def test_a_scaled_loss_keeps_what_a_mean_would_lose() -> None:
    """A softmax of 2,000 classes over 4,096 positions is 0 in float16, unless the loss is scaled before."""
    logits, targets = normal_batch(8, 2000, spread=1.0)
    logits, options, launch = logits.astype(FP16), ExtendedLoss(), Launch(FP16, 2, 8, 600)
    lse = extended_checks.forward(logits, targets, options, launch)["lse"]
    zeros = []
    for scale in (1.0, 2.0**16):
        upstream = Upstream(np.full(8, scale / 4096, np.float32))
        gradient = extended_checks.check_backward(logits, targets, lse, upstream, options, launch)
        zeros.append(float((gradient == 0).mean()))
    assert zeros[0] > 0.1 and zeros[1] == 0.0


def test_a_gradient_beyond_the_range_is_infinite() -> None:
    logits, targets = normal_batch(4, 30)
    options, launch = ExtendedLoss(), Launch(FP16, 2, 8, 30)
    logits = logits.astype(FP16)
    lse = extended_checks.forward(logits, targets, options, launch)["lse"]
    gradient = extended_checks.backward(
        logits, targets, lse, Upstream(np.full(4, 1e6, np.float32)), options, launch, inplace=False
    )
    assert np.isneginf(gradient[np.arange(4), targets]).all() and not np.isnan(gradient).any()


def test_tiles_of_float16_are_for_its_logits_alone() -> None:
    """Other logits may be beyond its range."""
    logits, targets = normal_batch(3, 8)
    message = "dtype must be nl.bfloat16 or nl.float32 for logits of float32, whose range exceeds float16, got float16"
    with pytest.raises(AssertionError, match=f"cross_entropy_forward: {message}; use one of the two"):
        forward(logits, targets, cores=1, dtype=as_nl(FP16), positions_per_batch=3, chunk_size=8)


def test_logits_of_float64_are_refused_with_the_remedy() -> None:
    logits, targets = normal_batch(3, 8)
    with pytest.raises(TypeError, match="NKI has no type float64; cast it to float32"):
        forward(logits.astype(np.float64), targets, cores=1, positions_per_batch=3, chunk_size=8)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize(("positions", "vocabulary"), [(200, 32128), (4096, 8192)])
def test_modelled_times_are_those_of_bfloat16(positions: int, vocabulary: int, extended: bool, direction: str) -> None:
    tilings = [choose_tiling(positions, vocabulary, name, direction, extended=extended) for name in ("float16", BF16)]
    assert tilings[0] == tilings[1]
    half, brain = (
        profile_launch(positions, vocabulary, name, direction, tilings[0], extended=extended)
        for name in ("float16", "bfloat16")
    )
    assert half.time_us == brain.time_us
