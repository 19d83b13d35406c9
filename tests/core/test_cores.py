# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.cores``: how positions are split over cores."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.cores import positions_of_core, row_span, strided_rows
from nkilib.nki import nisa, nki, nl


@given(st.integers(1, 1000), st.integers(1, 2))
def test_every_position_falls_to_exactly_one_core(num_positions: int, cores: int) -> None:
    shares = [[core + cores * i for i in range(positions_of_core(num_positions, cores, core))] for core in range(cores)]
    assert sorted(position for share in shares for position in share) == list(range(num_positions))


@given(st.integers(1, 128), st.integers(1, 2))
def test_row_span_counts_from_the_first_to_the_last_row(rows: int, cores: int) -> None:
    numbers = [core_row * cores for core_row in range(rows)]
    assert row_span(rows, cores) == numbers[-1] - numbers[0] + 1


@nki.jit
def mark_own_rows(x: Any) -> Any:
    """Write 10 * cores + core into each core's rows of a new tensor shaped like x."""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    cores, core = nl.num_programs(), nl.program_id()
    rows = positions_of_core(x.shape[0], cores, core)
    if rows > 0:
        tile = nl.full((rows, x.shape[1]), 10 * cores + core, dtype=x.dtype)
        nisa.dma_copy(dst=strided_rows(result, core, rows, cores), src=tile)
    return result


def test_cores_write_their_strided_rows() -> None:
    x = np.zeros((5, 3), np.float32)
    np.testing.assert_array_equal(mark_own_rows[2](x), np.array([[20], [21], [20], [21], [20]]) * np.ones((1, 3)))


def test_without_a_grid_or_with_one_core_all_rows_are_core_zeros() -> None:
    x = np.zeros((5, 3), np.float32)
    np.testing.assert_array_equal(mark_own_rows(x), np.full((5, 3), 10))
    np.testing.assert_array_equal(mark_own_rows[1](x), np.full((5, 3), 10))


def test_a_core_without_rows_does_nothing() -> None:
    np.testing.assert_array_equal(mark_own_rows[2](np.zeros((1, 2), np.float32)), np.full((1, 2), 20))
