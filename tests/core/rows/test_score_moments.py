# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.score_moments``: log sum p^2 of the softmax of a row, and the mean of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.rows.score_moments import MeanMoment, SquareMoment
from nkilib.core.rows.statistics import Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, float32_like
from nkilib.nki import nisa, nl

from .walk import CUTS, UNIT, Array, Cut, assert_within, launch, stream_of, vector, visits


def scores_of_rows(matrix_hbm: Any, masks: bool, cut: Cut) -> tuple[Any, Any]:
    """A kernel: log sum p^2 of each row z, and the mean of what is not -inf in it."""
    logs_hbm, means_hbm = (vector(name, cut.rows) for name in ("logs_hbm", "means_hbm"))
    stream = stream_of(matrix_hbm, cut)
    for visit in visits(stream) if stream else ():
        columns = visit.columns
        if visit.starts:
            statistics = Statistics.make(columns, nl.float32)
            squares = SquareMoment(columns.tile(), columns.row_tile())
            counts = (columns.tile(), columns.row_tile()) if masks else (None, None)
            mean = MeanMoment(columns, cut.columns, columns.tile(), columns.row_tile(), *counts)
        if visit.is_full:
            _combine(statistics, squares, mean, visit.chunk.number)
            columns.restart(squares.squares_sbuf, squares.row_squares_sbuf)
            statistics.restart()
            mean.restart()
        _take(statistics, squares, mean, visit)
        if visit.ends:
            _combine(statistics, squares, mean, visit.chunks)
            statistics.take_logs()
            visit.group.stored(logs_hbm, squares.logs(statistics))
            visit.group.stored(means_hbm, mean.means(1.0))
    return logs_hbm, means_hbm


def _take(statistics: Statistics, squares: SquareMoment, mean: MeanMoment, visit: Any) -> None:
    exponentials_sbuf, scratch_sbuf = float32_like(visit.tile_sbuf), float32_like(visit.tile_sbuf)
    unmasked_sbuf = None
    if mean.counts_sbuf is not None:
        unmasked_sbuf = float32_like(visit.tile_sbuf)
        nisa.tensor_scalar_reduce(
            dst=unmasked_sbuf,
            data=visit.tile_sbuf,
            op0=nl.greater_equal,
            operand0=FLOAT32_LOWEST,
            reduce_op=nl.add,
            reduce_res=visit.place.of(mean.counts_sbuf),
        )
    statistics.take_maximum(visit.tile_sbuf, visit.place)
    statistics.take_sum(exponentials_sbuf, visit.tile_sbuf, visit.place)
    squares.take(exponentials_sbuf, scratch_sbuf, visit.place)
    mean.take(visit.tile_sbuf, unmasked_sbuf, scratch_sbuf, visit.place)


def _combine(statistics: Statistics, squares: SquareMoment, mean: MeanMoment, chunks: int) -> None:
    statistics.take_distances(chunks)
    statistics.take_weights(chunks)
    squares.combine(statistics, float32_like(statistics.columns.in_use(statistics.weights_sbuf, chunks)), chunks)
    mean.combine(chunks)
    statistics.combine_sums(chunks)


def check(matrix: Array, masks: bool, cut: Cut) -> None:
    """Both results against float64."""
    logs, means = launch(scores_of_rows, cut, matrix, masks)
    z = matrix.astype(np.float64)
    terms = np.exp(z - z.max(axis=1, keepdims=True))
    exact = np.log(np.square(terms).sum(axis=1)) - 2.0 * np.log(terms.sum(axis=1))
    assert_within(logs, exact, 64.0 * UNIT * np.maximum(1.0, np.abs(exact)))
    kept = ~np.isneginf(z)
    sizes = np.where(kept, np.abs(z), 0.0).sum(axis=1) / kept.sum(axis=1)
    assert_within(means, np.where(kept, z, 0.0).sum(axis=1) / kept.sum(axis=1), 16.0 * UNIT * sizes)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_scores_of_rows(cut: Cut) -> None:
    check(cut.normal(spread=3.0), False, cut)


def test_masked_elements_take_no_part() -> None:
    """A chunk of them alone, too."""
    cut = Cut(6, 260, 3, 1, cores=2)
    matrix = cut.normal()
    matrix[:, ::3], matrix[2, :200] = -np.inf, -np.inf
    check(matrix, True, cut)


def test_a_row_of_one_element_that_counts() -> None:
    matrix = np.full((3, 200), -1e30, np.float32)
    matrix[:, 150] = (1e30, 5.0, -1e29)
    logs, _ = launch(scores_of_rows, Cut(3, 200, 2, 1), matrix, False)
    assert_within(logs, np.zeros(3), 4.0 * UNIT)
