# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the kernels of several target ids, before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.experimental.loss import choose_linear_tiling, linear_token_scores_backward, linear_token_scores_forward

ROWS, FEATURES, CLASSES, IDS = 5, 16, 20, 3
VECTOR = np.zeros(ROWS, np.float32)
_OF_TARGETS: list[tuple[dict[str, Any], str]] = [
    (
        {"targets_hbm": np.zeros(ROWS, np.int32)},
        "targets_hbm must have shape (5, K), K target ids for each row of input_hbm, got (5,); pass [N, 1] for one id",
    ),
    (
        {"targets_hbm": np.zeros((4, IDS), np.int32)},
        "targets_hbm must have shape (5, K), K target ids for each row of input_hbm, got (4, 3); "
        "pass [N, 1] for one id",
    ),
    (
        {"targets_hbm": np.zeros((ROWS, 65), np.int32)},
        "targets_hbm must have 1 to 64 target ids for each position, got shape (5, 65); launch several times for more",
    ),
    (
        {"targets_hbm": np.zeros((ROWS, IDS), np.float32)},
        "targets_hbm must be int32, got float32; cast the targets to int32",
    ),
    (
        {"weight_hbm": np.zeros((CLASSES, FEATURES + 1), np.float32)},
        "weight_hbm must be [vocab_size, num_features] with the 16 features of input_hbm by weight_layout='vd', "
        "got shape (20, 17); pass weight_layout='dv' for its transpose",
    ),
    (
        {"temperature": 0.0},
        "temperature must be a number from 1e-06 to 1000000.0, got 0.0; pass 1.0 for none",
    ),
    ({"logit_scale": -1.0}, "logit_scale must be a number from 1e-06 to 1000000.0, got -1.0; pass 1.0 for none"),
]
_OF_UPSTREAM: list[tuple[dict[str, Any], str]] = [
    (
        {"grad_logprob_hbm": VECTOR},
        "grad_logprob_hbm must have the shape of targets_hbm, (5, 3), got (5,); "
        "pass a gradient for each log-probability",
    ),
    (
        {"grad_logprob_hbm": np.zeros((ROWS, IDS), np.float16)},
        "grad_logprob_hbm must be float32, got float16; cast it to float32",
    ),
    (
        {"grad_logprob_hbm": None},
        "at least one of grad_logprob_hbm, grad_lse_hbm, grad_entropy_hbm must be a tensor, got none; "
        "launch nothing where no gradient comes",
    ),
    (
        {"maximum_hbm": VECTOR},
        "maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither",
    ),
    (
        {"grad_entropy_hbm": VECTOR},
        "entropy_hbm and grad_entropy_hbm belong together, got one of them; pass both, or neither",
    ),
    (
        {"lse_hbm": np.zeros(4, np.float32)},
        "lse_hbm must have shape (5,), got (4,); flatten it as the rows of the input",
    ),
    (
        {"grad_weight_wanted": False, "grad_input_wanted": False},
        "at least one of grad_input_wanted, grad_weight_wanted and grad_bias_wanted must be True, got none; "
        "launch nothing where no gradient is wanted",
    ),
]


def accepted() -> dict[str, Any]:
    """Arguments of both kernels."""
    return {
        "input_hbm": np.ones((ROWS, FEATURES), np.float32),
        "weight_hbm": np.ones((CLASSES, FEATURES), np.float32),
        "targets_hbm": np.zeros((ROWS, IDS), np.int32),
    }


def refusal_of(kernel: Any, arguments: dict[str, Any]) -> str:
    """The message, without an instruction before it."""
    with nkilib.simulator.recording() as record, pytest.raises(AssertionError) as caught:
        kernel(**arguments)
    assert not record.instruction_counts
    return str(caught.value)


@pytest.mark.parametrize(("wrong", "message"), _OF_TARGETS)
def test_the_forward_refuses(wrong: dict[str, Any], message: str) -> None:
    error = refusal_of(linear_token_scores_forward[2], {**accepted(), **wrong})
    assert error == f"linear_token_scores_forward: {message}"


@pytest.mark.parametrize(("wrong", "message"), [*_OF_TARGETS, *_OF_UPSTREAM])
def test_the_backward_refuses(wrong: dict[str, Any], message: str) -> None:
    upstream = {"lse_hbm": VECTOR, "grad_logprob_hbm": np.zeros((ROWS, IDS), np.float32)}
    error = refusal_of(linear_token_scores_backward[2], {**accepted(), **upstream, **wrong})
    assert error == f"linear_token_scores_backward: {message}"


def test_the_chooser_of_tilings_takes_1_to_64_ids() -> None:
    assert choose_linear_tiling(300, 64, 1000, "bfloat16", "backward", ids=64)
    for ids in (0, 65):
        with pytest.raises(ValueError, match="ids must be"):
            choose_linear_tiling(300, 64, 1000, "bfloat16", "backward", ids=ids)
