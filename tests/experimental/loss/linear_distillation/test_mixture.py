# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A divergence from a mixture is the same with scores that are kept, whatever their blocks and loops, and without.

Modelled times, the length of programs, what a launch takes of SBUF.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks._program_size import program_instructions
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_distillation_forward, linear_distillation_mixture
from nkilib.experimental.loss.linear_distillation.host import mixture_tiling
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    KeptSizes,
    MixtureBlocks,
    most_kept_bytes,
    tile_bytes,
)
from nkilib.experimental.loss.linear_distillation.host.reference import ModelProblem, PairProblem
from nkilib.experimental.loss.linear_distillation.mixture import kept_visit as mixture_visit
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec

from .pair_checks import (
    Launch,
    arguments_of,
    check_forward,
    check_mixture,
    float32_statistics,
    launched_forward,
    rounded,
    vectors_of,
    worst_errors,
)
from .pair_inputs import BF16, Sizes, pair_of
from .test_forward import LARGE, LONGEST, products_us, profiled

# All options that take tiles of their own; the teacher's scores have another unit.
EVERYTHING: dict[str, Any] = {"temperature": 0.7, "with_bias": True, "logit_scale": 1.5, "logit_softcap": 5.0}

KEPT_BYTES = mixture_tiling.KeptSizes.bytes_of
SUMS_BYTES = mixture_tiling.MixtureSizes.bytes_of
EVERY_OPTION: dict[str, Any] = {
    "temperature": 0.7,
    "student_logit_softcap": 30.0,
    "has_bias": True,
}
forward = partial(profiled, beta=0.5)


@pytest.fixture
def blocks_seen(monkeypatch: pytest.MonkeyPatch) -> list[MixtureBlocks]:
    """The blocks of positions of launches that keep scores."""
    seen: list[MixtureBlocks] = []
    make = KeptSizes.blocks

    def blocks(sizes: KeptSizes, tiling: Any) -> MixtureBlocks:
        seen.append(make(sizes, tiling))
        return seen[-1]

    monkeypatch.setattr(KeptSizes, "blocks", blocks)
    return seen


def mixed(sizes: Sizes, **options: Any) -> PairProblem:
    return pair_of(sizes, **{"beta": 0.3, **options})


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("tiles", "slots"),
    [(None, (3, 2)), (4, (2, 2)), (3, (2, 1)), (2, (1, 1)), (1, ())],
    ids=["default", "four", "three", "two", "none"],
)
def test_any_memory(cores: int, tiles: int | None, slots: tuple[int, ...], blocks_seen: list[MixtureBlocks]) -> None:
    """Five tiles of positions, the last short, make two, several or shortest blocks, or both products run twice."""
    problem = mixed(Sizes(600, 24, 40, 700), dtype=BF16, with_bias=True)
    limit = None if tiles is None else (tiles + 1) * tile_bytes(700) - 1
    check_forward(problem, Launch(cores, position_block=384 if tiles is None else None), memory_limit=limit)
    if tiles is None:
        assert max(blocks_seen[-1].slots) <= 3
        assert len(blocks_seen[-1].leading) > 1
    elif slots:
        assert blocks_seen[-1].slots == slots
    else:
        assert not blocks_seen


