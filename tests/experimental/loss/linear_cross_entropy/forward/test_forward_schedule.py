# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the forward goes through its classes: loops of the device, the length of programs, what a launch reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks._program_size import program_instructions
from nkilib.experimental.loss import linear_cross_entropy_forward
from nkilib.experimental.loss.linear.forward.class_schedule import ClassSchedule, divide_classes
from nkilib.experimental.loss.linear.forward.plan import fastest_tiling
from nkilib.experimental.loss.linear_cross_entropy.host import forward_tiling
from nkilib.experimental.loss.linear_cross_entropy.shared.forward_needs import ForwardNeeds
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec, using

from ..linear_inputs import Sizes, in_layout, normal_problem, with_options
from .forward_checks import WANTED, Launch, check

EVERYTHING = Launch(wanted=WANTED, class_block=128)
BYTES_OF = forward_tiling.ForwardSizes.bytes_of


@pytest.mark.parametrize(
    ("cores", "name", "layout", "positions"), [(1, "all", "vd", 300), (2, "none", "dv", 300), (2, "all", "vd", 130)]
)
def test_loops_give_what_the_unrolled_program_gives(
    monkeypatch: pytest.MonkeyPatch, cores: int, name: str, layout: str, positions: int
) -> None:
    """Over blocks of classes and, with 300 positions, over two of three blocks of these."""
    problem = normal_problem(Sizes(positions, 16, 2800 * cores), np.random.default_rng(0))
    problem = in_layout(with_options(problem, name), layout)
    launch = replace(EVERYTHING, cores=cores, position_block=128)
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
        check(problem, replace(EVERYTHING, cores=cores, position_block=128))


@pytest.mark.parametrize(("positions", "name"), [(600, "none"), (300, "all")])
def test_classes_that_the_cores_share(monkeypatch: pytest.MonkeyPatch, positions: int, name: str) -> None:
    """The cores share parts of two tiles and of one; the second core has none of a remainder of one tile."""
    problem = with_options(normal_problem(Sizes(positions, 16, 2001), np.random.default_rng(1)), name)
    launch = replace(EVERYTHING, position_block=256 if positions < 600 else 512)
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
        check(problem, EVERYTHING)


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
