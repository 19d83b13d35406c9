# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gradients by every way in which the backward of two models is cut up, on small shapes, beside float64.

Modelled times and programs, beside the time of the products and the limit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks._program_size import program_instructions
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.rounds import SharedBuffers
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear_distillation.host.profiling import profile_linear_distillation_launch
from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem
from nkilib.experimental.loss.linear_distillation.host.tiling import BACKWARD, choose_linear_distillation_tiling
from nkilib.nki import nl
from nkilib.simulator import spec

from .pair_checks import Array, Launch, check_backward, gradient_errors, in_layouts, launched_backward, upstream_of
from .pair_inputs import BF16, FP16, FP32, PROBLEMS, Sizes, pair_of

BETAS = (0.0, 1.0, 0.3)
every_beta = pytest.mark.parametrize("beta", BETAS)

VOCABULARY, LONGEST = 151936, 29_000
# N, Ds, Dt, and the time over that of the products for a divergence either way and for one from a mixture.
LAUNCHES = (
    (2048, 1024, 2048, 1.04, 1.05),
    (4096, 2048, 4096, 1.045, 1.05),
    (2048, 2560, 5120, 1.035, 1.04),
)
MODELLED_BETAS = (0.0, 1.0, 0.5)
SOFTCAPS = {"student_logit_softcap": 30.0, "teacher_logit_softcap": 30.0}


def plans_of(problem: PairProblem, launch: Launch = Launch(), **limits: int) -> list[BackwardPlan]:  # noqa: B008
    """Launch a backward, hold its gradients to their bounds, and return the plans that it has taken."""
    with mock.patch.object(SharedBuffers, "make", wraps=SharedBuffers.make) as made, shrunk(PlanLimits(**limits)):
        check_backward(problem, launch)
    return [call.args[1] for call in made.call_args_list]


def with_teacher(problem: PairProblem, **fields: Any) -> PairProblem:
    return replace(problem, teacher=replace(problem.teacher, **fields))


@pytest.mark.parametrize(("layouts", "beta"), [(("vd", "dv"), 0.3), (("dv", "vd"), 0.0)])
@pytest.mark.parametrize("blocks", [(128, 256), (256, 384), (384, 1024)])
def test_gradients_do_not_depend_on_the_blocks(blocks: tuple[int, int], layouts: tuple[str, str], beta: float) -> None:
    problem = in_layouts(pair_of(Sizes(300, 200, 140, 1100), dtype=BF16, beta=beta, with_bias=True), *layouts)
    check_backward(problem, Launch(2, *blocks))


@every_beta
def test_what_is_read_stays_or_streams(beta: float) -> None:
    """X^T and X of few positions stay on chip; less memory, or several blocks, let them stream."""
    problem = pair_of(Sizes(300, 200, 330, 700), dtype=BF16, beta=beta)
    (stays, _) = plans_of(problem)
    assert stays.keeps_inputs and stays.keeps_pieces
    (streams, _) = plans_of(problem, Launch(position_block=128, class_block=256))
    assert not streams.keeps_inputs and streams.position_blocks == 3


@pytest.mark.parametrize(
    ("dtype", "teacher_dtype", "sbuf_bytes"), [(BF16, BF16, 52_000), (BF16, FP32, 57_000), (FP32, BF16, 70_000)]
)
def test_both_inputs_alternate_slots_with_the_tiles_that_the_gradients_read(
    dtype: np.dtype[Any], teacher_dtype: np.dtype[Any], sbuf_bytes: int
) -> None:
    """Side by side in halves of one memory, of which each is in its own type."""
    problem = pair_of(Sizes(400, 512, 700, 500), dtype=dtype, teacher_dtype=teacher_dtype, beta=0.3)
    (plan, _) = plans_of(problem, Launch(position_block=256, class_block=256), sbuf_bytes=sbuf_bytes)
    assert plan.buffers.shares_memory and plan.buffers.input_tiles == 2


@every_beta
def test_one_tile_of_both_inputs_at_a_time(beta: float) -> None:
    problem = pair_of(Sizes(300, 512, 700, 300), dtype=BF16, beta=beta, with_bias=True)
    (plan, _) = plans_of(problem, Launch(position_block=128, class_block=128), sbuf_bytes=30_000)
    assert plan.buffers.input_tiles == 1


