"""How the forward goes through its classes: loops of the device, the length of programs, what a launch reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks._program_size import program_instructions
from nkilib.experimental.loss import linear_cross_entropy_forward
from nkilib.experimental.loss.linear_cross_entropy.blocks import shares_of_cores
from nkilib.experimental.loss.linear_cross_entropy.class_schedule import ClassSchedule
from nkilib.experimental.loss.linear_cross_entropy.host import forward_tiling
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec

from .forward_checks import WANTED, Launch, check
from .linear_inputs import Sizes, in_layout, normal_problem, with_options

EVERYTHING = Launch(wanted=WANTED, class_block=128)


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
    for each, values in launch.results(problem).items():
        np.testing.assert_allclose(values, unrolled[each], rtol=1e-6, err_msg=each)


def test_trips_take_what_a_program_may_have() -> None:
    shares = shares_of_cores(128_256, 2)
    for bodies in (8, 9, 16, 25, 40, 63, 100):
        schedules = [ClassSchedule.make(shares, core, 512, bodies) for core in (0, 1)]
        assert schedules[0].plan.trips == schedules[1].plan.trips > 1
        for schedule, share in zip(schedules, shares, strict=True):
            assert schedule.head is not None
            assert schedule.plan.bodies + 1 <= max(bodies, 10)
            assert schedule.first == share.first
            assert schedule.head.first + schedule.head.size == schedule.plan.first


def profiled(positions: int, features: int, classes: int, **arguments: Any) -> Profile:
    """A launch on the two cores of trn2, in bfloat16."""
    tensors = (
        spec((positions, features), nl.bfloat16),
        spec((classes, features), nl.bfloat16),
        spec((positions,), nl.int32),
    )
    return profile(linear_cross_entropy_forward[2], *tensors, **arguments)


def test_a_program_is_short_whatever_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tenth of what a program may have, and of the classes."""
    monkeypatch.setattr(forward_tiling, "_INSTRUCTIONS", 2_800)
    sizes = [program_instructions(partial(profiled, 256, 1024, classes)) for classes in (50_000, 100_000)]
    assert max(sizes) <= 3_000


def test_the_weight_is_read_once_where_the_positions_fit() -> None:
    found = profiled(1024, 1024, 16_000)
    operands = 2 * 1024 * (1024 * 2 + 16_000)
    assert operands <= found.hbm_read_bytes <= operands + 4 * 2 * 1024
    assert found.hbm_written_bytes == 2 * 4 * 1024


@pytest.mark.parametrize(("positions", "features", "most"), [(512, 512, 1.16), (1024, 1024, 1.045)])
def test_tensor_is_kept_busy(positions: int, features: int, most: float) -> None:
    """Modelled, not measured: the time over that of the products alone."""
    found = profiled(positions, features, 32_000)
    products_us = positions * features * 16_000 / (128 * 128 * 2400)
    assert found.time_us <= most * products_us
