# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.moments``: sums over a row beside that of the exponentials, for the entropy, the weighted loss,
log sum p^2 of the softmax, and the mean of the elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.psum import PsumRing
from nkilib.core.rows.moments import NEGLIGIBLE, MeanMoment, Moments, SquareMoment, raise_negligible
from nkilib.core.rows.scale import ONE
from nkilib.core.rows.statistics import Columns, Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, float32_like
from nkilib.nki import nisa, nl

from .walk import (
    CUTS,
    HARD,
    UNIT,
    Array,
    Cut,
    Visit,
    assert_within,
    cuts,
    hard_matrix,
    launch,
    stream_of,
    vector,
    visits,
)


def moments_of_rows(matrix_hbm: Any, factors_hbm: Any, cut: Cut) -> tuple[Any, Any, Any]:
    """A kernel: sums F of the factors and G of f * (z - m), and the entropy of the softmax of each row z."""
    names = ("factors_hbm", "first_hbm", "entropy_hbm")
    factors_sum_hbm, first_hbm, entropy_hbm = (vector(name, cut.rows) for name in names)
    stream = stream_of(matrix_hbm, cut)
    factors = None if factors_hbm is None else stream_of(factors_hbm, cut)
    for visit in visits(stream) if stream else ():
        if visit.starts:
            statistics = Statistics.make(visit.columns, nl.float32)
            moments = Moments.make(visit.columns, with_first=True, with_entropy=True)
        if visit.is_full:
            _combine(statistics, moments, visit.chunk.number)
            statistics.restart()
            moments.restart()
        factors_sbuf = None if factors is None else factors.loaded(visit.chunk.load)
        _take(statistics, moments, visit, factors_sbuf)
        if visit.ends:
            _combine(statistics, moments, visit.chunks)
            statistics.take_logs()
            visit.group.stored(factors_sum_hbm, moments.first.row_factors_sbuf)
            visit.group.stored(first_hbm, moments.first.row_first_sbuf)
            visit.group.stored(entropy_hbm, moments.entropy.entropies(statistics))
    return factors_sum_hbm, first_hbm, entropy_hbm


def _take(statistics: Statistics, moments: Any, visit: Visit, factors_sbuf: Any) -> None:
    shape = visit.tile_sbuf.shape
    products_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    neg_max_sbuf = visit.place.of(statistics.neg_max_sbuf)
    statistics.take_maximum(visit.tile_sbuf, visit.place)
    moments.first.take(visit.tile_sbuf, factors_sbuf, products_sbuf, neg_max_sbuf, visit.place)
    raise_negligible(visit.tile_sbuf, neg_max_sbuf, statistics.scale.least, is_shared=visit.chunk.number % 2 == 0)
    pieces = PsumRing.make(*shape).pieces(visit.chunk.load, visit.tile_sbuf)
    moments.entropy.take(statistics, visit.tile_sbuf, pieces, visit.place)


def _combine(statistics: Statistics, moments: Any, chunks: int) -> None:
    moments.keep_distances(statistics.take_distances(chunks), chunks)
    statistics.take_weights(chunks)
    moments.combine(statistics, chunks)
    statistics.combine_sums(chunks)


def check(matrix: Array, factors: Array | None, cut: Cut) -> None:
    """All results against float64, for rows whose entropy is finite."""
    total, first, entropy = launch(moments_of_rows, cut, matrix, factors)
    z = matrix.astype(np.float64)
    f = np.ones_like(z) if factors is None else factors.astype(np.float64)
    m = z.max(axis=1, keepdims=True)
    assert_within(total, f.sum(axis=1), 0.0 if factors is None else 16.0 * UNIT * np.abs(f).sum(axis=1))
    assert_within(first, (f * (z - m)).sum(axis=1), 16.0 * UNIT * np.abs(f * (z - m)).sum(axis=1))
    assert_entropies(entropy, z)


