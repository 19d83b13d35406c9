# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.statistics``: maxima and sums of exponentials, here as a log-sum-exp of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.core.rows.batches import GROUP_BATCHES_MAX, BatchGroup
from nkilib.core.rows.statistics import STATISTICS_COLUMNS, Columns, Statistics, most_batches_of_group
from nkilib.core.rows.tiles import scaled
from nkilib.nki import nl

from .walk import (
    BF16,
    CUTS,
    FP32,
    HARD,
    UNIT,
    Array,
    Cut,
    assert_within,
    cuts,
    hard_matrix,
    launch,
    stream_of,
    vector,
    visits,
)


def log_sum_exp(matrix_hbm: Any, cut: Cut, dtype: Any = nl.float32, scale: float = 1.0) -> tuple[Any, Any]:
    """A kernel: maximum m and log of the sum of exp(z - m) of each row of z = scale * matrix."""
    maximum_hbm, log_sum_hbm = vector("maximum_hbm", cut.rows), vector("log_sum_hbm", cut.rows)
    stream = stream_of(matrix_hbm, cut, dtype)
    for visit in visits(stream) if stream else ():
        if visit.starts:
            statistics = Statistics.make(visit.columns, dtype, scale)
        if visit.is_full:
            _combine(statistics, visit.chunk.number)
            statistics.restart()
        statistics.take_maximum(visit.tile_sbuf, visit.place)
        statistics.take_sum(visit.tile_sbuf, visit.tile_sbuf, visit.place)
        if visit.ends:
            _combine(statistics, visit.chunks)
            statistics.take_logs()
            visit.group.stored(maximum_hbm, scaled(statistics.row_neg_max_sbuf, -scale))
            visit.group.stored(log_sum_hbm, statistics.log_sum_sbuf)
    return maximum_hbm, log_sum_hbm


def _combine(statistics: Statistics, chunks: int) -> None:
    statistics.take_distances(chunks)
    statistics.take_weights(chunks)
    statistics.combine_sums(chunks)


def check(matrix: Array, cut: Cut, dtype: Any = FP32, scale: float = 1.0) -> None:
    """Both results against float64, of the elements as they are on chip. Rows are finite."""
    z = matrix.astype(dtype).astype(np.float64) * scale
    maximum, log_sum = launch(log_sum_exp, cut, matrix, dtype=getattr(nl, np.dtype(dtype).name), scale=scale)
    exact = z.max(axis=1)
    assert_within(maximum, exact, 0.0 if scale == 1.0 else UNIT * np.abs(exact))
    # One sum may go with another maximum where a product was rounded: together they are the log-sum-exp.
    lse = exact + np.log(np.exp(z - exact[:, np.newaxis]).sum(axis=1))
    bound = 16.0 * UNIT * np.maximum(1.0, lse - exact) + (0.0 if scale == 1.0 else 2.0 * UNIT * np.abs(z).max(axis=1))
    assert_within(log_sum, lse - exact, bound)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_the_log_sum_exp_of_rows(dtype: Any, cut: Cut) -> None:
    check(cut.normal(), cut, dtype)


@given(cuts(), st.integers(0, 99), st.sampled_from([0.01, 1.0, 30.0, 1e4]))
def test_whatever_the_shape_and_spread(cut: Cut, seed: int, spread: float) -> None:
    check(cut.normal(seed, spread), cut)


@pytest.mark.parametrize("scale", [0.25, 3.0, 30.0])
def test_elements_may_be_scaled_on_the_way(scale: float) -> None:
    cut = Cut(9, 150, 4, 1, cores=2)
    check(cut.normal(), cut, scale=scale)


def test_the_largest_elements_lie_anywhere() -> None:
    """One far above the others in each column in turn, so in each chunk, before and after a restart of the columns."""
    cut = Cut(300, 300, 128, 2)
    matrix = cut.normal(spread=1.0)
    np.fill_diagonal(matrix, np.arange(50.0, 350.0))
    check(matrix, cut)
    ascending = np.tile(np.linspace(-60.0, 60.0, 300, dtype=np.float32), (2, 1))
    ascending[1] = ascending[1, ::-1] / 2.0
    check(ascending, Cut(2, 300, 2, 1))


@pytest.mark.parametrize("cut", [Cut(len(HARD), 6, 4, size, cores) for size in (1, 2, 6) for cores in (1, 2)], ids=str)
def test_hard_rows(cut: Cut) -> None:
    """The maximum is clamped to what is finite, so that a chunk of -inf alone adds 0 and not NaN."""
    matrix = hard_matrix()
    maximum, log_sum = launch(log_sum_exp, cut, matrix)
    largest = np.finfo(np.float32).max
    z = matrix.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        exact = np.clip(z.max(axis=1), -float(largest), float(largest))
        sums = np.exp(np.where(np.isneginf(z), -np.inf, z - exact[:, np.newaxis])).sum(axis=1)
        of_logs = np.log(sums)
    assert_within(maximum, exact, 0.0, list(HARD))
    assert_within(log_sum, of_logs, 16.0 * UNIT * np.maximum(1.0, np.abs(of_logs)), list(HARD))


def test_rows_of_infinities_across_a_restart() -> None:
    cut = Cut(4, 400, 2, 1)
    matrix = np.full((4, 400), -np.inf, np.float32)
    matrix[0, 390], matrix[1, 3], matrix[2, [5, 390]] = 1.5, -2.5, [1.0, 1.0]
    maximum, log_sum = launch(log_sum_exp, cut, matrix)
    np.testing.assert_array_equal(maximum, np.array([1.5, -2.5, 1.0, np.finfo(np.float32).min], np.float32))
    assert_within(log_sum, np.array([0.0, 0.0, np.log(2.0), -np.inf]), UNIT)


def test_one_maximum_and_one_exponential_a_chunk_whatever_the_columns() -> None:
    """Columns are combined once per group: 300 chunks a row need three rounds of that, 100 need one."""
    cut = Cut(2, 300, 2, 1)
    with nkilib.simulator.recording() as record:
        launch(log_sum_exp, cut, cut.normal())
    rounds = 1 + (300 - 2) // (STATISTICS_COLUMNS - 1)
    assert rounds == 3
    assert record.instruction_counts["activation"] == 300 + rounds + 1
    assert record.instruction_counts["tensor_reduce"] == 300 + 2 * rounds


@given(st.integers(1, 700))
def test_every_chunk_has_a_column_of_its_own_until_they_are_full(num_chunks: int) -> None:
    columns = Columns.of_group(BatchGroup(0, 1, 0, 1, 1), num_chunks)
    assert columns.count == min(num_chunks, STATISTICS_COLUMNS)
    taken: set[int] = set()
    for chunk in range(num_chunks):
        if columns.are_full(chunk):
            assert taken == set(range(columns.count)), "all of them, and what was combined goes to the first one"
            taken = {0}
        column = columns.place(0, chunk).column
        assert column not in taken
        taken.add(column)
        assert taken == set(range(column + 1)), "in use are those up to the last one taken"


@given(st.integers(1, 1000))
def test_batches_share_the_columns(num_chunks: int) -> None:
    most = most_batches_of_group(num_chunks)
    assert 1 <= most <= GROUP_BATCHES_MAX
    assert most == 1 or most * num_chunks <= STATISTICS_COLUMNS
    assert most == GROUP_BATCHES_MAX or (most + 1) * num_chunks > STATISTICS_COLUMNS
