# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.statistics``: maxima and sums of exponentials, here as a log-sum-exp of rows; maxima of chunks
that GpSimd folds; and a number for each part of a row, of which some are added up.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.core.rows.batches import GROUP_BATCHES_MAX, BatchGroup
from nkilib.core.rows.sbuf import SbufPlan
from nkilib.core.rows.scale import ConstantScale
from nkilib.core.rows.statistics import (
    STATISTICS_COLUMNS,
    Columns,
    Folding,
    MaximumFolds,
    Statistics,
    halve,
    most_batches_of_group,
)
from nkilib.core.rows.tiles import RowSums, scaled
from nkilib.experimental.loss import Tiling
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import nisa, nki, nl

from .walk import (
    BF16,
    CUTS,
    FP32,
    HARD,
    SMALL_BYTES,
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
            statistics = Statistics.make(visit.columns, dtype, ConstantScale(scale))
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


ROWS = 5


@nki.jit
def largest_of_chunks(matrix_hbm: Any, chunk_size: int, halvings: int, share: float) -> tuple[Any, ...]:
    """Minus the largest element of each chunk of rows, [rows, chunks], and how many columns were left of each."""
    rows, columns = matrix_hbm.shape
    starts = range(0, columns, chunk_size)
    plan = SbufPlan(SMALL_BYTES)
    divided = plan.divided(rows, chunk_size, matrix_hbm.dtype, len(starts))
    folds = MaximumFolds.make(plan, divided, Folding(halvings, share))
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
    ("columns", "chunk_size", "halvings", "share", "left"),
    [
        (8192, 2048, 3, 1.0, [2048, 256, 256, 256]),
        (5 * 1500 + 700, 1500, 3, 1.0, [1500, 188, 188, 188, 188, 700]),
        (2 * 1031, 1031, 3, 1.0, [1031, 129]),
        (3000, 1000, 3, 1.0, [1000, 1000, 1000]),
        (8192, 2048, 1, 0.6, [615, 615, 615, 615]),
        (2 * 1031 + 900, 1031, 1, 0.6, [310, 310, 900]),
        (2 * 1500, 1500, 2, 0.6, [226, 226]),
    ],
)
def test_a_folded_chunk_has_its_maximum(
    columns: int, chunk_size: int, halvings: int, share: float, left: list[int]
) -> None:
    """Short chunks stay whole, and so does the first one of whole chunks; of an odd number of columns one is compared
    twice. Of a part of a chunk, a column has the maximum of the rest.
    """
    matrix = matrix_of(columns)
    result, counts = largest_of_chunks(matrix, chunk_size, halvings, share)
    x = matrix.astype(np.float32)
    expected = [-x[:, start : start + chunk_size].max(axis=1) for start in range(0, columns, chunk_size)]
    np.testing.assert_array_equal(result, np.stack(expected, axis=1))
    np.testing.assert_array_equal(counts[0], left)


def test_chunks_that_leave_no_room_are_not_folded() -> None:
    plan = SbufPlan(SMALL_BYTES)

    def folds_of(chunk_size: int) -> bool:
        @nki.jit
        def kernel(matrix_hbm: Any) -> Any:
            divided = plan.divided(ROWS, chunk_size, nl.bfloat16, 9)
            made.append(MaximumFolds.make(plan, divided, Folding(3)) is not None)
            return matrix_hbm

        made: list[bool] = []
        kernel(np.zeros((1, 1), np.float32))
        return made[0]

    assert [folds_of(size) for size in (1000, 1024, 8192, 20_000, 100_000)] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("dtype", "options", "halvings"),
    [
        ("bfloat16", {"with_entropy": True}, 3),
        ("bfloat16", {}, 1),
        ("float16", {}, 1),
        ("float32", {}, 0),
        ("bfloat16", {"label_smoothing": 0.1}, 2),
        ("float16", {"with_entropy": True}, 0),
        ("float32", {"with_entropy": True}, 0),
        ("bfloat16", {"with_entropy": True, "logit_softcap": 30.0}, 0),
        ("bfloat16", {"with_entropy": True, "label_smoothing": 0.1}, 0),
    ],
)
def test_the_forward_folds_as_its_options_need(dtype: str, options: dict[str, Any], halvings: int) -> None:
    launch = (256, 16384, dtype, "forward", Tiling(128, 4096))
    profiled = profile_launch(*launch, extended=True, exact_maximum=True, **options)
    code, first = inspect.getsourcelines(halve)
    places = tuple(f"/rows/statistics.py:{first + line}" for line in range(len(code)))
    folding = [event for event in profiled.instructions if event.place.endswith(places)]
    chunks = 0 if halvings == 0 else 4 if halvings == 1 else 3
    assert len(folding) == 2 * halvings * chunks and all(event.engine == "gpsimd" for event in folding)


SUMMED_ROWS, COLUMNS, PART = 5, 12, 4


@nki.jit
def sums_of_parts(matrix_hbm: Any, rows: int, parts: int) -> Any:
    """A kernel that sums the first `parts` parts of the first `rows` rows."""
    sums = RowSums.make(SUMMED_ROWS, COLUMNS // PART)
    nisa.memset(dst=sums.parts_sbuf, value=float("nan"))
    for number in range(parts):
        part_sbuf = nl.ndarray((rows, PART), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=part_sbuf, src=matrix_hbm[0:rows, number * PART : (number + 1) * PART])
        nisa.tensor_reduce(dst=sums.part(number, rows), op=nl.add, data=part_sbuf, axis=1)
    total_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    sums.total(total_sbuf, parts)
    result_hbm = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm, name="result_hbm")
    nisa.dma_copy(dst=result_hbm, src=total_sbuf)
    return result_hbm


@pytest.mark.parametrize(("rows", "parts"), [(SUMMED_ROWS, COLUMNS // PART), (3, 2)], ids=["all", "some"])
def test_the_parts_that_are_there_are_added_up(rows: int, parts: int) -> None:
    matrix = np.arange(SUMMED_ROWS * COLUMNS, dtype=np.float32).reshape(SUMMED_ROWS, COLUMNS)
    result = np.asarray(sums_of_parts(matrix, rows, parts))
    np.testing.assert_array_equal(result[:, 0], matrix[:rows, : parts * PART].sum(axis=1))
