# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every result of the extended kernels against float64, over options, types, hard rows and shapes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss

from .extended_checks import Array, Launch, Upstream, assert_gradient, check_backward, check_forward
from .loss_checks import same_bits
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, confident_batch, hard_batch, normal_batch, pair_name

ALL = {"with_argmax": True, "with_entropy": True, "with_distance_sum": True, "with_log_sum": True}


def class_weights(vocabulary: int) -> Array:
    """Draw weights from 0.5 to 1.5, no two neighbours alike, so that a shift by one class shows."""
    return np.random.default_rng(5).uniform(0.5, 1.5, vocabulary).astype(np.float32)


def with_ignored(targets: Array, ignore_index: int = -100) -> Array:
    """Every fourth target ignored, the first one not."""
    result = targets.copy()
    result[3::4] = ignore_index
    return result


def probabilities(positions: int, vocabulary: int, dtype: Any = FP32) -> Array:
    """Class probabilities [N, V] of which a fifth is 0."""
    rng = np.random.default_rng(6)
    result = rng.random((positions, vocabulary)) * (rng.random((positions, vocabulary)) > 0.2) + 1e-3
    return (result / result.sum(axis=1, keepdims=True)).astype(dtype)


def upstream_of(positions: int, which: str) -> Upstream:
    """Gradients of either sign, some 0; ``which`` names those that there are."""
    rng = np.random.default_rng(7)
    loss, lse, logprob, entropy = rng.standard_normal((4, positions)).astype(np.float32)
    loss[1::5] = 0.0
    arguments = {"lse": lse, "logprob": logprob, "entropy": entropy}
    return Upstream(loss, **{name: values for name, values in arguments.items() if name in which})


OPTIONS = {
    "off": {},
    "smoothing": {"label_smoothing": 0.1},
    "smoothing of all": {"label_smoothing": 1.0},
    "z-loss": {"lse_square_scale": 1e-4},
    "weights": {"class_weight": True},
    "softcap": {"logit_softcap": 30.0},
    "tight softcap": {"logit_softcap": 2.0},
    "weights, smoothing": {"class_weight": True, "label_smoothing": 0.2},
    "temperature": {"temperature": 2.0},
    "everything": {
        "class_weight": True,
        "label_smoothing": 0.2,
        "lse_square_scale": 1e-2,
        "logit_softcap": 15.0,
        "temperature": 1.3,
    },
}


def options_of(name: str, vocabulary: int) -> ExtendedLoss:
    """The options of that name; the weights are made for the vocabulary."""
    values: dict[str, Any] = dict(OPTIONS[name])
    if values.get("class_weight"):
        values["class_weight"] = class_weights(vocabulary)
    return ExtendedLoss(**values)


def _check(logits: Array, targets: Array, options: ExtendedLoss, launch: Launch, which: str = "lse, logprob") -> None:
    """Forward and backward, in place and not, from lse alone and from its two summands, of the entropy and without."""
    results = check_forward(logits, targets, options, launch, **ALL)
    lse, summands = results["lse"], {"maximum_hbm": results["maximum"], "log_sum_hbm": results["log_sum"]}
    which = "lse" if targets.ndim == 2 else which
    upstream, entropy = upstream_of(len(logits), f"{which}, entropy"), {"entropy_hbm": results["entropy"]}
    check_backward(logits, targets, lse, upstream, options, launch, **summands, **entropy)
    check_backward(logits, targets, lse, upstream, options, launch, inplace=True, **entropy)
    upstream = upstream_of(len(logits), which)
    apart = check_backward(logits, targets, lse, upstream, options, launch)
    in_place = check_backward(logits, targets, lse, upstream, options, launch, inplace=True)
    narrower = BF16 if BF16 in (logits.dtype, launch.dtype) else FP32
    np.testing.assert_array_equal(in_place.astype(narrower), apart.astype(narrower))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("name", OPTIONS)
def test_hard_rows_of_class_targets(name: str, logits_dtype: Any, dtype: Any, cores: int) -> None:
    logits, targets = hard_batch(507)
    options = options_of(name, 507)
    _check(logits.astype(logits_dtype), with_ignored(targets), options, Launch(dtype, cores, 5, 100))


