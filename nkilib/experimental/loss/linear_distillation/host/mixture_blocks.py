"""Blocks of positions of a divergence from a mixture, whose scores are kept between two visits of the classes.

The second visit of a block has no products and runs beside the first visit of the next one: Scalar then takes four
functions more of each pair of tiles. That of the last block has nothing to run beside. So blocks get smaller towards
the end: each has about as many tiles as its products take time for the second visit of the block before it, and the
last one is small. But each block reads W of both models once more.

The scores of two blocks are kept at a time, in two scratches that the blocks take in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.sizes import TILE
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import GROUP_COLUMNS

# Bytes of HBM that kept scores take unless a launch says otherwise.
MEMORY_LIMIT = 2 * 2**30
# Bytes of a pair of scores.
PAIR_BYTES = 8
# Blocks are chosen one by one for up to so many tiles of positions; further ones have the largest size.
_TILES_CHOSEN = 48

# Rates of trn2 as modelled (docs/performance-model.md), and what a block of positions takes by itself.
_COLUMNS_PER_US = 2400.0
_SCALAR_COLUMNS_PER_US, _VECTOR_COLUMNS_PER_US, _BETWEEN, _TABLE_US = 1200.0, 960.0, 164.0, 1.28
_LOADED_BYTES_PER_US, _KEPT_BYTES_PER_US = 331_000.0, 300_000.0
_BLOCK_US = 40.0


class MixtureBlocks(NamedTuple):
    """How the positions are cut up, in tiles of 128.

    Attributes:
        leading: blocks before a loop of the device; all of them without a loop.
        looped: tiles of a block of the loop; 0 without one.
        pairs: iterations of the loop, of two blocks each.
        trailing: blocks behind the loop.
    """

    leading: tuple[int, ...]
    looped: int = 0
    pairs: int = 0
    trailing: tuple[int, ...] = ()

    @property
    def copies(self) -> tuple[int, ...]:
        """Blocks as they stand in the program."""
        return (*self.leading, *(self.looped,) * (2 if self.pairs else 0), *self.trailing)

    @property
    def largest(self) -> int:
        """Tiles of the largest block."""
        return max(self.copies)

    @property
    def slots(self) -> tuple[int, ...]:
        """Tiles of each scratch: blocks take two in turn, and one by itself has one."""
        blocks = self.copies
        return tuple(max(blocks[slot::2]) for slot in range(min(2, len(blocks))))

    def scratch_bytes(self, vocab_size: int) -> int:
        """Bytes of HBM that the kept scores of all cores take."""
        return PAIR_BYTES * TILE * sum(self.slots) * vocab_size


class BlockTimes(NamedTuple):
    """How long a tile of positions takes with all classes of a core, us.

    Attributes:
        product: Tensor.
        first_scalar, first_vector: Scalar and Vector in the first visit.
        second_scalar, second_vector: in the second one.
        bare: the second visit with nothing beside it.
        load: W of both models, of a block of any size.
        kept: the scores on their way to HBM, or back.
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
        """The first visit of a block, and the second one of so many tiles before it."""
        return _BLOCK_US + max(
            tiles * self.product,
            tiles * self.first_scalar + before * self.second_scalar,
            tiles * self.first_vector + before * self.second_vector,
            self.load + (tiles + before) * self.kept,
        )


@dataclass(frozen=True)
class PairWork:
    """What decides the times.

    Attributes:
        products: passes of Tensor over a column of a pair of tiles.
        loaded_bytes: of a class of both W.
        vector_passes, scalar_passes: of the first visit over a pair of tiles.
        columns: classes of the core that has most.
        class_block: classes that are worked on at a time.
    """

    products: int
    loaded_bytes: int
    vector_passes: int
    scalar_passes: int
    columns: int
    class_block: int

    def times(self) -> BlockTimes:
        """Of a tile of positions."""
        columns = self.columns
        between = div_ceil(columns, self.class_block) * _BETWEEN
        wide = div_ceil(columns, GROUP_COLUMNS) * _BETWEEN
        tables = 2 * _TABLE_US * columns / GROUP_COLUMNS
        scalar, vector = (columns + between) / _SCALAR_COLUMNS_PER_US, (columns + between) / _VECTOR_COLUMNS_PER_US
        return BlockTimes(
            self.products * columns / _COLUMNS_PER_US,
            self.scalar_passes * scalar,
            self.vector_passes * vector,
            4 * scalar + tables,
            2 * vector,
            4 * (columns + wide) / _SCALAR_COLUMNS_PER_US + tables,
            columns * self.loaded_bytes / _LOADED_BYTES_PER_US,
            columns * PAIR_BYTES * TILE / _KEPT_BYTES_PER_US,
        )


