# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of all elementwise losses reject bad arguments with the whole message, before anything is written."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.nki import nl
from tests.experimental.refusals import ELEMENTWISE_KERNELS, Kernel, Refusal, assert_refused, parametrized

BACKWARDS = tuple(name for name in ELEMENTWISE_KERNELS if name.endswith("_backward"))

REFUSALS = [
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
        "target_hbm must have the shape of {matrix}, (3, 100), got (3, 99); expand it",
        {"target_hbm": np.ones((3, 99), np.float32)},
    ),
    Refusal("reduction", "reduction must be one of {reductions}, got Mean", {"reduction": "Mean"}),
    Refusal(
        "dtype of an integer",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; cast it, as with .float()",
        {"dtype": nl.int32, "reduction": "none"},
    ),
    Refusal("columns", "columns must be an integer of at least 128, got 100", {"columns": 100}),
    Refusal("buffers", "buffers must be an integer of at least 2, got 1", {"buffers": 1}),
    Refusal(
        "gradient of half precision",
        "grad_loss_hbm must be one float32, the gradient of the reduced loss, got float16 of shape (1,); "
        "sum it up and cast it",
        {"grad_loss_hbm": np.ones(1, np.float16)},
    ),
    Refusal(
        "one gradient for all",
        'grad_loss_hbm must have the shape of the losses, (3, 100), for reduction="none", got (1,); expand it',
        {"reduction": "none", "grad_loss_hbm": np.ones(1, np.float32)},
    ),
    Refusal("inplace", "inplace must be True or False, got 1", {"inplace": 1}),
]


@parametrized(REFUSALS, ELEMENTWISE_KERNELS)
def test_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize(
    ("name", "option", "value", "words"),
    [
        ("smooth_l1_loss", "beta", -1.0, " of at least 0"),
        ("huber_loss", "delta", 0.0, " of at least 2^-126"),
        ("hinge_embedding_loss", "margin", float("inf"), ""),
        ("margin_ranking_loss", "margin", float("nan"), ""),
        ("margin_ranking_loss", "margin", True, ""),
    ],
)
def test_options_are_finite_numbers(name: str, option: str, value: float, words: str) -> None:
    for kernel in (ELEMENTWISE_KERNELS[f"{name}_forward"], ELEMENTWISE_KERNELS[f"{name}_backward"]):
        message = f"{option} must be a finite number of float32{words}, got {value}"
        assert_refused(Refusal("option", message, {option: value}), kernel, 2)
