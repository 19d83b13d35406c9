# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gradients of ``linear_cross_entropy_backward``, checked against float64 of the same inputs within derived bounds.

More positions than a launch keeps are split by the kernels, here from fewer positions on than usual.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_cross_entropy_backward, linear_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear.backward.geometry import BackwardBuffers, BackwardSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan, planned_blocks, planned_cover
from nkilib.experimental.loss.linear.block_schedule import position_parts, shares_of_cores
from nkilib.experimental.loss.linear.reference import LinearGradients
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.launch import tile_needs
from tests.experimental.loss.linear_cross_entropy.launch_checks import WANTED, Launch
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    FP16,
    FP32,
    OPTIONS,
    Sizes,
    arguments_of,
    in_layout,
    normal_problem,
    problem_of,
    upstream_of,
    with_options,
)
from tests.experimental.loss.linear_cross_entropy.test_one_launch import launched as launched_together

BLOCKS = {"position_block": 128, "class_block": 128}

# Three parts of 256 positions, or two and a rest.
LIMITS = PlanLimits(positions=256)
POSITIONS = [768, 700]


@dataclass(frozen=True)
class Launched:
    """The results of a launch, the reference and the allowed errors; the bias is included where there is one."""

    found: dict[str, Any]
    expected: LinearGradients
    bounds: LinearGradients
    problem: LinearProblem = field(repr=False)

    def check(self) -> None:
        """All that was returned is within its bounds."""
        for name, result in self.found.items():
            off = np.abs(np.asarray(result, dtype=np.float64) - getattr(self.expected, name))
            assert (off <= getattr(self.bounds, name)).all(), (name, np.nanmax(off / getattr(self.bounds, name)))


def lse_of(problem: LinearProblem) -> Any:
    """Return the LSE as the forward returns it."""
    return linear_forward_reference(problem).lse.astype(np.float32)


def launched(problem: LinearProblem, upstream: BackwardInputs | None = None, cores: int = 2, **kwargs: Any) -> Launched:
    """A launch with everything wanted, of small blocks unless others are asked for."""
    if upstream is None:
        upstream = upstream_of(problem, lse_of(problem))
    results = linear_cross_entropy_backward[cores](
        problem.input,
        problem.weight,
        problem.targets,
        upstream.lse,
        grad_lse_hbm=upstream.grad_lse,
        grad_logprob_hbm=upstream.grad_logprob,
        entropy_hbm=upstream.entropy,
        grad_entropy_hbm=upstream.grad_entropy,
        **arguments_of(problem),
        **{**BLOCKS, "grad_loss_hbm": upstream.grad_loss, **kwargs},
    )
    names = ["input", "weight", "bias"]
    return Launched(
        dict(zip(names, results, strict=False)),
        *linear_gradients_and_bounds(problem, upstream),
        problem,
    )


@pytest.mark.parametrize(("dtype", "further"), [(BF16, True), (FP32, False), (FP16, True)], ids=str)
@pytest.mark.parametrize("name", list(OPTIONS))
def test_gradients_with_options_are_within_their_bounds(name: str, further: bool, dtype: Any) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(140, 64, 300, dtype)), name)
    launched(problem, upstream_of(problem, lse_of(problem), further)).check()


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("blocks", [(128, 256), (256, 384), (512, 1024)])
def test_gradients_do_not_depend_on_the_blocks(blocks: tuple[int, int], layout: str) -> None:
    problem = with_options(problem_of("normal", Sizes(300, 200, 1100, BF16), layout=layout), "bias")
    launched(problem, position_block=blocks[0], class_block=blocks[1]).check()


def test_more_features_than_a_stripe_and_classes_than_banks() -> None:
    for layout in ("vd", "dv"):
        problem = problem_of("normal", Sizes(260, 600, 900, BF16), layout=layout)
        launched(problem, position_block=384, class_block=1024, cores=1).check()


