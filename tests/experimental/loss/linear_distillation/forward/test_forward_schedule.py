# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the forward goes through its classes: modelled times, the length of programs, what a launch reads and keeps."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest

from benchmarks._program_size import program_instructions
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.linear_distillation import linear_distillation_forward
from nkilib.experimental.loss.linear_distillation.host import forward_tiling
from nkilib.nki import nl
from nkilib.simulator import Profile, profile, spec

BYTES_OF = forward_tiling.PairForwardSizes.bytes_of
# N, Ds, Dt and V of three pairs of models.
LARGE = ((2048, 1024, 2048, 151_936), (4096, 2048, 4096, 151_936), (2048, 2560, 5120, 151_936))
LONGEST = 29_000


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
    with mock.patch.object(forward_tiling.PairForwardSizes, "bytes_of", autospec=True, side_effect=BYTES_OF) as counted:
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
