# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the kernels of two models, each with its whole message, before anything is written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_distillation_backward
from nkilib.experimental.loss.linear_distillation.host.tiling import BACKWARD, choose_linear_distillation_tiling
from nkilib.nki import nl
from nkilib.simulator import NkiValidationError

from ...refusals import CLASSES, COLUMNS, PAIR_KERNELS, ROWS, Kernel, Refusal, assert_refused, parametrized
from .pair_checks import arguments_of, upstream_of, vectors_of
from .pair_inputs import BF16, Sizes, pair_of

FORWARD = ("linear_distillation_forward",)
TEACHER = COLUMNS // 2
CHOOSER = "None takes the value of choose_linear_distillation_tiling"


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


OF_OPERANDS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
    Refusal(
        "student input 3-D",
        "student_input_hbm must be 2-D [num_positions, num_features], got shape (1, 3, 100); "
        "reshape [batch, sequence, num_features] to [batch * sequence, num_features]",
        shape=(1, ROWS, COLUMNS),
    ),
    Refusal(
        "teacher input int32",
        "teacher_input_hbm must be bfloat16, float32 or float16, got int32; cast it and teacher_weight_hbm",
        {"teacher_input_hbm": zeros(ROWS, TEACHER, dtype=np.int32)},
    ),
    Refusal(
        "few features of the teacher",
        "teacher_input_hbm must have 16 to 16384 features, got shape (3, 15); pad fewer with zeros, here and in "
        "teacher_weight_hbm",
        {"teacher_input_hbm": zeros(ROWS, 15)},
    ),
    Refusal(
        "another number of positions",
        "teacher_input_hbm must have the 3 rows of student_input_hbm, got shape (4, 50); pass both models' hidden "
        "states of the same positions",
        {"teacher_input_hbm": zeros(4, TEACHER)},
    ),
    Refusal(
        "another vocabulary",
        "teacher_weight_hbm must have the 20 classes of student_weight_hbm, got 21; both models must have one "
        "vocabulary, and the same shard of it",
        {"teacher_weight_hbm": zeros(CLASSES + 1, TEACHER)},
    ),
    Refusal(
        "weights of the other model",
        "student_weight_hbm must be [vocab_size, num_features] with the 100 features of student_input_hbm by "
        "student_weight_layout='vd', got shape (20, 50); pass student_weight_layout='dv' for its transpose",
        {"student_weight_hbm": zeros(CLASSES, TEACHER)},
    ),
    Refusal(
        "layout unknown",
        'teacher_weight_layout must be "vd" or "dv", got \'VD\'; '
        '"vd" is [vocab_size, num_features], as the weight of torch.nn.Linear',
        {"teacher_weight_layout": "VD"},
    ),
    Refusal(
        "weight bfloat16",
        "student_weight_hbm must have the dtype of student_input_hbm, float32, got bfloat16; cast one of them, "
        "or pass the compute_dtype that both are rounded to",
        {"student_weight_hbm": zeros(CLASSES, COLUMNS, dtype=ml_dtypes.bfloat16)},
    ),
    Refusal(
        "compute_dtype of integers",
        "compute_dtype must be bfloat16, float32, float16 or None, got int32; None takes the type of student_input_hbm",
        {"compute_dtype": nl.int32},
    ),
    Refusal(
        "bias too short",
        "teacher_bias_hbm must have shape (20,), one value for each class of teacher_weight_hbm, got (19,); flatten "
        "it as the classes",
        {"teacher_bias_hbm": zeros(CLASSES - 1)},
    ),
    Refusal(
        "bias float16",
        "student_bias_hbm must be float32, got float16; cast it to float32",
        {"student_bias_hbm": zeros(CLASSES, dtype=np.float16)},
    ),
    Refusal(
        "first class of no shard",
        "first_class must be 0 without num_classes, got 3; pass num_classes of all shards",
        {"first_class": 3},
    ),
    Refusal(
        "too few classes of all shards",
        "the classes of student_weight_hbm must be classes below num_classes = 22, got classes 3 to 22; pass "
        "num_classes of all shards",
        {"first_class": 3, "num_classes": 22},
    ),
]
OF_OPTIONS = [
    *(
        Refusal(
            f"beta {value}",
            "beta must be a number from 0, for KL(teacher || student), to 1, for KL(student || teacher), "
            f"got {value}; 0.5 is the Jensen-Shannon divergence",
            {"beta": value},
        )
        for value in (-0.1, 1.5, float("nan"), True)
    ),
    *(
        Refusal(
            f"temperature {value}",
            f"temperature must be a number from 0.001 to 1000000.0, got {value}; it divides the logits, and 1.0 "
            "leaves them",
            {"temperature": value},
        )
        for value in (0.0, 1e-4, "1")
    ),
    Refusal(
        "ignore_index of 64 bits",
        f"ignore_index must be an int32, got {2**31}; use a label that is none, as -100",
        {"ignore_index": 2**31},
    ),
    *(
        Refusal(
            f"{name} scale",
            f"{name}_logit_scale must be a number from 1e-06 to 1000000.0, got 0; pass 1.0 for none",
            {f"{name}_logit_scale": 0},
        )
        for name in ("student", "teacher")
    ),
    *(
        Refusal(
            f"{name} softcap",
            f"{name}_logit_softcap must be a number from 1e-30 to 1e+30 or None, got -1.0; pass None for no cap",
            {f"{name}_logit_softcap": -1.0},
        )
        for name in ("student", "teacher")
    ),
    Refusal(
        "units far apart",
        "softcaps, and logit scales where there is none, must be at most 1000000000000.0 times as large in one model "
        "as in the other, got 1e+20 and 1.0; pass softcaps of the size of the logits",
        {"student_logit_softcap": 1e20},
    ),
    Refusal(
        "memory of a Kullback-Leibler divergence",
        "memory_limit must be None unless beta is between 0 and 1, got 1000 with beta=1.0; no logits are kept for a "
        "Kullback-Leibler divergence",
        {"beta": 1.0, "memory_limit": 1000},
    ),
    *(
        Refusal(
            f"memory of {value}",
            f"memory_limit must be a number of bytes from 0 or None, got {value}; 0 keeps no logits, and both "
            "products run twice",
            {"beta": 0.5, "memory_limit": value},
        )
        for value in (-1, 1e9, True)
    ),
]
OF_VECTORS = [
    Refusal(
        "labels too short",
        "labels_hbm must have shape (3,), one label for each row of student_input_hbm, got (2,); flatten the labels "
        "as the rows",
        {"labels_hbm": np.zeros(2, np.int32)},
    ),
    Refusal(
        "labels int64",
        "labels_hbm must be int32, got int64; cast the labels to int32",
        {"labels_hbm": np.zeros(ROWS, np.int64)},
    ),
    Refusal(
        "row weights too long",
        "row_weight_hbm must have shape (3,), got (4,); flatten it as the positions",
        {"row_weight_hbm": zeros(4)},
    ),
    Refusal(
        "row weights bfloat16",
        "row_weight_hbm must be float32, got bfloat16; cast it to float32",
        {"row_weight_hbm": zeros(ROWS, dtype=ml_dtypes.bfloat16)},
    ),
    *(
        Refusal(
            f"{name} without labels",
            f"{name} must be False without labels_hbm, got True; pass the labels",
            {name: True},
        )
        for name in ("with_logprob", "with_target")
    ),
    Refusal("a flag that is none", "with_logprob must be True or False, got 1", {"with_logprob": 1}),
]
OF_TILING = [
    *(
        Refusal(
            f"{name} {size}",
            f"{name} must be a positive multiple of 128 or None, got {size}; {CHOOSER}",
            {name: size},
        )
        for name in ("position_block", "class_block")
        for size in (0, 100)
    ),
    Refusal(
        "a block beyond a bank",
        f"class_block must be at most 512, what a bank of PSUM holds, got 640; {CHOOSER}",
        {"class_block": 640},
        FORWARD,
    ),
]
REFUSALS = [*OF_OPERANDS, *OF_OPTIONS, *OF_VECTORS, *OF_TILING]


@parametrized(REFUSALS, PAIR_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize("kernel", PAIR_KERNELS.values(), ids=list(PAIR_KERNELS))
def test_the_twin_of_every_refusal_is_accepted(kernel: Kernel) -> None:
    result = kernel.launch(kernel.accepted())
    assert np.isfinite(result[0]).all()


def test_a_tiling_that_does_not_fit_is_refused() -> None:
    kernel = PAIR_KERNELS["linear_distillation_forward"]
    inputs = kernel.accepted((300, 4000))
    message = r"must leave the tiles of 4000 and 2000 features at most \d+ bytes of a partition, got \d+ with "
    with pytest.raises(AssertionError, match=f"{message}position_block=1024 and class_block=512; {CHOOSER}$"):
        kernel.launch({**inputs, "position_block": 1024, "class_block": 512})


def test_more_features_than_any_tiling_has_room_for_are_refused() -> None:
    kernel = PAIR_KERNELS["linear_distillation_forward"]
    with pytest.raises(AssertionError, match=r"no smaller one fits either: pass compute_dtype=nl.bfloat16 for less"):
        kernel.launch(kernel.accepted((1, 16_384)))


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