@pytest.mark.parametrize("target_dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("name", OPTIONS)
def test_class_probabilities(name: str, logits_dtype: Any, dtype: Any, target_dtype: Any) -> None:
    logits, _ = normal_batch(19, 307)
    logits[3] += 1e3  # differences from the maximum keep what a sum of logits would lose
    _check(
        logits.astype(logits_dtype),
        probabilities(19, 307, target_dtype),
        options_of(name, 307),
        Launch(dtype, 2, 5, 100),
    )


@pytest.mark.parametrize("name", ["off", "smoothing", "everything"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_a_large_vocabulary(dtype: Any, name: str) -> None:
    """More than one part of a chunk for the argmax, and a ragged last chunk."""
    logits, targets = hard_batch(50257)
    _check(logits.astype(dtype), with_ignored(targets), options_of(name, 50257), Launch(dtype, 2, 9, 8192))


@pytest.mark.parametrize("chunk_size", [20000, 32768, 16389])
def test_chunks_longer_than_a_search(chunk_size: int) -> None:
    """nc_find_index8 takes 16,384 elements: 16,389 leave a part too short to be searched alone."""
    logits, targets = normal_batch(5, 32780)
    logits[1, 16385], logits[2, 16388], logits[3, [16383, 16384, 20001]] = 50.0, 50.0, 50.0
    options = ExtendedLoss()
    result = check_forward(logits, targets, options, Launch(FP32, 1, 5, chunk_size), with_argmax=True)["argmax"]
    np.testing.assert_array_equal(result[1:4], [16385, 16388, 16383])


@pytest.mark.parametrize("probability", [0.9, 0.999, 0.99999])
@pytest.mark.parametrize("name", ["off", "z-loss", "smoothing"])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_confident_targets(logits_dtype: Any, dtype: Any, name: str, probability: float) -> None:
    """The target's gradient is computed before p = 0.999 rounds to 1 in bfloat16, and p - 1 to 0."""
    logits, targets = confident_batch(20, 2000, probability)
    logits = logits.astype(logits_dtype)
    launch, options = Launch(dtype, 2, 16, 600), options_of(name, 2000)
    lse = check_forward(logits, targets, options, launch)["lse"]
    upstream = Upstream(np.full(20, 0.25, np.float32))
    gradient = check_backward(logits, targets, lse, upstream, options, launch)
    if name == "off":
        assert (gradient[np.arange(20), targets].astype(np.float32) < 0).all()


@pytest.mark.parametrize("which", ["", "lse", "logprob", "lse, logprob"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_upstream_gradients_that_are_there(dtype: Any, which: str) -> None:
    logits, targets = normal_batch(23, 100)
    options = ExtendedLoss()
    launch = Launch(dtype)
    lse = check_forward(logits, with_ignored(targets), options, launch)["lse"]
    check_backward(logits, with_ignored(targets), lse, upstream_of(23, which), options, launch)


@pytest.mark.parametrize("temperature", [1e-3, 0.3, 50.0, 1e6])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_temperatures(logits_dtype: Any, dtype: Any, temperature: float) -> None:
    """Cold ones too, where a distance grows beyond what the exponential can tell from 0; some classes are masked."""
    logits, targets = normal_batch(19, 307)
    logits[2, 5:] = -np.inf
    logits[3, :120] = -np.inf  # a chunk of -inf alone
    logits[4:7, ::3] = -np.inf
    targets[2:7] = 1, 130, 1, 2, 4
    logits[7] += 1e3
    options = ExtendedLoss(temperature=temperature)
    _check(logits.astype(logits_dtype), with_ignored(targets), options, Launch(dtype, 2, 5, 100))


def test_an_entropy_has_a_gradient_where_almost_nothing_is_left_to_choose() -> None:
    """Near p = 1 both log p and the entropy are small, and their sum is not lost to the size of the logits."""
    logits, targets = confident_batch(20, 2000, 0.999)
    logits[::2] += 1e4
    launch, options = Launch(FP32, 2, 16, 600), ExtendedLoss()
    logits = logits.astype(BF16).astype(np.float32)
    results = check_forward(logits, targets, options, launch, with_entropy=True, with_log_sum=True)
    summands = {"maximum_hbm": results["maximum"], "log_sum_hbm": results["log_sum"], "entropy_hbm": results["entropy"]}
    zeros = np.zeros(20, np.float32)
    upstream = Upstream(zeros, entropy=np.ones(20, np.float32))
    gradient = check_backward(logits, targets, results["lse"], upstream, options, launch, **summands)
    z = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    entropy = -(p * np.log(p)).sum(axis=1, keepdims=True)
    exact = -p * (np.log(p) + entropy)
    assert np.abs(gradient - exact).max() <= 64.0 * 2.0**-23 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["everything", "smoothing"])
@pytest.mark.parametrize("wrong", ["zero", "flipped", "transposed", "shifted"])
def test_the_checks_refuse_wrong_gradients(wrong: str, name: str) -> None:
    logits, targets = normal_batch(40, 40)
    options, launch = options_of(name, 40), Launch(BF16)
    lse = check_forward(logits, targets, options, launch)["lse"]
    upstream = upstream_of(40, "")
    gradient = check_backward(logits, targets, lse, upstream, options, launch)
    spoilt = {
        "zero": np.zeros_like(gradient),
        "flipped": -gradient,
        "transposed": gradient.T.copy(),
        "shifted": np.roll(gradient, 1, axis=1),
    }[wrong]
    with pytest.raises(AssertionError, match="gradient: worst error"):
        assert_gradient(spoilt, logits, targets, lse, upstream, options, BF16)


@pytest.mark.parametrize("chunk_size", [1, pytest.param(7, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("is_probable", [False, True])
def test_more_chunks_than_columns_of_statistics(chunk_size: int, is_probable: bool) -> None:
    """Whatever is gathered chunk by chunk is combined whenever the columns are full."""
    vocabulary = 300 * chunk_size
    logits, targets = normal_batch(3, vocabulary)
    logits[1, 10], logits[2, -1] = 40.0, 40.0
    options = options_of("everything", vocabulary)
    inputs = probabilities(3, vocabulary) if is_probable else targets
    _check(logits, inputs, options, Launch(FP32, 2, 2, chunk_size))


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    vocabulary = draw(st.integers(1, 70))
    return draw(st.integers(1, 30)), vocabulary, draw(st.integers(1, 20)), draw(st.integers(1, vocabulary))


@given(
    shape=_shapes(),
    dtypes=st.sampled_from(DTYPE_PAIRS),
    cores=st.sampled_from([1, 2]),
    name=st.sampled_from(list(OPTIONS)),
    is_probable=st.booleans(),
    which=st.sampled_from(["", "lse", "logprob"]),
)
def test_any_shape(
    shape: tuple[int, int, int, int], dtypes: Any, cores: int, name: str, is_probable: bool, which: str
) -> None:
    positions, vocabulary, positions_per_batch, chunk_size = shape
    logits, targets = normal_batch(positions, vocabulary, seed=sum(shape))
    inputs = probabilities(positions, vocabulary) if is_probable else with_ignored(targets)
    launch = Launch(dtypes[1], cores, positions_per_batch, chunk_size)
    _check(logits.astype(dtypes[0]), inputs, options_of(name, vocabulary), launch, which)


@pytest.mark.parametrize(("name", "is_probable"), list(product(["off", "everything"], [False, True])))
def test_cores_and_batches_change_no_bit(name: str, is_probable: bool) -> None:
    logits, targets = normal_batch(37, 301)
    inputs = probabilities(37, 301) if is_probable else with_ignored(targets)
    options, upstream = options_of(name, 301), upstream_of(37, "lse")
    results = list()
    for cores, positions_per_batch in ((1, 37), (2, 8), (2, 1)):
        launch = Launch(BF16, cores, positions_per_batch, 90)
        result = check_forward(logits, inputs, options, launch, **ALL)
        gradient = check_backward(logits, inputs, result["lse"], upstream, options, launch)
        results.append([*result.values(), gradient])
    for other in results[1:]:
        assert all(same_bits(first, second) for first, second in zip(results[0], other, strict=True))


def test_with_all_off_the_results_are_those_of_the_plain_kernels() -> None:
    from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
    from nkilib.nki import nl

    logits, targets = hard_batch(507)
    tiling: dict[str, Any] = {"positions_per_batch": 5, "chunk_size": 100, "dtype": nl.float32}
    loss, lse = cross_entropy_forward[2](logits, targets, **tiling)
    launch = Launch(FP32, 2, 5, 100)
    results = check_forward(logits, targets, ExtendedLoss(), launch)
    assert same_bits(results["loss"], loss) and same_bits(results["lse"], lse)
    gradient = check_backward(logits, targets, lse, Upstream(np.ones(18, np.float32)), ExtendedLoss(), launch)
    plain = cross_entropy_backward[2](logits, targets, lse, reduction="sum", inplace=False, **tiling)
    np.testing.assert_array_equal(gradient, plain)
