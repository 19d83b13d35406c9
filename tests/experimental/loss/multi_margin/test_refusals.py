# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the kernels of margins between classes, each with its whole message, before anything is written."""

from __future__ import annotations

import numpy as np

from tests.experimental.refusals import MARGIN_KERNELS, Kernel, Refusal, assert_refused, parametrized

MULTI = ("multi_margin_loss_forward", "multi_margin_loss_backward")
MULTILABEL = ("multilabel_margin_loss_forward", "multilabel_margin_loss_backward")
BACKWARD = ("multi_margin_loss_backward", "multilabel_margin_loss_backward")

REFUSALS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        kernels=MULTI,
        target="trn1",
    ),
    Refusal(
        "a target a row",
        "targets_hbm must be int32 of shape (3, 100), got int32 of shape (3,); cast it to int32, and fill rows with -1",
        {"targets_hbm": np.zeros(3, np.int32)},
        MULTILABEL,
    ),
    Refusal(
        "too many classes",
        "a row must have at most 4096 classes, which are on chip together, got 4097; drop classes "
        "that are nobody's target",
        {"input_hbm": np.ones((3, 4097), np.float32), "targets_hbm": np.zeros((3, 4097), np.int32)},
        MULTILABEL,
    ),
    Refusal(
        "too many rows of labels",
        "a launch takes at most 262144 rows, got 262145; split the rows",
        {"input_hbm": np.ones((2**18 + 1, 1), np.float32), "targets_hbm": np.zeros((2**18 + 1, 1), np.int32)},
        MULTILABEL,
    ),
    Refusal(
        "input 1-D",
        "input_hbm must have shape (N, C) with N, C > 0, got (100,); reshape [C] to [1, C]",
        {"input_hbm": np.ones(100, np.float32)},
    ),
    Refusal(
        "no classes",
        "input_hbm must have shape (N, C) with N, C > 0, got (3, 0); reshape [C] to [1, C]",
        {"input_hbm": np.ones((3, 0), np.float32)},
    ),
    Refusal(
        "input int32",
        "input_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"input_hbm": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "targets too short",
        "targets_hbm must be int32 of shape (3,), got int32 of shape (2,); cast it to int32",
        {"targets_hbm": np.zeros(2, np.int32)},
        MULTI,
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be int32 of shape (3,), got uint32 of shape (3,); cast it to int32",
        {"targets_hbm": np.zeros(3, np.uint32)},
        MULTI,
    ),
    Refusal(
        "weight of rows",
        "class_weight_hbm must have shape (100,), got (3,); flatten it as the classes",
        {"class_weight_hbm": np.ones(3, np.float32)},
        MULTI,
    ),
    Refusal("p", "p must be 1 or 2, got 3", {"p": 3}, MULTI),
    Refusal("margin", "margin must be finite, got inf; a number near 1 is usual", {"margin": float("inf")}, MULTI),
    Refusal("reduction", "reduction must be one of mean, sum, none, got batchmean", {"reduction": "batchmean"}),
    Refusal(
        "chunk_size",
        "chunk_size must be an integer from 1 to 4096, got 4097; leave it out",
        {"chunk_size": 4097},
        MULTI,
    ),
    Refusal(
        "too many chunks",
        "a row must have at most 4096 classes in chunks of 1, got 4097; pass chunk_size=4096, or split the classes",
        {"input_hbm": np.ones((3, 4097), np.float32), "chunk_size": 1},
        MULTI,
    ),
    Refusal(
        "too many rows",
        "a launch takes at most 8192 groups of up to 128 rows, got 8193 of 1048577 rows; split the rows",
        {"input_hbm": np.ones((2**20 + 1, 1), np.float32), "targets_hbm": np.zeros(2**20 + 1, np.int32)},
        MULTI,
    ),
    Refusal("inplace", "inplace must be True or False, got 2", {"inplace": 2}, BACKWARD),
    Refusal(
        "gradient of two",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float32 of shape (2,); "
        "sum it up and cast it",
        {"grad_loss_hbm": np.ones(2, np.float32)},
        BACKWARD,
    ),
    Refusal(
        "gradient of each loss",
        'grad_loss_hbm must have the shape of the losses, (3,), for reduction="none", got (1,); expand it',
        {"reduction": "none"},
        BACKWARD,
    ),
]


@parametrized(REFUSALS, MARGIN_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
