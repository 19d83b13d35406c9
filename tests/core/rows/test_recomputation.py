# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.recomputation``: rows that are flagged on the device are gone through again, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nkilib.core.rows.batches import batch_groups, batches_of_core
from nkilib.core.rows.gathered import GatheredRows, KeptValues
from nkilib.core.rows.recomputation import TILES_PER_TRIP, FlaggedRows, most_trips
from nkilib.nki import nisa, nl

from .walk import Array, Cut, cuts, launch, vector

FIRST = -1.0
TILES: list[int] = []


def maxima_of_flagged(matrix_hbm: Any, offsets_hbm: Any, flags_hbm: Any, cut: Cut, most: int = 3) -> Any:
    """A kernel: maximum + 2 * offset of the flagged rows of a matrix, ``FIRST`` for the others."""
    result_hbm = vector("result_hbm", cut.rows)
    cores, core = nl.num_programs(), nl.program_id()
    batches = batches_of_core(cut.rows, cores, core, cut.rows_per_batch)
    flagged = FlaggedRows.make(cut.rows, cores, core, batches[0].rows, len(batches))
    kept = KeptValues.make("kept_hbm", len(batches), nl.float32)
    stores = []
    for group in batch_groups(batches, most):
        flags_sbuf, offsets_sbuf, first_sbuf = (
            nl.ndarray((group.rows, group.batches), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)
        )
        nisa.memset(dst=first_sbuf, value=FIRST)
        for number in range(group.batches):
            for tile_sbuf, vector_hbm in ((flags_sbuf, flags_hbm), (offsets_sbuf, offsets_hbm)):
                loaded_sbuf = batches[group.start + number].loaded(vector_hbm)
                nisa.tensor_copy(dst=tile_sbuf[:, number : number + 1], src=loaded_sbuf)
        stores += [group.stored(result_hbm, first_sbuf), kept.keep(offsets_sbuf, group)]
        flagged.add(flags_sbuf, group)

    def compute_tiles(tiles: list[GatheredRows]) -> None:
        for rows in tiles:
            compute(rows)

    def compute(rows: GatheredRows) -> None:
        TILES.append(core)
        summands = (rows.loaded(offsets_hbm), rows.kept(kept))
        for start in range(0, cut.columns, cut.chunk_size):
            end = min(start + cut.chunk_size, cut.columns)
            chunk_sbuf = nl.ndarray((rows.rows, end - start), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=chunk_sbuf, src=rows.part_of(matrix_hbm, start, end))
            maximum_sbuf = nl.ndarray((rows.rows, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=maximum_sbuf, op=nl.maximum, data=chunk_sbuf, axis=1)
            if start == 0:
                largest_sbuf = maximum_sbuf
            else:
                nisa.tensor_tensor(dst=largest_sbuf, data1=largest_sbuf, data2=maximum_sbuf, op=nl.maximum)
        for summand_sbuf in summands:
            nisa.tensor_tensor(dst=largest_sbuf, data1=largest_sbuf, data2=summand_sbuf, op=nl.add)
        rows.stored(result_hbm, largest_sbuf)

    flagged.recompute(compute_tiles, flagged.exchanged_count(), stores)
    return result_hbm


def check(cut: Cut, flags: Array, most: int = 3) -> None:
    """Results, and equally many trips on all cores: as few as the core with the most flagged rows needs."""
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 1000, (cut.rows, cut.columns)).astype(np.float32)
    offsets = 1000.0 * np.arange(1, cut.rows + 1, dtype=np.float32)
    TILES.clear()
    result = launch(maxima_of_flagged, cut, matrix, offsets, flags.astype(np.float32), most=most)
    np.testing.assert_array_equal(result, np.where(flags, matrix.max(axis=1) + 2 * offsets, FIRST))
    of_cores = [int(flags[core :: cut.cores].sum()) for core in range(cut.cores)]
    trips = most_trips(max(of_cores))
    assert sorted(TILES) == sorted([*range(cut.cores)] * trips * TILES_PER_TRIP)


CUTS = [
    Cut(1, 3, 1, 3),
    Cut(2, 3, 1, 2, cores=2),
    Cut(3, 3, 2, 2, cores=2),  # batches of unlike sizes on the two cores
    Cut(300, 5, 128, 5),
    Cut(300, 5, 100, 2, cores=2),
    Cut(131, 5, 3, 4, cores=2),
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("every", [1, 2, 3, 7, 1000], ids=lambda every: f"each {every}th")
@pytest.mark.parametrize("first", [0, 1])
def test_flagged_rows_are_computed_again(cut: Cut, every: int, first: int) -> None:
    """Each second row is those of one of two cores alone."""
    flags = np.zeros(cut.rows, np.bool_)
    flags[first::every] = True
    check(cut, flags, most=16)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_without_flags_there_is_no_iteration(cut: Cut) -> None:
    check(cut, np.zeros(cut.rows, np.bool_))
    assert TILES == []


@pytest.mark.parametrize("rows", [255, 256, 257])
def test_an_iteration_takes_two_tiles_of_128_rows(rows: int) -> None:
    flags = np.arange(300) < rows
    check(Cut(300, 2, 64, 2), flags)
    assert len(TILES) == {255: 2, 256: 2, 257: 4}[rows]


@given(cuts(most_rows=30, most_columns=6), st.data())
def test_whatever_is_flagged(cut: Cut, data: st.DataObject) -> None:
    assume(cut.rows >= cut.cores)
    flags = data.draw(st.lists(st.booleans(), min_size=cut.rows, max_size=cut.rows))
    check(cut, np.array(flags), most=data.draw(st.integers(1, 16)))