def test_groups_of_the_weight_gradient_have_memory_in_blocks_shorter_than_the_largest() -> None:
    problem = problem_of("normal", Sizes(100, 384, 1400, BF16), layout="dv")
    launched(problem, position_block=128, class_block=1280, cores=1).check()


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize(("layout", "classes"), [("vd", 900), ("dv", 1600)])
def test_a_piece_of_the_input_that_stays_is_the_one_of_its_stripe(layout: str, classes: int, dtype: Any) -> None:
    """Several groups of tiles of dW go through several pieces of several stripes, as the default tiling has it."""
    launch = 520, 640, classes
    tiling = choose_linear_tiling(*launch, dtype, "backward", cores=1, weight_layout=layout)
    plan = BackwardPlan.of(BackwardSizes(*launch, dtype.itemsize, layout == "vd"), *tiling)
    tiles_of_rows = plan.class_tiles if layout == "vd" else -(-plan.stripe // 128)
    assert plan.keeps_pieces and plan.pieces_of_stripe > 1
    assert plan.stripe < plan.features and tiles_of_rows > plan.weight_group[0]
    problem = problem_of("normal", Sizes(*launch, dtype), layout=layout)
    launched(problem, cores=1, position_block=None, class_block=None).check()


@pytest.mark.parametrize("transformed", [np.zeros_like, np.negative, lambda array: array[::-1]])
def test_the_bounds_refuse_other_gradients(transformed: Any) -> None:
    result = launched(problem_of("normal", Sizes(150, 96, 330, BF16)))
    for name, array in result.found.items():
        wrong = replace(result, found={name: transformed(np.asarray(array))})
        with pytest.raises(AssertionError):
            wrong.check()


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(16, 150),
    st.integers(1, 400),
    st.sampled_from([BF16, FP32, FP16]),
    st.sampled_from(["vd", "dv"]),
    st.sampled_from([1, 2]),
    st.integers(0, 2**16),
)
def test_gradients_of_any_shape_are_within_their_bounds(
    positions: int, features: int, classes: int, dtype: Any, layout: str, cores: int, seed: int
) -> None:
    problem = normal_problem(Sizes(positions, features, classes, dtype), np.random.default_rng(seed))
    launched(with_options(in_layout(problem, layout), "bias"), cores=cores).check()


def test_a_loop_of_the_device_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest program that is allowed unrolls these problems; a small one has the loop."""
    for layout in ("vd", "dv"):
        problem = with_options(problem_of("normal", Sizes(130, 48, 2100, BF16), layout=layout), "weights, smoothing")
        problem = replace(problem, bias=np.linspace(-1.0, 1.0, 2100, dtype=np.float32))
        unrolled = launched(problem)
        with monkeypatch.context() as patch:
            patch.setattr("nkilib.experimental.loss.linear.backward.geometry.PROGRAM_INSTRUCTIONS", 300)
            looped = launched(problem)
        looped.check()
        for name, array in unrolled.found.items():
            np.testing.assert_allclose(np.float32(looped.found[name]), np.float32(array), atol=1e-3)


@pytest.mark.parametrize(("classes", "layout"), [(640, "vd"), (512, "dv"), (1201, "vd"), (777, "dv")])
def test_a_loop_over_all_classes_gives_the_same(classes: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores share a block of 640 classes, which counts once in dX, none of 512; others have ragged tiles."""
    sizes = Sizes(130, 48, classes, BF16)
    problem = with_options(problem_of("normal", sizes, layout=layout), "weights, smoothing")
    problem = replace(problem, bias=np.linspace(-1.0, 1.0, classes, dtype=np.float32))
    unrolled = launched(problem)
    with monkeypatch.context() as patch:
        patch.setattr("nkilib.experimental.loss.linear.backward.geometry.PROGRAM_INSTRUCTIONS", 30)
        looped = launched(problem, position_block=128, class_block=128)
    looped.check()
    for name, array in unrolled.found.items():
        np.testing.assert_allclose(np.float32(looped.found[name]), np.float32(array), atol=1e-3)


