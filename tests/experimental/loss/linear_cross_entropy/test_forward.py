# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy_forward`` against float64 from the very inputs, within derived bounds, and its schedule.

Loss and log-sum-exp on hard inputs; the scores beside them: entropy, log sum p^2, mean logit and argmax; and how the
forward goes through its classes: loops of the device, the length of programs, what a launch reads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks._program_size import program_instructions
from nkilib.experimental.loss import linear_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss
from nkilib.experimental.loss.linear.class_schedule import ClassSchedule, divide_classes
from nkilib.experimental.loss.linear.tiling import fastest_tiling
from nkilib.experimental.loss.linear_cross_entropy.host import tiling as forward_tiling
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem
from nkilib.experimental.loss.linear_cross_entropy.launch import ForwardNeeds
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec, using

from .launch_checks import WANTED, Launch, check, reference_of
from .linear_inputs import (
    BF16,
    FP16,
    FP32,
    OPTIONS,
    PROBLEMS,
    Array,
    Sizes,
    in_layout,
    normal_problem,
    problem_of,
    with_options,
)

SIZES = Sizes(140, 144, 500)
EVERYTHING = Launch(wanted=WANTED)

SCORE_SIZES = Sizes(130, 48, 300)
SCORES = ("argmax", "entropy", "log_sum_squares", "mean_logit")
HARD = ("half at 0.999", "spread 50", "masked classes", "duplicate rows")
# Temperature, scale of the logits and cap; among them powers of two, whose products are exact.
RECIPES = ((0.05, 1.0, None), (20.0, 0.5, 30.0), (0.8, 3.0, 5.0), (0.5, 1.0, None))
IN_BLOCKS_OF_128 = Launch(wanted=WANTED, class_block=128)
BYTES_OF = forward_tiling.ForwardSizes.bytes_of


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


def scaled(problem: LinearProblem, temperature: float, scale: float, cap: float | None) -> LinearProblem:
    """The problem with these options."""
    options = replace(problem.options, temperature=temperature, logit_softcap=cap)
    return replace(problem, options=options, logit_scale=scale)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", HARD)
def test_hard_rows(kind: str, recipe: tuple[float, float, float | None]) -> None:
    number = HARD.index(kind) + RECIPES.index(recipe)
    sizes = replace(SCORE_SIZES, dtype=(BF16, FP32, FP16)[number % 3])
    problem = in_layout(scaled(problem_of(kind, sizes), *recipe), ("vd", "dv")[number % 2])
    check(problem, Launch(1 + number % 2, None, 128, SCORES))


@pytest.mark.parametrize("wanted", [*((score,) for score in SCORES), ("entropy", "log_sum_squares")])
@pytest.mark.parametrize("kind", ["normal", "masked classes"])
def test_each_score_by_itself(kind: str, wanted: tuple[str, ...]) -> None:
    check(problem_of(kind, SCORE_SIZES), Launch(wanted=wanted))


@pytest.mark.parametrize("cap", [None, 4.0])
def test_masked_classes_take_no_part(cap: float | None) -> None:
    """All but one class are masked in the bias of the second launch: nothing is left to choose."""
    problem = scaled(problem_of("masked classes", replace(SCORE_SIZES, dtype=FP32)), 0.9, 1.0, cap)
    assert problem.bias is not None
    results = check(problem, Launch(class_block=128, wanted=SCORES))
    assert all(np.isfinite(values).all() for values in results.values())
    kept = np.flatnonzero(np.isfinite(problem.bias))
    assert np.isin(results["argmax"], kept).all()
    one = replace(problem, bias=np.where(np.arange(300) == kept[0], problem.bias, -np.inf).astype(np.float32))
    one = replace(one, targets=np.full_like(problem.targets, kept[0]))
    alone = check(one, Launch(class_block=128, wanted=SCORES))
    np.testing.assert_array_equal(alone["argmax"], kept[0])
    for name in ("loss", "entropy", "log_sum_squares"):
        np.testing.assert_allclose(alone[name], 0.0, atol=1e-6)


