# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.checks``: what is refused, in the words of a kernel that there is not; numeric options are finite
numbers within their limits, and are rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.rows import checks
from nkilib.core.rows.checks import (
    BATCH_BYTES_MAX,
    FREE_AXIS_MAX,
    LARGEST,
    LEAST_ARGUMENT_OF_LOG,
    LEAST_NORMAL,
    Words,
    require_option,
)
from nkilib.core.rows.sbuf import SbufPlan
from nkilib.nki import nl
from nkilib.simulator import spec

WORDS = Words(row="feature", rows_per_batch="rows_at_a_time")


def refusal(check: Callable[..., None], *arguments: Any, target: str = "trn2") -> str | None:
    """Return the message with which a check refuses its arguments; None if it does not."""
    with nkilib.simulator.using(target=target):
        try:
            check(*arguments)
        except AssertionError as error:
            return str(error)
    return None


def chunk(
    chunk_size: Any, columns: int = 500_000, rows: int = 1, dtype: Any = nl.bfloat16, num_scratch: int = 0
) -> str | None:
    """Return the refusal of `require_chunk_size`, with small tiles that take 4096 bytes."""
    plan = SbufPlan(4096, num_scratch)
    return refusal(checks.require_chunk_size, "kernel", chunk_size, columns, rows, dtype, plan, WORDS)


def test_a_requirement() -> None:
    assert refusal(checks.require, True, "not raised") is None
    assert refusal(checks.require, False, "kernel: as it is said") == "kernel: as it is said"


def test_flags() -> None:
    for accepted in (True, False):
        assert refusal(checks.require_flag, "kernel", "inplace", accepted) is None
    for refused in ("yes", None, 2):
        message = f"kernel: inplace must be True or False, got {refused}"
        assert refusal(checks.require_flag, "kernel", "inplace", refused) == message


def test_indirect_dma() -> None:
    assert refusal(checks.require_indirect_dma, "kernel", target="trn1") == (
        "kernel: needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1"
    )
    for target in ("trn2", "trn3"):
        assert refusal(checks.require_indirect_dma, "kernel", target=target) is None


def test_types() -> None:
    for accepted in (nl.bfloat16, nl.float16, nl.float32):
        assert refusal(checks.require_float_type, "kernel", "x_hbm.dtype", accepted) is None
    for refused in (nl.int32, nl.float8_e4m3):
        assert refusal(checks.require_float_type, "kernel", "x_hbm.dtype", refused) == (
            f"kernel: x_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, got {refused}; use one of them"
        )


def test_vectors() -> None:
    def vector(inputs: Any) -> str | None:
        return refusal(checks.require_vector, "kernel", "bias_hbm", inputs, 7, "the matrix")

    assert vector(spec((7,), "float32")) is None
    assert vector(None) == "kernel: bias_hbm must be a tensor of shape (7,), got None"
    for shape in ((6,), (7, 1), ()):
        assert vector(spec(shape, "float32")) == (
            f"kernel: bias_hbm must have shape (7,), got {shape}; flatten it as the matrix"
        )
    assert vector(spec((7,), "bfloat16")) == "kernel: bias_hbm must be float32, got bfloat16; cast it to float32"


def test_rows_per_batch() -> None:
    for accepted in (1, 128):
        assert refusal(checks.require_rows_per_batch, "kernel", "rows_at_a_time", accepted) is None
    for refused in (0, -1, 129, 2.0, "8", None, True):
        assert refusal(checks.require_rows_per_batch, "kernel", "rows_at_a_time", refused) == (
            f"kernel: rows_at_a_time must be an integer from 1 to 128, got {refused}"
        )


def test_chunk_sizes() -> None:
    for refused in (0, -5, 2.0, "8", None):
        assert chunk(refused, columns=100) == (
            f"kernel: chunk_size must be a positive integer, got {refused}; the largest that fits is 100"
        )
    assert chunk(100, columns=100) is None
    assert chunk(101, columns=100) == (
        "kernel: chunk_size must be at most the feature size 100, got 101; pass chunk_size=100"
    )


