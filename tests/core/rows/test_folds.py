# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.folds``: what is left of a folded chunk has its maximum, and GpSimd does the folding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.rows.folds import MaximumFolds
from nkilib.core.rows.sbuf import SbufPlan
from nkilib.experimental.loss import Tiling
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import nisa, nki, nl

from .walk import BF16, SMALL_BYTES, Array

ROWS = 5


@nki.jit
def largest_of_chunks(matrix_hbm: Any, chunk_size: int) -> tuple[Any, ...]:
    """Minus the largest element of each chunk of rows, [rows, chunks], and how many columns were left of each."""
    rows, columns = matrix_hbm.shape
    starts = range(0, columns, chunk_size)
    plan = SbufPlan(SMALL_BYTES)
    folds = MaximumFolds.make(plan, plan.divided(rows, chunk_size, matrix_hbm.dtype, len(starts)))
    found_sbuf = nl.ndarray((rows, len(starts)), dtype=nl.float32, buffer=nl.sbuf)
    left_sbuf = nl.ndarray((1, len(starts)), dtype=nl.float32, buffer=nl.sbuf)
    for load, start in enumerate(starts):
        end = min(start + chunk_size, columns)
        chunk_sbuf = nl.ndarray((rows, end - start), dtype=matrix_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=chunk_sbuf, src=matrix_hbm[:, start:end])
        folded_sbuf = chunk_sbuf if folds is None else folds.folded(load, chunk_sbuf)
        place_sbuf = found_sbuf[:, load : load + 1]
        nisa.tensor_reduce(dst=place_sbuf, op=nl.maximum, data=folded_sbuf, axis=1, negate=True)
        nisa.memset(dst=left_sbuf[:, load : load + 1], value=float(folded_sbuf.shape[1]))
    results = [nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.shared_hbm) for tile in (found_sbuf, left_sbuf)]
    for result_hbm, tile_sbuf in zip(results, (found_sbuf, left_sbuf), strict=True):
        nisa.dma_copy(dst=result_hbm, src=tile_sbuf)
    return tuple(results)


def matrix_of(columns: int) -> Array:
    """Noise, with infinities, a NaN, and a row of -inf alone in the first columns."""
    matrix = np.random.default_rng(columns).standard_normal((ROWS, columns), np.float32).astype(BF16)
    matrix[1, -1], matrix[2, columns // 2], matrix[3, columns - 2] = np.inf, np.nan, 40.0
    matrix[4, : columns - 1] = -np.inf
    return matrix


@pytest.mark.parametrize(
    ("columns", "chunk_size", "left"),
    [
        (8192, 2048, [2048, 256, 256, 256]),
        (5 * 1500 + 700, 1500, [1500, 188, 188, 188, 188, 700]),
        (2 * 1031, 1031, [1031, 129]),
        (3000, 1000, [1000, 1000, 1000]),
    ],
)
def test_a_folded_chunk_has_its_maximum(columns: int, chunk_size: int, left: list[int]) -> None:
    """The first chunk and short ones stay whole; of an odd number of columns one is compared twice."""
    matrix = matrix_of(columns)
    result, counts = largest_of_chunks(matrix, chunk_size)
    x = matrix.astype(np.float32)
    expected = [-x[:, start : start + chunk_size].max(axis=1) for start in range(0, columns, chunk_size)]
    np.testing.assert_array_equal(result, np.stack(expected, axis=1))
    np.testing.assert_array_equal(counts[0], left)


def test_chunks_that_leave_no_room_are_not_folded() -> None:
    plan = SbufPlan(SMALL_BYTES)

    def folds_of(chunk_size: int) -> bool:
        @nki.jit
        def kernel(matrix_hbm: Any) -> Any:
            made.append(MaximumFolds.make(plan, plan.divided(ROWS, chunk_size, nl.bfloat16, 9)) is not None)
            return matrix_hbm

        made: list[bool] = []
        kernel(np.zeros((1, 1), np.float32))
        return made[0]

    assert [folds_of(size) for size in (1000, 1024, 8192, 20_000, 100_000)] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("dtype", "options", "folds"),
    [
        ("bfloat16", {"with_entropy": True}, True),
        ("bfloat16", {}, False),
        ("float32", {"with_entropy": True}, False),
        ("bfloat16", {"with_entropy": True, "logit_softcap": 30.0}, False),
        ("bfloat16", {"with_entropy": True, "label_smoothing": 0.1}, False),
    ],
)
def test_the_forward_folds_beside_an_entropy(dtype: str, options: dict[str, Any], folds: bool) -> None:
    launch = (256, 16384, dtype, "forward", Tiling(128, 4096))
    profiled = profile_launch(*launch, extended=True, exact_maximum=True, **options)
    folding = [event for event in profiled.instructions if "folds.py" in event.place]
    assert bool(folding) == folds and all(event.engine == "gpsimd" for event in folding)