@pytest.mark.parametrize("cap", [None, 4.0])
def test_rows_whose_classes_are_all_masked(cap: float | None) -> None:
    """The first class, as torch has it; no mean of nothing."""
    problem = scaled(normal_problem(SCORE_SIZES, np.random.default_rng(0)), 0.9, 1.0, cap)
    masked = replace(problem, bias=np.full(300, -np.inf, np.float32))
    results = Launch(class_block=128, wanted=SCORES).results(masked)
    np.testing.assert_array_equal(results["argmax"], 0)
    assert np.isneginf(results["lse"]).all()
    assert np.isnan(results["mean_logit"]).all()


def integers(classes: int, logits: Array) -> LinearProblem:
    """Products that are exact: a class has the logit of its column, less one for all positions but the first."""
    features = np.zeros((classes, 16), np.float32)
    features[:, 0], features[:, 1] = np.floor(logits / 128), logits % 128
    rows = np.zeros((130, 16), np.float32)
    rows[:, 0], rows[:, 1] = 128.0, 1.0
    rows[1:, 2], features[:, 2] = 1.0, -1.0
    targets = np.zeros(130, np.int32)
    return LinearProblem(rows.astype(BF16), features.astype(BF16), targets)


def first_of_largest(problem: LinearProblem) -> Array:
    """The argmax of z in float32, as the kernel computes it from exact products."""
    recipe = problem.recipe
    scores = problem.logits_of(slice(None), problem.classes_first).astype(np.float32)
    scale = (1.0 if recipe.logit_softcap is None else recipe.logit_softcap) / recipe.temperature
    if recipe.logit_softcap is not None:
        scores = np.tanh(scores * np.float32(1.0 / recipe.logit_softcap))
    result: Array = (scores * np.float32(scale)).argmax(axis=1)
    return result


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "recipe",
    # Tangents of 200 and 300 are both 1 in float32 in the third one, and unlike in the last.
    [(1.0, 1.0, None), (0.7, 1.0, None), (0.7, 0.3, 2.0), (1.0, 1.0, 64.0)],
)
def test_of_equal_z_the_first_class(recipe: tuple[float, float, float | None], cores: int) -> None:
    """Equal ones in a block, across blocks, and across cores; under a cap larger logits behind some of them."""
    rng = np.random.default_rng(3)
    for places in ((5, 100, 290), (130, 140, 600), (899, 320), (700, 701)):
        logits = rng.integers(0, 20, 900).astype(np.float32)
        logits[list(places)] = 200.0
        if recipe[2] is not None:
            logits[[max(places) - 1, 880]] = 300.0
        problem = scaled(integers(900, logits), *recipe)
        result = Launch(cores, None, 128, ("argmax",)).results(problem)["argmax"]
        np.testing.assert_array_equal(result, first_of_largest(problem))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_temperature_makes_neighbours_equal(cores: int) -> None:
    """Integers of 2^23 and more are neighbours in float32, and 1.25 times two of them may be one number."""
    logits = np.full(500, 59.0 * 2**18)
    rows, features = np.zeros((130, 16), np.float32), np.zeros((500, 16), np.float32)
    rows[:, 0], rows[:, 1] = 2.0**18, 1.0
    features[:, 0] = 59.0
    features[:, 1] = np.random.default_rng(4).integers(0, 200, 500)
    features[[7, 450], 1], features[[90, 300], 1] = 220.0, 221.0
    problem = LinearProblem(rows.astype(BF16), features.astype(BF16), np.zeros(130, np.int32))
    problem = replace(problem, options=ExtendedLoss(temperature=0.8))
    expected = first_of_largest(problem)
    assert expected[0] != int((logits + features[:, 1]).argmax())
    result = Launch(cores, None, 128, ("argmax",)).results(problem)["argmax"]
    np.testing.assert_array_equal(result, expected)