@pytest.mark.parametrize("adds", [False, True])
def test_a_loop_without_a_block_before_it_gives_the_same(adds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop comes first on one core, which shares no block, and with a sum to which nothing may be added twice."""
    problem = with_options(problem_of("normal", Sizes(130, 48, 777, BF16)), "bias")

    def run() -> dict[str, Any]:
        total = {"grad_weight_sum_hbm": np.ones(problem.weight.shape, np.float32)} if adds else {}
        return launched(problem, position_block=256, cores=2 if adds else 1, **total).found

    unrolled = run()
    with monkeypatch.context() as patch:
        patch.setattr("nkilib.experimental.loss.linear.backward.geometry.PROGRAM_INSTRUCTIONS", 30)
        looped = run()
    for name, array in unrolled.items():
        np.testing.assert_allclose(np.float32(looped[name]), np.float32(array), atol=1e-3)


def test_what_is_not_wanted_is_not_there() -> None:
    problem = with_options(problem_of("normal", Sizes(100, 64, 300, BF16)), "bias")
    whole = launched(problem).found
    for wanted in ("input", "weight", "bias"):
        flags = {f"grad_{name}_wanted": name == wanted for name in whole}
        (result,) = launched(problem, **flags).found.values()
        np.testing.assert_array_equal(result, whole[wanted])


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_the_weight_is_added_to_a_sum_in_float32(layout: str, dtype: Any) -> None:
    problem = problem_of("normal", Sizes(150, 64, 300, dtype), layout=layout)
    start = np.random.default_rng(5).standard_normal(problem.weight.shape).astype(np.float32)
    total = start.copy()
    result = launched(problem, grad_weight_sum_hbm=total)
    np.testing.assert_array_equal(result.found["weight"], total)
    added = replace(result, found={"weight": total.astype(np.float64) - start})
    rounded = result.bounds.weight + 2.0**-23 * (np.abs(start) + np.abs(total))
    replace(added, bounds=result.bounds._replace(weight=rounded)).check()


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_the_gradient_of_the_input_may_stay_in_float32(dtype: Any, cores: int) -> None:
    problem = problem_of("normal", Sizes(150, 64, 300, dtype))
    result = launched(problem, cores=cores, grad_input_float32=True)
    result.check()
    unrounded, rounded = result.found["input"], launched(problem, cores=cores).found["input"]
    assert (unrounded.dtype, rounded.dtype) == (np.float32, dtype)
    np.testing.assert_array_equal(unrounded.astype(dtype), rounded)
    assert (unrounded != rounded.astype(np.float32)).any()


def test_maximum_and_log_sum_keep_the_digits_of_large_logits() -> None:
    problem = problem_of("bias 1e4", Sizes(130, 64, 300, FP32))
    forward = linear_forward_reference(problem)
    upstream = upstream_of(problem, forward.lse.astype(np.float32))
    exact = replace(upstream, lse=forward.lse)  # the reference of an lse that was not rounded
    logits = problem.logits_of(slice(None), problem.classes_first)
    maximum = logits.max(axis=1).astype(np.float32)
    log_sum = (forward.lse - maximum).astype(np.float32)
    off = []
    for given_too in (False, True):
        pair = {"maximum_hbm": maximum, "log_sum_hbm": log_sum} if given_too else {}
        result = launched(problem, upstream, **pair)
        expected = linear_backward_reference(problem, exact).input
        off.append(np.linalg.norm(result.found["input"] - expected) / np.linalg.norm(expected))
    assert off[1] < off[0] / 2 or off[1] < 1e-3, off


def test_shards_of_the_vocabulary_give_the_parts_of_the_whole() -> None:
    problem = with_options(problem_of("30% ignored", Sizes(100, 64, 300, BF16)), "weights, smoothing")
    upstream = upstream_of(problem, lse_of(problem), further=True)
    weight = problem.options.class_weight
    assert weight is not None
    at_target = np.where(problem.targets < 0, 0, weight[np.maximum(problem.targets, 0)]).astype(np.float32)
    for first, end in ((0, 130), (130, 300)):
        shard = slice(first, end)
        results = linear_cross_entropy_backward[2](
            problem.input,
            problem.weight[shard],
            problem.targets,
            upstream.lse,
            upstream.grad_loss,
            grad_lse_hbm=upstream.grad_lse,
            grad_logprob_hbm=upstream.grad_logprob,
            **{**arguments_of(problem), "class_weight_hbm": weight[shard]},
            **BLOCKS,
            first_class=first,
            num_classes=300,
            target_weight_hbm=at_target,
            weight_sum=float(weight.astype(np.float64).sum()),
        )
        Launched(
            dict(zip(["input", "weight"], results, strict=True)),
            *linear_gradients_and_bounds(problem, upstream, shard),
            problem,
        ).check()


def test_masked_classes_have_no_gradient() -> None:
    problem = problem_of("masked classes", Sizes(100, 64, 300, BF16))
    assert problem.bias is not None
    results = launched(problem).found
    assert not np.float32(results["weight"])[np.isinf(problem.bias)].any()
    assert not results["bias"][np.isinf(problem.bias)].any()


def test_blocks_that_do_not_fit_are_refused() -> None:
    problem = problem_of("normal", Sizes(100, 16384, 300, FP32))
    with pytest.raises(AssertionError, match="class_block"):
        launched(problem, position_block=4096, class_block=1024)


def test_blocks_whose_tiles_of_dw_have_no_banks_are_refused() -> None:
    problem = problem_of("normal", Sizes(100, 32, 3300, BF16), layout="dv")
    launched(problem, cores=1, class_block=3072).check()
    with pytest.raises(AssertionError, match=r"class_block must be at most 3072 with weight_layout='dv'.* got 3200"):
        launched(problem, cores=1, class_block=3200)


@pytest.mark.parametrize("positions", [100, 250, 500])
def test_operands_that_alternate_in_sbuf(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """X^T has the memory of X and W while there are logits to compute; blocks of classes follow each other.

    Nothing stays there, not even the one or two tiles of few positions.
    """
    sizes = Sizes(positions, 1100, 600, BF16)
    plan = BackwardPlan.of(BackwardSizes(sizes.positions, sizes.features, sizes.classes, 2), 512, 256)
    turns = BackwardBuffers(tiles_of_piece=2, input_tiles=2, pieces=2, weight_stripes=2, shares_memory=1)
    monkeypatch.setattr(BackwardPlan, "of", classmethod(lambda *_: replace(plan, buffers=turns)))
    launched(problem_of("normal", sizes), cores=1).check()


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize(
    "buffers",
    [
        BackwardBuffers(),
        BackwardBuffers(weight_stripes=2),
        BackwardBuffers(input_tiles=2, pieces=3),
        BackwardBuffers(tiles_of_piece=2, input_results=3),
        BackwardBuffers(input_tiles=2, shares_memory=1),
    ],
    ids=str,
)
def test_few_buffers(buffers: BackwardBuffers, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, what streams waits until its buffer is done with: the next stripe of W among it."""
    sizes = Sizes(300, 600, 300, BF16)
    of_launch = BackwardSizes(
        sizes.positions, sizes.features, sizes.classes, 2, layout == "vd", tile_needs(has_bias=True)
    )
    plan = replace(BackwardPlan.of(of_launch, 256, 256), buffers=buffers)
    monkeypatch.setattr(BackwardPlan, "of", classmethod(lambda *_: plan))
    launched(with_options(problem_of("normal", sizes, layout=layout), "bias"), cores=1).check()


def test_one_stripe_of_the_weight_at_a_time() -> None:
    """A tiling that fits, but leaves no room for a second stripe of W beside the one that is multiplied."""
    plan = BackwardPlan.of(BackwardSizes(129, 520, 2560, 4), 256, 2560)
    assert plan.fits and plan.buffers.weight_stripes == 1
    problem = problem_of("normal", Sizes(129, 520, 2560, FP32))
    launched(problem, cores=1, position_block=256, class_block=2560).check()


@pytest.mark.parametrize(
    ("sizes", "name", "layout", "program"),
    [
        (Sizes(300, 700, 1100, BF16), "none", "vd", 29000),
        (Sizes(650, 600, 2000, BF16), "bias", "vd", 700),
        (Sizes(130, 700, 2100, FP16), "all", "dv", 300),
    ],
    ids=str,
)
def test_weights_that_stream_by_the_input(
    sizes: Sizes, name: str, layout: str, program: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices outnumber their buffers; they stream unrolled, and in a loop that begins with slices that are there."""
    backward = "nkilib.experimental.loss.linear.backward"
    planned, sized = f"{backward}.memory_plan", f"{backward}.geometry"
    for module in (sized, f"{backward}.streams"):
        monkeypatch.setattr(f"{module}.TILES_OF_SLICE", 1)
    monkeypatch.setattr(f"{planned}._FEATURES_OF_RESIDENT_WEIGHT", 0)
    monkeypatch.setattr(f"{planned}._SLICES_MOST", 4)
    monkeypatch.setattr(f"{sized}.PROGRAM_INSTRUCTIONS", program)
    plan = BackwardPlan.of(BackwardSizes(sizes.positions, sizes.features, sizes.classes, 2), 1024, 256)
    assert plan.streams_weight
    problem = with_options(problem_of("normal", sizes, layout=layout), name)
    launched(problem, position_block=1024, class_block=256).check()


@pytest.mark.parametrize(
    ("sizes", "name", "blocks", "copies", "way"),
    [
        (Sizes(1500, 700, 900, BF16), "none", (1536, 512), 9.0, "unrolled"),
        (Sizes(1500, 200, 3300, FP16), "bias", (1536, 512), 3.1, "lead and loop"),
        (Sizes(1408, 200, 2000, BF16), "weights, smoothing", (1408, 384), 2.1, "loop"),
        (Sizes(1300, 530, 1300, BF16), "bias", (768, 384), 1.3, "cover"),
    ],
    ids=str,
)
def test_inputs_that_stream_beside_the_weight(
    sizes: Sizes,
    name: str,
    blocks: tuple[int, int],
    copies: float,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slices, of batches of unlike size, outnumber their buffers; every way through the classes is taken."""
    backward = "nkilib.experimental.loss.linear.backward"
    planned, sized = f"{backward}.memory_plan", f"{backward}.geometry"
    for module in (sized, f"{backward}.streams"):
        monkeypatch.setattr(f"{module}.TILES_OF_SLICE", 1)
    monkeypatch.setattr(f"{planned}._FEATURES_OF_RESIDENT_WEIGHT", 0)
    monkeypatch.setattr(f"{planned}._SLICES_OF_BOTH_MOST", 4)
    of_launch = BackwardSizes(
        sizes.positions, sizes.features, sizes.classes, 2, True, tile_needs(has_bias=name == "bias")
    )
    plan = BackwardPlan.of(of_launch, *blocks)
    program = int(copies * plan.instructions(sizes.positions, blocks[1]))
    monkeypatch.setattr(f"{sized}.PROGRAM_INSTRUCTIONS", program)
    assert plan.streams_inputs and plan.batches_of_tiles * plan.tiles_of_batch >= plan.position_tiles
    shares = [share for share in shares_of_cores(sizes.classes, 2) if share.size > 0]
    cover = planned_cover(plan, shares, 0, sizes.positions)
    result = planned_blocks(plan, shares, 0, sizes.positions)
    ways = {
        "lead and loop": result.lead > 0 and result.blocks.iterations > 0,
        "unrolled": result.blocks.iterations == 0,
    }
    ways["loop"] = result.lead == 0 and result.blocks.iterations > 0
    assert cover is not None if way == "cover" else cover is None and ways[way]
    problem = with_options(problem_of("normal", sizes), name)
    launched(problem, position_block=blocks[0], class_block=blocks[1]).check()


def test_inputs_stream_where_that_is_of_use() -> None:
    """Inputs of many positions and features in 16 bits, [V, D], without a cap, stream in long enough blocks."""
    sizes = BackwardSizes(4096, 8192, 32128, 2)
    shares = shares_of_cores(32128, 2)
    for positions, has_cover in ((4096, False), (16384, True)):
        chosen = choose_linear_tiling(positions, 8192, 32128, "bfloat16", "backward")
        plan = BackwardPlan.of(replace(sizes, num_positions=positions), *chosen)
        assert chosen == (4096, 768) and plan.streams_inputs
        assert (planned_cover(plan, shares, 0, positions) is not None) == has_cover
    for changed in (
        {"itemsize": 4},
        {"has_classes_first": False},
        {"num_features": 6144},
        {"num_features": 8320},
        {"num_positions": 1280},
        {"needs": tile_needs(has_softcap=True)},
        {"staging_bytes": 1024},
        {"num_positions": 65536},  # whose programs are too short for such blocks
    ):
        assert not BackwardPlan.of(replace(sizes, **changed), 4096, 768).streams_inputs
    for blocks in ((4096, 640), (4096, 256), (512, 768)):
        assert not BackwardPlan.of(sizes, *blocks).streams_inputs


def test_weights_stay_where_the_input_does_not_fit() -> None:
    for positions, features, itemsize in ((2048, 12288, 2), (512, 4096, 2), (512, 8192, 4)):
        assert not BackwardPlan.of(BackwardSizes(positions, features, 32128, itemsize), 1024, 512).streams_weight


@pytest.mark.parametrize("upstream", [np.inf, np.nan])
def test_one_upstream_gradient_that_is_not_finite_makes_all_of_float16_nan(upstream: float) -> None:
    problem = problem_of("normal", Sizes(140, 48, 260, FP16))
    inputs = np.full(140, 1.0 / 140, np.float32)
    inputs[3] = upstream
    for cores in (1, 2):
        operands = problem.input, problem.weight, problem.targets, lse_of(problem), inputs
        results = linear_cross_entropy_backward[cores](*operands, **BLOCKS)
        assert all(np.isnan(np.float32(array)).all() for array in results)


@pytest.mark.parametrize(
    ("positions", "layout", "dtype", "name"),
    [(768, "vd", BF16, "all"), (700, "dv", BF16, "all"), (700, "vd", FP32, "bias"), (768, "dv", FP16, "none")],
    ids=str,
)
def test_gradients_of_parts(positions: int, layout: str, dtype: Any, name: str) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(positions, 200, 700, dtype), layout=layout), name)
    upstream = upstream_of(problem, lse_of(problem), further=True)
    with shrunk(LIMITS):
        assert position_parts(positions, 200).is_split
        launched(problem, upstream).check()
        launched(problem, upstream, cores=1, position_block=None, class_block=None).check()