@pytest.mark.parametrize(("classes", "most", "beta"), [(1100, 700, 0.0), (1600, 300, 0.3), (1500, 120, 1.0)])
def test_loops_over_classes(classes: int, most: int, beta: float) -> None:
    """Short programs: a loop with blocks before and behind it, and a loop alone, whose blocks the cores share."""
    problem = pair_of(Sizes(300, 130, 70, classes), dtype=BF16, beta=beta)
    plans = plans_of(problem, Launch(position_block=128, class_block=256), program_instructions=most)
    with shrunk(PlanLimits(program_instructions=most)):
        blocks_of_core = math.ceil(classes / 2 / 256) * 3
        assert all(plan.blocks_of_program(300) < blocks_of_core for plan in plans)


@pytest.mark.parametrize("classes", [1, 31, 129])
def test_a_core_without_classes(classes: int) -> None:
    check_backward(pair_of(Sizes(200, 16, 24, classes), beta=1.0, with_bias=True))


@every_beta
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_very_many_positions_are_taken_in_parts(dtype: np.dtype[Any], beta: float) -> None:
    problem = pair_of(Sizes(300, 64, 90, 400), dtype=dtype, beta=beta, with_bias=True)
    assert all(plan.adds_to_weight for plan in plans_of(problem, positions=128))


