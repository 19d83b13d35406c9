# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of a flat stream and of a matrix: every element once, of a matrix whole rows or a part of one a partition,
whatever the number of cores.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.skeletons.elementwise.stream import flat_tiles, matrix_tiles, tiles_of_core
from nkilib.experimental.loss.skeletons.elementwise.tiling import num_matrix_tiles


@given(elements=st.integers(1, 200_000), columns=st.integers(128, 700), cores=st.sampled_from([1, 2]))
def test_every_element_is_in_one_tile(elements: int, columns: int, cores: int) -> None:
    tiles = flat_tiles(elements, columns)
    assert [tile.number for tile in tiles] == list(range(len(tiles)))
    counts = np.zeros(elements, np.int8)
    for tile in tiles:
        assert 1 <= tile.rows <= 128 and 1 <= tile.columns <= max(columns, 127)
        counts[tile.first : tile.first + tile.rows * tile.columns] += 1
    assert (counts == 1).all()
    shares = [tiles_of_core(tiles, cores, core) for core in range(cores)]
    assert sorted(tile.number for share in shares for tile in share) == list(range(len(tiles)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(rows=st.integers(1, 2000), row_columns=st.integers(1, 3000), columns=st.integers(128, 1500))
def test_every_element_of_a_matrix_is_in_one_tile(rows: int, row_columns: int, columns: int) -> None:
    tiles = matrix_tiles(rows, row_columns, columns)
    assert [tile.number for tile in tiles] == list(range(num_matrix_tiles(rows, row_columns, columns)))
    counts = np.zeros((rows, row_columns), np.int8)
    for tile in tiles:
        assert 1 <= tile.rows <= 128 and 1 <= tile.columns <= columns
        assert tile.each == 1 or (tile.start, tile.end) == (0, row_columns)
        counts[tile.first : tile.first + tile.rows * tile.each, tile.start : tile.end] += 1
    assert (counts == 1).all()


@given(rows=st.integers(1, 2000), row_columns=st.integers(1, 3000))
def test_of_the_same_columns_the_first_tile_has_the_most_rows_and_the_others_follow(
    rows: int, row_columns: int
) -> None:
    """Each core loads a weight of columns with the first tile, and every later tile finds it."""
    tiles = matrix_tiles(rows, row_columns, 512)
    for cores, core in ((1, 0), (2, 0), (2, 1)):
        own = tiles[core::cores]
        starts = [tile.start for tile in own]
        assert starts == sorted(starts)
        for before, after in pairwise(own):
            if before.start == after.start:
                assert before.rows >= after.rows and before.each >= after.each