@pytest.mark.parametrize("positions", POSITIONS)
def test_loss_and_gradients_of_parts_in_one_launch(positions: int) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(positions, 64, 300, BF16)), "all")
    with shrunk(LIMITS):
        launched_together(problem, position_block=None, class_block=None).check()


@pytest.mark.parametrize("positions", POSITIONS)
def test_rows_are_those_of_a_launch_that_is_not_split(positions: int) -> None:
    """The results of the forward, and dX, are bitwise identical to those of the launch that is not split."""
    problem = with_options(problem_of("30% ignored", Sizes(positions, 200, 900, BF16)), "bias")
    launch = Launch(position_block=256, class_block=128, wanted=WANTED)
    whole = launch.results(problem)
    upstream = upstream_of(problem, whole["lse"])
    blocks = {"position_block": 256, "class_block": 256}
    gradients = launched(problem, upstream, **blocks).found
    with shrunk(LIMITS):
        split = launch.results(problem)
        of_parts = launched(problem, upstream, **blocks).found
    assert split.keys() == whole.keys()
    for name, value in split.items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    np.testing.assert_array_equal(of_parts["input"], gradients["input"])
    assert (of_parts["weight"] != gradients["weight"]).mean() < 0.05


@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_the_weight_gradient_is_added_to_a_sum(layout: str) -> None:
    problem = problem_of("normal", Sizes(700, 200, 700, BF16), layout=layout)
    upstream = upstream_of(problem, lse_of(problem))
    start = np.random.default_rng(4).standard_normal(problem.weight.shape).astype(np.float32)
    with shrunk(LIMITS):
        result = launched(problem, upstream, grad_weight_sum_hbm=start.copy())
    added = replace(result, found={**result.found, "weight": result.found["weight"].astype(np.float64) - start})
    rounding = 2.0**-22 * (np.abs(start) + np.abs(result.found["weight"]))
    replace(added, bounds=result.bounds._replace(weight=result.bounds.weight + rounding)).check()


