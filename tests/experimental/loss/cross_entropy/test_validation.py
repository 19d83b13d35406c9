"""What the kernels refuse: the table of refusals, each with its whole message, and nothing written before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl

FORWARD = "cross_entropy_forward"
BACKWARD = "cross_entropy_backward"
BOTH = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class Refusal:
    """A call that differs from an accepted one in one point, and the message that it gets after the function's name."""

    name: str
    message: str
    arguments: dict[str, Any] = field(default_factory=dict)
    functions: tuple[str, ...] = BOTH
    shape: tuple[int, ...] = (3, 100)
    target: str = "trn2"


def logits(shape: tuple[int, ...] = (3, 100), dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


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
        shape=(1, 3, 100),
    ),
    Refusal(
        "no positions",
        "logits_hbm must have at least one row and one column, got shape (0, 100)",
        {"logits_hbm": logits((0, 100))},
    ),
    Refusal(
        "no vocabulary",
        "logits_hbm must have at least one row and one column, got shape (3, 0)",
        {"logits_hbm": logits((3, 0))},
    ),
    Refusal(
        "logits float16",
        "logits_hbm.dtype must be nl.bfloat16 or nl.float32, got float16; use one of the two",
        {"logits_hbm": logits(dtype=np.float16)},
    ),
    Refusal(
        "targets too short",
        "targets_hbm must have shape (3,), one class for each row of logits_hbm, got (2,); "
        "flatten the targets as the logits",
        {"targets_hbm": np.zeros(2, np.int32)},
    ),
    Refusal(
        "targets 2-D",
        "targets_hbm must have shape (3,), one class for each row of logits_hbm, got (3, 1); "
        "flatten the targets as the logits",
        {"targets_hbm": np.zeros((3, 1), np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be int32, got uint32; cast the targets to int32",
        {"targets_hbm": np.zeros(3, np.uint32)},
    ),
    Refusal(
        "tiles float16",
        "dtype must be nl.bfloat16 or nl.float32, got float16; use one of the two",
        {"dtype": nl.float16},
    ),
    Refusal(
        "lse float16",
        "lse_dtype must be nl.bfloat16 or nl.float32, got float16; use one of the two",
        {"lse_dtype": nl.float16},
        (FORWARD,),
    ),
    *(
        Refusal(
            f"positions_per_batch {value!r}",
            f"positions_per_batch must be an integer from 1 to 128, got {value}",
            {"positions_per_batch": value},
        )
        for value in (0, -1, 129, 2.0)
    ),
    *(
        Refusal(
            f"chunk_size {value!r}",
            f"chunk_size must be a positive integer, got {value}; the largest that fits is 100",
            {"chunk_size": value},
        )
        for value in (0, -5, 10.0)
    ),
    Refusal(
        "default chunk over a small vocabulary",
        "chunk_size must be at most the vocabulary size 100, got 32768; pass chunk_size=100",
        {"chunk_size": 32768},
    ),
    Refusal(
        "chunk over a free axis",
        "chunk_size must be at most 65535, the longest free axis of an instruction, got 65536; "
        "the largest that fits is 65535",
        {"chunk_size": 65536, "positions_per_batch": 1, "dtype": nl.bfloat16},
        shape=(3, 70000),
    ),
    Refusal(
        "batch over 24 MiB",
        "positions_per_batch * chunk_size * bytes of dtype must be at most 25165824, got 128 * 49153 * 4; "
        "the largest chunk_size that fits is 49152",
        {"chunk_size": 49153, "positions_per_batch": 128, "dtype": nl.float32},
        shape=(3, 70000),
    ),
    Refusal(
        "chunk over a partition",
        "a chunk of 65535 elements of float32 takes 262140 bytes of an SBUF partition, which has 208888 for it; "
        "the largest chunk_size that fits is 52222",
        {"chunk_size": 65535, "positions_per_batch": 8, "dtype": nl.float32},
        shape=(3, 70000),
    ),
    Refusal(
        "LSE too short",
        "lse_state_hbm must have shape (3,), one value for each row of logits_hbm, got (2,); "
        "pass the second result of cross_entropy_forward",
        {"lse_state_hbm": np.zeros(2, np.float32)},
        (BACKWARD,),
    ),
    Refusal(
        "LSE float16",
        "lse_state_hbm.dtype must be nl.bfloat16 or nl.float32, got float16; use one of the two",
        {"lse_state_hbm": np.zeros(3, np.float16)},
        (BACKWARD,),
    ),
    Refusal("reduction none", 'reduction must be "mean" or "sum", got none', {"reduction": "none"}, (BACKWARD,)),
    Refusal("inplace a string", "inplace must be True or False, got yes", {"inplace": "yes"}, (BACKWARD,)),
]

CASES = [
    pytest.param(refusal, function, id=f"{refusal.name}-{function.rpartition('_')[2]}")
    for refusal in REFUSALS
    for function in refusal.functions
]


def call(function: str, arguments: dict[str, Any], cores: int | None = None) -> Any:
    kernel = cross_entropy_forward if function == FORWARD else cross_entropy_backward
    return (kernel if cores is None else kernel[cores])(**arguments)


def accepted(function: str, shape: tuple[int, ...]) -> dict[str, Any]:
    positions, vocabulary = shape[-2:]
    arguments = {
        "logits_hbm": logits(shape),
        "targets_hbm": np.zeros(positions, np.int32),
        "positions_per_batch": 2,
        "chunk_size": min(vocabulary, 1000),
        "dtype": nl.float32,
    }
    if function == BACKWARD:
        arguments["lse_state_hbm"] = np.full(positions, np.log(vocabulary), np.float32)
    return arguments


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("shape", sorted({refusal.shape for refusal in REFUSALS if len(refusal.shape) == 2}))
def test_the_twin_of_every_refusal_is_accepted(function: str, shape: tuple[int, ...]) -> None:
    result = call(function, accepted(function, shape))
    assert np.isfinite(result[0]).all()


@pytest.mark.parametrize(("refusal", "function"), CASES)
@pytest.mark.parametrize("cores", [None, 2])
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, function: str, cores: int | None) -> None:
    if refusal.target == "trn1" and cores == 2:
        pytest.skip("trn1 has no logical NeuronCore of two: the launch itself is refused")
    arguments = {**accepted(function, refusal.shape), **refusal.arguments}
    before = arguments["logits_hbm"].copy()
    with (
        nkilib.simulator.using(target=refusal.target),
        nkilib.simulator.recording() as record,
        pytest.raises(AssertionError) as caught,
    ):
        call(function, arguments, cores)
    assert str(caught.value) == f"{function}: {refusal.message}"
    assert not record.instruction_counts, "an instruction ran before the refusal"
    np.testing.assert_array_equal(arguments["logits_hbm"], before)