def test_shards_have_the_scores_of_their_own_softmax() -> None:
    problem = scaled(problem_of("masked classes", Sizes(140, 64, 500, FP32)), 0.7, 1.0, None)
    assert problem.bias is not None
    for first, last in ((0, 200), (200, 500)):
        part: dict[str, Any] = {"weight": problem.weight[first:last], "bias": problem.bias[first:last]}
        own = replace(problem, **part, targets=np.zeros_like(problem.targets))
        result = Launch(wanted=SCORES, class_block=128).results(own, first_class=first, num_classes=500)
        exact, bounds = reference_of(own), linear_forward_bounds(own)
        for name in ("entropy", "log_sum_squares", "mean_logit"):
            assert error_over_bound(result[name], exact[name], bounds[name]).max() <= 1.0, name
            for wrong in (0.0 * result[name], -result[name], result[name][::-1]):
                assert np.median(error_over_bound(wrong, exact[name], bounds[name])) > 10, name


@pytest.mark.parametrize(
    ("cores", "name", "layout", "positions"), [(1, "all", "vd", 300), (2, "none", "dv", 300), (2, "all", "vd", 130)]
)
def test_loops_give_what_the_unrolled_program_gives(
    monkeypatch: pytest.MonkeyPatch, cores: int, name: str, layout: str, positions: int
) -> None:
    """Over blocks of classes and, with 300 positions, over two of three blocks of these."""
    problem = normal_problem(Sizes(positions, 16, 2800 * cores), np.random.default_rng(0))
    problem = in_layout(with_options(problem, name), layout)
    launch = replace(IN_BLOCKS_OF_128, cores=cores, position_block=128)
    unrolled = check(problem, launch)
    monkeypatch.setattr(forward_tiling, "_INSTRUCTIONS", 1)
    for key, values in launch.results(problem).items():
        # A mean may be far smaller than the logits, which are about 2.
        atol = 1e-6 if key == "mean_logit" else 0.0
        np.testing.assert_allclose(values, unrolled[key], rtol=1e-6, atol=atol, err_msg=key)


@pytest.mark.parametrize("classes", [500, 760, 1300])
def test_the_first_classes_are_loaded_again_for_each_block_of_positions(classes: int) -> None:
    """After an even and an odd number of blocks of classes."""
    problem = normal_problem(Sizes(390, 16, classes), np.random.default_rng(2))
    for cores in (1, 2):
        check(problem, replace(IN_BLOCKS_OF_128, cores=cores, position_block=128))


@pytest.mark.parametrize(("positions", "name"), [(600, "none"), (300, "all")])
def test_classes_that_the_cores_share(monkeypatch: pytest.MonkeyPatch, positions: int, name: str) -> None:
    """The cores share parts of two tiles and of one; the second core has none of a remainder of one tile."""
    problem = with_options(normal_problem(Sizes(positions, 16, 2001), np.random.default_rng(1)), name)
    launch = replace(IN_BLOCKS_OF_128, position_block=256 if positions < 600 else 512)
    unshared = check(problem, launch)
    monkeypatch.setattr(forward_tiling, "_LOAD_US", float("-inf"))
    monkeypatch.setattr(forward_tiling, "_SWAP_US", 0.02)
    for key, values in check(problem, launch).items():
        np.testing.assert_allclose(values, unshared[key], rtol=1e-5, atol=1e-5, err_msg=key)
    monkeypatch.setattr(forward_tiling, "_INSTRUCTIONS", 1)
    check(problem, launch)


@pytest.mark.parametrize("shared", [0, 300])
def test_trips_take_what_a_program_may_have(shared: int) -> None:
    division = divide_classes(128_200, shared, 2, 512)
    for bodies in (10, 16, 25, 40, 63, 100):
        first, second = (ClassSchedule.make(division, core, 512, bodies) for core in (0, 1))
        assert first.plan.iterations == second.plan.iterations > 1
        assert first.shared == second.shared
        assert bool(first.shared) == bool(shared)
        edges = [0, second.first, first.shared[0].first if first.shared else 128_200]
        assert sum(span.size for span in first.shared) - shared in (range(128) if shared else (0,))
        for schedule, start, end in zip((first, second), edges, edges[1:], strict=False):
            assert schedule.plan.bodies + 1 + len(schedule.shared) <= max(bodies, 10)
            assert schedule.head is not None
            assert schedule.head.first == start
            assert schedule.head.first + schedule.head.size == schedule.plan.first
            last = schedule.plan.rest[-1]
            assert last.first + last.size == end