@pytest.mark.parametrize("wanted", ["input", "weight", "bias"])
def test_one_gradient_alone(wanted: str) -> None:
    problem = with_options(problem_of("normal", Sizes(700, 64, 300, BF16)), "bias")
    upstream = upstream_of(problem, lse_of(problem))
    flags = {f"grad_{name}_wanted": name == wanted for name in ("input", "weight", "bias")}
    arguments = (problem.input, problem.weight, problem.targets, upstream.lse, upstream.grad_loss)
    with shrunk(LIMITS):
        every = linear_cross_entropy_backward[2](*arguments, **arguments_of(problem))
        (alone,) = linear_cross_entropy_backward[2](*arguments, **arguments_of(problem), **flags)
    np.testing.assert_array_equal(alone, dict(zip(("input", "weight", "bias"), every, strict=True))[wanted])


def test_operands_of_another_type() -> None:
    problem = with_options(problem_of("normal", Sizes(700, 200, 700, FP32)), "bias")
    rounded = replace(problem, input=problem.input.astype(BF16), weight=problem.weight.astype(BF16))
    upstream = upstream_of(rounded, lse_of(rounded))
    arguments = {"position_block": 256, "class_block": 256}
    with shrunk(LIMITS):
        expected = launched(rounded, upstream, **arguments).found
        operands = (problem.input, problem.weight, problem.targets, upstream.lse, upstream.grad_loss)
        result = linear_cross_entropy_backward[2](*operands, problem.bias, compute_dtype=BF16, **arguments)
        loss, lse = linear_cross_entropy_forward[2](*operands[:3], problem.bias, compute_dtype=BF16)
    np.testing.assert_array_equal(result[0].astype(BF16), expected["input"])
    np.testing.assert_array_equal(result[1].astype(BF16), expected["weight"])
    np.testing.assert_array_equal(result[2], expected["bias"])
    np.testing.assert_allclose(lse, upstream.lse, rtol=1e-6)
    assert np.isfinite(loss).all()


def test_parts_are_as_equal_as_tiles_can_be() -> None:
    assert position_parts(65_536, 4096) == (65_536, 1, 0)
    assert position_parts(131_072, 1024) == (16_384, 8, 0)
    assert position_parts(65_537, 4096) == (7296, 8, 7169)
    for positions, features in ((65_537, 16), (70_001, 16_384), (10**6, 8192)):
        parts = position_parts(positions, features)
        assert parts.is_split and parts.whole * parts.size + parts.rest == positions
        assert parts.size % 128 == 0 and parts.size * features <= 4096 * 8192 and parts.size <= 16_384
