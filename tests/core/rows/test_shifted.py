# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.shifted``: sums of exponentials under a shift, and which of them are not to be trusted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.rows.shifted import SUM_MIN, ShiftedSums, doubtful, sum_max
from nkilib.core.rows.tiles import scaled
from nkilib.nki import nisa, nl

from .walk import BF16, CUTS, FP32, UNIT, Array, Cut, assert_within, cuts, launch, stream_of, vector, visits

HIGHEST = float(np.finfo(np.float32).max)


def shifted_log_sum(matrix_hbm: Any, elements_hbm: Any, cut: Cut, dtype: Any = nl.float32) -> tuple[Any, ...]:
    """A kernel: shift, sum under it and log of the sum of each row, and whether the sum is doubtful."""
    results_hbm = [vector(name, cut.rows) for name in ("shift_hbm", "sum_hbm", "log_sum_hbm", "doubtful_hbm")]
    stream = stream_of(matrix_hbm, cut, dtype)
    for visit in visits(stream) if stream else ():
        if visit.starts:
            sums = ShiftedSums.make(visit.columns, dtype)
        if visit.is_full:
            sums.restart(visit.chunk.number)
        if visit.chunk.number == 0:
            sums.take_shift(visit.tile_sbuf, visit.chunk.batch.loaded(elements_hbm, dtype), visit.place.batch)
        sums.take_sum(visit.tile_sbuf, visit.tile_sbuf, visit.place)
        if visit.ends:
            sums.combine_sums(visit.chunks)
            sums.take_logs()
            shift_sbuf = scaled(sums.row_neg_max_sbuf, -1.0)
            flags_sbuf = doubtful(sums.row_sum_sbuf, sum_max(dtype))
            tiles = (shift_sbuf, sums.row_sum_sbuf, sums.log_sum_sbuf, flags_sbuf)
            for result_hbm, tile_sbuf in zip(results_hbm, tiles, strict=True):
                visit.group.stored(result_hbm, tile_sbuf)
    return tuple(results_hbm)


def shifted(matrix: Array, elements: Array, cut: Cut, dtype: Any = FP32) -> tuple[Array, ...]:
    """Return the kernel's results, for elements in the type of the matrix."""
    return tuple(launch(shifted_log_sum, cut, matrix, elements, dtype=getattr(nl, np.dtype(dtype).name)))


def check(matrix: Array, elements: Array, cut: Cut, dtype: Any = FP32) -> None:
    """All four results against float64. Rows are finite, and no sum overflows."""
    matrix, elements = matrix.astype(dtype), elements.astype(dtype)
    shift, total, log_sum, flags = shifted(matrix, elements, cut, dtype)
    x = matrix.astype(np.float64)
    exact_shift = np.maximum(x[:, : cut.chunk_size].max(axis=1), elements)
    np.testing.assert_array_equal(shift, exact_shift)
    exact_sum = np.exp(x - exact_shift[:, np.newaxis]).sum(axis=1)
    bound = 16.0 * UNIT * np.maximum(1.0, np.log(np.maximum(exact_sum, 1.0)))
    assert_within(log_sum, np.log(exact_sum), bound)
    assert_within(total, exact_sum, 2.0 * bound * exact_sum)
    sure = np.abs(exact_sum - sum_max(getattr(nl, np.dtype(dtype).name))) > 1e-3 * exact_sum
    expected = (exact_sum > sum_max(getattr(nl, np.dtype(dtype).name))) | (exact_sum < SUM_MIN)
    np.testing.assert_array_equal(flags[sure], expected[sure])


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_sums_of_rows(dtype: Any, cut: Cut) -> None:
    matrix = cut.normal()
    check(matrix, matrix[:, -1], cut, dtype)


@given(cuts(), st.integers(0, 99), st.sampled_from([0.01, 1.0, 8.0]), st.sampled_from([0.0, 1e4]))
def test_whatever_the_rows(cut: Cut, seed: int, spread: float, offset: float) -> None:
    matrix = cut.normal(seed, spread) + np.float32(offset)
    column = seed % cut.columns
    check(matrix, matrix[:, column], cut)


