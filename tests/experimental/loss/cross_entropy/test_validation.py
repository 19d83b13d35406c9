# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the plain kernels alone, and the largest chunks that they take; see test_shared_refusals too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss import cross_entropy_forward
from nkilib.nki import nl
from tests.experimental.refusals import Kernel, Refusal, assert_refused, parametrized

FORWARD = ("cross_entropy_forward",)
BACKWARD = ("cross_entropy_backward",)

REFUSALS = [
    Refusal(
        "targets 2-D",
        "targets_hbm must have shape (3,), one class for each row of logits_hbm, got (3, 1); "
        "flatten the targets as the logits",
        {"targets_hbm": np.zeros((3, 1), np.int32)},
        FORWARD + BACKWARD,
    ),
    Refusal(
        "lse int32",
        "lse_dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; use one of them",
        {"lse_dtype": nl.int32},
        FORWARD,
    ),
    Refusal(
        "LSE too short",
        "lse_state_hbm must have shape (3,), one value for each row of logits_hbm, got (2,); "
        "pass the second result of cross_entropy_forward",
        {"lse_state_hbm": np.zeros(2, np.float32)},
        BACKWARD,
    ),
    Refusal(
        "LSE int32",
        "lse_state_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; use one of them",
        {"lse_state_hbm": np.zeros(3, np.int32)},
        BACKWARD,
    ),
    *(
        Refusal(
            f"reduction {value}",
            f'reduction must be "mean" or "sum", got {value}',
            {"reduction": value},
            BACKWARD,
        )
        for value in ("none", "Mean")
    ),
]


@parametrized(REFUSALS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize(
    ("dtype", "positions_per_batch", "chunk_size"),
    [(nl.bfloat16, 128, 65535), (nl.float32, 128, 49152), (nl.float32, 8, 52222)],
)
def test_the_limits_themselves_are_accepted(dtype: nl.DType, positions_per_batch: int, chunk_size: int) -> None:
    x = np.ones((1, 65535), ml_dtypes.bfloat16)
    loss, _ = cross_entropy_forward(
        x, np.zeros(1, np.int32), positions_per_batch=positions_per_batch, chunk_size=chunk_size, dtype=dtype
    )
    assert abs(float(loss[0]) - np.log(65535)) < 0.05
