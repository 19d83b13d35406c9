# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the plain and of the extended kernels, their largest chunks, and their options' limits of a chunk; see
test_shared_refusals too.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss import cross_entropy_forward
from nkilib.nki import nl
from tests.experimental.refusals import KERNELS, Kernel, Refusal, assert_refused, parametrized

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


EXTENDED_FORWARD = ("extended_cross_entropy_forward",)
EXTENDED_BACKWARD = ("extended_cross_entropy_backward",)
BOTH = EXTENDED_FORWARD + EXTENDED_BACKWARD
POSITIONS, VOCABULARY = 3, 100


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


SHARD = {"first_class": 100, "num_classes": 300}
WEIGHTS = {"class_weight_hbm": np.ones(VOCABULARY, np.float32)}
PROBABILITIES = {"targets_hbm": np.full((POSITIONS, VOCABULARY), 0.01, np.float32)}

EXTENDED_REFUSALS = [
    Refusal(
        "probabilities of another shape",
        "class probabilities must have the shape of logits_hbm, (3, 100), got (3, 99); flatten them as the logits",
        {"targets_hbm": zeros(3, 99)},
        BOTH,
    ),
    Refusal(
        "probabilities int32",
        "targets_hbm.dtype of class probabilities must be nl.bfloat16, nl.float16 or nl.float32, got int32; "
        "use one of them",
        {"targets_hbm": zeros(3, 100, dtype=np.int32)},
        BOTH,
    ),
    Refusal(
        "weights too short",
        "class_weight_hbm must have shape (100,), got (99,); flatten it as the logits",
        {"class_weight_hbm": zeros(99)},
    ),
    Refusal(
        "weights int32",
        "class_weight_hbm must be float32, got int32; cast it to float32",
        {"class_weight_hbm": zeros(100, dtype=np.int32)},
    ),
    *(
        Refusal(
            f"ignore_index {value}",
            f"ignore_index must be an integer of 32 bits, as targets are, got {value}",
            {"ignore_index": value},
        )
        for value in (2**31, -(2**31) - 1, 1.0, None)
    ),
    *(
        Refusal(
            f"label_smoothing {value}",
            f"label_smoothing must be a number from 0 to 1, got {value}",
            {"label_smoothing": value},
        )
        for value in (-0.1, 1.1, None, float("nan"))
    ),
    *(
        Refusal(
            f"logit_softcap {value}",
            f"logit_softcap must be a number from 1e-30 to 1e+30 or None, got {value}; pass None for no cap",
            {"logit_softcap": value},
        )
        for value in (0.0, 1e-40, -1.0, float("inf"), "30")
    ),
    *(
        Refusal(
            f"lse_square_scale {value}",
            f"lse_square_scale must be a number from 0 to 1e+30, got {value}",
            {"lse_square_scale": value},
        )
        for value in (-1e-4, 1e31, float("nan"), None)
    ),
    *(
        Refusal(
            f"temperature {value}",
            f"temperature must be a number from 1e-06 to 1000000.0, got {value}; pass 1.0 for none",
            {"temperature": value},
        )
        for value in (0.0, -1.0, 1e7, float("nan"), None)
    ),
    Refusal(
        "first_class negative",
        "first_class must be an integer of at least 0, got -1",
        {"first_class": -1, "num_classes": 300},
    ),
    Refusal(
        "first_class alone",
        "first_class must be 0 without num_classes, got 5; pass num_classes of all shards",
        {"first_class": 5},
    ),
    Refusal(
        "num_classes too small",
        "the columns must be classes below num_classes = 180, got classes 100 to 199; pass num_classes of all shards",
        {"first_class": 100, "num_classes": 180},
    ),
    Refusal(
        "num_classes beyond an index",
        "num_classes must be an integer of at most 1073741824 or None, got 1073741825",
        {"num_classes": 2**30 + 1},
    ),
    *(
        Refusal(
            f"{flag} a string",
            f"{flag} must be True or False, got yes",
            {flag: "yes"},
            EXTENDED_FORWARD,
        )
        for flag in ("with_argmax", "with_entropy", "with_distance_sum", "with_log_sum")
    ),
    Refusal(
        "argmax of too many classes",
        "with_argmax must be False for more than 16777216 classes, which are counted in float32, "
        "got 16777217 classes; take the argmax elsewhere",
        {"with_argmax": True, "num_classes": 2**24 + 1},
        EXTENDED_FORWARD,
    ),
    *(
        Refusal(
            f"{name} too long",
            f"{name} must have shape (3,), got (4,); flatten it as the logits",
            {name: zeros(4)},
            EXTENDED_BACKWARD,
        )
        for name in (
            "lse_hbm",
            "maximum_hbm",
            "log_sum_hbm",
            "grad_loss_hbm",
            "grad_lse_hbm",
            "grad_logprob_hbm",
            "entropy_hbm",
            "grad_entropy_hbm",
            "target_weight_hbm",
        )
    ),
    Refusal(
        "maximum without log_sum",
        "maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither",
        {"maximum_hbm": zeros(3)},
        EXTENDED_BACKWARD,
    ),
    *(
        Refusal(
            f"{name} alone",
            "entropy_hbm and grad_entropy_hbm belong together, got one of them; pass both, or neither",
            {name: zeros(3)},
            EXTENDED_BACKWARD,
        )
        for name in ("entropy_hbm", "grad_entropy_hbm")
    ),
    Refusal(
        "lse float16",
        "lse_hbm must be float32, got float16; cast it to float32",
        {"lse_hbm": zeros(3, dtype=np.float16)},
        EXTENDED_BACKWARD,
    ),
    Refusal(
        "grad_logprob of probabilities",
        "grad_logprob_hbm must be None for class probabilities, which have no log-probability of a target",
        {**PROBABILITIES, "grad_logprob_hbm": zeros(3)},
        EXTENDED_BACKWARD,
    ),
    Refusal(
        "weight_sum a string",
        "weight_sum must be a number or None, got all; pass float(class_weight.sum())",
        {"weight_sum": "all"},
        EXTENDED_BACKWARD,
    ),
    Refusal(
        "a shard without target weights",
        "a shard of weighted classes needs target_weight_hbm, got None; "
        "pass the sum of the position_weight of all shards",
        {**SHARD, **WEIGHTS},
        EXTENDED_BACKWARD,
    ),
    Refusal(
        "a smoothed shard without the sum",
        "a shard of weighted classes needs weight_sum for label_smoothing, got None; "
        "pass the sum of the class weights of all shards",
        {**SHARD, **WEIGHTS, "target_weight_hbm": np.ones(3, np.float32), "label_smoothing": 0.1},
        EXTENDED_BACKWARD,
    ),
    Refusal(
        "a shard of probabilities without sums",
        "a shard of class probabilities needs target_weight_hbm, got None; "
        "pass the sum of the position_weight of all shards",
        {**SHARD, **PROBABILITIES},
        EXTENDED_BACKWARD,
    ),
]


