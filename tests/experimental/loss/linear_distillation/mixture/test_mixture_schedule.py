# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A divergence from a mixture: modelled times, the length of programs, what a launch takes of SBUF."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest

from benchmarks._program_size import program_instructions
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.linear_distillation import linear_distillation_mixture
from nkilib.experimental.loss.linear_distillation.host import kept_tiling, mixture_tiling
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec

from ..forward.test_forward_schedule import LARGE, LONGEST, products_us, profiled

KEPT_BYTES = kept_tiling.KeptSizes.bytes_of
SUMS_BYTES = mixture_tiling.MixtureSizes.bytes_of
EVERYTHING: dict[str, Any] = {"temperature": 0.7, "student_logit_softcap": 30.0, "has_bias": True}

forward = partial(profiled, beta=0.5)


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


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
def test_what_a_tiling_counts_is_enough(options: dict[str, Any]) -> None:
    """A tiling counts at least the SBUF that a launch takes."""
    sizes = (1024, 1024, 1024, 8_000)
    sized = partial(mock.patch.object, attribute="bytes_of", autospec=True)
    with sized(kept_tiling.KeptSizes, side_effect=KEPT_BYTES) as counted:
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
