# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the kernels, each with its whole message, before anything is written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nl
from tests.experimental.refusals import (
    CLASSES,
    COLUMNS,
    LINEAR_KERNELS,
    ROWS,
    Kernel,
    Refusal,
    assert_refused,
    parametrized,
)

FORWARD = ("linear_cross_entropy_forward",)
BACKWARD = ("linear_cross_entropy_backward",)
TOGETHER = ("linear_cross_entropy_forward_backward",)
SHARD = {"first_class": 100, "num_classes": 300}
WEIGHTS = {"class_weight_hbm": np.ones(CLASSES, np.float32)}


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


OF_INPUT = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
    Refusal(
        "input 3-D",
        "input_hbm must be 2-D [num_positions, num_features], got shape (1, 3, 100); "
        "reshape [batch, sequence, num_features] to [batch * sequence, num_features]",
        shape=(1, ROWS, COLUMNS),
    ),
    Refusal(
        "no rows",
        "input_hbm must have 1 to 2147483647 rows, got shape (0, 100); launch nothing for no position, and "
        "several times for more",
        {"input_hbm": zeros(0, COLUMNS)},
    ),
    *(
        Refusal(
            f"{features} features",
            f"input_hbm must have 16 to 16384 features, got shape (3, {features}); "
            f"pad fewer with zeros, here and in weight_hbm",
            {"input_hbm": zeros(ROWS, features)},
        )
        for features in (15, 16385)
    ),
    Refusal(
        "input int32",
        "input_hbm must be bfloat16, float32 or float16, got int32; cast it and weight_hbm",
        {"input_hbm": zeros(ROWS, COLUMNS, dtype=np.int32)},
    ),
]
OF_WEIGHT = [
    Refusal(
        "layout unknown",
        'weight_layout must be "vd" or "dv", got \'VD\'; '
        '"vd" is [vocab_size, num_features], as the weight of torch.nn.Linear',
        {"weight_layout": "VD"},
    ),
    Refusal(
        "weight 1-D",
        "weight_hbm must be 2-D [vocab_size, num_features] by weight_layout='vd', got shape (100,); reshape it",
        {"weight_hbm": zeros(COLUMNS)},
    ),
    Refusal(
        "weight transposed",
        "weight_hbm must be [vocab_size, num_features] with the 100 features of input_hbm by weight_layout='vd', "
        "got shape (100, 20); pass weight_layout='dv' for its transpose",
        {"weight_hbm": zeros(COLUMNS, CLASSES)},
    ),
    Refusal(
        "weight not transposed",
        "weight_hbm must be [num_features, vocab_size] with the 100 features of input_hbm by weight_layout='dv', "
        "got shape (20, 100); pass weight_layout='vd' for its transpose",
        {"weight_layout": "dv"},
    ),
    Refusal(
        "no classes",
        "weight_hbm must have 1 to 16777216 classes, which are counted in float32, got shape (0, 100); "
        "there is no launch for a larger vocabulary",
        {"weight_hbm": zeros(0, COLUMNS)},
    ),
    Refusal(
        "compute_dtype of integers",
        "compute_dtype must be bfloat16, float32, float16 or None, got int32; None takes the type of input_hbm",
        {"compute_dtype": nl.int32},
    ),
    Refusal(
        "weight of integers beside a compute_dtype",
        "weight_hbm must be bfloat16, float32 or float16, got int32; cast it",
        {"compute_dtype": nl.bfloat16, "weight_hbm": zeros(CLASSES, COLUMNS, dtype=np.int32)},
    ),
    Refusal(
        "weight bfloat16",
        "weight_hbm must have the dtype of input_hbm, float32, got bfloat16; cast one of them, "
        "or pass the compute_dtype that both are rounded to",
        {"weight_hbm": zeros(CLASSES, COLUMNS, dtype=ml_dtypes.bfloat16)},
    ),
]
OF_VECTORS = [
    Refusal(
        "targets too short",
        "targets_hbm must have shape (3,), one class for each row of input_hbm, got (2,); "
        "flatten the targets as the rows of the input",
        {"targets_hbm": np.zeros(2, np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be int32, got uint32; cast the targets to int32",
        {"targets_hbm": np.zeros(3, np.uint32)},
    ),
    Refusal(
        "bias too short",
        "bias_hbm must have shape (20,), one value for each class of weight_hbm, got (19,); flatten it as the classes",
        {"bias_hbm": zeros(19)},
    ),
    Refusal(
        "bias bfloat16",
        "bias_hbm must be float32, got bfloat16; cast it to float32",
        {"bias_hbm": zeros(20, dtype=ml_dtypes.bfloat16)},
    ),
    Refusal(
        "weights too short",
        "class_weight_hbm must have shape (20,), got (19,); flatten it as the classes",
        {"class_weight_hbm": zeros(19)},
    ),
    Refusal(
        "lse too short",
        "lse_hbm must have shape (3,), got (2,); flatten it as the rows of the input",
        {"lse_hbm": zeros(2)},
    ),
    Refusal(
        "gradients of lse bfloat16",
        "grad_lse_hbm must be float32, got bfloat16; cast it to float32",
        {"grad_lse_hbm": zeros(3, dtype=ml_dtypes.bfloat16)},
    ),
    Refusal(
        "maximum alone",
        "maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither",
        {"maximum_hbm": zeros(3)},
    ),
    *(
        Refusal(
            f"{name} alone",
            "entropy_hbm and grad_entropy_hbm belong together, got one of them; pass both, or neither",
            {name: zeros(3)},
        )
        for name in ("entropy_hbm", "grad_entropy_hbm")
    ),
    Refusal(
        "gradients of entropies bfloat16",
        "grad_entropy_hbm must be float32, got bfloat16; cast it to float32",
        {"entropy_hbm": zeros(3), "grad_entropy_hbm": zeros(3, dtype=ml_dtypes.bfloat16)},
    ),
    Refusal(
        "no gradient",
        "at least one of grad_loss_hbm, grad_lse_hbm, grad_logprob_hbm, grad_entropy_hbm must be a tensor, got none; "
        "launch nothing where no gradient comes",
        {"grad_loss_hbm": None},
    ),
]
OF_OPTIONS = [
    Refusal(
        "ignore_index a float",
        "ignore_index must be an integer of 32 bits, as targets are, got 1.0",
        {"ignore_index": 1.0},
    ),
    Refusal("smoothing of 2", "label_smoothing must be a number from 0 to 1, got 2", {"label_smoothing": 2}),
    Refusal(
        "cap of 0",
        "logit_softcap must be a number from 1e-30 to 1e+30 or None, got 0; pass None for no cap",
        {"logit_softcap": 0},
    ),
    Refusal(
        "z-loss negative",
        "lse_square_scale must be a number from 0 to 1e+30, got -1.0",
        {"lse_square_scale": -1.0},
    ),
    *(
        Refusal(f"{flag} a number", f"{flag} must be True or False, got 2", {flag: 2})
        for flag in (
            "with_target",
            "with_argmax",
            "with_entropy",
            "with_distance_sum",
            "with_log_sum",
            "with_log_sum_squares",
            "with_mean_logit",
        )
    ),
    Refusal(
        "shard of too many classes",
        "num_classes must be an integer of at most 16777216, which are counted in float32, or None, got 16777217; "
        "there is no launch for a larger vocabulary",
        {"num_classes": 2**24 + 1},
    ),
    Refusal(
        "shard beyond its classes",
        "the classes of weight_hbm must be classes below num_classes = 110, got classes 100 to 119; "
        "pass num_classes of all shards",
        {"first_class": 100, "num_classes": 110},
    ),
    Refusal(
        "weights of a shard",
        "a shard of weighted classes needs target_weight_hbm, got None; pass the sum of the position_weight of all "
        "shards",
        {**SHARD, **WEIGHTS, "targets_hbm": np.full(3, 110, np.int32)},
        BACKWARD,
    ),
]
OF_TILING = [
    *(
        Refusal(
            f"{name} {size!r}",
            f"{name} must be a positive multiple of 128 or None, got {size}; "
            "None takes the value of choose_linear_tiling",
            {name: size},
        )
        for name in ("position_block", "class_block")
        for size in (0, 100, 128.0, -128)
    ),
    Refusal(
        "class_block over a bank",
        "class_block must be at most 512, what a bank of PSUM holds, got 640; "
        "None takes the value of choose_linear_tiling",
        {"class_block": 640},
        FORWARD,
    ),
]
OF_GRADIENTS = [
    *(
        Refusal(f"{flag} {value}", f"{flag} must be True or False, got {value}", {flag: value})
        for flag in ("grad_input_wanted", "grad_weight_wanted", "grad_bias_wanted", "grad_input_float32")
        for value in ("yes", 1)
    ),
    Refusal(
        "gradient of no bias",
        "grad_bias_wanted must be False or None without bias_hbm, got True; pass the bias",
        {"grad_bias_wanted": True},
    ),
    Refusal(
        "no gradient",
        "at least one of grad_input_wanted, grad_weight_wanted and grad_bias_wanted must be True, got none; "
        "launch nothing where no gradient is wanted",
        {"grad_input_wanted": False, "grad_weight_wanted": False},
    ),
    Refusal(
        "sum without a gradient",
        "grad_weight_sum_hbm must be None without grad_weight_wanted, got a tensor; pass one of them",
        {"grad_weight_sum_hbm": zeros(CLASSES, COLUMNS), "grad_weight_wanted": False},
    ),
    Refusal(
        "sum transposed",
        "grad_weight_sum_hbm must have the shape of weight_hbm, (20, 100), got (100, 20); "
        "keep the sum in the layout of the weight",
        {"grad_weight_sum_hbm": zeros(COLUMNS, CLASSES)},
    ),
    Refusal(
        "sum bfloat16",
        "grad_weight_sum_hbm must be float32, got bfloat16; keep the sum in float32",
        {"grad_weight_sum_hbm": zeros(CLASSES, COLUMNS, dtype=ml_dtypes.bfloat16)},
    ),
]
SCALE = "pass grad_scale=1 / count for the mean, 1.0 for the sum"
OF_SCALE = [
    *(
        Refusal(f"scale {value}", f"grad_scale must be a finite number, got {value}; {SCALE}", {"grad_scale": value})
        for value in (None, float("nan"), float("inf"), "mean", True)
    ),
    Refusal(
        "two scales",
        f"grad_scale and grad_scale_hbm must not both be given, got 1.0 and a tensor; {SCALE}",
        {"grad_scale_hbm": zeros(1)},
    ),
    Refusal(
        "a scale for each position",
        "grad_scale_hbm must have shape (1,), got (3,); it is one for all positions",
        {"grad_scale": None, "grad_scale_hbm": zeros(3)},
    ),
    Refusal(
        "scale bfloat16",
        "grad_scale_hbm must be float32, got bfloat16; cast it to float32",
        {"grad_scale": None, "grad_scale_hbm": zeros(1, dtype=ml_dtypes.bfloat16)},
    ),
    *(
        Refusal(
            f"scratch of {size}",
            f"scratch_bytes must be an integer of at least 240, the float32 logits of 3 positions, got {size}; "
            "pass more, or launch forward and backward apart",
            {"scratch_bytes": size},
        )
        for size in (0, 239, 1e9)
    ),
]
REFUSALS = [*OF_INPUT, *OF_WEIGHT, *OF_VECTORS, *OF_OPTIONS, *OF_TILING, *OF_GRADIENTS, *OF_SCALE]


@parametrized(REFUSALS, LINEAR_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize("kernel", LINEAR_KERNELS.values(), ids=list(LINEAR_KERNELS))
def test_the_twin_of_every_refusal_is_accepted(kernel: Kernel) -> None:
    result = kernel.launch(kernel.accepted())
    assert np.isfinite(result[0]).all()
