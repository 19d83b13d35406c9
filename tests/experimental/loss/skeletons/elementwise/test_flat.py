# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of a flat stream: every element once, whatever the number of cores."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.skeletons.elementwise.tiles import flat_tiles, tiles_of_core


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
