# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Blocks of positions of a divergence from a mixture, whose scores are kept between two visits of the classes.

The second visit of a block has no products and runs during the first visit of the next one: then Scalar computes four
more functions for each pair of tiles. The second visit of the last block has nothing to overlap with. So blocks get
smaller towards the end: the products of each block take about as long as the second visit of the previous block, and
the last block is small. But each block reads W of both models once more.

The scores of two blocks are kept at a time, in two scratch tensors that blocks use alternately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.sizes import WINDOW
from nkilib.experimental.loss.linear_distillation.host.memory import PAIR_BYTES, tile_bytes
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import GROUP_COLUMNS

# Blocks are chosen one by one for up to this many tiles of positions; further blocks have the largest size.
_TILES_CHOSEN = 48

# Rates of trn2 as modelled (docs/explanation/performance_model.md), and the fixed time of a block of positions.
_COLUMNS_PER_US = 2400.0
_SCALAR_COLUMNS_PER_US, _VECTOR_COLUMNS_PER_US, _BETWEEN, _TABLE_US = 1200.0, 960.0, 164.0, 1.28
_LOADED_BYTES_PER_US, _KEPT_BYTES_PER_US = 331_000.0, 365_000.0
_BLOCK_US = 40.0
_NEVER = float("inf")
# A loop of fewer iterations costs more than it saves.
_FEWEST_PAIRS = 2


class MixtureBlocks(NamedTuple):
    """The sizes of the blocks of positions, in tiles of 128.

    Attributes:
        leading: the blocks before a loop of the device; all of them without a loop.
        looped: tiles of a block of the loop; 0 without one.
        pairs: the number of iterations of the loop, of two blocks each.
        trailing: the blocks behind the loop.
    """

    leading: tuple[int, ...]
    looped: int = 0
    pairs: int = 0
    trailing: tuple[int, ...] = ()

    @property
    def copies(self) -> tuple[int, ...]:
        """The blocks that the program has a copy of."""
        return (*self.leading, *(self.looped,) * (2 if self.pairs else 0), *self.trailing)

    @property
    def largest(self) -> int:
        """The number of tiles of the largest block."""
        return max(self.copies)

    @property
    def slots(self) -> tuple[int, ...]:
        """The number of tiles of each scratch tensor: blocks use two alternately, a single block has one."""
        blocks = self.copies
        return tuple(max(blocks[slot::2]) for slot in range(min(2, len(blocks))))

    def scratch_bytes(self, vocab_size: int) -> int:
        """Return the bytes of HBM that the kept scores of all cores take."""
        return tile_bytes(vocab_size) * sum(self.slots)


class BlockTimes(NamedTuple):
    """The times that the work on a tile of positions and all classes of a core takes, in us.

    Attributes:
        product: the time of Tensor.
        first_scalar, first_vector: the times of Scalar and Vector in the first visit.
        second_scalar, second_vector: the times of Scalar and Vector in the second visit.
        bare: the time of the second visit with nothing beside it.
        load: the time to load W of both models, for a block of any size.
        kept: the time to store the scores to HBM, or to load them.
    """

    product: float
    first_scalar: float
    first_vector: float
    second_scalar: float
    second_vector: float
    bare: float
    load: float
    kept: float

    def beside(self, tiles: int, before: int) -> float:
        """Return the time of the first visit of a block during the second visit of the previous one, in us.

        Args:
            tiles: tiles of the block.
            before: tiles of the previous block.
        """
        return _BLOCK_US + max(
            tiles * self.product,
            tiles * self.first_scalar + before * self.second_scalar,
            tiles * self.first_vector + before * self.second_vector,
            self.load + (tiles + before) * self.kept,
        )


@dataclass(frozen=True)
class PairWork:
    """The amounts of work from which the times of a tile of positions are estimated.

    Attributes:
        products: the passes of Tensor over a column of a pair of tiles of logits.
        loaded_bytes: the bytes of a class in the W of both models.
        vector_passes, scalar_passes: the passes of Vector and Scalar over a pair of tiles in the first visit, which
            computes the scores.
        columns: the number of classes of the core with the most.
        class_block: the number of classes that are processed at a time.
    """

    products: int
    loaded_bytes: int
    vector_passes: int
    scalar_passes: int
    columns: int
    class_block: int

    def times(self) -> BlockTimes:
        """Return the times of a tile of positions."""
        columns = self.columns
        between = div_ceil(columns, self.class_block) * _BETWEEN
        # Without products beside it the second visit takes tiles of several blocks of classes.
        of_tile = min(GROUP_COLUMNS, WINDOW * self.class_block)
        wide = div_ceil(columns, of_tile) * (4 * _BETWEEN / _SCALAR_COLUMNS_PER_US + 2 * _TABLE_US)
        tables = 2 * _TABLE_US * columns / GROUP_COLUMNS
        rate = _KEPT_BYTES_PER_US * min(1.0, 0.6 + 0.2 * self.class_block / PARTITIONS)
        scalar, vector = (columns + between) / _SCALAR_COLUMNS_PER_US, (columns + between) / _VECTOR_COLUMNS_PER_US
        return BlockTimes(
            self.products * columns / _COLUMNS_PER_US,
            self.scalar_passes * scalar,
            self.vector_passes * vector,
            4 * scalar + tables,
            2 * vector,
            4 * columns / _SCALAR_COLUMNS_PER_US + wide,
            columns * self.loaded_bytes / _LOADED_BYTES_PER_US,
            columns * PAIR_BYTES * PARTITIONS / rate,
        )


