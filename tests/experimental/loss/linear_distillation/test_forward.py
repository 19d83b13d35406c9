# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward gives the same whatever its plan is: loops, tilings, classes that the cores share, groups of pairs.

Errors at the size of real models, in norm over the positions, against float64 of the same inputs; modelled times, the
length of programs, what a launch reads and keeps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks._program_size import program_instructions
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_distillation_forward
from nkilib.experimental.loss.linear_distillation.host import pair_sizes
from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem, pair_forward_reference
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec

from .pair_checks import Array, Launch, check_forward, launched_forward
from .pair_inputs import BF16, FP16, FP32, PROBLEMS, Sizes, pair_of

# All options that take tiles of their own.
EVERYTHING: dict[str, Any] = {"temperature": 0.7, "with_bias": True, "logit_scale": 1.5, "logit_softcap": 5.0}

BYTES_OF = pair_sizes.PairForwardSizes.bytes_of
# N, Ds, Dt and V of three pairs of models.
LARGE = ((2048, 1024, 2048, 151_936), (4096, 2048, 4096, 151_936), (2048, 2560, 5120, 151_936))
LONGEST = 29_000


def with_teacher(problem: PairProblem, **fields: Any) -> PairProblem:
    """The problem with a teacher that has these fields."""
    return replace(problem, teacher=replace(problem.teacher, **fields))


def close(results: dict[str, Array], expected: dict[str, Array]) -> None:
    """Results of two plans, in float32."""
    for name, values in results.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("cores", "beta", "positions", "options"),
    [(1, 1.0, 300, EVERYTHING), (2, 0.0, 300, {}), (2, 1.0, 130, EVERYTHING), (2, 0.0, 257, {"with_bias": True})],
)
def test_loops_give_what_the_unrolled_program_gives(
    cores: int, beta: float, positions: int, options: dict[str, Any]
) -> None:
    """Over blocks of classes and, with several blocks of positions, over whole ones of these."""
    problem = pair_of(Sizes(positions, 16, 20, 1540 * cores), beta=beta, dtype=BF16, **options)
    launch = Launch(cores=cores, position_block=128, class_block=128)
    unrolled = check_forward(problem, launch)
    with shrunk(PlanLimits(program_instructions=1)):
        close(check_forward(problem, launch), unrolled)


def test_many_positions_are_a_loop() -> None:
    problem = pair_of(Sizes(700, 16, 16, 40), beta=1.0, with_bias=True)
    launch = Launch(position_block=128)
    unlooped = check_forward(problem, launch)
    with shrunk(PlanLimits(positions=256)):
        close(check_forward(problem, launch), unlooped)


@pytest.mark.parametrize(
    ("positions", "position_block", "classes", "options"), [(600, 512, 801, {}), (300, 256, 3501, EVERYTHING)]
)
def test_classes_that_the_cores_share(
    positions: int, position_block: int, classes: int, options: dict[str, Any]
) -> None:
    """The cores share parts of two tiles and of one, behind a loop too; of one last tile the second core has none."""
    problem = pair_of(Sizes(positions, 16, 24, classes), beta=1.0, **options)
    launch = Launch(position_block=position_block, class_block=128)
    unshared = check_forward(problem, launch)
    with shrunk(PlanLimits(shared_classes=300, program_instructions=1)):
        close(check_forward(problem, launch), unshared)


def test_no_more_classes_are_shared_than_there_are_statistics_for() -> None:
    problem = pair_of(Sizes(300, 16, 16, 2001))
    message = r"^linear_distillation_forward: PlanLimits.shared_classes must be at most 4 blocks of 128 classes"
    with shrunk(PlanLimits(shared_classes=513)), pytest.raises(ValueError, match=message):
        check_forward(problem, Launch(class_block=128))


def test_each_core_has_classes_of_its_own() -> None:
    problem = pair_of(Sizes(260, 16, 16, 400), beta=1.0)
    with shrunk(PlanLimits(shared_classes=512)):
        check_forward(problem, Launch(class_block=128))


@pytest.mark.parametrize("classes", [500, 760])
def test_the_first_classes_are_loaded_again_for_each_block_of_positions(classes: int) -> None:
    """After an even and an odd number of blocks of classes."""
    problem = pair_of(Sizes(260, 16, 32, classes), beta=0.0)
    for cores in (1, 2):
        check_forward(problem, Launch(cores=cores, position_block=128))


