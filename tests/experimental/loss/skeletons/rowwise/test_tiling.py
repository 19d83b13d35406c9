# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rows are cut into tiles that cover each of them once, whatever the number of cores; the tiling that is chosen fits,
and its modelled times hold.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.base.statements import work_stated_for
from nkilib.experimental.loss import choose_rowwise_tiling, triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.rowwise.triplet_distances import backward_tiles
from nkilib.experimental.loss.skeletons.rowwise.stream import GROUP_ROWS, GROUP_TILES, groups_of_core, row_tiles
from nkilib.experimental.loss.skeletons.rowwise.tiling import partitions_of_tile
from nkilib.simulator import profile, spec


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(7, 1), (5000, 3), (100, 511), (100, 513), (300, 8193), (3, 20000)])
def test_what_is_chosen_is_accepted(shape: tuple[int, int], dtype: str, swap: bool) -> None:
    """A launch that did not fit would be refused."""
    x, numbers = spec(shape, dtype), spec((3 if swap else 2, shape[0]), "float32")
    assert profile(triplet_margin_loss_forward[2], x, x, x, swap=swap).time_us > 0.0
    one = spec((1,), "float32")
    assert profile(triplet_margin_loss_backward[2], x, x, x, numbers, one, swap=swap).time_us > 0.0


def test_short_rows_are_taken_together() -> None:
    assert choose_rowwise_tiling(1_000_000, 64, 6, 2).each > 30
    assert choose_rowwise_tiling(200, 64, 6, 2).each == 1
    long = choose_rowwise_tiling(4096, 32128, 6, 2)
    assert long.each == 1 and long.columns % 512 == 0 and 32128 / long.columns > 5
    assert choose_rowwise_tiling(4096, 32128, 24, backward_tiles(True)).columns >= 512


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


@pytest.mark.parametrize(("reduction", "stored"), [("none", 2), ("sum", 0)])
def test_the_work_of_a_forward_is_stated(reduction: str, stored: int) -> None:
    """Three matrices cross HBM, and a loss of each row where it is stored."""
    work = work_stated_for(inspect.unwrap(cast(Any, triplet_margin_loss_forward).func))
    assert work is not None
    x = spec((40, 1000), "bfloat16")
    arguments = dict.fromkeys(("anchor_hbm", "positive_hbm", "negative_hbm"), x)
    result = work(**arguments, dtype=None, reduction=reduction, p=2.0, swap=False)
    assert result.hbm_bytes == 3 * 40 * 1000 * 2 + 40 * stored
