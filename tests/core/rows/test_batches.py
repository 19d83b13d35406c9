# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.batches``: the rows of a core, in batches and groups of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.rows.batches import (
    GROUP_BATCHES_MAX,
    Batch,
    BatchGroup,
    GroupedLoads,
    SwappedResult,
    batch_groups,
    batches_of_core,
)
from nkilib.nki import nisa, nl

from .walk import CUTS, Cut, cuts, launch, vector


@given(st.integers(1, 600), st.integers(1, 2), st.integers(1, 128))
def test_the_batches_of_all_cores_are_all_rows_once(num_rows: int, cores: int, rows_per_batch: int) -> None:
    every = []
    for core in range(cores):
        batches = batches_of_core(num_rows, cores, core, rows_per_batch)
        own = [batch.first + row * batch.cores for batch in batches for row in range(batch.rows)]
        assert own == list(range(core, num_rows, cores)), "in order, in strides"
        assert all(batch.rows == rows_per_batch for batch in batches[:-1]), "only the last one may be smaller"
        assert all(0 < batch.rows <= rows_per_batch and batch.cores == cores for batch in batches)
        every += own
    assert sorted(every) == list(range(num_rows))


def test_a_core_without_rows_has_no_batches() -> None:
    assert batches_of_core(1, 2, 1, 32) == []
    assert batches_of_core(1, 2, 0, 32) == [Batch(0, 1, 2)]


@given(st.integers(1, 128), st.integers(1, 2), st.integers(0, 50))
def test_a_span_ends_with_the_last_row(rows: int, cores: int, first: int) -> None:
    batch = Batch(first, rows, cores)
    numbers = range(first, first + batch.span, cores)
    assert len(numbers) == rows and numbers[-1] == first + batch.span - 1


@given(st.integers(1, 400), st.integers(1, 2), st.integers(1, 40), st.integers(1, GROUP_BATCHES_MAX))
def test_groups_are_the_batches_in_order_and_the_last_one_is_alone(
    num_rows: int, cores: int, rows_per_batch: int, most: int
) -> None:
    batches = batches_of_core(num_rows, cores, 0, rows_per_batch)
    groups = batch_groups(batches, most)
    assert [number for group in groups for number in range(group.start, group.end)] == list(range(len(batches)))
    assert (groups[-1].start, groups[-1].batches) == (len(batches) - 1, 1)
    for group in groups:
        of_group = batches[group.start : group.end]
        assert 1 <= group.batches == len(of_group) <= most
        assert {(batch.rows, batch.cores) for batch in of_group} == {(group.rows, group.cores)}
        assert group.first == of_group[0].first


def test_the_last_batch_is_alone_even_if_it_is_as_large_as_the_others() -> None:
    batches = batches_of_core(8, 1, 0, 2)
    assert batch_groups(batches, 16) == [BatchGroup(0, 3, 0, 2, 1), BatchGroup(3, 4, 6, 2, 1)]


def copied_vector(vector_hbm: Any, dtype: Any, cut: Cut, most: int = 3) -> Any:
    """A kernel: the values of a vector batch by batch into tiles, and group by group into a new vector."""
    result_hbm = vector("copy_hbm", cut.rows, dtype)
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    for group in batch_groups(batches, most) if batches else []:
        values_sbuf = nl.ndarray((group.rows, group.batches), dtype=dtype, buffer=nl.sbuf)
        for number in range(group.batches):
            loaded_sbuf = batches[group.start + number].loaded(vector_hbm, dtype)
            assert loaded_sbuf.shape == (group.rows, 1)
            nisa.tensor_copy(dst=values_sbuf[:, number : number + 1], src=loaded_sbuf)
        group.stored(result_hbm, values_sbuf)
    return result_hbm


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_what_is_loaded_by_batches_is_stored_by_groups(cut: Cut) -> None:
    values = np.arange(1, cut.rows + 1, dtype=np.float32)
    np.testing.assert_array_equal(launch(copied_vector, cut, values, nl.float32), values)


@given(cuts(), st.integers(1, GROUP_BATCHES_MAX))
def test_whatever_the_batches_and_groups(cut: Cut, most: int) -> None:
    values = np.arange(1, cut.rows + 1, dtype=np.float32)
    np.testing.assert_array_equal(launch(copied_vector, cut, values, nl.float32, most=most), values)