def profiled(positions: int, features: int, classes: int, **arguments: Any) -> Profile:
    """A launch on the two cores of trn2, in bfloat16."""
    tensors = (
        spec((positions, features), nl.bfloat16),
        spec((classes, features), nl.bfloat16),
        spec((positions,), nl.int32),
    )
    return profile(linear_cross_entropy_forward[2], *tensors, **arguments)


def test_a_program_is_short_whatever_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the instructions that a program may have is allowed, for a tenth of the classes."""
    monkeypatch.setattr(forward_tiling, "_INSTRUCTIONS", 2_800)
    sizes = [program_instructions(partial(profiled, 256, 1024, classes)) for classes in (50_000, 100_000)]
    assert max(sizes) <= 3_000


def test_the_weight_is_read_once_where_the_positions_fit() -> None:
    result = profiled(1024, 1024, 16_000)
    operands = 2 * 1024 * (1024 * 2 + 16_000)
    # And the few classes that both cores work on at the end once more.
    assert operands <= result.hbm_read_bytes <= 1.05 * operands
    assert result.hbm_written_bytes == 2 * 4 * 1024


@pytest.mark.parametrize(("positions", "features", "most"), [(512, 512, 1.15), (1024, 1024, 1.03)])
def test_tensor_is_kept_busy(positions: int, features: int, most: float) -> None:
    """Modelled, not measured: the time over that of the products alone."""
    result = profiled(positions, features, 32_000)
    products_us = positions * features * 16_000 / (128 * 128 * 2400)
    assert result.time_us <= most * products_us


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"with_entropy": True, "with_log_sum_squares": True, "temperature": 0.7}, 1.05),
        ({"with_entropy": True, "logit_softcap": 30.0}, 1.085),
        (dict.fromkeys(("with_entropy", "with_log_sum_squares", "with_mean_logit", "with_argmax"), True), 1.405),
    ],
)
def test_scores_leave_tensor_busy(options: dict[str, Any], most: float) -> None:
    """Modelled likewise. And what a tiling counts is enough for what the launch takes of SBUF."""
    with mock.patch.object(forward_tiling.ForwardSizes, "bytes_of", autospec=True, side_effect=BYTES_OF) as counted:
        result = profiled(1024, 1024, 32_000, **options)
    products_us = 1024 * 1024 * 16_000 / (128 * 128 * 2400)
    assert result.time_us <= most * products_us
    sizes = counted.call_args.args[0]
    assert result.sbuf_peak_bytes_per_partition <= BYTES_OF(sizes, 8, 512)


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        AssertionError, match=r"linear_cross_entropy_forward: position_block and class_block must leave"
    ):
        profiled(4096, 8192, 32_000, position_block=4096)


def test_the_other_generation() -> None:
    problem = with_options(normal_problem(Sizes(140, 144, 900), np.random.default_rng(7)), "all")
    with using(target="trn3"):
        check(problem, IN_BLOCKS_OF_128)


@pytest.mark.parametrize("needs", [ForwardNeeds(), ForwardNeeds(entropy=True), ForwardNeeds.everything()])
@pytest.mark.parametrize("features", [16, 512, 4096, 16_384])
def test_every_size_has_a_tiling_that_fits(features: int, needs: ForwardNeeds) -> None:
    for positions in (1, 128, 2048, 65_536):
        for itemsize in (2, 4):
            sizes = forward_tiling.ForwardSizes(positions, features, 50_000, itemsize, 2, needs)
            tiling = fastest_tiling(sizes, nl.tile_size.sbuf_fmax_bytes)
            plan = sizes.position_plan(*tiling)
            assert plan.whole * plan.size + plan.rest == positions
            assert sizes.bytes_of(plan.tiles, tiling.class_block) <= nl.tile_size.sbuf_fmax_bytes
