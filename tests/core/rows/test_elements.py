# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.elements``: gather and scatter of one element a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.core.cores import row_span
from nkilib.core.rows.batches import Batch, batch_groups, batches_of_core
from nkilib.core.rows.elements import (
    INDEX_LIMIT,
    ElementIndices,
    clamped,
    int32_column,
    integer_op,
    row_elements,
    rows_per_batch,
    vector_elements,
)
from nkilib.nki import nisa, nki, nl

from .walk import CUTS, Array, Cut, cuts, launch, vector

# Chunks play no part here.
UNCHUNKED = [cut for cut in CUTS if cut.columns < 1000]


class Finder:
    """A finder, in a kernel, of the index of each row's element in a given column, for the rows of a batch."""

    def __init__(self, rows: int, columns: int, cores: int) -> None:
        self.indices = ElementIndices.make(rows, columns, cores)
        self.least_sbuf, self.most_sbuf = int32_column(rows, 0, 0), int32_column(rows, columns - 1, 0)

    def find(self, columns_hbm: Any, batch: Batch) -> Any:
        given_sbuf = batch.loaded(columns_hbm, nl.int32)
        column_sbuf = clamped(given_sbuf, self.least_sbuf, self.most_sbuf)
        index_sbuf = nl.ndarray((batch.rows, 1), dtype=nl.int32, buffer=nl.sbuf)
        integer_op(index_sbuf, column_sbuf, given_sbuf, nl.not_equal)
        self.indices.add_position(index_sbuf, column_sbuf)
        return index_sbuf


