# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Logits and targets for the measurements: the same numbers for the same seed, whatever the block that is asked for."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
FP32 = np.dtype(np.float32)
DTYPES = {"bf16": BF16, "fp32": FP32}

# Every so many rows one is hard instead of normal, in turn: one logit far above the rest, values of +-1e4,
# a third of the entries -inf, all entries equal.
HARD_EVERY = 8


def normal_row(seed: int, row: int, vocabulary: int) -> np.ndarray:
    """[V] float32 standard normal values, the same for the same (seed, row)."""
    return np.random.default_rng((seed, row)).standard_normal(vocabulary, dtype=np.float32)


def _with_one_far_above(values: np.ndarray, row: int) -> None:
    values[(row * 7919) % values.size] += 30.0


def _of_huge_size(values: np.ndarray, row: int) -> None:
    np.clip(values * np.float32(1e4), -1e4, 1e4, out=values)


def _with_masked_entries(values: np.ndarray, row: int) -> None:
    # Entry `row mod V` stays finite, whatever V: a row that is all -inf has no finite loss to measure an error of.
    kept = values[row % values.size]
    values[row % 3 :: 3] = -np.inf
    values[row % values.size] = kept


def _all_equal(values: np.ndarray, row: int) -> None:
    values[:] = np.float32(row)


_HARD = (_with_one_far_above, _of_huge_size, _with_masked_entries, _all_equal)


def mixed_row(seed: int, row: int, vocabulary: int) -> np.ndarray:
    """Return [V] float32: a normal row of spread 3, or, at regular intervals, a hard one."""
    values = normal_row(seed, row, vocabulary)
    if row % HARD_EVERY == HARD_EVERY - 1:
        _HARD[(row // HARD_EVERY) % len(_HARD)](values, row)
    else:
        values *= np.float32(3.0)
    return values


def fill(logits: np.ndarray, seed: int, first_row: int = 0, mixed: bool = False) -> None:
    """Write rows ``first_row ...`` of the inputs into ``logits`` [rows, V], one at a time, cast to its dtype."""
    make = mixed_row if mixed else normal_row
    for row in range(logits.shape[0]):
        logits[row] = make(seed, first_row + row, logits.shape[1]).astype(logits.dtype)


def make_logits(rows: int, vocabulary: int, dtype: np.dtype, seed: int = 0, mixed: bool = False) -> np.ndarray:
    """[rows, vocabulary] logits of ``dtype``, made without a float32 copy of the whole."""
    logits = np.empty((rows, vocabulary), dtype=dtype)
    fill(logits, seed, mixed=mixed)
    return logits


def make_targets(rows: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    """[rows] int32 targets in [0, vocabulary)."""
    return np.random.default_rng((seed, vocabulary)).integers(0, vocabulary, rows, dtype=np.int32)
