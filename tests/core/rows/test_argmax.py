# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.argmax``: the column of the largest element of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.rows.argmax import ARGMAX_COLUMNS_MAX, SEARCHED_MAX, VALUES, Argmax
from nkilib.core.rows.tiles import cast
from nkilib.nki import nisa, nl

from .walk import BF16, CUTS, FP32, HARD, Array, Cut, cuts, hard_matrix, launch, stream_of, vector, visits


def argmax_of_rows(matrix_hbm: Any, cut: Cut, dtype: Any = nl.float32, first: int = 0) -> Any:
    """A kernel: the argmax of each row, whose first column counts as ``first``."""
    result_hbm = vector("argmax_hbm", cut.rows, nl.int32)
    stream = stream_of(matrix_hbm, cut, dtype)
    for visit in visits(stream) if stream else ():
        if visit.starts:
            argmax = Argmax.make(visit.columns, first + cut.columns, dtype)
        if visit.is_full:
            argmax.combine(visit.chunk.number)
            argmax.restart()
        neg_max_sbuf = nl.ndarray((visit.chunk.batch.rows, 1), dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=neg_max_sbuf, op=nl.maximum, data=visit.tile_sbuf, axis=1, negate=True)
        argmax.take(visit.tile_sbuf, neg_max_sbuf, visit.place, first + visit.chunk.start)
        if visit.ends:
            argmax.combine(visit.chunks)
            visit.group.stored(result_hbm, cast(argmax.row_found_sbuf, nl.int32))
    return result_hbm


def check(matrix: Array, cut: Cut, **options: Any) -> None:
    """Check that the argmax equals numpy's, for rows without a NaN."""
    np.testing.assert_array_equal(launch(argmax_of_rows, cut, matrix, **options), matrix.argmax(axis=1))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_argmax_of_rows(cut: Cut) -> None:
    check(cut.normal(seed=1), cut)


@given(cuts(), st.integers(0, 99), st.sampled_from([1, 2, 50]))
def test_of_equal_elements_the_first_one(cut: Cut, seed: int, values: int) -> None:
    check(np.random.default_rng(seed).integers(-values, values, (cut.rows, cut.columns)).astype(np.float32), cut)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 8, 9, 20])
def test_every_column_may_be_the_largest(chunk_size: int) -> None:
    """The maximum stands in each place of a chunk; chunks of less than eight columns are padded before the search."""
    assert VALUES == 8
    cut = Cut(20, 20, 128, chunk_size)
    matrix = cut.normal()
    np.fill_diagonal(matrix, 100.0)
    check(matrix[::-1].copy(), cut)


def test_columns_restart() -> None:
    """A maximum found before a restart stays, and goes before equal ones that come later."""
    places = [0, 1, 126, 127, 128, 129, 253, 254, 255, 256, 380, 399]
    cut = Cut(len(places), 400, 128, 1)
    matrix = np.zeros((len(places), 400), np.float32)
    matrix[np.arange(len(places)), places] = 1.0
    check(matrix, cut)
    matrix[:, 390] = 1.0
    check(matrix, cut)


@pytest.mark.parametrize("columns", [SEARCHED_MAX, SEARCHED_MAX + 1, SEARCHED_MAX + 8, 2 * SEARCHED_MAX + 3])
def test_chunks_that_are_searched_in_parts(columns: int) -> None:
    """Also where the last part would be too short to be searched, and starts earlier."""
    places = [0, 1, SEARCHED_MAX - 8, SEARCHED_MAX - 1, SEARCHED_MAX % columns, columns - 8, columns - 2, columns - 1]
    matrix = np.zeros((len(places), columns), np.float32)
    matrix[np.arange(len(places)), places] = 1.0
    cut = Cut(len(places), columns, 128, columns)
    check(matrix, cut)
    matrix[:, -1] = 1.0
    check(matrix, cut)


def test_chunks_in_bfloat16() -> None:
    cut = Cut(20, 300, 8, 50, cores=2)
    rounded = cut.normal().astype(BF16)
    assert (rounded == rounded.max(axis=1, keepdims=True)).sum() > 20, "rounding made equals"
    for given_type in (BF16, FP32):
        check(rounded.astype(given_type), cut, dtype=nl.bfloat16)


@pytest.mark.parametrize("cut", [Cut(len(HARD), 6, 4, size, cores) for size in (1, 2, 6) for cores in (1, 2)], ids=str)
def test_hard_rows(cut: Cut) -> None:
    """Infinities are found as other elements are; where a row holds a NaN, one past the last column is said."""
    matrix = hard_matrix()
    expected = np.where(np.isnan(matrix).any(axis=1), 6, matrix.argmax(axis=1))
    np.testing.assert_array_equal(launch(argmax_of_rows, cut, matrix), expected)


def test_a_nan_before_a_restart_is_remembered() -> None:
    cut = Cut(3, 300, 2, 1)
    matrix = cut.normal()
    matrix[0, 5] = matrix[1, 299] = np.nan
    result = launch(argmax_of_rows, cut, matrix)
    np.testing.assert_array_equal(result, [300, 300, matrix[2].argmax()])


def test_columns_are_counted_exactly_as_far_as_is_promised() -> None:
    cut = Cut(50, 50, 25, 9)
    matrix = np.eye(50, dtype=np.float32)
    first = ARGMAX_COLUMNS_MAX - 50
    result = launch(argmax_of_rows, cut, matrix, first=first)
    np.testing.assert_array_equal(result, first + np.arange(50))
