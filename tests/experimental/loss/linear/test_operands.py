# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loads of operands: what is loaded is where it is said to be, of any shape and type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.linear.operands import Matrix, load_broadcast, load_positions, store_positions
from nkilib.nki import nisa, nki, nl

Array = npt.NDArray[Any]
FLOATS = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)]
SIZES = st.integers(1, 300)


def loaded(stored: Array, is_transposed: bool, by_columns: bool, part: tuple[int, int, int, int]) -> Array:
    """A part (first row, rows, first column, columns) of a matrix as it is loaded, tiles [128, tiles, free]."""
    first_row, rows, first_column, columns = part

    def kernel(stored_hbm: Any) -> Any:
        matrix = Matrix(stored_hbm, is_transposed).rows_of(first_row, rows).columns_of(first_column, columns)
        assert (matrix.rows, matrix.columns) == (rows, columns)
        on_partitions, free = (columns, rows) if by_columns else (rows, columns)
        shape = (PARTITIONS, div_ceil(on_partitions, PARTITIONS), free)
        tiles_sbuf = nl.ndarray(shape, dtype=matrix.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tiles_sbuf, value=0.0)
        (matrix.load_transposed if by_columns else matrix.load)(tiles_sbuf)
        tiles_hbm = nl.ndarray(shape, dtype=matrix.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tiles_hbm, src=tiles_sbuf)
        return tiles_hbm

    result: Array = nki.jit(kernel)(stored)
    return result


@settings(max_examples=20)
@given(st.integers(1, 40), SIZES, st.integers(0, 5), st.integers(0, 3), st.booleans(), st.booleans())
@example(1, 1, 0, 0, False, False)
@example(1, 16, 0, 0, False, True)
@example(130, 256, 0, 0, True, False)
@example(128, 129, 2, 1, True, True)
def test_a_matrix_is_loaded_with_either_dimension_on_partitions(
    rows: int, columns: int, before: int, after: int, is_transposed: bool, by_columns: bool
) -> None:
    rng = np.random.default_rng([rows, columns])
    whole = rng.standard_normal((rows + before + after, columns + before + after)).astype(FLOATS[rows % 3])
    stored = np.ascontiguousarray(whole.T) if is_transposed else whole
    result = loaded(stored, is_transposed, by_columns, (before, rows, before, columns))
    part = whole[before : before + rows, before : before + columns]
    part = part.T if by_columns else part
    expected = np.zeros((result.shape[1] * PARTITIONS, part.shape[1]), part.dtype)
    expected[: part.shape[0]] = part
    np.testing.assert_array_equal(result, expected.reshape(-1, PARTITIONS, part.shape[1]).transpose(1, 0, 2))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_partition_gets_the_classes(dtype: np.dtype[Any]) -> None:
    values = np.random.default_rng(0).standard_normal(77).astype(dtype)

    def kernel(vector_hbm: Any) -> Any:
        tile_sbuf = nl.ndarray((PARTITIONS, 50), dtype=nl.float32, buffer=nl.sbuf)
        load_broadcast(tile_sbuf, vector_hbm[20:70])
        tile_hbm = nl.ndarray(tile_sbuf.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile_hbm, src=tile_sbuf)
        return tile_hbm

    np.testing.assert_array_equal(nki.jit(kernel)(values), np.tile(values[20:70].astype(np.float32), (PARTITIONS, 1)))


def through_tiles(values: Array, fill: float) -> tuple[Array, Array]:
    """The tiles of a vector, and the vector that is stored from them."""

    def kernel(vector_hbm: Any) -> Any:
        tiles_sbuf = load_positions(vector_hbm, fill)
        tiles_hbm = nl.ndarray(tiles_sbuf.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tiles_hbm, src=tiles_sbuf)
        stored_hbm = nl.ndarray(vector_hbm.shape, dtype=vector_hbm.dtype, buffer=nl.shared_hbm)
        store_positions(stored_hbm, tiles_sbuf)
        return tiles_hbm, stored_hbm

    tiles, stored = nki.jit(kernel)(values)
    return tiles, stored


@settings(max_examples=15)
@given(SIZES, st.sampled_from([np.int32, np.float32]))
@example(1, np.int32)
@example(128, np.float32)
@example(PARTITIONS * PARTITIONS + 1, np.float32)
@example(PARTITIONS * PARTITIONS + 200, np.int32)
def test_position_n_is_on_partition_n_of_its_tile_and_comes_back(positions: int, dtype: type) -> None:
    values = np.random.default_rng(positions).integers(-(2**24), 2**24, positions).astype(dtype)
    tiles, stored = through_tiles(values, -1.0)
    expected = np.full(div_ceil(positions, PARTITIONS) * PARTITIONS, -1.0, np.float32)
    expected[:positions] = values
    np.testing.assert_array_equal(tiles, expected.reshape(-1, PARTITIONS).T)
    np.testing.assert_array_equal(stored, values)


def test_numbers_that_are_not_finite_stay_what_they_are() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1.0, -0.0], np.float32)
    tiles, stored = through_tiles(values, 0.0)
    np.testing.assert_array_equal(tiles[:5, 0], values)
    np.testing.assert_array_equal(stored, values)
