# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the CTC kernels, each with its whole message, before anything is written."""

from __future__ import annotations

import numpy as np

from nkilib.nki import nl
from tests.experimental.refusals import CTC_KERNELS, Kernel, Refusal, assert_refused, parametrized

FORWARD, BACKWARD = ("ctc_loss_forward",), ("ctc_loss_backward",)

REFUSALS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
    Refusal(
        "log_probs 2-D",
        "log_probs_hbm must have shape (T, N, C) with at least one element, got (3, 100); launch nothing for an empty "
        "batch, and unsqueeze(1) a single sequence",
        {"log_probs_hbm": np.ones((3, 100), np.float32)},
    ),
    Refusal(
        "no time",
        "log_probs_hbm must have shape (T, N, C) with at least one element, got (0, 3, 100); launch nothing for an "
        "empty batch, and unsqueeze(1) a single sequence",
        {"log_probs_hbm": np.ones((0, 3, 100), np.float32)},
    ),
    Refusal(
        "log_probs int32",
        "log_probs_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"log_probs_hbm": np.ones((1, 3, 100), np.int32)},
    ),
    Refusal(
        "targets of another batch",
        "targets_hbm must have shape (3, S), S > 0, or be None if no target has a label, got (2, 1); pad the targets",
        {"targets_hbm": np.ones((2, 1), np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be nl.int32, got uint32; cast it",
        {"targets_hbm": np.ones((3, 1), np.uint32)},
    ),
    Refusal(
        "lengths too short",
        "input_lengths_hbm must have shape (3,), one for each sequence, got (2,)",
        {"input_lengths_hbm": np.ones(2, np.int32)},
    ),
    Refusal(
        "lengths float32",
        "target_lengths_hbm must be nl.int32, got float32; cast it",
        {"target_lengths_hbm": np.ones(3, np.float32)},
    ),
    Refusal("blank", "blank must be a class from 0 to 99, got 100", {"blank": 100}),
    Refusal("reduction", "reduction must be one of mean, sum, none, got batchmean", {"reduction": "batchmean"}),
    Refusal("zero_infinity", "zero_infinity must be True or False, got 1", {"zero_infinity": 1}),
    Refusal(
        "dtype",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32},
        FORWARD,
    ),
    Refusal(
        "too many labels",
        "the states of 4437 labels take 213000 bytes of an SBUF partition, which has 212984; pass shorter targets",
        {"targets_hbm": np.ones((3, 4437), np.int32)},
        FORWARD,
    ),
    Refusal(
        "alpha",
        "alpha_hbm must be float32 of shape (1, 3, 3), as the forward returned it, got float32 of shape (1, 3, 1)",
        {"alpha_hbm": np.ones((1, 3, 1), np.float32)},
        BACKWARD,
    ),
    Refusal(
        "nll",
        "nll_hbm must be float32 of shape (3,), as the forward returned it, got float32 of shape (2,)",
        {"nll_hbm": np.ones(2, np.float32)},
        BACKWARD,
    ),
    Refusal(
        "upstream",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float32 of shape (3,); sum it up and "
        "cast it",
        {"grad_loss_hbm": np.ones(3, np.float32)},
        BACKWARD,
    ),
]


@parametrized(REFUSALS, CTC_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