def test_the_limits_themselves_are_accepted() -> None:
    for dtype, positions_per_batch, chunk_size in (
        (nl.bfloat16, 128, 65535),
        (nl.float32, 128, 49152),
        (nl.float32, 8, 52222),
    ):
        x = logits((1, 65535), ml_dtypes.bfloat16)
        loss, _ = cross_entropy_forward(
            x, np.zeros(1, np.int32), positions_per_batch=positions_per_batch, chunk_size=chunk_size, dtype=dtype
        )
        assert abs(float(loss[0]) - np.log(65535)) < 0.05


def test_a_vocabulary_beyond_an_int32_index_is_refused() -> None:
    x = np.zeros((1, 2**30 + 1), ml_dtypes.bfloat16)  # zeros that nobody touches take no memory
    with pytest.raises(AssertionError) as caught:
        cross_entropy_forward(x, np.zeros(1, np.int32))
    assert str(caught.value) == (
        "cross_entropy_forward: vocab_size must be at most 1073741824, the reach of an int32 index, got 1073741825"
    )


def test_one_position_at_a_time_may_be_said_as_true() -> None:
    """True is an int in Python: the kernels take it for 1."""
    arguments = accepted(FORWARD, (3, 100))
    expected, _ = call(FORWARD, {**arguments, "positions_per_batch": 1})
    loss, _ = call(FORWARD, {**arguments, "positions_per_batch": True})
    np.testing.assert_array_equal(loss, expected)
