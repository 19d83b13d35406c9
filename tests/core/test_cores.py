# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.cores``: how positions are split over cores; and sums of parts, which are bitwise identical on one core
and two, and as exact as sums in a tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.cores import LEAF, PartialSums, levels, positions_of_core, row_span, strided_rows
from nkilib.core.hardware import PARTITIONS
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


@nki.jit
def sums_of_parts(parts_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """The sum of [128, parts], of which cores take every other part."""
    parts = parts_hbm.shape[1]
    sums = PartialSums.make(parts)
    for part in range(nl.program_id(0), parts, nl.num_programs()):
        nisa.dma_copy(dst=sums.of_part(part, PARTITIONS), src=parts_hbm[:, part : part + 1])
    total_hbm = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm, name="total_hbm")
    total_sbuf = sums.total(pipe=0)
    if nl.program_id(0) == 0:
        nisa.dma_copy(dst=total_hbm, src=total_sbuf)
    return total_hbm


@settings(deadline=None, max_examples=10)
@given(parts=st.integers(1, 3 * LEAF), scale=st.sampled_from([1e-30, 1.0, 1e30]), seed=st.integers(0, 99))
def test_cores_do_not_change_the_bits(parts: int, scale: float, seed: int) -> None:
    values = (np.random.default_rng(seed).standard_normal((PARTITIONS, parts)) * scale).astype(np.float32)
    one, two = sums_of_parts[1](values), sums_of_parts[2](values)
    assert one.tobytes() == two.tobytes()
    bound = LEAF * (levels(parts) + levels(PARTITIONS)) * 2.0**-24 * np.abs(values.astype(np.float64)).sum()
    assert abs(float(one[0, 0]) - values.astype(np.float64).sum()) <= bound


def test_more_than_a_leaf_of_leaves() -> None:
    values = np.ones((PARTITIONS, LEAF * LEAF + 1), np.float32)
    assert sums_of_parts[2](values)[0, 0] == values.size


@pytest.mark.parametrize(("special", "expected"), [(np.inf, np.inf), (-np.inf, -np.inf), (np.nan, np.nan)])
def test_infinities_stay(special: float, expected: float) -> None:
    values = np.ones((PARTITIONS, 3), np.float32)
    values[5, 1] = special
    for cores in (1, 2):
        np.testing.assert_array_equal(sums_of_parts[cores](values)[0, 0], expected)


def test_levels() -> None:
    assert [levels(parts) for parts in (1, 2, LEAF, LEAF + 1, LEAF**2, LEAF**2 + 1)] == [0, 1, 1, 2, 2, 3]
