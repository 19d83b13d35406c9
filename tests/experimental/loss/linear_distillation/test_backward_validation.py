# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the backward of two models, before anything is written, and sizes that fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.linear_distillation import linear_distillation_backward
from nkilib.experimental.loss.linear_distillation.host.tiling import BACKWARD, choose_linear_distillation_tiling
from nkilib.simulator import NkiValidationError

from .host.pairs import BF16, Sizes, pair_of
from .pair_checks import arguments_of, upstream_of, vectors_of

N, V = 40, 96


def arguments(**changes: Any) -> dict[str, Any]:
    """A launch that is accepted, but for the changes."""
    problem = pair_of(Sizes(N, 24, 32, V), dtype=BF16, beta=1.0)
    upstream = upstream_of(problem)
    options = {**arguments_of(problem), **vectors_of(upstream.statistics), "moment_hbm": upstream.moment}
    options |= {"grad_divergence_hbm": upstream.grad_divergence, "grad_logprob_hbm": upstream.grad_logprob}
    return {**options, **changes}


def vector(length: int = N, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(length, dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moment_hbm": vector(N + 1)}, "moment_hbm must"),
        ({"student_maximum_hbm": vector(N - 1)}, "student_maximum_hbm must"),
        ({"teacher_log_sum_hbm": vector(dtype=np.float16)}, "teacher_log_sum_hbm must be float32"),
        ({"grad_divergence_hbm": np.zeros((N, 1), np.float32)}, "grad_divergence_hbm must"),
        ({"grad_logprob_hbm": vector(dtype=np.int32)}, "grad_logprob_hbm must be float32"),
        ({"labels_hbm": None}, "grad_logprob_hbm must be None without labels_hbm"),
        ({"row_weight_hbm": vector(N + 1)}, "row_weight_hbm must"),
        ({"grad_bias_wanted": True}, "without student_bias_hbm"),
        ({"grad_input_wanted": False, "grad_weight_wanted": False}, "at least one of"),
        ({"grad_weight_sum_hbm": np.zeros((V, 25), np.float32)}, "grad_weight_sum_hbm must have the shape"),
        ({"position_block": 100}, "position_block must be a positive multiple of 128"),
        ({"class_block": -128}, "class_block must be a positive multiple of 128"),
        ({"beta": 1.5}, "beta must be a number from 0"),
        ({"temperature": 0.0}, "temperature must be"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((AssertionError, NkiValidationError), match="linear_distillation_backward: .*" + message):
        linear_distillation_backward[2](**arguments(**changes))


def test_what_is_refused_leaves_a_sum_as_it_is() -> None:
    total = np.ones((V, 24), np.float32)
    with pytest.raises(AssertionError, match="moment_hbm"):
        linear_distillation_backward[2](**arguments(grad_weight_sum_hbm=total, moment_hbm=vector(3)))
    assert (total == 1.0).all()


def test_features_that_do_not_fit_are_refused_with_their_number_and_a_remedy() -> None:
    with shrunk(PlanLimits(sbuf_bytes=8000)):
        with pytest.raises(AssertionError, match=r"24 in bfloat16 and 32 in bfloat16; pass compute_dtype=nl\.bfloat16"):
            linear_distillation_backward[2](**arguments())
        with pytest.raises(AssertionError, match="must fit a partition of SBUF, 8000 bytes, and take"):
            linear_distillation_backward[2](**arguments(position_block=128, class_block=128))


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("positions", [1, 4096, 65536, 10**6])
def test_as_many_features_fit_as_a_model_may_have(positions: int, extended: bool) -> None:
    """All features of both models fit in 16 bits; in float32 20,480 of both together do."""
    for student, teacher, dtype in ((16384, 16384, "bfloat16"), (4096, 16384, "float32"), (8192, 12288, "float32")):
        for beta in (0.0, 0.5):
            tiling = choose_linear_distillation_tiling(
                positions, student, teacher, 128256, dtype, BACKWARD, beta=beta, extended=extended
            )
            assert tiling.position_block % 128 == tiling.class_block % 128 == 0 < tiling.class_block
    with pytest.raises(ValueError, match=r"choose_linear_distillation_tiling: .* 65536 bytes of the student and 65536"):
        choose_linear_distillation_tiling(positions, 16384, 16384, 128256, "float32", BACKWARD)


def test_the_choice_depends_on_what_the_teacher_takes() -> None:
    """A wide teacher leaves room for smaller blocks."""
    blocks = [
        choose_linear_distillation_tiling(4096, 2048, teacher, 151936, "bfloat16", BACKWARD)
        for teacher in (2048, 16384)
    ]
    assert blocks[0].position_block * blocks[0].class_block > blocks[1].position_block * blocks[1].class_block