def test_integers_stay_exact() -> None:
    values = np.array([2**31 - 1, -(2**31), 2**24 + 1, -1, 0], np.int32)
    cut = Cut(5, 1, 2, 1, cores=2)
    np.testing.assert_array_equal(launch(copied_vector, cut, values, nl.int32), values)


def doubled_vector(vector_hbm: Any, cut: Cut, most: int) -> Any:
    """A kernel: twice the values of a vector, loaded and stored group by group."""
    result_hbm = vector("doubled_hbm", cut.rows, nl.float32)
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    for group in batch_groups(batches, most) if batches else []:
        loaded_sbuf = group.loaded(vector_hbm)
        assert loaded_sbuf.shape == (group.rows, group.batches)
        nisa.tensor_scalar(dst=loaded_sbuf, data=loaded_sbuf, op0=nl.multiply, operand0=2.0)
        group.stored(result_hbm, loaded_sbuf)
    return result_hbm


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("rows", "rows_per_batch"), [(1, 1), (7, 2), (130, 128), (700, 45), (1100, 128), (67, 33)])
def test_groups_load_what_they_store(rows: int, rows_per_batch: int, cores: int) -> None:
    """Several batches at once are transposed in parts of 32 rows; the last one may be smaller."""
    values = np.random.default_rng(0).standard_normal(rows).astype(np.float32)
    values[rows // 2] = np.nan
    cut = Cut(rows, 1, rows_per_batch, 1, cores)
    np.testing.assert_array_equal(launch(doubled_vector, cut, values, most=4), 2.0 * values)


def swapped_vectors(first_hbm: Any, second_hbm: Any, cut: Cut) -> tuple[Any, Any]:
    """A kernel on two cores: two vectors, loaded ahead and stored by groups, of which the cores swap those of several
    batches.
    """
    results = [vector(name, cut.rows, nl.float32) for name in ("first_hbm", "second_hbm")]
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    for group in batch_groups(batches, 4):
        ahead = [group.ahead(vector_hbm) for vector_hbm in (first_hbm, second_hbm)]
        values_sbuf = [item.loaded(first_hbm) for item in ahead]
        pairs = list(zip(results, values_sbuf, strict=True))
        if group.batches > 1:
            SwappedResult.begin(group, pairs).store()
        else:
            for result_hbm, tile_sbuf in pairs:
                group.stored(result_hbm, tile_sbuf)
    return results[0], results[1]


@pytest.mark.parametrize(("rows", "rows_per_batch"), [(16, 2), (260, 40), (1024, 128), (1283, 128)])
def test_cores_swap_results_in_place_of_storing_elements(rows: int, rows_per_batch: int) -> None:
    first, second = np.random.default_rng(0).standard_normal((2, rows)).astype(np.float32)
    first[rows // 2] = np.nan
    cut = Cut(rows, 1, rows_per_batch, 1, 2)
    results = launch(swapped_vectors, cut, first, second)
    np.testing.assert_array_equal(results[0], first)
    np.testing.assert_array_equal(results[1], second)


def summed_vectors(first_hbm: Any, second_hbm: Any, cut: Cut) -> Any:
    """A kernel: first + 2 * second, batch by batch."""
    result_hbm = vector("result_hbm", cut.rows, nl.float32)
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    loads = GroupedLoads(batches)
    ready = [loads.batch(0)] if batches else []
    for number, batch in enumerate(batches):
        rows = ready.pop()
        first_sbuf, second_sbuf = rows.loaded(first_hbm), rows.loaded(second_hbm)
        loads.request_after(number)
        nisa.scalar_tensor_tensor(
            dst=first_sbuf, data=second_sbuf, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=first_sbuf
        )
        batch.stored(result_hbm, first_sbuf)
        if number + 1 < len(batches):
            ready.append(loads.batch(number + 1))
    return result_hbm


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("rows", "rows_per_batch"), [(1, 1), (7, 2), (67, 33), (45, 2), (130, 3)])
def test_vectors_of_a_group_come_together(rows: int, rows_per_batch: int, cores: int) -> None:
    first, second = np.random.default_rng(0).integers(-9, 9, (2, rows)).astype(np.float32)
    cut = Cut(rows, 1, rows_per_batch, 1, cores)
    np.testing.assert_array_equal(launch(summed_vectors, cut, first, second), first + 2 * second)
