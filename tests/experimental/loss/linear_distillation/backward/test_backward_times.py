# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modelled times and programs of the backward of two models, beside the time of its products and the limit."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest

from benchmarks._program_size import program_instructions
from nkilib.experimental.loss.linear.backward.parts import BackwardParts
from nkilib.experimental.loss.linear.shared.sizes import LinearTiling
from nkilib.experimental.loss.linear_distillation.host.profiling import profile_linear_distillation_launch
from nkilib.experimental.loss.linear_distillation.host.tiling import BACKWARD, choose_linear_distillation_tiling
from nkilib.nki import nl
from nkilib.simulator import spec

VOCABULARY, LONGEST = 151936, 29_000
# N, Ds, Dt, and the time over that of the products for a divergence either way and for one from a mixture.
LAUNCHES = (
    (2048, 1024, 2048, 1.04, 1.05),
    (4096, 2048, 4096, 1.045, 1.05),
    (2048, 2560, 5120, 1.035, 1.04),
)
BETAS = (0.0, 1.0, 0.5)
SOFTCAPS = {"student_logit_softcap": 30.0, "teacher_logit_softcap": 30.0}


def time_over_bound(positions: int, student: int, teacher: int, classes: int, beta: float) -> float:
    """Return the modelled time of a launch with the default tiling as a multiple of its bound."""
    profiled = profile_linear_distillation_launch(positions, student, teacher, classes, "bfloat16", BACKWARD, beta=beta)
    assert profiled.fraction_of_bound is not None
    return profiled.fraction_of_bound


@pytest.mark.parametrize(("beta", "most"), [(1.0, 1.11), (0.5, 1.15)])
def test_a_launch_of_a_small_vocabulary_takes_little_more_than_its_products(beta: float, most: float) -> None:
    assert 1.0 < time_over_bound(512, 1024, 2048, 16000, beta) <= most


@pytest.mark.parametrize("beta", BETAS)
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
    with mock.patch.object(BackwardParts, "make", wraps=BackwardParts.make) as made:
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
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(("positions", "student", "teacher", "of_kl", "of_mixture"), LAUNCHES)
def test_launches_of_a_large_vocabulary(
    positions: int, student: int, teacher: int, of_kl: float, of_mixture: float, beta: float
) -> None:
    most = of_mixture if 0.0 < beta < 1.0 else of_kl
    assert time_over_bound(positions, student, teacher, VOCABULARY, beta) <= most


@pytest.mark.sweep
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(("positions", "student", "teacher"), [launch[:3] for launch in LAUNCHES])
def test_programs_of_a_large_vocabulary(positions: int, student: int, teacher: int, beta: float) -> None:
    launch = (positions, student, teacher, VOCABULARY, "bfloat16", BACKWARD)
    assert program_instructions(partial(profile_linear_distillation_launch, *launch, beta=beta)) <= LONGEST
