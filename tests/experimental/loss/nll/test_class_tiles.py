# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of few classes: each position in one, within what a partition takes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss.nll.class_tiles import PARTS_MAX, ClassTiling
from nkilib.experimental.loss.skeletons.indexed.positions import Shape
from nkilib.nki import nl


@settings(max_examples=50)
@given(
    rows=st.sampled_from([1, 2, 127, 300, 9000]),
    places=st.sampled_from([1, 6, 127, 128, 700, 20000]),
    classes=st.sampled_from([1, 21, 256]),
)
def test_every_position_is_in_one_tile(rows: int, places: int, classes: int) -> None:
    if rows * places > 2_000_000:
        rows = 3
    shape = Shape(rows, classes, places)
    tiling = ClassTiling.of(shape, nl.float32)
    tiles = tiling.tiles()
    assert len(tiles) == tiling.number_of_tiles
    counts = np.zeros(rows * places, np.int8)
    for tile in tiles:
        assert tile.partitions <= 128 and tile.positions <= tiling.positions
        unit, start = (places, 0) if tile.row is None else (1, tile.row * places)
        first = start + tile.flat.first * unit
        counts[first : first + tile.partitions * tile.positions] += 1
    assert (counts == 1).all()
    assert tiling.positions * tiling.classes * 4 <= 48 * 1024
    assert tiling.groups[0][0] == 0 and tiling.groups[-1][1] == classes


def test_many_tiles_share_sums() -> None:
    tiles = ClassTiling.of(Shape(3, 1, 2**28), nl.float32).tiles()
    assert len(tiles) > PARTS_MAX
    parts = [tile.part for tile in tiles]
    assert parts == sorted(parts) and parts[-1] < PARTS_MAX
    assert [tile.is_first for tile in tiles] == [a != b for a, b in zip(parts, [-1, *parts], strict=False)]
