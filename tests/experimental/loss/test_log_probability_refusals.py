# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the kernels over log-probabilities, each with its whole message, before anything is written."""

from __future__ import annotations

import numpy as np

from nkilib.nki import nl
from tests.experimental.refusals import LOG_PROBABILITY_KERNELS, Kernel, Refusal, assert_refused, parametrized

NLL = ("nll_loss_forward", "nll_loss_backward")
KL = ("kl_div_forward", "kl_div_backward")
BACKWARD = ("nll_loss_backward", "kl_div_backward")

REFUSALS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        kernels=NLL,
        target="trn1",
    ),
    Refusal(
        "input 1-D",
        "input_hbm must be [N, C] or [N, C, d1, ...], got shape (100,); reshape [C] to [1, C]",
        {"input_hbm": np.ones(100, np.float32)},
        NLL,
    ),
    Refusal(
        "no elements",
        "input_hbm must have at least one element, got shape (3, 0); launch nothing",
        {"input_hbm": np.ones((3, 0), np.float32)},
    ),
    Refusal(
        "input int32",
        "input_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"input_hbm": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "too many positions",
        "a launch gathers for at most 8192 groups of up to 128 positions, got 8193 of an input of shape "
        "(1, 1, 1048577); split the rows",
        {"input_hbm": np.ones((1, 1, 2**20 + 1), np.float32), "targets_hbm": np.zeros((1, 2**20 + 1), np.int32)}
        | {"streamed": False},
        NLL,
    ),
    Refusal("streamed", "streamed must be True, False or None, got 2; use None", {"streamed": 2}, NLL),
    Refusal(
        "too many classes to stream",
        "streamed=True takes at most 256 classes, got 257; use None",
        {"input_hbm": np.ones((3, 257), np.float32), "streamed": True},
        NLL,
    ),
    Refusal(
        "targets too short",
        "targets_hbm must have shape (3,), that of input_hbm without the classes, got (2,)",
        {"targets_hbm": np.zeros(2, np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be int32, got uint32; cast the targets to int32",
        {"targets_hbm": np.zeros(3, np.uint32)},
    ),
    Refusal(
        "weight of rows",
        "class_weight_hbm must have shape (100,), got (3,); flatten it as the classes",
        {"class_weight_hbm": np.ones(3, np.float32)},
    ),
    Refusal(
        "ignore_index of 64 bits",
        "ignore_index must be an integer of 32 bits, as targets are, got 2147483648",
        {"ignore_index": 2**31},
    ),
    Refusal(
        "reduction of nll",
        "reduction must be one of mean, sum, none, got batchmean",
        {"reduction": "batchmean"},
        NLL,
    ),
    Refusal(
        "reduction of kl_div",
        "reduction must be one of mean, sum, none, batchmean, got Mean",
        {"reduction": "Mean"},
        KL,
    ),
    Refusal(
        "no total weight",
        "total_weight_hbm must be a tensor of shape (1,), got None",
        {"total_weight_hbm": None},
    ),
    Refusal(
        "gradient of two",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float32 of shape (2,); "
        "sum it up and cast it",
        {"grad_loss_hbm": np.ones(2, np.float32)},
        BACKWARD,
    ),
    Refusal(
        "gradient of each loss",
        'grad_loss_hbm must have the shape of the losses, (3, 100), for reduction="none", got (1,); expand it',
        {"reduction": "none"},
        ("kl_div_backward",),
    ),
    Refusal("inplace", "inplace must be True or False, got 2", {"inplace": 2}, BACKWARD),
    Refusal(
        "target of another shape",
        "target_hbm must have the shape of input_hbm, (3, 100), got (100,); expand it",
        {"target_hbm": np.ones(100, np.float32)},
    ),
    Refusal(
        "results int32",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32},
    ),
    Refusal("log_target", "log_target must be True or False, got yes", {"log_target": "yes"}),
    Refusal(
        "no gradient",
        "grad_input_wanted or grad_target_wanted must be True, got False for all; launch nothing",
        {"grad_input_wanted": False},
    ),
    Refusal(
        "in place of nothing",
        "inplace must be False without the gradient of input, which it stores, got True",
        {"grad_input_wanted": False, "grad_target_wanted": True, "inplace": True},
    ),
    Refusal("columns", "columns must be an integer of at least 128, got 127", {"columns": 127}),
    Refusal("buffers", "buffers must be an integer of at least 2, got 1", {"buffers": 1}),
    Refusal(
        "columns beyond an instruction",
        "columns must be at most 65535, the longest free axis of an instruction, got 65536",
        {"columns": 65536},
    ),
    Refusal(
        "columns beyond SBUF",
        "3 buffers of 16384 columns take 472064 bytes of an SBUF partition with the tiles beside them, which has "
        "212984; pass columns=512 and buffers=3",
        {"columns": 16384},
        ("kl_div_forward",),
    ),
]


@parametrized(REFUSALS, LOG_PROBABILITY_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)