def keeps_scores(num_positions: int, vocab_size: int, memory_limit: int) -> bool:
    """Whether scores are kept: two blocks of 128 positions fit the memory, or the only one."""
    return kept_tiles(vocab_size, memory_limit) >= min(2, div_ceil(num_positions, TILE))


def kept_tiles(vocab_size: int, memory_limit: int) -> int:
    """Tiles of 128 positions whose scores fit the memory."""
    return memory_limit // (PAIR_BYTES * TILE * vocab_size)


def unrolled_blocks(tiles: int, most: int, kept: int, times: BlockTimes) -> MixtureBlocks:
    """The blocks that are modelled to be fastest, without a loop.

    Args:
        tiles: of all positions.
        most: tiles of a block.
        kept: tiles whose scores fit the memory, at least 2, or 1 for one tile.
        times: of a tile.
    """
    ahead = max(0, tiles - _TILES_CHOSEN)
    most, other = _slots(tiles, most, kept)
    leading = []
    while ahead > 0:
        leading.append(min(most if len(leading) % 2 == 0 else other, ahead))
        ahead -= leading[-1]
    before = leading[-1] if leading else 0
    chosen = _fastest(min(tiles, _TILES_CHOSEN), before, len(leading) % 2, most, other, times)
    return MixtureBlocks((*leading, *chosen))


def looped_blocks(tiles: int, most: int, kept: int, times: BlockTimes) -> MixtureBlocks | None:
    """The blocks with a loop of the device over pairs of them; None where there are too few tiles for it.

    Args:
        tiles, most, kept, times: as in :func:`unrolled_blocks`.
    """
    size = min(_slots(tiles, most, kept))
    # One block before the loop, and two to four behind it.
    pairs = (tiles - 3 * size) // (2 * size)
    if pairs < 2:
        return None
    left = tiles - size - 2 * pairs * size
    trailing = _fastest(left, size, 1, size, size, times)
    return MixtureBlocks((size,), size, pairs, trailing)


def _slots(tiles: int, most: int, kept: int) -> tuple[int, int]:
    """Tiles of the blocks that take the first scratch, and the second one, at most."""
    most = min(most, tiles)
    if kept >= tiles and most == tiles:
        return most, min(most, kept)
    first = min(most, div_ceil(kept, 2))
    return first, max(1, min(most, kept - first))


@lru_cache(maxsize=512)
def _fastest(
    tiles: int, before: int, slot: int, most: int, other: int, times: BlockTimes
) -> tuple[int, ...]:
    """The blocks of the last tiles.

    Args:
        tiles: how many.
        before: tiles of the block before them; 0 for none.
        slot: which scratch the first block takes.
        most, other: tiles of a block in the first scratch and in the second one, at most.
        times: of a tile.
    """
    found: dict[tuple[int, int, int], tuple[float, int]] = {}
    for left in range(tiles + 1):
        for turn in range(2):
            for last in range(max(most, other, before) + 1):
                found[left, last, turn] = min(
                    _choices(left, last, (most, other)[turn], turn, times, found), default=(last * times.bare, 0)
                )
    blocks: list[int] = []
    left, last, turn = tiles, before, slot
    while left > 0:
        blocks.append(found[left, last, turn][1])
        left, last, turn = left - blocks[-1], blocks[-1], 1 - turn
    return tuple(blocks)


def _choices(
    left: int,
    last: int,
    most: int,
    turn: int,
    times: BlockTimes,
    found: dict[tuple[int, int, int], tuple[float, int]],
) -> Iterator[tuple[float, int]]:
    """The time of what is left, and the next block, for each size of it."""
    for size in range(1, min(left, most) + 1):
        yield times.beside(size, last) + found[left - size, size, 1 - turn][0], size
