# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of a matrix: every element once, whole rows or a part of one a partition, whatever the number of cores."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.skeletons.elementwise.tiles import matrix_tiles
from nkilib.experimental.loss.skeletons.elementwise.tiling import num_matrix_tiles


@given(rows=st.integers(1, 2000), row_columns=st.integers(1, 3000), columns=st.integers(128, 1500))
def test_every_element_is_in_one_tile(rows: int, row_columns: int, columns: int) -> None:
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
