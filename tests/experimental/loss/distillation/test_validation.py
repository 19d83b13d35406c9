# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the distillation kernels, each with its whole message."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.experimental.refusals import DISTILLATION_KERNELS, Kernel, Refusal, assert_refused, parametrized

_BACKWARD = ("distillation_backward",)
_REFUSALS = (
    Refusal(
        "three dimensions",
        "student_hbm must have shape (N, V) with N, V > 0, got (3, 100, 2); flatten all positions",
        shape=(3, 100, 2),
    ),
    Refusal(
        "other vocabulary",
        "teacher_hbm must have the shape of student_hbm, (3, 100), got (3, 99); both models must have one vocabulary",
        {"teacher_hbm": np.ones((3, 99), np.float32)},
    ),
    Refusal(
        "type of the teacher",
        "teacher_hbm must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"teacher_hbm": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "labels",
        "labels_hbm must be int32 of shape (3,), got int32 of shape (4,); cast and flatten it as the positions",
        {"labels_hbm": np.zeros(4, np.int32)},
    ),
    Refusal(
        "beta",
        "beta must be from 0, for KL(teacher || student), to 1, for KL(student || teacher), got 1.5; 0.5 is the "
        "Jensen-Shannon divergence",
        {"beta": 1.5},
    ),
    Refusal(
        "temperature",
        "temperature must be from 0.001 to 1000000.0, got 0.0; it divides the logits",
        {"temperature": 0.0},
    ),
    Refusal(
        "ignore_index",
        "ignore_index must be an int32, got 4294967296; use a label that is no class, such as -100",
        {"ignore_index": 2**32},
    ),
    Refusal(
        "chunk_size",
        "chunk_size must be an integer from 1 to 100 that makes at most 512 chunks of 100 entries, got 101; pass "
        "chunk_size=100",
        {"chunk_size": 101},
    ),
    Refusal(
        "type of a vector",
        "moment_hbm must be float32, got bfloat16; cast it to float32",
        {"moment_hbm": np.ones(3, ml_dtypes.bfloat16)},
        _BACKWARD,
    ),
    Refusal("inplace", "inplace must be True or False, got 2", {"inplace": 2}, _BACKWARD),
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
)


@parametrized(_REFUSALS, DISTILLATION_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