def unrolled_blocks(tiles: int, most: int, kept: int, times: BlockTimes) -> MixtureBlocks:
    """Return the blocks that are modelled to be fastest, without a loop.

    Args:
        tiles: the number of tiles of all positions.
        most: the largest number of tiles of a block.
        kept: the number of tiles whose scores fit the memory limit, at least 2, or 1 for one tile.
        times: the times of a tile.
    """
    candidates = [_unrolled(tiles, slots, times) for slots in _slots(tiles, most, kept)]
    return MixtureBlocks(min(candidates, key=lambda blocks: blocks_us(blocks, times)))


def looped_blocks(tiles: int, most: int, kept: int, times: BlockTimes) -> MixtureBlocks | None:
    """Return the blocks with a loop of the device over pairs of them; None if there are too few tiles for it.

    Args:
        tiles, most, kept, times: see :func:`unrolled_blocks`.
    """
    size = min(most, kept // 2)
    # One block before the loop, and some tiles behind it, which are divided into the fastest blocks.
    pairs = (tiles - 3 * size) // (2 * size) if size > 0 else 0
    if pairs < _FEWEST_PAIRS:
        return None
    left = tiles - size - 2 * pairs * size
    return MixtureBlocks((size,), size, pairs, _fastest(left, size, (size, size), times))


def blocks_us(blocks: Sequence[int], times: BlockTimes) -> float:
    """Return the estimated time of blocks, one after the other, in us."""
    befores = (0, *blocks[:-1])
    beside = sum(times.beside(size, before) for size, before in zip(blocks, befores, strict=True))
    return beside + blocks[-1] * times.bare


def _slots(tiles: int, most: int, kept: int) -> Iterator[tuple[int, int]]:
    """Yield the ways to split the memory: the most tiles of blocks in the first and in the second scratch tensor."""
    most = min(most, tiles)
    if tiles <= min(most, kept):
        yield tiles, max(0, min(most, kept - tiles))
    for first in range(div_ceil(kept, 2), kept):
        yield min(most, first), min(most, kept - first)
        if first >= most:
            return


def _unrolled(tiles: int, slots: tuple[int, int], times: BlockTimes) -> tuple[int, ...]:
    """Return all blocks: the fastest ones for up to 48 tiles, after blocks of the largest size for further tiles."""
    ahead, leading = max(0, tiles - _TILES_CHOSEN), list[int]()
    while ahead > 0:
        leading.append(min(slots[len(leading) % 2], ahead))
        ahead -= leading[-1]
    slot = len(leading) % 2
    before = leading[-1] if leading else 0
    return (*leading, *_fastest(min(tiles, _TILES_CHOSEN), before, (slots[slot], slots[1 - slot]), times))


class _Left(NamedTuple):
    """The tiles that are not divided into blocks yet.

    Attributes:
        tiles: the number of tiles.
        before: tiles of the block before them.
        slot: the scratch tensor of the next block, 0 or 1.
    """

    tiles: int
    before: int
    slot: int


class _Choice(NamedTuple):
    """The best choice of the next block.

    Attributes:
        us: the time with this choice.
        block: tiles of the next block; 0 for none.
    """

    us: float
    block: int


@lru_cache(maxsize=4096)
def _fastest(tiles: int, before: int, slots: tuple[int, int], times: BlockTimes) -> tuple[int, ...]:
    """Return the fastest division of the last ``tiles`` tiles of positions into blocks.

    Args:
        tiles: the number of tiles, at least 1.
        before: tiles of the block before them; 0 for none.
        slots: the most tiles of the first block, the third one and so on, and of the others.
        times: the times of a tile.
    """
    # Time and next block, by the tiles that are left, the tiles of the block before them, and the next block's slot.
    choices_by_state: dict[_Left, _Choice] = {}
    largest = max(*slots, before)
    beside = [[times.beside(size, last) for size in range(max(slots) + 1)] for last in range(largest + 1)]
    for last in range(largest + 1):
        for slot in range(2):
            choices_by_state[_Left(0, last, slot)] = _Choice(last * times.bare, 0)
    for left in range(1, tiles + 1):
        for slot in range(2):
            most = min(left, slots[slot])
            after = [
                _Choice(choices_by_state[_Left(left - size, size, 1 - slot)].us, size) for size in range(1, most + 1)
            ]
            for last in range(largest + 1):
                of_last = beside[last]
                choices = (_Choice(of_last[size] + rest_us, size) for rest_us, size in after)
                choices_by_state[_Left(left, last, slot)] = min(choices, default=_Choice(_NEVER, 0))
    blocks: list[int] = []
    left, last, slot = tiles, before, 0
    while left > 0:
        last = choices_by_state[_Left(left, last, slot)].block
        left, slot = left - last, 1 - slot
        blocks.append(last)
    return tuple(blocks)
