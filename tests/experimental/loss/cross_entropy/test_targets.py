# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Targets inside the vocabulary work; any other raises and names row and target, wherever it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator

from .loss_checks import as_nl, backward, check_backward, check_forward, forward, names_row_and_target
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, Array, normal_batch, pair_name

POSITIONS, VOCABULARY = 37, 100

# Beside the usual mistakes the values whose sum with a row's offset, or with a power of two, could fall back into
# range.
BAD_TARGETS = [
    -100,
    -1,
    VOCABULARY,
    VOCABULARY + 1,
    2 * VOCABULARY,
    -VOCABULARY,
    2**30 - 1,
    2**30,
    2**30 + 5,
    -(2**30),
    -(2**30) + 5,
    -(2**30) - 1,
    2**31 - 1,
    2**31 - VOCABULARY,
    -(2**31),
    -(2**31) + 5,
]
ROWS = [0, 1, 17, POSITIONS - 2, POSITIONS - 1]
OPTIONS: dict[str, Any] = {"positions_per_batch": 8, "chunk_size": 30}


def _inputs(logits_dtype: Any = FP32) -> tuple[Array, Array, Array]:
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    logits = logits.astype(logits_dtype)
    _, lse = forward(logits, targets, cores=1, dtype=as_nl(FP32), **OPTIONS)
    return logits, targets, lse


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("target", BAD_TARGETS)
def test_forward_refuses_a_target_outside_the_vocabulary(target: int, row: int, cores: int) -> None:
    logits, targets, _ = _inputs()
    targets[row] = target
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(row, target)):
        forward(logits, targets, cores=cores, **OPTIONS)


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("target", BAD_TARGETS)
def test_backward_refuses_a_target_outside_the_vocabulary(target: int, row: int, cores: int, inplace: bool) -> None:
    logits, targets, lse = _inputs()
    targets[row] = target
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(row, target)):
        backward(logits, targets, lse, cores=cores, inplace=inplace, **OPTIONS)


@pytest.mark.parametrize("target", [-1, VOCABULARY, 2**30, -(2**30)])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_every_pair_of_types_refuses(logits_dtype: Any, dtype: Any, target: int) -> None:
    logits, targets, lse = _inputs(logits_dtype)
    targets[9] = target
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(9, target)):
        forward(logits, targets, cores=2, dtype=as_nl(dtype), **OPTIONS)
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(9, target)):
        backward(logits, targets, lse, cores=2, dtype=as_nl(dtype), **OPTIONS)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_single_position_and_a_vocabulary_of_one_refuse(cores: int) -> None:
    logits, lse = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    for target in (-1, 1, 2**30, -(2**30), 2**31 - 1, -(2**31)):
        targets = np.array([target], np.int32)
        with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(0, target)):
            forward(logits, targets, cores=cores, chunk_size=1)
        with pytest.raises(nkilib.simulator.OutOfRangeError, match=names_row_and_target(0, target)):
            backward(logits, targets, lse, cores=cores, chunk_size=1)


def test_the_batch_of_a_bad_target_keeps_its_logits() -> None:
    """A launch in place looks up the targets of a batch before its first store, and does not reach later batches."""
    logits, targets, lse = _inputs()
    before = logits.copy()
    targets[17] = VOCABULARY
    with pytest.raises(nkilib.simulator.OutOfRangeError):
        backward(logits, targets, lse, cores=1, **OPTIONS)
    first_row_of_batch = 16
    np.testing.assert_array_equal(logits[first_row_of_batch:], before[first_row_of_batch:])


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
@pytest.mark.parametrize("position", ["first", "last", "alternating"])
def test_the_ends_of_the_vocabulary_are_targets(position: str, logits_dtype: Any, dtype: Any, cores: int) -> None:
    logits, _, _ = _inputs(logits_dtype)
    targets = {
        "first": np.zeros(POSITIONS, np.int32),
        "last": np.full(POSITIONS, VOCABULARY - 1, np.int32),
        "alternating": np.arange(POSITIONS, dtype=np.int32) % 2 * np.int32(VOCABULARY - 1),
    }[position]
    _, lse = check_forward(logits, targets, dtype, FP32, cores=cores, **OPTIONS)
    check_backward(logits, targets, lse, dtype, cores=cores, **OPTIONS)


def test_every_target_of_the_vocabulary() -> None:
    """Each element of a row is a target once, so that every chunk and every place in it is gathered and scattered."""
    logits, _ = normal_batch(VOCABULARY, VOCABULARY)
    targets = np.arange(VOCABULARY, dtype=np.int32)[::-1].copy()
    for dtype in (BF16, FP32):
        _, lse = check_forward(logits, targets, dtype, FP32, cores=2, **OPTIONS)
        check_backward(logits, targets, lse, dtype, cores=2, inplace=False, **OPTIONS)


@pytest.mark.parametrize("cores", [1, 2])
def test_indices_beyond_2_to_the_24_are_exact(cores: int) -> None:
    """Odd indices from there on are no float32 numbers: rounded, they would hit a neighbour of the target."""
    positions, vocabulary = 96, 201088
    logits, targets = normal_batch(positions, vocabulary)
    logits, targets = logits.astype(BF16), targets | 1
    assert (positions - 2) * vocabulary > 2**24, "the last rows of the batch lie beyond"
    options = {"cores": cores, "positions_per_batch": 96, "chunk_size": 32768}
    _, lse = check_forward(logits, targets, BF16, FP32, **options)
    check_backward(logits, targets, lse, BF16, **options)