def gathered(matrix_hbm: Any, columns_hbm: Any, cut: Cut) -> Any:
    """A kernel: the element of each row that stands in its column."""
    result_hbm = vector("gathered_hbm", cut.rows)
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    if batches:
        finder = Finder(batches[0].rows, cut.columns, cut.cores)
    for batch, group in zip(batches, batch_groups(batches, 1) if batches else [], strict=True):
        taken_sbuf = nl.ndarray((batch.rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        index_sbuf = finder.find(columns_hbm, batch)
        nisa.dma_copy(dst=taken_sbuf, src=row_elements(matrix_hbm, index_sbuf, batch))
        group.stored(result_hbm, taken_sbuf)
    return result_hbm


def scattered(matrix_hbm: Any, columns_hbm: Any, values_hbm: Any, cut: Cut) -> Any:
    """A kernel that writes one element of each row."""
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    if batches:
        finder = Finder(batches[0].rows, cut.columns, cut.cores)
    for batch in batches:
        index_sbuf = finder.find(columns_hbm, batch)
        nisa.dma_copy(dst=row_elements(matrix_hbm, index_sbuf, batch), src=batch.loaded(values_hbm))
    return matrix_hbm


def _case(cut: Cut, seed: int = 0) -> tuple[Array, Array]:
    """A matrix of elements that all differ, and a column for each row."""
    matrix = np.arange(1, cut.rows * cut.columns + 1, dtype=np.float32).reshape(cut.rows, cut.columns)
    return matrix, np.random.default_rng(seed).integers(0, cut.columns, cut.rows, dtype=np.int32)


def check(cut: Cut, seed: int = 0) -> None:
    matrix, columns = _case(cut, seed)
    rows = np.arange(cut.rows)
    np.testing.assert_array_equal(launch(gathered, cut, matrix, columns), matrix[rows, columns])
    expected = matrix.copy()
    expected[rows, columns] = -rows - 1
    values = (-rows - 1).astype(np.float32)
    np.testing.assert_array_equal(launch(scattered, cut, matrix, columns, values), expected)


@pytest.mark.parametrize("cut", UNCHUNKED, ids=str)
def test_one_element_a_row_is_gathered_and_scattered(cut: Cut) -> None:
    check(cut)


@given(cuts(), st.integers(0, 99))
def test_whatever_the_shape(cut: Cut, seed: int) -> None:
    check(cut, seed)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("row", [0, 1, 3, 9, 10])
@pytest.mark.parametrize("column", [-1, 20, 21, -20, 2**30, -(2**30), 2**31 - 1, -(2**31)])
def test_a_column_that_is_not_there_is_out_of_range(column: int, row: int, cores: int) -> None:
    """And neither the neighbour's element is read, nor anything written."""
    cut = Cut(11, 20, 4, 20, cores)
    matrix, columns = _case(cut)
    columns[row] = column
    before = matrix.copy()
    with pytest.raises(nkilib.simulator.OutOfRangeError):
        launch(gathered, cut, matrix, columns)
    with pytest.raises(nkilib.simulator.OutOfRangeError):
        launch(scattered, cut, matrix, columns, np.full(11, -1.0, np.float32))
    first = row % cores + cores * (row // cores // 4 * 4)
    of_batch = slice(first, first + row_span(4, cores), cores)
    np.testing.assert_array_equal(matrix[of_batch], before[of_batch])


def test_indices_beyond_2_to_the_24_are_exact() -> None:
    """Odd ones from there on are no float32 numbers: rounded, they would hit a neighbour."""
    cut = Cut(70, 300_001, 70, 300_001)
    matrix = np.zeros((cut.rows, cut.columns), np.float32)
    columns = np.random.default_rng(0).integers(0, cut.columns // 2, cut.rows, dtype=np.int32) * 2 + 1
    rows = np.arange(cut.rows)
    assert (rows * cut.columns + columns)[-10:].min() > 2**24
    matrix[rows, columns] = rows + 1
    np.testing.assert_array_equal(launch(gathered, cut, matrix, columns), rows + 1)


def test_elements_of_a_vector() -> None:
    def kernel(vector_hbm: Any, index_hbm: Any) -> Any:
        index_sbuf = Batch(0, 5, 1).loaded(index_hbm, nl.int32)
        taken_sbuf = nl.ndarray((5, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=taken_sbuf, src=vector_elements(vector_hbm, index_sbuf))
        result_hbm = nl.ndarray((5, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result_hbm, src=taken_sbuf)
        return result_hbm

    values, index = np.linspace(1.0, 2.0, 9, dtype=np.float32), np.array([8, 0, 3, 3, 7], np.int32)
    np.testing.assert_array_equal(nki.jit(kernel)(values, index)[:, 0], values[index])
    with pytest.raises(nkilib.simulator.OutOfRangeError):
        nki.jit(kernel)(values, np.array([8, 0, 9, 3, 7], np.int32))


def test_integers_are_exact_and_operands_may_have_more_rows() -> None:
    """Float32 would make equals of 2^24 + 1 and 2^24."""
    given_values = np.array([2**24 + 1, 2**30 + 1, -(2**31), 2**31 - 1, 5], np.int32)

    def kernel(values_hbm: Any) -> Any:
        values_sbuf = Batch(0, 5, 1).loaded(values_hbm, nl.int32)
        result_sbuf = nl.ndarray((5, 4), dtype=nl.int32, buffer=nl.sbuf)
        least_sbuf, most_sbuf = int32_column(7, -(2**24) - 1, 0), int32_column(7, 2**30 - 1, 0)
        nisa.tensor_copy(dst=result_sbuf[:, 0:1], src=clamped(values_sbuf, least_sbuf, most_sbuf))
        nisa.tensor_copy(dst=result_sbuf[:, 1:2], src=int32_column(5, 2**24 + 1, 2**24 + 3))
        integer_op(result_sbuf[:, 2:3], values_sbuf, int32_column(9, 2**24, 0), nl.not_equal)
        integer_op(result_sbuf[:, 3:4], int32_column(9, 3, 0), int32_column(6, 2**24 + 1, 1), nl.multiply)
        result_hbm = nl.ndarray((5, 4), dtype=nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result_hbm, src=result_sbuf)
        return result_hbm

    counted = np.arange(5)
    expected = [
        np.clip(given_values, -(2**24) - 1, 2**30 - 1),
        2**24 + 1 + counted * (2**24 + 3),
        np.ones(5),
        3 * (2**24 + 1 + counted),
    ]
    np.testing.assert_array_equal(nki.jit(kernel)(given_values), np.stack(expected, axis=1))


@given(st.integers(1, 128), st.integers(1, INDEX_LIMIT), st.integers(1, 2))
def test_a_batch_has_as_many_rows_as_its_indices_allow(asked_for: int, columns: int, cores: int) -> None:
    rows = rows_per_batch("kernel", asked_for, columns, cores)
    assert 1 <= rows <= asked_for
    assert row_span(rows, cores) * columns <= INDEX_LIMIT
    assert rows == asked_for or row_span(rows + 1, cores) * columns > INDEX_LIMIT


def test_rows_that_no_index_reaches_are_refused() -> None:
    assert rows_per_batch("kernel", 128, INDEX_LIMIT, 2) == 1
    with pytest.raises(AssertionError) as caught:
        rows_per_batch("kernel", 128, INDEX_LIMIT + 1, 2)
    assert str(caught.value) == (
        "kernel: a row must have at most 1073741824 columns, the reach of an int32 index, got 1073741825"
    )