@pytest.mark.parametrize(
    ("dtype", "most", "distance", "is_doubtful"),
    [
        (FP32, 2.0**11, 7.5, False),
        (FP32, 2.0**11, 7.75, True),
        (BF16, 2.0**23, 15.875, False),
        (BF16, 2.0**23, 16.0, True),
        (BF16, 2.0**23, 80.0, True),
        (FP32, 2.0**11, 200.0, True),  # the sum is infinite
        (BF16, 2.0**23, -200.0, False),
    ],
)
def test_a_maximum_far_above_the_shift_makes_a_sum_doubtful(
    dtype: Any, most: float, distance: float, is_doubtful: bool
) -> None:
    """Unless the element that is known is the one: then the shift is the maximum."""
    assert sum_max(getattr(nl, np.dtype(dtype).name)) == most
    matrix = np.zeros((2, 6), dtype)
    matrix[:, 1:] = -50
    matrix[:, 5] = distance
    cut = Cut(2, 6, 2, 2)
    _, _, _, flags = shifted(matrix, np.array([0.0, distance], dtype), cut, dtype)
    np.testing.assert_array_equal(flags, [float(is_doubtful), 0.0])


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("row", "element", "is_doubtful"),
    [
        ([-INF] * 6, -INF, True),
        ([-INF, -INF, -INF, -INF, 1.0, 2.0], 1.0, False),  # the element is the shift
        ([-INF, -INF, -INF, -INF, 1.0, 2.0], -INF, True),  # the shift is clamped
        ([1.0, 2.0, -INF, -INF, -INF, -INF], -INF, False),
        ([1.0, -INF, -INF, 0.0, 1.0, 2.0], 0.0, False),
        ([INF, 0.0, 0.0, 0.0, 0.0, 0.0], 0.0, True),
        ([0.0, 0.0, 0.0, 0.0, 0.0, INF], 0.0, True),
        ([0.0, 0.0, 0.0, 0.0, 0.0, INF], INF, True),
        ([NAN, 0.0, 0.0, 0.0, 0.0, 0.0], 0.0, True),
        ([0.0, 0.0, 0.0, 0.0, 0.0, NAN], 0.0, True),
        ([0.0, 0.0, 0.0, 0.0, 0.0, NAN], NAN, True),
        ([HIGHEST, 0.0, 0.0, 0.0, 0.0, HIGHEST], 0.0, False),
        ([-HIGHEST] * 6, -HIGHEST, False),
        ([7.25] * 6, 7.25, False),
    ],
)
@pytest.mark.parametrize("cores", [1, 2])
def test_what_is_not_finite_makes_a_sum_doubtful(
    row: list[float], element: float, is_doubtful: bool, cores: int
) -> None:
    """The sums of the neighbouring rows stay what they are."""
    matrix = np.array([[0.0] * 6, row, [1.0] * 6], np.float32)
    elements = np.array([0.0, element, 1.0], np.float32)
    _, total, _, flags = shifted(matrix, elements, Cut(3, 6, 2, 2, cores=cores))
    np.testing.assert_array_equal(flags, [0.0, float(is_doubtful), 0.0])
    np.testing.assert_array_equal(total[[0, 2]], [6.0, 6.0])


def test_sums_between_the_bounds_are_trusted() -> None:
    """One above and one below each bound, and what is no number."""
    sums = [0.0, 0.499, SUM_MIN, 1.0, 2.0**11, 2.0**11 + 1, 2.0**23, 2.0**23 + 1, np.inf, -np.inf, np.nan]

    def kernel(sums_hbm: Any, cut: Cut) -> Any:
        flags_hbm = nl.ndarray((1, len(sums)), dtype=nl.float32, buffer=nl.shared_hbm)
        sums_sbuf = nl.ndarray((1, len(sums)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=sums_sbuf, src=sums_hbm)
        nisa.dma_copy(dst=flags_hbm, src=doubtful(sums_sbuf, 2.0**11))
        return flags_hbm

    flags = launch(kernel, Cut(1, 1, 1, 1), np.array([sums], np.float32))
    np.testing.assert_array_equal(flags, [[1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1]])