@pytest.mark.parametrize("tiling", [(None, None), (128, 512), (256, 384), (640, 128)])
def test_results_do_not_depend_on_the_tiling(tiling: tuple[int | None, int | None]) -> None:
    problem = pair_of(Sizes(530, 150, 260, 800), dtype=BF16, beta=1.0, with_bias=True, temperature=2.0)
    check_forward(problem, Launch(2, *tiling))


@pytest.mark.parametrize("of_teacher", [{"logit_softcap": 5.0}, {"logit_softcap": 4.0, "logit_scale": 0.3}, {}])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("features", [24, 2200])
def test_softcaps_in_groups_of_short_and_long_products(
    of_teacher: dict[str, Any], with_bias: bool, features: int
) -> None:
    """Five tiles are worked on in groups of three or two, of which the last one is smaller."""
    sizes = Sizes(520, 24, features, 300)
    problem = pair_of(sizes, beta=1.0, dtype=BF16, with_bias=with_bias, logit_softcap=5.0)
    check_forward(with_teacher(problem, **of_teacher))


@pytest.mark.parametrize("caps", [(1e-30, 1e-30), (1e-15, 1e-3), (1e-3, 1e-15), (1e30, 1e18), (1e18, 1e30)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_least_and_the_largest_softcaps(caps: tuple[float, float], beta: float) -> None:
    """Finite divergences, and an infinite one where a class is masked in one model alone."""
    problem = pair_of(Sizes(20, 16, 24, 300), beta=beta, temperature=1e-3 if min(caps) < 1.0 else 1.0)
    student = replace(problem.student, logit_softcap=caps[0])
    problem = with_teacher(replace(problem, student=student, labels=None, row_weight=None), logit_softcap=caps[1])
    check_forward(problem)
    bias = np.where(np.arange(300) % 2 == 0, -np.inf, 0.0).astype(np.float32)
    masked = {"student": replace(problem.student, bias=bias)} if beta == 0.0 else {}
    masked = masked or {"teacher": replace(problem.teacher, bias=bias)}
    assert np.isposinf(launched_forward(replace(problem, **masked))["divergence"]).all()


@pytest.mark.parametrize("masked", [None, "both", "whole blocks"])
@pytest.mark.parametrize("caps", [(None, None), (5.0, None), (None, 3.0), (4.0, 4.0)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_masked_classes(masked: str | None, caps: tuple[float | None, float | None], beta: float) -> None:
    """Classes are masked in both models, in the one where the divergence stays finite, and throughout a block."""
    sizes = Sizes(40, 32, 48, 600)
    problem = PROBLEMS["masked classes"](sizes, 1, {"beta": beta, "temperature": 0.5, "logit_softcap": caps[0]})
    problem = with_teacher(problem, logit_softcap=caps[1])
    if masked == "whole blocks":
        biases = [np.array(model.bias) for model in (problem.student, problem.teacher)]
        for bias in biases:
            bias[128:384] = -np.inf
        student = replace(problem.student, bias=biases[0])
        problem = replace(problem, student=student, teacher=replace(problem.teacher, bias=biases[1]), labels=None)
    check_forward(problem, Launch(class_block=128))


def test_unlike_types_and_layouts() -> None:
    for types in ((BF16, FP32), (FP32, FP16), (FP16, BF16)):
        problem = pair_of(Sizes(140, 130, 200, 300), dtype=types[0], teacher_dtype=types[1], with_bias=True)
        check_forward(problem)
        for compute_dtype in (BF16, FP32):
            check_forward(problem, Launch(compute_dtype=compute_dtype))


def test_a_core_without_classes() -> None:
    for classes in (1, 31, 33):
        check_forward(pair_of(Sizes(200, 16, 16, classes), beta=1.0, with_bias=True))


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_shards_of_a_vocabulary_join_by_the_chain_rule(beta: float) -> None:
    """The last one masks all its classes, as padding is."""
    problem = pair_of(Sizes(60, 24, 40, 700), beta=beta, with_bias=True)
    edges = (0, 300, 620, 700)
    biases = [np.array(model.bias) for model in (problem.student, problem.teacher)]
    for bias in biases:
        bias[620:] = -np.inf
    labels = np.random.default_rng(0).integers(0, 620, 60).astype(np.int32)
    problem = replace(
        problem,
        student=replace(problem.student, bias=biases[0]),
        teacher=replace(problem.teacher, bias=biases[1]),
        labels=labels,
        row_weight=None,
    )
    whole = check_forward(problem)
    shards = []
    for first, end in pairwise(edges):
        models = [
            replace(model, weight=model.weight[first:end], bias=model.bias[first:end])
            for model in (problem.student, problem.teacher)
        ]
        shard = replace(problem, student=models[0], teacher=models[1], first_class=first)
        shards.append(launched_forward(shard, first_class=first, num_classes=700))
    lse = {
        name: [shard[f"{name}_maximum"].astype(np.float64) + shard[f"{name}_log_sum"] for shard in shards]
        for name in ("student", "teacher")
    }
    log_shares = {name: np.stack(values) - np.logaddexp.reduce(values) for name, values in lse.items()}
    weights = np.exp(log_shares["student" if beta else "teacher"])
    sign = 1.0 if beta else -1.0
    of_shards = np.stack([shard["divergence"].astype(np.float64) for shard in shards])
    joined = (weights * (of_shards + sign * (log_shares["student"] - log_shares["teacher"]))).sum(0)
    np.testing.assert_allclose(joined, whole["divergence"], rtol=2e-5)
    entropies = np.stack([shard["entropy"].astype(np.float64) for shard in shards])
    shares = np.exp(log_shares["student"])
    np.testing.assert_allclose((shares * (entropies - log_shares["student"])).sum(0), whole["entropy"], rtol=2e-5)
    logit = sum(shard["target_logit"].astype(np.float64) for shard in shards)
    np.testing.assert_allclose(logit - np.logaddexp.reduce(lse["student"]), whole["logprob"], rtol=1e-5)


def test_a_shard_knows_no_divergence_from_a_mixture() -> None:
    problem = replace(pair_of(Sizes(130, 24, 40, 300), beta=0.5, with_bias=True), labels=None)
    whole = launched_forward(replace(problem, beta=1.0))
    results = launched_forward(problem, first_class=300, num_classes=900)
    assert not results["divergence"].any() and not results["moment"].any()
    for name in set(results) - {"divergence", "moment"}:
        np.testing.assert_allclose(results[name], whole[name], rtol=1e-6, err_msg=name)


def normal(sizes: Sizes, beta: float) -> PairProblem:
    """X ~ N(0, 1), and logits of the student with a deviation of 2, of the teacher with one of 2.5."""
    return replace(pair_of(sizes, dtype=BF16, beta=beta), labels=None, row_weight=None)


def error(result: Array, exact: Array) -> float:
    """Return the relative error in norm over the positions."""
    return float(np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(("sizes", "beta"), [(Sizes(1024, 1024, 1024, 4096), 1.0), (Sizes(256, 256, 512, 5003), 0.0)])
def test_of_a_vocabulary_of_some_thousand_classes(sizes: Sizes, beta: float) -> None:
    """The first one has so long products that the cores share classes."""
    problem = normal(sizes, beta)
    results, exact = launched_forward(problem), pair_forward_reference(problem)
    assert error(results["divergence"], exact.divergence) <= 4.5e-7
    assert error(results["entropy"], exact.entropy) <= 1.5e-7


@pytest.mark.sweep
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_of_a_large_vocabulary(beta: float) -> None:
    problem = normal(Sizes(1024, 1024, 2048, 32_000), beta)
    results, exact = launched_forward(problem), pair_forward_reference(problem)
    assert error(results["divergence"], exact.divergence) <= 5e-7
    assert error(results["entropy"], exact.entropy) <= 1e-7


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_of_a_near_teacher(beta: float) -> None:
    """Each weight is 1% off: the divergence is 1e-4, of log-sum-exps of 10, and as wrong as a float32 number near 1."""
    problem = normal(Sizes(200, 128, 128, 3000), beta)
    noise = 1.0 + 0.01 * np.random.default_rng(1).standard_normal(problem.student.weight.shape)
    weight = (problem.student.weight.astype(np.float64) * noise).astype(BF16)
    problem = replace(problem, teacher=replace(problem.student, weight=weight))
    results, exact = launched_forward(problem), pair_forward_reference(problem)
    assert 5e-5 <= exact.divergence.mean() <= 1e-3
    assert np.abs(results["divergence"].astype(np.float64) - exact.divergence).max() <= 2.5e-7


def test_of_temperatures() -> None:
    problem = normal(Sizes(130, 128, 256, 2000), 1.0)
    for temperature in (0.1, 0.5, 5.0, 20.0):
        models = [replace(model, temperature=temperature) for model in (problem.student, problem.teacher)]
        item = replace(problem, student=models[0], teacher=models[1])
        results, exact = launched_forward(item, Launch(cores=1)), pair_forward_reference(item)
        # A divergence at a high temperature is a small difference of logs.
        np.testing.assert_allclose(
            results["divergence"], exact.divergence, rtol=5e-6 / min(temperature, 1.0), atol=2e-7
        )


def profiled(positions: int, student: int, teacher: int, classes: int, **arguments: Any) -> Profile:
    """A launch on the two cores of trn2, in bfloat16; with ``has_bias`` and ``has_labels`` of these."""
    operands = [
        spec(shape, nl.bfloat16)
        for shape in ((positions, student), (classes, student), (positions, teacher), (classes, teacher))
    ]
    if arguments.pop("has_bias", False):
        arguments |= {f"{name}_bias_hbm": spec((classes,), nl.float32) for name in ("student", "teacher")}
    if arguments.get("with_logprob", False):
        arguments["labels_hbm"] = spec((positions,), nl.int32)
    return profile(linear_distillation_forward[2], *operands, **arguments)


def products_us(positions: int, student: int, teacher: int, classes: int) -> float:
    """How long Tensor takes for the products alone, on two cores."""
    return positions * (student + teacher) * classes / 2 / (128 * 128 * 2400)


@pytest.mark.parametrize(
    ("sizes", "beta", "most"),
    [
        ((1024, 512, 1024, 16_000), 1.0, 1.24),
        ((1024, 1024, 1024, 16_000), 0.0, 1.07),
        ((512, 1024, 2048, 16_000), 1.0, 1.1),
    ],
)
def test_tensor_is_kept_busy(sizes: tuple[int, int, int, int], beta: float, most: float) -> None:
    """Modelled, not measured: the time over that of the products alone, of launches of half a millisecond."""
    assert profiled(*sizes, beta=beta).time_us <= most * products_us(*sizes)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"has_bias": True, "with_logprob": True, "temperature": 0.7}, 1.09),
        ({"teacher_logit_softcap": 30.0, "student_logit_softcap": 30.0}, 1.13),
        ({"teacher_logit_scale": 0.5, "temperature": 2.0}, 1.075),
    ],
)
def test_options_leave_tensor_busy(options: dict[str, Any], most: float) -> None:
    """Modelled likewise. And what a tiling counts is enough for what the launch takes of SBUF."""
    sizes = (1024, 1024, 1024, 16_000)
    with mock.patch.object(pair_sizes.PairForwardSizes, "bytes_of", autospec=True, side_effect=BYTES_OF) as counted:
        result = profiled(*sizes, beta=1.0, **options)
    assert result.time_us <= most * products_us(*sizes)
    assert result.sbuf_peak_bytes_per_partition <= BYTES_OF(counted.call_args.args[0], 8, 512)


@pytest.mark.sweep
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [*LARGE, (2048, 1024, 1024, 32_128)])
def test_time_of_large_launches(sizes: tuple[int, int, int, int], beta: float) -> None:
    most = 1.015 if sum(sizes[1:3]) > 2048 else 1.03
    assert profiled(*sizes, beta=beta).time_us <= most * products_us(*sizes)


@pytest.mark.sweep
@pytest.mark.parametrize("sizes", LARGE)
def test_programs_of_large_launches_are_short(sizes: tuple[int, int, int, int]) -> None:
    everything = {"has_bias": True, "with_logprob": True, "temperature": 0.7, "student_logit_softcap": 30.0}
    for options in ({}, everything):
        assert program_instructions(partial(profiled, *sizes, **options)) <= LONGEST


def test_a_program_is_short_whatever_the_vocabulary_and_the_positions() -> None:
    """A tenth of the instructions that a program may have is allowed, for a tenth of the sizes."""
    with shrunk(PlanLimits(program_instructions=2_800)):
        for positions, classes in ((256, 12_000), (256, 24_000), (2000, 3000)):
            assert program_instructions(partial(profiled, positions, 256, 512, classes)) <= 3_000


def test_the_weights_are_read_once_where_the_positions_fit() -> None:
    result = profiled(1024, 256, 1024, 8_000)
    operands = 2 * (256 + 1024) * (2 * 1024 + 8_000)
    # Both cores read the inputs, and the few classes that they share at the end.
    assert operands <= result.hbm_read_bytes <= 1.06 * operands
    assert result.hbm_written_bytes == 7 * 4 * 1024
