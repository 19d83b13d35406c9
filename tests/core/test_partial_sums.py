# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of parts are bitwise identical on one core and two, and as exact as sums in a tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.partial_sums import LEAF, PartialSums, levels
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.nki import nisa, nki, nl


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
