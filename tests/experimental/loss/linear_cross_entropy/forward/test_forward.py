# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy_forward`` against float64 from the very inputs, within derived bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds

from ..linear_inputs import (
    BF16,
    FP16,
    FP32,
    OPTIONS,
    PROBLEMS,
    Sizes,
    in_layout,
    normal_problem,
    problem_of,
    with_options,
)
from .forward_checks import WANTED, Launch, check, reference_of

SIZES = Sizes(140, 144, 500)
EVERYTHING = Launch(wanted=WANTED)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_hard_inputs(kind: str) -> None:
    for dtype in (BF16, FP32):
        check(problem_of(kind, replace(SIZES, dtype=dtype)), EVERYTHING)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    problem = with_options(problem_of("30% ignored", SIZES), name)
    check(problem, Launch())
    check(problem, replace(EVERYTHING, class_block=128))


@settings(max_examples=12)
@given(
    positions=st.integers(1, 300),
    features=st.integers(16, 300),
    classes=st.integers(1, 900),
    dtype=st.sampled_from([BF16, FP16, FP32]),
    layout=st.sampled_from(["vd", "dv"]),
    name=st.sampled_from(sorted(OPTIONS)),
    cores=st.sampled_from([1, 2]),
    position_block=st.sampled_from([None, 128]),
    class_block=st.sampled_from([None, 128, 384]),
)
@example(1, 16, 1, BF16, "vd", "none", 2, None, None)
@example(1, 16, 100, FP32, "dv", "all", 2, None, None)
@example(129, 16, 127, BF16, "dv", "all", 2, 128, None)
@example(300, 300, 900, FP16, "vd", "all", 2, 128, 128)
def test_any_shape(
    positions: int,
    features: int,
    classes: int,
    dtype: np.dtype,
    layout: str,
    name: str,
    cores: int,
    position_block: int | None,
    class_block: int | None,
) -> None:
    problem = problem_of("30% ignored", Sizes(positions, features, classes, dtype), seed=positions + classes)
    problem = in_layout(with_options(problem, name), layout)
    check(problem, Launch(cores, position_block, class_block, WANTED))


@pytest.mark.parametrize(("features", "dtype"), [(16384, BF16), (8200, FP32), (16, BF16)])
def test_depth(features: int, dtype: np.dtype) -> None:
    check(normal_problem(Sizes(3, features, 40, dtype), np.random.default_rng(3)), EVERYTHING)


def test_more_classes_than_a_window_of_blocks() -> None:
    problem = with_options(normal_problem(Sizes(140, 32, 3000), np.random.default_rng(4)), "all")
    results = [check(problem, replace(EVERYTHING, cores=cores, class_block=128)) for cores in (1, 2)]
    for name in ("argmax", "position_weight"):
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_the_bounds_tell_a_wrong_result() -> None:
    problem = normal_problem(Sizes(128, 128, 128, FP32), np.random.default_rng(5))
    exact, bounds = reference_of(problem), linear_forward_bounds(problem)
    turned = reference_of(replace(problem, weight=np.ascontiguousarray(problem.weight.T)))
    for name in ("loss", "lse", "target_logit", "entropy", "maximum", "log_sum", "log_sum_squares", "mean_logit"):
        right, bound = exact[name], bounds[name]
        for wrong in (np.zeros_like(right), -right, turned[name]):
            assert np.median(error_over_bound(wrong, right, bound)) > 10, name


def test_shards_count_targets_and_classes_over_all() -> None:
    problem = with_options(problem_of("30% ignored", Sizes(150, 64, 500, FP32)), "weights, smoothing")
    exact, bounds = reference_of(problem), linear_forward_bounds(problem)
    weight = problem.options.class_weight
    assert weight is not None
    logits = problem.input.astype(np.float64) @ problem.classes_first.T
    for first, last in ((0, 200), (200, 500)):
        shard = replace(
            problem,
            weight=problem.weight[first:last],
            options=replace(problem.options, class_weight=weight[first:last]),
        )
        results = Launch(wanted=WANTED).results(shard, first_class=first, num_classes=500)
        kept = (problem.targets >= first) & (problem.targets < last)
        expected = np.where(kept, exact["target_logit"], 0.0)
        assert error_over_bound(results["target_logit"], expected, bounds["target_logit"]).max() <= 1.0
        np.testing.assert_array_equal(results["position_weight"], np.where(kept, exact["position_weight"], 0.0))
        np.testing.assert_array_equal(results["argmax"], first + logits[:, first:last].argmax(axis=1))
        lse = np.log(np.exp(logits[:, first:last]).sum(axis=1))
        assert error_over_bound(results["lse"], lse, bounds["lse"]).max() <= 1.0


def test_of_equal_logits_the_first_class_on_either_core() -> None:
    problem = problem_of("normal", Sizes(130, 32, 1500))
    same = np.repeat(np.rint(problem.weight[:1].astype(np.float32) * 8).astype(BF16), 1500, axis=0)
    exact = replace(problem, input=np.rint(problem.input.astype(np.float32)).astype(BF16), weight=same)
    np.testing.assert_array_equal(Launch(wanted=("argmax",)).results(exact)["argmax"], 0)
    lifted = replace(exact, bias=np.where(np.isin(np.arange(1500), (1003, 1400)), 1.0, 0.0).astype(np.float32))
    np.testing.assert_array_equal(Launch(wanted=("argmax",)).results(lifted)["argmax"], 1003)


def test_rows_of_minus_infinity_as_in_pytorch() -> None:
    """All classes masked; the target alone masked; all but the target masked."""
    import torch

    sizes = Sizes(3, 16, 300, FP32)
    problem = replace(normal_problem(sizes, np.random.default_rng(6)), targets=np.array([7, 8, 200], np.int32))
    target_masked, others_masked = np.zeros(300, np.float32), np.full(300, -np.inf, np.float32)
    target_masked[[7, 8, 200]] = -np.inf
    others_masked[200] = 0.0
    for bias in (np.full(300, -np.inf, np.float32), target_masked, others_masked):
        for smoothing in (0.0, 0.1):
            biased = replace(problem, bias=bias, options=ExtendedLoss(label_smoothing=smoothing))
            results = Launch(wanted=("target",)).results(biased)
            logits = torch.from_numpy(biased.logits_of(slice(None), biased.classes_first))
            loss = torch.nn.functional.cross_entropy(
                logits, torch.from_numpy(biased.targets).long(), reduction="none", label_smoothing=smoothing
            )
            np.testing.assert_allclose(results["loss"], loss.numpy(), rtol=1e-5)
            np.testing.assert_allclose(results["lse"], torch.logsumexp(logits, 1).numpy(), rtol=1e-5)


def test_a_loss_of_confident_rows_is_not_negative() -> None:
    results = Launch().results(problem_of("half at 0.999", Sizes(256, 128, 500)))
    assert (results["loss"] >= 0.0).all()


def test_a_class_weight_of_an_ignored_position_is_not_looked_at() -> None:
    problem = problem_of("all ignored", Sizes(20, 32, 300))
    weighted = replace(problem, options=ExtendedLoss(class_weight=np.full(300, np.nan, np.float32)))
    np.testing.assert_array_equal(Launch().results(weighted)["loss"], 0.0)
