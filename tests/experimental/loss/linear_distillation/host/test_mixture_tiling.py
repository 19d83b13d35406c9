# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Blocks of positions of a divergence from a mixture: they cover all positions, fit the memory and are the fastest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MEMORY_LIMIT,
    BlockTimes,
    MixtureBlocks,
    PairWork,
    blocks_us,
    keeps_scores,
    kept_tiles,
    looped_blocks,
    most_kept_bytes,
    tile_bytes,
    unrolled_blocks,
)

TIMES = PairWork(
    products=24, loaded_bytes=6144, vector_passes=3, scalar_passes=2, columns=76_032, class_block=512
).times()


def compositions(total: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut so many tiles into blocks of at most ``most``."""
    if total == 0:
        yield ()
    for first in range(1, min(total, most) + 1):
        for rest in compositions(total - first, most):
            yield (first, *rest)


def fits(blocks: tuple[int, ...], kept: int) -> bool:
    return sum(MixtureBlocks(blocks).slots) <= kept


@given(st.integers(1, 90), st.integers(1, 20), st.integers(2, 30))
def test_blocks_cover_the_positions_and_fit(tiles: int, most: int, kept: int) -> None:
    blocks = unrolled_blocks(tiles, most, kept, TIMES)
    assert sum(blocks.leading) == tiles
    assert min(blocks.leading) >= 1
    assert blocks.largest <= most
    assert fits(blocks.leading, kept)
    assert (blocks.pairs, blocks.trailing) == (0, ())


@given(st.integers(1, 400), st.integers(1, 12), st.integers(2, 30))
def test_blocks_of_a_loop_cover_the_positions_and_fit(tiles: int, most: int, kept: int) -> None:
    blocks = looped_blocks(tiles, most, kept, TIMES)
    size = min(most, kept // 2)
    if blocks is None:
        assert tiles < 7 * size
        return
    assert sum(blocks.leading) + 2 * blocks.pairs * blocks.looped + sum(blocks.trailing) == tiles
    # An even number of blocks lies between the first one and those behind the loop: the scratches alternate throughout.
    assert blocks.leading == (size,)
    assert blocks.looped == size
    assert blocks.trailing
    assert blocks.largest <= most
    assert sum(blocks.slots) <= kept


@pytest.mark.parametrize(
    "times", [TIMES, TIMES._replace(product=300.0), TIMES._replace(load=5000.0), TIMES._replace(bare=3000.0)]
)
@pytest.mark.parametrize(("tiles", "most", "kept"), [(9, 9, 30), (9, 4, 30), (9, 9, 6), (10, 3, 4), (7, 7, 2)])
def test_they_are_the_fastest_of_all(times: BlockTimes, tiles: int, most: int, kept: int) -> None:
    result = unrolled_blocks(tiles, most, kept, times).leading
    every = [blocks for blocks in compositions(tiles, most) if fits(blocks, kept)]
    assert blocks_us(result, times) == pytest.approx(min(blocks_us(blocks, times) for blocks in every))


def test_the_last_block_is_small_where_products_hide_the_second_visit() -> None:
    blocks = unrolled_blocks(32, 10, 40, TIMES._replace(product=1521.0)).leading
    assert blocks[-1] == min(blocks) < max(blocks)


def test_bytes() -> None:
    vocab = 151_936
    assert tile_bytes(vocab) == 1024 * vocab
    assert kept_tiles(vocab, MEMORY_LIMIT) == 13
    assert most_kept_bytes(100_000, vocab) == 13 * 1024 * vocab <= MEMORY_LIMIT
    assert most_kept_bytes(300, vocab) == 3 * 1024 * vocab
    assert most_kept_bytes(300, vocab, 0) == 0


@pytest.mark.parametrize(
    ("positions", "tiles", "keeps"), [(128, 1, True), (129, 1, False), (129, 2, True), (5000, 2, True), (1, 0, False)]
)
def test_two_blocks_of_128_positions_or_the_only_one_must_fit(positions: int, tiles: int, keeps: bool) -> None:
    limit = (tiles + 1) * tile_bytes(700) - 1
    assert keeps_scores(positions, 700, limit) is keeps
    assert MixtureBlocks((2, 5, 3)).scratch_bytes(700) == 8 * tile_bytes(700)
