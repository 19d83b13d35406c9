# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows are cut into tiles that cover each of them once, whatever the number of cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.skeletons.rowwise.geometry import GROUP_ROWS, GROUP_TILES, groups_of_core, row_tiles
from nkilib.experimental.loss.skeletons.rowwise.host.tiling import partitions_of_tile


@given(rows=st.integers(1, 5000), each=st.integers(1, 40))
def test_every_row_is_in_one_tile(rows: int, each: int) -> None:
    tiles = row_tiles(rows, partitions_of_tile(rows), each)
    assert [tile.number for tile in tiles] == list(range(len(tiles)))
    ends = [0, *(tile.end for tile in tiles)]
    assert [tile.first for tile in tiles] == ends[:-1] and ends[-1] == rows
    assert all(1 <= tile.each <= each and 1 <= tile.partitions <= 128 for tile in tiles)


@given(rows=st.integers(1, 9000), each=st.integers(1, 300), cores=st.sampled_from([1, 2]))
def test_groups_have_tiles_of_one_size_a_core_apart(rows: int, each: int, cores: int) -> None:
    tiles = row_tiles(rows, partitions_of_tile(rows), each)
    results = []
    for core in range(cores):
        groups = groups_of_core(tiles, cores, core)
        assert [group.start for group in groups] == [
            sum(len(g.tiles) for g in groups[:at]) for at in range(len(groups))
        ]
        for group in groups:
            assert len({(tile.partitions, tile.each) for tile in group.tiles}) == 1
            assert len(group.tiles) <= GROUP_TILES and (group.rows <= GROUP_ROWS or len(group.tiles) == 1)
            numbers = [tile.number for tile in group.tiles]
            assert numbers == list(range(numbers[0], numbers[-1] + 1, cores))
            results += numbers
    assert sorted(results) == [tile.number for tile in tiles]


@pytest.mark.parametrize("rows", [1, 2, 100, 255, 4096])
def test_few_rows_are_shared_by_two_cores(rows: int) -> None:
    tiles = row_tiles(rows, partitions_of_tile(rows), 1)
    assert len(tiles) >= min(rows, 2)