@every_beta
@pytest.mark.parametrize("caps", [(5.0, None), (None, 3.0), (4.0, 4.0)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_softcaps_and_groups_of_tiles(with_bias: bool, caps: tuple[float | None, float | None], beta: float) -> None:
    """Several tiles of classes and of positions are opened before the first of them is made."""
    problem = pair_of(
        Sizes(390, 24, 40, 650), dtype=BF16, beta=beta, with_bias=with_bias, logit_softcap=caps[0], logit_scale=0.5
    )
    check_backward(with_teacher(problem, logit_softcap=caps[1]), Launch(class_block=1024))


@pytest.mark.parametrize("masked", ["both", "whole blocks"])
@pytest.mark.parametrize("caps", [(None, None), (5.0, None), (None, 3.0), (4.0, 4.0)], ids=str)
@every_beta
def test_masked_classes(masked: str, caps: tuple[float | None, float | None], beta: float) -> None:
    """Classes are masked in both models, in the one where the divergence stays finite, and throughout a block."""
    sizes = Sizes(40, 32, 48, 600)
    problem = PROBLEMS["masked classes"](sizes, 1, {"beta": beta, "temperature": 0.5, "logit_softcap": caps[0]})
    problem = with_teacher(problem, logit_softcap=caps[1])
    if masked == "whole blocks":
        biases = [np.array(model.bias) for model in (problem.student, problem.teacher)]
        for bias in biases:
            bias[128:384] = -np.inf
        problem = replace(with_teacher(problem, bias=biases[1]), student=replace(problem.student, bias=biases[0]))
        problem = replace(problem, labels=None)
    results = check_backward(problem, Launch(class_block=128))
    assert all(np.isfinite(gradient.astype(np.float64)).all() for gradient in results.values())


@pytest.mark.parametrize(("beta", "name"), [(0.0, "teacher"), (1.0, "student"), (0.3, "teacher"), (0.3, "student")])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_a_class_that_is_masked_in_one_model_alone(dtype: np.dtype[Any], beta: float, name: str) -> None:
    problem = pair_of(Sizes(20, 32, 32, 100), dtype=dtype, beta=beta)
    bias = np.zeros(100, np.float32)
    bias[7] = -np.inf
    model = replace(getattr(problem, name), bias=bias)
    problem = replace(problem, **{name: model}, labels=np.arange(10, 30, dtype=np.int32))
    results = check_backward(problem)
    assert all(np.isfinite(gradient.astype(np.float64)).all() for gradient in results.values())


def test_the_gradient_of_forward_kl_at_a_class_that_the_student_masks_is_minus_that_of_the_teacher() -> None:
    problem = pair_of(Sizes(20, 32, 32, 100), dtype=FP32)
    bias = np.zeros(100, np.float32)
    bias[7] = -np.inf
    problem = replace(problem, student=replace(problem.student, bias=bias), labels=None)
    results = check_backward(problem)
    assert results["bias"][7] < -1e-4 and np.isfinite(results["input"]).all()


def test_the_gradient_of_an_infinite_divergence_is_not_finite() -> None:
    """KL(student || teacher) of a class that the teacher alone masks; the other positions are masked in none."""
    problem = pair_of(Sizes(20, 32, 32, 100), dtype=BF16, beta=1.0)
    bias = np.zeros(100, np.float32)
    bias[7] = -np.inf
    problem = replace(with_teacher(problem, bias=bias), labels=None)
    with np.errstate(all="ignore"):
        results = launched_backward(problem, upstream_of(problem, False))
    assert not np.isfinite(results["input"].astype(np.float64)).any()
    ignored = replace(problem, labels=np.full(20, -100, np.int32))
    for gradient in launched_backward(ignored, upstream_of(problem, False)).values():
        assert not gradient.astype(np.float64).any()


@every_beta
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_what_comes_to_ignored_positions_is_not_looked_at(dtype: np.dtype[Any], beta: float) -> None:
    problem = pair_of(Sizes(40, 32, 24, 200), dtype=dtype, beta=beta)
    upstream, ignored = upstream_of(problem), ~problem.counts
    plain = launched_backward(problem, upstream)
    divergence, logprob = upstream.grad_divergence.copy(), np.array(upstream.grad_logprob)
    weight = np.array(problem.row_weight)
    for vector in (divergence, logprob, weight):
        vector[ignored] = np.nan
    other = replace(upstream, grad_divergence=divergence, grad_logprob=logprob)
    results = launched_backward(replace(problem, row_weight=weight), other)
    for name, gradient in results.items():
        np.testing.assert_array_equal(gradient, plain[name])
    assert not results["input"][ignored].astype(np.float64).any()


@every_beta
def test_shards_of_a_vocabulary(beta: float) -> None:
    """dX is the sum of what the shards give, in float32; of the other gradients each has its classes."""
    problem = pair_of(Sizes(60, 24, 40, 700), dtype=BF16, beta=beta, with_bias=True)
    upstream, edges, total = upstream_of(problem), (0, 300, 620, 700), np.zeros((60, 24))
    for first, end in pairwise(edges):
        models = [
            replace(model, weight=model.weight[first:end], bias=np.array(model.bias)[first:end])
            for model in (problem.student, problem.teacher)
        ]
        shard = replace(problem, student=models[0], teacher=models[1])
        results = launched_backward(shard, upstream, grad_input_float32=True, first_class=first, num_classes=700)
        assert results["input"].dtype == FP32
        total += results["input"].astype(np.float64)
        for name, worst in gradient_errors(results, problem, upstream, slice(first, end)).items():
            assert worst <= 1.0, (name, worst)
    assert gradient_errors({"input": total.astype(np.float32)}, problem, upstream)["input"] <= 1.0


@every_beta
@pytest.mark.parametrize("wanted", ["input", "weight", "bias"])
def test_gradients_that_are_not_wanted_are_left_out(wanted: str, beta: float) -> None:
    problem = pair_of(Sizes(140, 40, 56, 300), dtype=BF16, beta=beta, with_bias=True)
    upstream = upstream_of(problem)
    every = launched_backward(problem, upstream)
    options = {f"grad_{name}_wanted": name == wanted for name in every}
    results = launched_backward(problem, upstream, **options)
    assert list(results) == [wanted]
    np.testing.assert_array_equal(results[wanted], every[wanted])


@every_beta
@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_a_sum_that_the_gradient_of_the_weight_is_added_to(layout: str, beta: float) -> None:
    problem = in_layouts(pair_of(Sizes(140, 40, 56, 300), dtype=BF16, beta=beta), layout, "vd")
    upstream = upstream_of(problem)
    start = np.random.default_rng(0).standard_normal(problem.student.weight.shape).astype(np.float32)
    total: Array = start.copy()
    results = launched_backward(problem, upstream, grad_weight_sum_hbm=total)
    assert results["weight"].dtype == FP32
    for name, worst in gradient_errors(results, problem, upstream, added_to=start).items():
        assert worst <= 1.0, (name, worst)


@pytest.mark.parametrize("compute_dtype", [None, BF16, FP32], ids=str)
@pytest.mark.parametrize("dtypes", [(BF16, FP32), (FP32, FP16), (FP16, BF16)], ids=str)
@pytest.mark.parametrize("layouts", [("vd", "vd"), ("dv", "dv")], ids="-".join)
def test_unlike_types(
    layouts: tuple[str, str], dtypes: tuple[np.dtype[Any], np.dtype[Any]], compute_dtype: np.dtype[Any] | None
) -> None:
    """Weights of both models that are cast on their way, transposed or not; gradients have the types of operands."""
    problem = pair_of(
        Sizes(140, 130, 200, 300), dtype=dtypes[0], teacher_dtype=dtypes[1], with_bias=True, beta=0.3, logit_scale=2.0
    )
    results = check_backward(in_layouts(problem, *layouts), Launch(compute_dtype=compute_dtype))
    assert results["input"].dtype == results["weight"].dtype == dtypes[0] and results["bias"].dtype == FP32


@every_beta
@pytest.mark.parametrize("factor", [1e-7, 1e4])
def test_gradients_of_float16_stay_within_its_range(factor: float, beta: float) -> None:
    """Upstream gradients that float16 cannot hold, and a divergence of some ten nats, in float32 results."""
    problem = pair_of(Sizes(60, 32, 40, 300), dtype=FP16, beta=beta, temperature=0.1)
    upstream = upstream_of(problem)
    upstream = replace(
        upstream,
        grad_divergence=np.float32(factor) * upstream.grad_divergence,
        grad_logprob=np.float32(factor) * np.array(upstream.grad_logprob),
    )
    total = np.zeros(problem.student.weight.shape, np.float32)
    result = launched_backward(problem, upstream, grad_weight_sum_hbm=total, grad_input_float32=True)
    for name, worst in gradient_errors(result, problem, upstream).items():
        assert worst <= 1.0, (name, worst)


def time_over_bound(positions: int, student: int, teacher: int, classes: int, beta: float) -> float:
    """Return the modelled time of a launch with the default tiling as a multiple of its bound."""
    profiled = profile_linear_distillation_launch(positions, student, teacher, classes, "bfloat16", BACKWARD, beta=beta)
    assert profiled.fraction_of_bound is not None
    return profiled.fraction_of_bound


@pytest.mark.parametrize(("beta", "most"), [(1.0, 1.11), (0.5, 1.15)])
def test_a_launch_of_a_small_vocabulary_takes_little_more_than_its_products(beta: float, most: float) -> None:
    assert 1.0 < time_over_bound(512, 1024, 2048, 16000, beta) <= most


@pytest.mark.parametrize("beta", MODELLED_BETAS)
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("bfloat16", {}),
        (
            "float16",
            {"student_logit_softcap": 30.0, "teacher_logit_softcap": 30.0, "has_bias": True, "has_labels": True},
        ),
        ("float32", {"teacher_logit_softcap": 30.0, "has_labels": True}),
        ("bfloat16", {"has_bias": True, "temperature": 0.5, "teacher_dtype": "float32", "compute_dtype": nl.bfloat16}),
    ],
    ids=str,
)
def test_a_plan_counts_what_a_launch_takes_of_memory(dtype: str, options: dict[str, Any], beta: float) -> None:
    """The plan counts SBUF, much of which is columns of positions, rings of tiles and buffers of both models."""
    positions, classes, arguments = 4000, 512, dict(options)
    if arguments.pop("has_bias", False):
        arguments |= {f"{name}_bias_hbm": spec((classes,), "float32") for name in ("student", "teacher")}
    if arguments.pop("has_labels", False):
        arguments |= {"labels_hbm": spec((positions,), "int32"), "grad_logprob_hbm": spec((positions,), "float32")}
    with mock.patch.object(SharedBuffers, "make", wraps=SharedBuffers.make) as made:
        profiled = profile_linear_distillation_launch(
            positions, 128, 256, classes, dtype, BACKWARD, LinearTiling(512, 256), beta=beta, **arguments
        )
    plan = made.call_args.args[1]
    # Not all of it lives at once; most of the rest are tiles of a float32 teacher before they are rounded.
    assert 0 <= plan.sbuf_bytes - profiled.sbuf_peak_bytes_per_partition < 28 * 1024


