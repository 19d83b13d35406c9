# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of all row-wise losses reject bad arguments with the whole message, before anything is written."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.nki import nl
from tests.experimental.refusals import ROWWISE_KERNELS, Kernel, Refusal, assert_refused, parametrized

TRIPLET = ("triplet_margin_loss_forward", "triplet_margin_loss_backward")
COSINE = ("cosine_embedding_loss_forward", "cosine_embedding_loss_backward")
LABELS = ("multilabel_soft_margin_loss_forward", "multilabel_soft_margin_loss_backward")
ONES = np.ones((3, 100), np.float32)

REFUSALS = [
    Refusal(
        "1-D",
        "{matrix} must be 2-D (rows, columns), got shape (3,); flatten the dimensions before the last",
        {"{matrix}": np.ones(3, np.float32)},
    ),
    Refusal(
        "no elements",
        "{matrix} must have at least one element, got shape (3, 0); launch nothing",
        {"{matrix}": np.ones((3, 0), np.float32)},
    ),
    Refusal(
        "int32",
        "{matrix}.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"{matrix}": np.ones((3, 100), np.int32)},
    ),
    Refusal(
        "another shape",
        "positive_hbm must have the shape of {matrix}, (3, 100), got (3, 99); expand it",
        {"positive_hbm": np.ones((3, 99), np.float32)},
    ),
    Refusal(
        "p",
        "p must be at least 1, which makes it a norm, got 0.5; use torch.nn.functional.triplet_margin_loss",
        {"p": 0.5},
    ),
    Refusal("swap", "swap must be True or False, got 1", {"swap": 1}),
    Refusal(
        "targets of half precision",
        "target_hbm must be float32, got float16; cast it to float32",
        {"target_hbm": np.ones(3, np.float16)},
        COSINE[:1],
    ),
    Refusal(
        "weight of other classes",
        "weight_hbm must have shape (1, 100) or (3, 100), got (100,); reshape it, as with [None, :]",
        {"weight_hbm": np.ones(100, np.float32)},
    ),
    Refusal("reduction", "reduction must be one of mean, sum, none, got Mean", {"reduction": "Mean"}),
    Refusal(
        "dtype of an integer",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32, "reduction": "none"},
    ),
    Refusal("coefficients_wanted", "coefficients_wanted must be True or False, got 1", {"coefficients_wanted": 1}),
    Refusal(
        "coefficients of other rows",
        "coefficients_hbm must be what the forward returned with the same options, float32 of shape (3, 3), got "
        "float32 of shape (3, 2)",
        {"coefficients_hbm": np.ones((3, 2), np.float32)},
        COSINE[1:],
    ),
    Refusal("columns", "columns must be an integer of at least 1, got 0", {"columns": 0}),
    Refusal("buffers", "buffers must be an integer of at least 2, got 1", {"buffers": 1}),
    Refusal(
        "several rows in chunks",
        "columns must be those of a row, 100, for each=2, got 50; rows pass in chunks with each=1",
        {"columns": 50, "each": 2},
    ),
    Refusal("each", "each must be at most 512, got 513", {"each": 513}),
    Refusal(
        "gradient of half precision",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float16 of shape (1,); "
        "sum it up and cast it",
        {"grad_loss_hbm": np.ones(1, np.float16)},
    ),
    Refusal(
        "one gradient for all",
        'grad_loss_hbm must have the shape of the losses, (3,), for reduction="none", got (1,); expand it',
        {"reduction": "none", "grad_loss_hbm": np.ones(1, np.float32)},
    ),
    Refusal("inplace", "inplace must be True or False, got 1", {"inplace": 1}),
    Refusal(
        "no gradient",
        "grad_input1_wanted or grad_input2_wanted must be True, got False for all; launch nothing",
        {"grad_input1_wanted": False, "grad_input2_wanted": False},
    ),
    Refusal(
        "gradient of no weight",
        "grad_weight_wanted must be False without weight_hbm, got True; pass the weights",
        {"grad_weight_wanted": True, "weight_hbm": None},
    ),
    Refusal(
        "in place of none",
        "inplace must be False without the gradient of input, which it stores, got True",
        {"grad_input_wanted": False, "inplace": True},
    ),
]


@parametrized(REFUSALS, ROWWISE_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


def test_too_many_buffers_are_refused_with_what_fits() -> None:
    kernel = ROWWISE_KERNELS[LABELS[0]]
    arguments = {**kernel.accepted((3, 4000)), "buffers": 40}
    with pytest.raises(AssertionError, match=r"40 buffers of 1 x 2048 .*, which has 212984; pass columns=2048"):
        kernel.launch(arguments, 2)
