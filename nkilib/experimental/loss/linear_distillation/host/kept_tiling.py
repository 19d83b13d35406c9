# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of a forward whose scores are kept for a second visit: room in SBUF, blocks of positions, the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.plan_limits import limited_instructions, limited_positions
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.forward.plan import CLASS_BLOCKS, POSITION_TILES_MAX
from nkilib.experimental.loss.linear.shared.sizes import POSITIONS_UNSPLIT, WINDOW, LinearTiling
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import (
    PairForwardSizes,
)
from nkilib.experimental.loss.linear_distillation.host.memory import kept_tiles
from nkilib.experimental.loss.linear_distillation.host.mixture_blocks import (
    BlockTimes,
    MixtureBlocks,
    PairWork,
    blocks_us,
    looped_blocks,
    unrolled_blocks,
)
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import SUMS, terms_bytes

# Numbers of a position: its sums with a window, the scalars of two blocks, and the operands of results.
_NUMBERS = SUMS * (WINDOW + 3) + 2 * 6 + 24
# Instructions of the second visit for a pair of tiles, and for a block of classes.
_OF_PAIR, _OF_STEP = 9, 4
# A loop's start and end, and the edge of an iteration, us.
_LOOP_US, _ITERATION_US = 25.0, 5.0


@dataclass(frozen=True)
class KeptSizes:
    """The sizes of a launch that keeps scores.

    Attributes:
        forward: the sizes of the first visit.
        memory_limit: bytes of HBM for kept scores, at least those of two blocks of 128 positions or of the only one.
    """

    forward: PairForwardSizes
    memory_limit: int

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes of a partition of SBUF for blocks of at most ``tiles`` tiles of positions."""
        second = terms_bytes(tiles, class_block) + tiles * _NUMBERS * FLOAT32_BYTES
        return self.forward.bytes_of(tiles, class_block) + second

    def blocks(self, tiling: LinearTiling) -> MixtureBlocks:
        """Plan blocks of at most as many positions as the tiling has, in a loop if the program would be too long.

        Very many positions always have a loop, however few classes there are.
        """
        tiles, most = self.forward.position_tiles, tiling.position_block // PARTITIONS
        kept, times = kept_tiles(self.forward.vocab_size, self.memory_limit), self._times(tiling.class_block)
        unrolled = unrolled_blocks(tiles, most, kept, times)
        steps = div_ceil(self.forward.class_tiles, tiling.class_block // PARTITIONS)
        is_long = self._bodies_that_fit(unrolled, tiling.class_block) < min(steps, 2 * WINDOW)
        if not is_long and self.forward.num_positions <= limited_positions(POSITIONS_UNSPLIT):
            return unrolled
        return looped_blocks(tiles, most, kept, times) or unrolled

    def most_bodies(self, blocks: MixtureBlocks, class_block: int) -> int:
        """Return the largest number of blocks of classes in the program of a core for each block of positions."""
        return max(2 * WINDOW, self._bodies_that_fit(blocks, class_block))

    def time_us(self, tiling: LinearTiling) -> float:
        """Return the estimated time of the launch in us.

        It is extrapolated from the blocks that the program has a copy of.
        """
        blocks, steps = self.blocks(tiling), div_ceil(self.forward.class_tiles, tiling.class_block // PARTITIONS)
        time_us = blocks_us(blocks.copies, self._times(tiling.class_block))
        bodies = self.most_bodies(blocks, tiling.class_block)
        if steps > bodies:
            time_us += len(blocks.copies) * (_LOOP_US + _ITERATION_US * steps / (bodies - WINDOW))
        return time_us * self.forward.position_tiles / sum(blocks.copies)

    def _times(self, class_block: int) -> BlockTimes:
        forward = self.forward
        needs = forward.needs
        work = PairWork(
            forward.products,
            forward.loaded_bytes,
            needs.vector_passes,
            needs.scalar_passes,
            forward.class_tiles * PARTITIONS,
            class_block,
        )
        return work.times()

    def _bodies_that_fit(self, blocks: MixtureBlocks, class_block: int) -> int:
        of_pair, of_block = self.forward.pair_instructions, self.forward.block_instructions + _OF_STEP
        copies = blocks.copies
        # Each block has a second visit; the second visit of the last block runs alone.
        body = sum(copies) * (of_pair + _OF_PAIR) + (len(copies) + 1) * of_block
        return limited_instructions(self.forward.most_instructions) // body


def choose_kept_tiling(sizes: KeptSizes, sbuf_bytes: int) -> LinearTiling:
    """Return the tiling that is modelled to be fastest among those that fit ``sbuf_bytes`` of a partition."""
    tilings = list(_fitting(sizes, sbuf_bytes)) or [LinearTiling(PARTITIONS, PARTITIONS)]
    return min(tilings, key=sizes.time_us)


def _fitting(sizes: KeptSizes, sbuf_bytes: int) -> Iterator[LinearTiling]:
    """Yield, for each number of classes of a block, the tiling with the most positions that fits.

    Tilings with fewer positions are not needed: the blocks of positions may be smaller than the tiling says.
    """
    most = min(sizes.forward.position_tiles, POSITION_TILES_MAX)
    for class_block in CLASS_BLOCKS:
        fits = (tiles for tiles in range(most, 0, -1) if sizes.bytes_of(tiles, class_block) <= sbuf_bytes)
        tiles = next(fits, 0)
        if tiles > 0:
            yield LinearTiling(tiles * PARTITIONS, class_block)