def assert_entropies(entropy: Array, z: Array, names: list[str] | None = None) -> None:
    """A term p (z - m) is off by half a unit of (z - m)^2 more than its sum."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        below = z.max(axis=1, keepdims=True) - z
        terms = np.where(np.isneginf(z), 0.0, np.exp(-below))
        p = terms / terms.sum(axis=1, keepdims=True)
        exact = np.log(terms.sum(axis=1)) + np.where(p == 0.0, 0.0, p * below).sum(axis=1)
        second = np.where(p == 0.0, 0.0, p * np.square(below)).sum(axis=1)
    assert_within(entropy, exact, 16.0 * UNIT * np.maximum(1.0, exact) + UNIT * second, names)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("has_factors", [True, False], ids=["factors", "ones"])
def test_the_moments_of_rows(has_factors: bool, cut: Cut) -> None:
    factors = np.random.default_rng(4).uniform(-1.0, 3.0, (cut.rows, cut.columns)).astype(np.float32)
    check(cut.normal(), factors if has_factors else None, cut)


@given(cuts(), st.integers(0, 99), st.sampled_from([0.01, 1.0, 20.0]))
def test_whatever_the_shape_and_spread(cut: Cut, seed: int, spread: float) -> None:
    check(cut.normal(seed, spread), cut.normal(seed + 1, 1.0), cut)


def test_large_elements_cancel_before_they_are_summed() -> None:
    """Differences from the maximum are exact here; sums of f z and of f m would lose all of them."""
    cut = Cut(6, 260, 3, 1, cores=2)
    matrix = np.round(cut.normal() * 64.0) / 64.0 + np.float32(1e5)
    check(matrix.astype(np.float32), np.abs(cut.normal(5)), cut)


@pytest.mark.parametrize("cut", [Cut(len(HARD), 6, 4, size, cores) for size in (1, 2, 6) for cores in (1, 2)], ids=str)
def test_the_entropy_of_hard_rows(cut: Cut) -> None:
    """Elements of -inf add nothing; a row without a finite log-sum-exp has no entropy: NaN."""
    _, _, entropy = launch(moments_of_rows, cut, hard_matrix(), None)
    assert_entropies(entropy, hard_matrix().astype(np.float64), list(HARD))


def test_what_lies_far_below_the_maximum_adds_nothing() -> None:
    """Also where a whole chunk does, however far: 0 times its distance must not become NaN."""
    assert np.exp(np.float32(NEGLIGIBLE)) == 0.0
    matrix = np.full((3, 200), -1e30, np.float32)
    matrix[0, 199], matrix[1, 0], matrix[2, [7, 180]] = 1e30, -1e29, 5.0
    _, _, entropy = launch(moments_of_rows, Cut(3, 200, 2, 1), matrix, None)
    assert_within(entropy, np.array([0.0, 0.0, np.log(2.0)]), 4.0 * UNIT)


def test_nothing_is_gathered_that_nobody_asks_for() -> None:
    made = []

    def kernel(matrix_hbm: Any, cut: Cut) -> None:
        columns = Columns(2, 1, 3)
        made.extend(Moments.make(columns, *flags) for flags in ((False, False), (True, False), (False, True)))

    launch(kernel, Cut(2, 3, 2, 1), np.zeros((2, 3), np.float32))
    nothing, first, entropy = made
    assert nothing is None
    assert first.first is not None and first.entropy is None
    assert entropy.first is None and entropy.entropy is not None


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
            _combine_scores(statistics, squares, mean, visit.chunk.number)
            columns.restart(squares.squares_sbuf, squares.row_squares_sbuf)
            statistics.restart()
            mean.restart()
        _take_scores(statistics, squares, mean, visit)
        if visit.ends:
            _combine_scores(statistics, squares, mean, visit.chunks)
            statistics.take_logs()
            visit.group.stored(logs_hbm, squares.logs(statistics))
            visit.group.stored(means_hbm, mean.means(ONE))
    return logs_hbm, means_hbm


def _take_scores(statistics: Statistics, squares: SquareMoment, mean: MeanMoment, visit: Any) -> None:
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


def _combine_scores(statistics: Statistics, squares: SquareMoment, mean: MeanMoment, chunks: int) -> None:
    statistics.take_distances(chunks)
    statistics.take_weights(chunks)
    squares.combine(statistics, float32_like(statistics.columns.in_use(statistics.weights_sbuf, chunks)), chunks)
    mean.combine(chunks)
    statistics.combine_sums(chunks)


def check_scores(matrix: Array, masks: bool, cut: Cut) -> None:
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
    check_scores(cut.normal(spread=3.0), False, cut)


def test_masked_elements_take_no_part() -> None:
    """A chunk of them alone, too."""
    cut = Cut(6, 260, 3, 1, cores=2)
    matrix = cut.normal()
    matrix[:, ::3], matrix[2, :200] = -np.inf, -np.inf
    check_scores(matrix, True, cut)


def test_a_row_of_one_element_that_counts() -> None:
    matrix = np.full((3, 200), -1e30, np.float32)
    matrix[:, 150] = (1e30, 5.0, -1e29)
    logs, _ = launch(scores_of_rows, Cut(3, 200, 2, 1), matrix, False)
    assert_within(logs, np.zeros(3), 4.0 * UNIT)