def test_chunks_longer_than_a_free_axis() -> None:
    assert chunk(FREE_AXIS_MAX) is None
    assert chunk(FREE_AXIS_MAX + 1) == (
        "kernel: chunk_size must be at most 65535, the longest free axis of an instruction, got 65536; "
        "the largest that fits is 65535"
    )


def test_batches_of_more_bytes_than_the_interface_allows() -> None:
    largest = BATCH_BYTES_MAX // (128 * 4)
    assert chunk(largest, rows=128, dtype=nl.float32) is None
    assert chunk(largest + 1, rows=128, dtype=nl.float32) == (
        "kernel: rows_at_a_time * chunk_size * bytes of dtype must be at most 25165824, got 128 * 49153 * 4; "
        "the largest chunk_size that fits is 49152"
    )


@pytest.mark.parametrize(
    ("dtype", "num_scratch", "largest", "takes"),
    [
        (nl.float32, 0, 52222, "takes 208892 bytes of an SBUF partition, which has 208888 for it"),
        (nl.bfloat16, 1, 34814, "and 1 of float32 beside each do not fit an SBUF partition"),
        (nl.float32, 3, 13055, "and 3 of float32 beside each do not fit an SBUF partition"),
    ],
)
def test_chunks_that_do_not_fit_a_partition(dtype: Any, num_scratch: int, largest: int, takes: str) -> None:
    assert chunk(largest, dtype=dtype, num_scratch=num_scratch) is None
    assert chunk(largest + 1, dtype=dtype, num_scratch=num_scratch) == (
        f"kernel: a chunk of {largest + 1} elements of {dtype} {takes}; the largest chunk_size that fits is {largest}"
    )


UNLIMITED: dict[str, float] = {}
SHARE = {"least": 0.0, "most": 1.0}


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        (UNLIMITED, -LARGEST),
        (UNLIMITED, LARGEST),
        (UNLIMITED, 3),
        (SHARE, 0.0),
        (SHARE, 0.1),
        (SHARE, 1),
        ({"most": 0.5}, 0.5),
        ({"least": LEAST_NORMAL}, LEAST_NORMAL),
    ],
)
def test_a_number_within_the_limits_is_rounded_to_float32(limits: dict[str, float], value: float) -> None:
    result = require_option("f", "tau", value, **limits)
    assert type(result) is float and result == float(np.float32(value))


@pytest.mark.parametrize(
    ("limits", "value", "words"),
    [
        (UNLIMITED, float("nan"), ""),
        (UNLIMITED, float("inf"), ""),
        (UNLIMITED, 2.0 * LARGEST, ""),
        (UNLIMITED, True, ""),
        (UNLIMITED, "1", ""),
        ({"least": 0.0}, -1.0, " of at least 0"),
        ({"least": 0.5}, 0.25, " of at least 0.5"),
        ({"least": LEAST_NORMAL}, 0.0, " of at least 2^-126"),
        ({"least": LEAST_ARGUMENT_OF_LOG}, 0.0, f" of at least {2.0**-64}"),
        ({"most": 2.0}, 2.5, " of at most 2"),
        (SHARE, 1.5, " from 0 to 1"),
        (SHARE, -0.5, " from 0 to 1"),
        (SHARE, float("nan"), " from 0 to 1"),
        ({"least": LEAST_NORMAL, "most": 0.5}, 0.75, " from 2^-126 to 0.5"),
    ],
)
def test_another_one_is_rejected_with_the_limits(limits: dict[str, float], value: Any, words: str) -> None:
    with pytest.raises(AssertionError) as rejected:
        require_option("f", "tau", value, **limits)
    assert str(rejected.value) == f"f: tau must be a finite number of float32{words}, got {value}"
