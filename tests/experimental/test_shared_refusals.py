# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of every kernel over rows, each with its whole message, before anything is written.

The limits of what they take are accepted. `python -O`, which drops asserts, changes none of it.
"""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nl
from tests.fresh_python import run_fresh

from .refusals import COLUMNS, KERNELS, LINEAR_KERNELS, ROWS, Kernel, Refusal, assert_refused, cases, parametrized

# Beside its chunks this one has float32 tiles of their size: less fits.
WITH_SCRATCH = ("extended_cross_entropy_backward",)
WITHOUT_SCRATCH = tuple(name for name in KERNELS if name not in WITH_SCRATCH)
PLAIN = ("cross_entropy_forward", "cross_entropy_backward")

REFUSALS = [
    Refusal(
        "trn1",
        "needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1",
        target="trn1",
    ),
    Refusal(
        "matrix 3-D",
        "{matrix} must be 2-D [num_positions, vocab_size], got shape (1, 3, 100); "
        "reshape [batch, sequence, vocab_size] to [batch * sequence, vocab_size]",
        shape=(1, ROWS, COLUMNS),
    ),
    Refusal(
        "no rows",
        "{matrix} must have at least one row and one column, got shape (0, 100)",
        {"{matrix}": np.ones((0, COLUMNS), np.float32)},
    ),
    Refusal(
        "no columns",
        "{matrix} must have at least one row and one column, got shape (3, 0)",
        {"{matrix}": np.ones((ROWS, 0), np.float32)},
    ),
    Refusal(
        "matrix int32",
        "{matrix}.dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; use one of them",
        {"{matrix}": np.ones((ROWS, COLUMNS), np.int32)},
    ),
    Refusal(
        "targets too short",
        "targets_hbm must have shape (3,), one class for each row of {matrix}, got (2,); "
        "flatten the targets as the logits",
        {"targets_hbm": np.zeros(2, np.int32)},
    ),
    Refusal(
        "targets uint32",
        "targets_hbm must be int32, got uint32; cast the targets to int32",
        {"targets_hbm": np.zeros(3, np.uint32)},
    ),
    Refusal("inplace a string", "inplace must be True or False, got yes", {"inplace": "yes"}),
    Refusal(
        "tiles int32",
        "dtype must be nl.bfloat16, nl.float16 or nl.float32, got int32; use one of them",
        {"dtype": nl.int32},
    ),
    *(
        Refusal(
            f"rows per batch {value!r}",
            f"{{rows_per_batch}} must be an integer from 1 to 128, got {value}",
            {"{rows_per_batch}": value},
        )
        for value in (0, -1, 129, 2.0, True)
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
        "chunk longer than a row",
        "chunk_size must be at most the {row} size 100, got 32768; pass chunk_size=100",
        {"chunk_size": 32768},
    ),
    *(
        Refusal(
            "chunk over a free axis",
            "chunk_size must be at most 65535, the longest free axis of an instruction, got 65536; "
            f"the largest that fits is {largest}",
            {"chunk_size": 65536, "{rows_per_batch}": 1, "dtype": nl.bfloat16},
            kernels,
            shape=(3, 70000),
        )
        for kernels, largest in ((WITHOUT_SCRATCH, 65535), (WITH_SCRATCH, 33449))
    ),
    *(
        Refusal(
            "batch over 24 MiB",
            "{rows_per_batch} * chunk_size * bytes of dtype must be at most 25165824, got 128 * 49153 * 4; "
            f"the largest chunk_size that fits is {largest}",
            {"chunk_size": 49153, "{rows_per_batch}": 128, "dtype": nl.float32},
            kernels,
            shape=(3, 70000),
        )
        for kernels, largest in ((WITHOUT_SCRATCH, 49152), (WITH_SCRATCH, 25087))
    ),
    *(
        Refusal(
            "chunk over a partition",
            f"a chunk of 65535 elements of float32 {takes}; the largest chunk_size that fits is {largest}",
            {"chunk_size": 65535, "{rows_per_batch}": 8, "dtype": nl.float32},
            kernels,
            shape=(3, 70000),
        )
        for kernels, takes, largest in (
            (PLAIN, "takes 262140 bytes of an SBUF partition, which has 208888 for it", 52222),
            (
                ("extended_cross_entropy_forward",),
                "takes 262140 bytes of an SBUF partition, which has 200696 for it",
                50174,
            ),
            (WITH_SCRATCH, "and 1 of float32 beside each do not fit an SBUF partition", 25087),
        )
    ),
]

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


@every_kernel
@pytest.mark.parametrize("shape", sorted({refusal.shape for refusal in REFUSALS if len(refusal.shape) == 2}))
def test_the_twin_of_every_refusal_is_accepted(kernel: Kernel, shape: tuple[int, ...]) -> None:
    result = kernel.launch(kernel.accepted(shape))
    assert np.isfinite(result[0]).all()


@parametrized(REFUSALS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@every_kernel
def test_a_row_beyond_an_int32_index_is_refused(kernel: Kernel) -> None:
    columns = 2**30 + 1
    arguments = kernel.accepted()
    arguments[kernel.words["matrix"]] = np.zeros((ROWS, columns), ml_dtypes.bfloat16)  # untouched zeros take no memory
    with pytest.raises(AssertionError) as caught:
        kernel.launch(arguments)
    assert str(caught.value) == (
        f"{kernel.name}: vocab_size must be at most 1073741824, the reach of an int32 index, got {columns}"
    )


# Of every module of refusals, in a process whose asserts are dropped: what each call said.
OPTIMIZED = """
import json, sys
from tests.experimental import test_shared_refusals as shared
from tests.experimental.loss.cross_entropy import test_validation
from tests.experimental.loss.linear_cross_entropy import test_validation as linear
from tests.experimental.refusals import LINEAR_KERNELS, cases, outcome
assert False, "this process keeps its asserts"
refusals = [*shared.REFUSALS, *test_validation.REFUSALS, *test_validation.EXTENDED_REFUSALS]
every = cases(refusals) + cases(linear.REFUSALS, LINEAR_KERNELS)
print(json.dumps([outcome(*case) for case in every]))
"""


def test_everything_is_refused_by_optimized_python_too() -> None:
    """`reduction="Mean"` once returned the sum there."""
    from .loss.cross_entropy import test_validation
    from .loss.linear_cross_entropy import test_validation as linear

    every = cases([*REFUSALS, *test_validation.REFUSALS, *test_validation.EXTENDED_REFUSALS])
    every += cases(linear.REFUSALS, LINEAR_KERNELS)
    expected = [refusal.expected(kernel) for refusal, kernel in every]
    assert any("got Mean" in message for message in expected)
    assert {kernel.name for _, kernel in every} == {*KERNELS, *LINEAR_KERNELS}
    done = run_fresh(OPTIMIZED, options=["-O"])
    assert done.error == ""
    assert json.loads(done.output) == expected