@pytest.mark.parametrize("blocks", [(5,), (1, 4), (4, 1), (1, 3, 1)], ids=lambda blocks: "-".join(map(str, blocks)))
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
def test_blocks_of_unlike_sizes(
    blocks: tuple[int, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tiles beside a block than it has, and fewer; groups of tiles and of classes of every size."""
    monkeypatch.setattr(KeptSizes, "blocks", lambda *_: MixtureBlocks(blocks))
    problem = mixed(Sizes(600, 24, 40, 650), dtype=BF16, **options)
    problem = replace(problem, teacher=replace(problem.teacher, logit_softcap=None, logit_scale=1.0))
    check_forward(problem, Launch(position_block=640, class_block=128))


@pytest.mark.parametrize("positions", [1, 127, 128, 129])
@pytest.mark.parametrize("classes", [1, 100, 130])
def test_few_positions_and_classes(positions: int, classes: int) -> None:
    """The second core may have no class."""
    check_forward(mixed(Sizes(positions, 16, 16, classes)))
    check_forward(mixed(Sizes(positions, 16, 16, classes)), memory_limit=0)


@pytest.mark.parametrize(
    ("cores", "classes", "limits"),
    [(1, 1540, {"program_instructions": 1}), (2, 150, {"positions": 256}), (1, 60, {"positions": 256})],
)
def test_a_loop_over_pairs_of_blocks_of_positions(
    cores: int, classes: int, limits: dict[str, int], blocks_seen: list[MixtureBlocks]
) -> None:
    """An iteration ends the second visit of the block before it; labels and weights are loaded for that block."""
    problem = mixed(Sizes(890, 16, 16, classes), with_bias=True)
    launch = Launch(cores, position_block=128, class_block=128)
    with shrunk(PlanLimits(**limits)):
        check_forward(problem, launch)
        if classes < 1000:
            check_forward(problem, launch, memory_limit=0)
    assert blocks_seen[-1].pairs == 2


@pytest.mark.parametrize("unrolled", [400, 1], ids=["unrolled", "loop"])
def test_loops_over_the_classes(unrolled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both visits of a block of positions, and the last second visit unrolled or in the same loop."""
    monkeypatch.setattr(mixture_visit, "_UNROLLED", unrolled)
    problem = mixed(Sizes(260, 16, 20, 4900), dtype=BF16)
    with shrunk(PlanLimits(program_instructions=1)):
        check_forward(problem, Launch(position_block=256, class_block=128))
        check_forward(problem, Launch(position_block=256, class_block=128), memory_limit=0)


@pytest.mark.parametrize("caps", [(5.0, None), (None, 3.0), (4.0, 4.0)])
@pytest.mark.parametrize("limit", [None, 0], ids=["kept", "twice"])
def test_softcaps_with_masked_classes(caps: tuple[float | None, float | None], limit: int | None) -> None:
    """The last group of tiles is smaller than the others; classes are masked in both models and in each alone."""
    problem = mixed(Sizes(390, 16, 24, 300), with_bias=True)
    biases = [np.array(model.bias) for model in (problem.student, problem.teacher)]
    biases[0][3::7] = biases[1][3::7] = biases[0][4::7] = biases[1][5::7] = -np.inf
    models = (
        replace(model, bias=bias, logit_softcap=cap)
        for model, bias, cap in zip((problem.student, problem.teacher), biases, caps, strict=True)
    )
    student, teacher = models
    labels = np.zeros_like(problem.labels)
    problem = replace(problem, student=student, teacher=teacher, labels=labels)
    results = check_forward(problem, Launch(position_block=256), memory_limit=limit)
    assert np.isfinite(results["divergence"]).all()


@pytest.mark.parametrize("limit", [None, 0], ids=["kept", "twice"])
def test_models_without_a_class_in_common(limit: int | None) -> None:
    """The divergence is the largest one, beta log(1 / beta) + (1 - beta) log(1 / (1 - beta))."""
    beta = 0.2
    problem = pair_of(Sizes(140, 16, 24, 200), beta=beta, with_bias=True)
    biases = [np.array(model.bias) for model in (problem.student, problem.teacher)]
    biases[0][::2] = biases[1][1::2] = -np.inf
    student, teacher = (
        replace(model, bias=bias) for model, bias in zip((problem.student, problem.teacher), biases, strict=True)
    )
    problem = replace(problem, student=student, teacher=teacher, labels=None, row_weight=None)
    results = check_forward(problem, memory_limit=limit)
    # Of each divergence: its constant, both sums over the classes, the quotient and the product, to half a unit or one.
    units = 8 * 2.0**-24
    most = -beta * np.log(beta) - (1.0 - beta) * np.log(1.0 - beta)
    np.testing.assert_allclose(results["divergence"], most, rtol=units)
    np.testing.assert_allclose(results["moment"], -np.log(1.0 - beta), rtol=units)


@pytest.mark.parametrize("limit", [None, 0], ids=["kept", "twice"])
def test_every_class_masked_is_nan(limit: int | None) -> None:
    problem = mixed(Sizes(40, 16, 24, 200), with_bias=True)
    masked = replace(problem.teacher, bias=np.full(200, -np.inf, np.float32))
    problem = replace(problem, teacher=masked, labels=None, row_weight=None)
    results = launched_forward(problem, memory_limit=limit)
    assert np.isnan(results["divergence"]).all()


@pytest.mark.parametrize("temperature", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("beta", [1e-3, 0.5, 1.0 - 1e-3])
@pytest.mark.parametrize("limit", [None, 0], ids=["kept", "twice"])
def test_a_teacher_that_is_the_student(temperature: float, beta: float, limit: int | None) -> None:
    problem = pair_of(Sizes(140, 24, 24, 600), beta=beta, temperature=temperature, dtype=BF16)
    problem = replace(problem, teacher=problem.student, labels=None, row_weight=None)
    result = launched_forward(problem, memory_limit=limit)
    for name in ("divergence", "moment"):
        assert (result[name] >= 0.0).all()
        assert result[name].max() <= 1e-6


def test_two_shards_give_what_the_whole_vocabulary_gives() -> None:
    problem = mixed(Sizes(140, 24, 40, 700), with_bias=True, temperature=2.0)
    problem = replace(problem, labels=None, row_weight=None)
    whole = check_forward(problem)
    statistics, _ = float32_statistics(rounded(problem, None))
    sums = np.zeros((4, 140))
    for part in (slice(0, 300), slice(300, 700)):

        def shard(model: ModelProblem, part: slice = part) -> ModelProblem:
            return replace(model, weight=model.weight[part], bias=np.asarray(model.bias)[part])

        arguments = arguments_of(replace(problem, student=shard(problem.student), teacher=shard(problem.teacher)))
        arguments.pop("ignore_index")
        results = linear_distillation_mixture[2](**arguments, **vectors_of(statistics))
        sums += np.stack([np.asarray(result, np.float64) for result in results])
    student_terms, teacher_terms, student_mass, teacher_mass = sums
    moment = student_terms / student_mass
    np.testing.assert_allclose(moment, whole["moment"], rtol=2e-6, atol=1e-7)
    divergence = 0.3 * teacher_terms / teacher_mass + 0.7 * moment
    np.testing.assert_allclose(divergence, whole["divergence"], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("tiling", [(128, 128), (384, 256), (None, None)])
def test_tilings_of_the_sums_alone(tiling: tuple[int | None, int | None], options: dict[str, Any]) -> None:
    check_mixture(mixed(Sizes(390, 24, 40, 1500), dtype=BF16, **options), Launch(2, *tiling))


def test_loops_of_the_sums_alone() -> None:
    problem = mixed(Sizes(390, 16, 16, 3100), with_bias=True)
    with shrunk(PlanLimits(program_instructions=1)):
        check_mixture(problem, Launch(position_block=128, class_block=128))


def test_errors_at_a_short_vocabulary() -> None:
    """The error is at most 2e-7 in norm; exp(z - lse) with a rounded lse errs by 5e-7."""
    for classes in (4096, 5003):
        sizes = Sizes(64, 32, 48, classes)
        problem = replace(pair_of(sizes, beta=0.5), labels=None, row_weight=None)
        results = launched_forward(problem)
        assert worst_errors(results, problem)["divergence"] <= 1.0
        exact = _exact_divergence(problem)
        error = np.linalg.norm(results["divergence"] - exact) / np.linalg.norm(exact)
        assert error <= 2e-7


def _exact_divergence(problem: PairProblem) -> np.ndarray:
    """Compute the divergence in float64."""
    z = [
        model.input.astype(np.float64) @ model.weight.astype(np.float64).T
        for model in (problem.student, problem.teacher)
    ]
    q, p = (np.exp(item - item.max(1, keepdims=True)) for item in z)
    q, p = q / q.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
    m = problem.beta * p + (1.0 - problem.beta) * q
    return problem.beta * (p * np.log(p / m)).sum(1) + (1.0 - problem.beta) * (q * np.log(q / m)).sum(1)


@pytest.mark.parametrize("tiles", [None, 3, 2, 1])
def test_the_memory_is_what_is_stated(tiles: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, result = nl.ndarray, [0]

    def counting(shape: tuple[int, ...], dtype: Any, buffer: Any = None, name: str = "", **further: Any) -> Any:
        if buffer is nl.private_hbm:
            result[0] += 4 * prod(shape)
        return allocate(shape, dtype=dtype, buffer=buffer, name=name, **further)

    monkeypatch.setattr(nl, "ndarray", counting)
    problem = mixed(Sizes(600, 16, 16, 300))
    limit = None if tiles is None else (tiles + 1) * tile_bytes(300) - 1
    launched_forward(problem, memory_limit=limit)
    most = most_kept_bytes(600, 300, limit)
    assert result[0] <= most
    assert (result[0] > 0) == (most > 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, r"beta must be between 0 and 1, and neither of them, got 0.0"),
        ({"beta": 1.5}, r"beta must be a number from 0"),
        ({"teacher_maximum_hbm": np.zeros(3, np.float32)}, r"teacher_maximum_hbm must have shape \(40,\)"),
        ({"student_log_sum_hbm": np.zeros(40, np.float16)}, r"student_log_sum_hbm must be float32"),
        ({"class_block": 640}, r"class_block must be at most 512"),
        ({"position_block": 100}, r"position_block must be a positive multiple of 128"),
    ],
)
def test_refused_arguments(changes: dict[str, Any], message: str) -> None:
    problem = mixed(Sizes(40, 16, 16, 60))
    statistics, _ = float32_statistics(problem)
    arguments = {name: value for name, value in arguments_of(problem).items() if "label" not in name}
    for name in ("row_weight_hbm", "ignore_index"):
        arguments.pop(name, None)
    with pytest.raises(AssertionError, match=f"^linear_distillation_mixture: {message}"):
        linear_distillation_mixture[2](**{**arguments, **vectors_of(statistics), **changes})


def test_a_tiling_without_room_is_refused() -> None:
    problem = mixed(Sizes(256, 2048, 2048, 600), dtype=BF16)
    with shrunk(PlanLimits(sbuf_bytes=32 * 1024)), pytest.raises(AssertionError, match="bytes of a partition"):
        linear_distillation_forward[2](**arguments_of(problem), position_block=256, class_block=512)


def sums_alone(positions: int, student: int, teacher: int, classes: int, **arguments: Any) -> Profile:
    """The sums of a mixture on the two cores of trn2, in bfloat16."""
    operands = [
        spec(shape, nl.bfloat16)
        for shape in ((positions, student), (classes, student), (positions, teacher), (classes, teacher))
    ]
    if arguments.pop("has_bias", False):
        arguments |= {f"{name}_bias_hbm": spec((classes,), nl.float32) for name in ("student", "teacher")}
    vectors = [spec((positions,), nl.float32) for _ in range(4)]
    return profile(linear_distillation_mixture[2], *operands, *vectors, beta=0.5, **arguments)


@pytest.mark.parametrize(("sizes", "most"), [((1024, 1024, 2048, 16_000), 1.4), ((1024, 2048, 4096, 8_000), 1.3)])
def test_the_second_visit_runs_beside_products(sizes: tuple[int, int, int, int], most: float) -> None:
    """Modelled, not measured: the time over that of both products once, of launches of a millisecond."""
    assert forward(*sizes).time_us <= most * products_us(*sizes)


def test_both_products_twice() -> None:
    sizes = (512, 1024, 2048, 16_000)
    assert forward(*sizes, memory_limit=0).time_us <= 2.2 * products_us(*sizes)
    assert sums_alone(*sizes).time_us <= 1.1 * products_us(*sizes)


def chosen(counted: mock.Mock) -> tuple[Any, ...]:
    """The sizes and the tiling whose room was asked for last, but for the least tiling."""
    return [call.args for call in counted.call_args_list if call.args[1:] != (1, 128)][-1]


@pytest.mark.parametrize("options", [{}, EVERY_OPTION], ids=["plain", "everything"])
def test_what_a_tiling_counts_is_enough(options: dict[str, Any]) -> None:
    """A tiling counts at least the SBUF that a launch takes."""
    sizes = (1024, 1024, 1024, 8_000)
    sized = partial(mock.patch.object, attribute="bytes_of", autospec=True)
    with sized(mixture_tiling.KeptSizes, side_effect=KEPT_BYTES) as counted:
        result = forward(*sizes, **options)
    assert result.sbuf_peak_bytes_per_partition <= KEPT_BYTES(*chosen(counted))
    with sized(mixture_tiling.MixtureSizes, side_effect=SUMS_BYTES) as counted:
        result = sums_alone(*sizes, **options)
    assert result.sbuf_peak_bytes_per_partition <= SUMS_BYTES(*chosen(counted))


def test_a_program_is_short_whatever_the_vocabulary_and_the_positions() -> None:
    """A tenth of the instructions that a program may have is allowed, for a tenth of the sizes."""
    with shrunk(PlanLimits(program_instructions=2_800)):
        for sizes in ((512, 128, 256, 15_000), (1280, 128, 128, 4_000)):
            for limit in (None, 0):
                assert program_instructions(partial(forward, *sizes, memory_limit=limit)) <= 2_800
            assert program_instructions(partial(sums_alone, *sizes)) <= 2_800


@pytest.mark.sweep
@pytest.mark.parametrize(("sizes", "most"), list(zip(LARGE, (1.25, 1.15, 1.15), strict=True)))
def test_time_and_programs_of_large_launches(sizes: tuple[int, int, int, int], most: float) -> None:
    assert forward(*sizes).time_us <= most * products_us(*sizes)
    for limit in (None, 0):
        assert program_instructions(partial(forward, *sizes, memory_limit=limit)) <= LONGEST