@parametrized(REFUSALS + EXTENDED_REFUSALS)
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


@pytest.mark.parametrize(
    ("options", "count", "largest"),
    [
        ({}, 0, 50174),
        ({"logit_softcap": 30.0}, 1, 25087),
        ({"label_smoothing": 0.1, "logit_softcap": 30.0, "with_entropy": True}, 2, 16724),
    ],
)
def test_the_largest_chunk_depends_on_the_options(options: dict[str, Any], count: int, largest: int) -> None:
    """The remedy that a message names is accepted, and one more is not."""
    forward = KERNELS[EXTENDED_FORWARD[0]]
    arguments = {**forward.accepted(), "logits_hbm": np.ones((1, 60000), np.float32), **options}
    arguments["targets_hbm"] = zeros(1, dtype=np.int32)
    forward.launch({**arguments, "chunk_size": largest})
    with pytest.raises(AssertionError) as caught:
        forward.launch({**arguments, "chunk_size": largest + 1})
    takes = f"and {count} of float32 beside each do not fit an SBUF partition"
    if count == 0:
        takes = f"takes {4 * (largest + 1)} bytes of an SBUF partition, which has {4 * largest} for it"
    chunk = f"a chunk of {largest + 1} elements of float32"
    assert str(caught.value) == f"{forward.name}: {chunk} {takes}; the largest chunk_size that fits is {largest}"


def test_numbers_may_be_integers() -> None:
    """A label smoothing of 0 or 1, a cap of 30."""
    forward = KERNELS[EXTENDED_FORWARD[0]]
    plain = forward.launch({**forward.accepted(), "label_smoothing": 1.0, "logit_softcap": 30.0})
    result = forward.launch({**forward.accepted(), "label_smoothing": 1, "logit_softcap": 30})
    np.testing.assert_array_equal(result[0], plain[0])
