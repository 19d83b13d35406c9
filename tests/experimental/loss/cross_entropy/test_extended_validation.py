"""What the extended kernels refuse: each with its whole message, and before the first instruction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.experimental.loss import extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.nki import nl

FORWARD = "extended_cross_entropy_forward"
BACKWARD = "extended_cross_entropy_backward"
BOTH = (FORWARD, BACKWARD)
POSITIONS, VOCABULARY = 3, 100


@dataclass(frozen=True)
class Refusal:
    """A call that differs from an accepted one in few points, and the message that it gets after the name."""

    name: str
    message: str
    arguments: dict[str, Any] = field(default_factory=dict)
    functions: tuple[str, ...] = BOTH
    target: str = "trn2"


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


SHARD = {"first_class": 100, "num_classes": 300}
WEIGHTS = {"class_weight_hbm": np.ones(VOCABULARY, np.float32)}
PROBABILITIES = {"targets_hbm": np.full((POSITIONS, VOCABULARY), 0.01, np.float32)}

REFUSALS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
    Refusal(
        "logits 3-D",
        "logits_hbm must be 2-D [num_positions, vocab_size], got shape (1, 3, 100); "
        "reshape [batch, sequence, vocab_size] to [batch * sequence, vocab_size]",
        {"logits_hbm": zeros(1, 3, 100)},
    ),
    Refusal(
        "logits float16",
        "logits_hbm.dtype must be nl.bfloat16 or nl.float32, got float16; use one of the two",
        {"logits_hbm": zeros(3, 100, dtype=np.float16)},
    ),
    Refusal(
        "targets too short",
        "targets_hbm must have shape (3,), one class for each row of logits_hbm, got (2,); "
        "flatten the targets as the logits",
        {"targets_hbm": zeros(2, dtype=np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be int32, got uint32; cast the targets to int32",
        {"targets_hbm": zeros(3, dtype=np.uint32)},
    ),
    Refusal(
        "probabilities of another shape",
        "class probabilities must have the shape of logits_hbm, (3, 100), got (3, 99); flatten them as the logits",
        {"targets_hbm": zeros(3, 99)},
    ),
    Refusal(
        "probabilities int32",
        "targets_hbm.dtype of class probabilities must be nl.bfloat16 or nl.float32, got int32; use one of the two",
        {"targets_hbm": zeros(3, 100, dtype=np.int32)},
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
    Refusal(
        "tiles float16",
        "dtype must be nl.bfloat16 or nl.float32, got float16; use one of the two",
        {"dtype": nl.float16},
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
    Refusal(
        "chunk_size 0",
        "chunk_size must be a positive integer, got 0; the largest that fits is 100",
        {"chunk_size": 0},
    ),
    Refusal(
        "positions_per_batch 129",
        "positions_per_batch must be an integer from 1 to 128, got 129",
        {"positions_per_batch": 129},
    ),
    *(
        Refusal(f"{flag} a string", f"{flag} must be True or False, got yes", {flag: "yes"}, (FORWARD,))
        for flag in ("with_argmax", "with_entropy", "with_distance_sum", "with_log_sum")
    ),
    Refusal(
        "argmax of too many classes",
        "with_argmax must be False for more than 16777216 classes, which are counted in float32, "
        "got 16777217 classes; take the argmax elsewhere",
        {"with_argmax": True, "num_classes": 2**24 + 1},
        (FORWARD,),
    ),
    Refusal("inplace a string", "inplace must be True or False, got yes", {"inplace": "yes"}, (BACKWARD,)),
    *(
        Refusal(
            f"{name} too long",
            f"{name} must have shape (3,), got (4,); flatten it as the logits",
            {name: zeros(4)},
            (BACKWARD,),
        )
        for name in (
            "lse_hbm",
            "maximum_hbm",
            "log_sum_hbm",
            "grad_loss_hbm",
            "grad_lse_hbm",
            "grad_logprob_hbm",
            "target_weight_hbm",
        )
    ),
    Refusal(
        "maximum without log_sum",
        "maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither",
        {"maximum_hbm": zeros(3)},
        (BACKWARD,),
    ),
    Refusal(
        "lse float16",
        "lse_hbm must be float32, got float16; cast it to float32",
        {"lse_hbm": zeros(3, dtype=np.float16)},
        (BACKWARD,),
    ),
    Refusal(
        "grad_logprob of probabilities",
        "grad_logprob_hbm must be None for class probabilities, which have no log-probability of a target",
        {**PROBABILITIES, "grad_logprob_hbm": zeros(3)},
        (BACKWARD,),
    ),
    Refusal(
        "weight_sum a string",
        "weight_sum must be a number or None, got all; pass float(class_weight.sum())",
        {"weight_sum": "all"},
        (BACKWARD,),
    ),
    Refusal(
        "a shard without target weights",
        "a shard of weighted classes needs target_weight_hbm, got None; "
        "pass the sum of the position_weight of all shards",
        {**SHARD, **WEIGHTS},
        (BACKWARD,),
    ),
    Refusal(
        "a smoothed shard without the sum",
        "a shard of weighted classes needs weight_sum for label_smoothing, got None; "
        "pass the sum of the class weights of all shards",
        {**SHARD, **WEIGHTS, "target_weight_hbm": np.ones(3, np.float32), "label_smoothing": 0.1},
        (BACKWARD,),
    ),
    Refusal(
        "a shard of probabilities without sums",
        "a shard of class probabilities needs target_weight_hbm, got None; "
        "pass the sum of the position_weight of all shards",
        {**SHARD, **PROBABILITIES},
        (BACKWARD,),
    ),
]

CASES = [
    pytest.param(refusal, function, id=f"{refusal.name}-{function.rpartition('_')[2]}")
    for refusal in REFUSALS
    for function in refusal.functions
]


def call(function: str, arguments: dict[str, Any], cores: int | None = None) -> Any:
    kernel = extended_cross_entropy_forward if function == FORWARD else extended_cross_entropy_backward
    return (kernel if cores is None else kernel[cores])(**arguments)


def accepted(function: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "logits_hbm": np.ones((POSITIONS, VOCABULARY), np.float32),
        "targets_hbm": zeros(POSITIONS, dtype=np.int32),
        "positions_per_batch": 2,
        "chunk_size": 40,
        "dtype": nl.float32,
    }
    if function == BACKWARD:
        arguments["lse_hbm"] = np.full(POSITIONS, np.log(VOCABULARY), np.float32)
        arguments["grad_loss_hbm"] = np.ones(POSITIONS, np.float32)
    return arguments


@pytest.mark.parametrize("function", BOTH)
def test_the_twin_of_every_refusal_is_accepted(function: str) -> None:
    result = call(function, accepted(function))
    assert np.isfinite(result[0]).all()


@pytest.mark.parametrize(("refusal", "function"), CASES)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, function: str) -> None:
    arguments = {**accepted(function), **refusal.arguments}
    before = arguments["logits_hbm"].copy()
    with (
        nkilib.simulator.using(target=refusal.target),
        nkilib.simulator.recording() as record,
        pytest.raises(AssertionError) as caught,
    ):
        call(function, arguments)
    assert str(caught.value) == f"{function}: {refusal.message}"
    assert not record.instruction_counts, "an instruction ran before the refusal"
    np.testing.assert_array_equal(arguments["logits_hbm"], before)


@pytest.mark.parametrize(
    ("options", "count", "largest"),
    [
        ({}, 0, 50174),
        ({"logit_softcap": 30.0}, 1, 25087),
        ({"label_smoothing": 0.1, "logit_softcap": 30.0, "with_entropy": True}, 3, 12543),
    ],
)
def test_the_largest_chunk_depends_on_the_options(options: dict[str, Any], count: int, largest: int) -> None:
    """The remedy that a message names is accepted, and one more is not."""
    arguments = {**accepted(FORWARD), "logits_hbm": np.ones((1, 60000), np.float32), **options}
    arguments["targets_hbm"] = zeros(1, dtype=np.int32)
    call(FORWARD, {**arguments, "chunk_size": largest})
    with pytest.raises(AssertionError) as caught:
        call(FORWARD, {**arguments, "chunk_size": largest + 1})
    takes = f"and {count} of float32 beside each do not fit an SBUF partition"
    if count == 0:
        takes = f"takes {4 * (largest + 1)} bytes of an SBUF partition, which has {4 * largest} for it"
    chunk = f"a chunk of {largest + 1} elements of float32"
    assert str(caught.value) == f"{FORWARD}: {chunk} {takes}; the largest chunk_size that fits is {largest}"


def test_numbers_may_be_integers() -> None:
    """A label smoothing of 0 or 1, a cap of 30."""
    plain = call(FORWARD, {**accepted(FORWARD), "label_smoothing": 1.0, "logit_softcap": 30.0})
    found = call(FORWARD, {**accepted(FORWARD), "label_smoothing": 1, "logit_softcap": 30})
    np.testing.assert_array_equal(found[0], plain[0])