def test_one_tile_of_each_input_is_enough_where_both_are_wide() -> None:
    """The memory of a second one serves a longer block of positions."""
    chosen = choose_linear_distillation_tiling(2048, 4096, 8192, 16384, "bfloat16", BACKWARD, beta=1.0)
    assert tuple(chosen) == (2048, 512)


@pytest.mark.sweep
@pytest.mark.parametrize("beta", MODELLED_BETAS)
@pytest.mark.parametrize(("positions", "student", "teacher", "of_kl", "of_mixture"), LAUNCHES)
def test_launches_of_a_large_vocabulary(
    positions: int, student: int, teacher: int, of_kl: float, of_mixture: float, beta: float
) -> None:
    most = of_mixture if 0.0 < beta < 1.0 else of_kl
    assert time_over_bound(positions, student, teacher, VOCABULARY, beta) <= most


@pytest.mark.sweep
@pytest.mark.parametrize("beta", MODELLED_BETAS)
@pytest.mark.parametrize(("positions", "student", "teacher"), [launch[:3] for launch in LAUNCHES])
def test_programs_of_a_large_vocabulary(positions: int, student: int, teacher: int, beta: float) -> None:
    launch = (positions, student, teacher, VOCABULARY, "bfloat16", BACKWARD)
    assert program_instructions(partial(profile_linear_distillation_launch, *launch, beta=beta)) <= LONGEST
