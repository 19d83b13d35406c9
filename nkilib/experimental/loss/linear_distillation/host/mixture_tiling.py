# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of a divergence from a mixture, which needs a second pass over the classes.

N positions, V classes; a *tile* is 128 positions, classes or features. *Scores* are the logits before scaling, or
tanh(logit / cap) under a cap; a *pair* is one tile of scores of each model. W is the output weight of a model.

The second pass recomputes the scores, or loads scores that the first pass kept. If they are recomputed
(:class:`MixtureSizes`), W of both models is read less often the more positions are on chip.

If they are kept (:class:`KeptSizes`), the float32 scores of both models stay in HBM from the first pass to the second
one, 8 V bytes for each position. Two blocks of positions are kept at a time, in two scratch tensors that blocks use
alternately. Scores are kept if the memory limit of the launch has room for two blocks of 128 positions, or for all
positions if there are fewer (:func:`keeps_scores`). :func:`choose_kept_tiling` chooses the tiling.

The second pass for a block has no products and runs during the first pass for the next one: then Scalar computes four
more functions for each pair. The second pass for the last block has nothing to overlap with. So blocks become smaller
towards the end (:class:`MixtureBlocks`): the products of each block take about as long as the second pass for the
previous block, and the last block is small. On the other hand, each further block reads W once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_instructions, limited_positions
from nkilib.experimental.loss.linear.block_schedule import POSITIONS_UNSPLIT, WINDOW, PositionSplit
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.tiling import CLASS_BLOCKS, POSITION_TILES_MAX
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import TEMPERATURE_NUMBERS, PairForwardSizes

# Columns of a group of tiles, of which Scalar computes softplus before the exponentials, and groups on chip.
GROUP_COLUMNS, GROUPS = 2048, 2
# float32 tiles of a pair: scores of both models, both logs.
TILES_OF_PAIR = 4
# Sums of a position, each with a window of blocks of classes, a total and the other core's total.
SUMS = 4
_SUM_NUMBERS = SUMS * (WINDOW + 3)
# Further numbers of a position where the scores are recomputed: per-row scalars, their operands, results; and where
# they are kept: the scalars of two blocks, and the operands of results.
_RECOMPUTED_NUMBERS, _KEPT_NUMBERS = 40, 2 * 6 + 24
# Scales of a position: of each model, and minus the student's.
_SCALES = 3
# Bytes of a partition for small tiles where the scores are recomputed.
_SMALL_BYTES = 3072
# Instructions of the second pass for a pair of tiles, besides its products if they are recomputed; and further ones
# for a block of classes of kept scores.
_RECOMPUTED_PAIR_INSTRUCTIONS, _KEPT_PAIR_INSTRUCTIONS, _KEPT_BLOCK_INSTRUCTIONS = 9, 9, 4

# Bytes of HBM that kept scores take at most by default.
MEMORY_LIMIT = 2 * 2**30
# Bytes of a pair of scores.
PAIR_BYTES = 8
# Blocks of kept scores are chosen one by one for up to this many tiles of positions; further blocks have the largest
# size. A loop of fewer iterations, of two blocks each, costs more than it saves.
_TILES_CHOSEN, _FEWEST_PAIRS = 48, 2
_NEVER = float("inf")

# Rates of trn2 as modelled (docs/explanation/performance_model.md): Tensor takes a column per cycle, DMA transposes W
# at 90%, and moves kept scores faster; a pass of Vector and of Scalar over a tile takes a column per cycle and the gap
# between two instructions, in columns; the load of a table.
_COLUMNS_PER_US = 2400.0
_WEIGHT_BYTES_PER_US, _KEPT_BYTES_PER_US = 331_000.0, 365_000.0
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _GAP_COLUMNS, _TABLE_US = 960.0, 1200.0, 164.0, 1.28
# A loop's start and end; the edge of an iteration; the fixed time of a block of classes, and of a block of positions
# whose scores are recomputed or kept.
_LOOP_US, _ITERATION_US, _STEP_US, _RECOMPUTED_BLOCK_US, _KEPT_BLOCK_US = 25.0, 5.0, 0.1, 15.0, 40.0


def group_tiles(tiles: int, class_block: int) -> int:
    """Return the number of tiles of positions that Scalar processes as a group, with one load of each activation table.

    Args:
        tiles: the number of tiles of a block of positions.
        class_block: the number of classes of a block.
    """
    return max(1, min(tiles, GROUP_COLUMNS // class_block))


def terms_bytes(tiles: int, class_block: int) -> int:
    """Return the bytes of a partition for the scores of both models and the softplus terms of all groups on chip.

    Args:
        tiles: the number of tiles of a block of positions.
        class_block: the number of classes of a block.
    """
    return TILES_OF_PAIR * GROUPS * group_tiles(tiles, class_block) * class_block * FLOAT32_BYTES


@dataclass(frozen=True)
class MixtureSizes:
    """The sizes of a second pass that recomputes the scores, from which its tiling is chosen.

    Attributes:
        forward: the sizes of both models and the options, as for a first pass.
    """

    forward: PairForwardSizes

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return self.forward.position_tiles

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of ``tiles`` tiles of positions and ``class_block``
        classes.
        """
        forward = self.forward
        operands = (forward.student.chip_bytes + forward.teacher.chip_bytes) * (tiles * PARTITIONS + 2 * class_block)
        biases = 2 * sum(model.bias for model in forward.needs.models) * class_block * FLOAT32_BYTES
        of_scales = forward.needs.temperatures * (TEMPERATURE_NUMBERS + _SCALES)
        of_tiles = tiles * (_SUM_NUMBERS + _RECOMPUTED_NUMBERS + of_scales) * FLOAT32_BYTES
        staging = forward.staging_bytes
        return operands + terms_bytes(tiles, class_block) + biases + of_tiles + staging + _SMALL_BYTES

    def position_plan(self, tiling: LinearTiling) -> PositionSplit:
        """Return blocks of positions of about equal size, as a device loop if the unrolled program would be too
        long.
        """
        forward = self.forward
        count = div_ceil(self.position_tiles, min(tiling.position_block // PARTITIONS, self.position_tiles))
        size = div_ceil(self.position_tiles, count) * PARTITIONS
        whole, remainder = divmod(forward.num_positions, size)
        unrolled = PositionSplit(size, whole, remainder, False)
        steps = div_ceil(forward.class_tiles, tiling.class_block // PARTITIONS)
        is_long = self.most_bodies(unrolled) < steps or forward.num_positions > limited_positions(POSITIONS_UNSPLIT)
        return unrolled._replace(is_loop=whole > 1 and is_long)

    def most_bodies(self, plan: PositionSplit) -> int:
        """Return the largest number of blocks of classes in the program of a core for each block of positions."""
        forward = self.forward
        of_pair = forward.student.depth + forward.teacher.depth + _RECOMPUTED_PAIR_INSTRUCTIONS + 2 * self._masked_caps
        total = int(limited_instructions(forward.most_instructions) * forward.program_share)
        return max(2 * WINDOW, total // plan.copies // (plan.tiles * of_pair + forward.block_instructions))

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the estimated time of the launch in us, for blocks of ``tiles`` tiles of positions and ``class_block``
        classes.
        """
        forward, plan = self.forward, self.position_plan(LinearTiling(tiles * PARTITIONS, class_block))
        needs = forward.needs
        steps, columns = div_ceil(forward.class_tiles, class_block // PARTITIONS), forward.class_tiles * PARTITIONS
        product = forward.products * columns / _COLUMNS_PER_US
        caps = sum(model.softcap for model in needs.models)
        vector = (4 + self._masked_caps) * (columns + steps * _GAP_COLUMNS) / _VECTOR_COLUMNS_PER_US
        scalar = (4 + caps) * (columns + steps * _GAP_COLUMNS) / _SCALAR_COLUMNS_PER_US
        scalar += (2 + (caps > 0)) * _TABLE_US * steps / group_tiles(plan.tiles, class_block)
        load = columns * forward.loaded_bytes / _WEIGHT_BYTES_PER_US
        block_us = max(plan.tiles * max(product, vector, scalar), load) + steps * _STEP_US
        block_us += forward.loaded_bytes * PARTITIONS / _WEIGHT_BYTES_PER_US + _RECOMPUTED_BLOCK_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            block_us += _LOOP_US + _ITERATION_US * steps / (bodies - WINDOW)
        return plan.blocks * block_us + (_LOOP_US if plan.is_loop else 0.0)

    @property
    def _masked_caps(self) -> int:
        # Where a bias may mask classes, the scores of masked classes must be replaced after tanh.
        return sum(model.softcap and model.bias for model in self.forward.needs.models)


def tile_bytes(vocab_size: int) -> int:
    """Return the bytes of the kept scores of both models for 128 positions, over all cores."""
    return PAIR_BYTES * PARTITIONS * vocab_size


def kept_tiles(vocab_size: int, memory_limit: int) -> int:
    """Return the number of tiles of positions whose scores fit ``memory_limit`` bytes."""
    return memory_limit // tile_bytes(vocab_size)


def keeps_scores(num_positions: int, vocab_size: int, memory_limit: int) -> bool:
    """Return whether scores are kept: whether two blocks of 128 positions fit ``memory_limit``, or the only block."""
    return kept_tiles(vocab_size, memory_limit) >= min(2, div_ceil(num_positions, PARTITIONS))


def most_kept_bytes(num_positions: int, vocab_size: int, memory_limit: int | None = None) -> int:
    """Return the largest number of bytes of kept scores, of whole tiles of positions; 0 if nothing is kept.

    Args:
        num_positions: N.
        vocab_size: V.
        memory_limit: the limit of the launch; None for the default.
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    if not keeps_scores(num_positions, vocab_size, limit):
        return 0
    tiles = min(kept_tiles(vocab_size, limit), div_ceil(num_positions, PARTITIONS))
    return tiles * tile_bytes(vocab_size)


class MixtureBlocks(NamedTuple):
    """The sizes of the blocks of positions, in tiles of 128.

    Attributes:
        leading: the blocks before a device loop; all of them without a loop.
        looped: the number of tiles of a block in the loop; 0 without a loop.
        pairs: the number of iterations of the loop, of two blocks each.
        trailing: the blocks after the loop.
    """

    leading: tuple[int, ...]
    looped: int = 0
    pairs: int = 0
    trailing: tuple[int, ...] = ()

    @property
    def copies(self) -> tuple[int, ...]:
        """The sizes of the blocks whose code the program contains, with the two blocks of an iteration."""
        return (*self.leading, *(self.looped,) * (2 if self.pairs else 0), *self.trailing)

    @property
    def largest(self) -> int:
        """The number of tiles of the largest block."""
        return max(self.copies)

    @property
    def slots(self) -> tuple[int, ...]:
        """The number of tiles of each scratch tensor for kept scores.

        There are two, which blocks use alternately, or one for a single block.
        """
        blocks = self.copies
        return tuple(max(blocks[slot::2]) for slot in range(min(2, len(blocks))))

    def scratch_bytes(self, vocab_size: int) -> int:
        """Return the bytes of HBM that the kept scores of all cores take."""
        return tile_bytes(vocab_size) * sum(self.slots)


class BlockTimes(NamedTuple):
    """The estimated times of the work on one tile of positions and all classes of a core, in us.

    Attributes:
        product: the time of Tensor.
        first_scalar, first_vector: the times of Scalar and Vector in the first pass.
        second_scalar, second_vector: the times of Scalar and Vector in the second pass.
        bare: the time of the second pass when no first pass runs at the same time.
        load: the time to load W of both models once, whatever the number of tiles.
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
        """Return the time of the first pass for a block during the second pass for the previous one, in us.

        Args:
            tiles: the number of tiles of the block.
            before: the number of tiles of the previous block.
        """
        return _KEPT_BLOCK_US + max(
            tiles * self.product,
            tiles * self.first_scalar + before * self.second_scalar,
            tiles * self.first_vector + before * self.second_vector,
            self.load + (tiles + before) * self.kept,
        )


@dataclass(frozen=True)
class PairWork:
    """The amounts of work from which the times of a tile of positions are estimated.

    Attributes:
        products: the number of passes of Tensor over a column of a pair.
        loaded_bytes: the bytes of a class in the W of both models.
        vector_passes, scalar_passes: the number of passes of Vector and Scalar over a pair in the first pass, which
            computes the scores.
        columns: the number of classes of the core with the most classes.
        class_block: the number of classes that are processed at a time.
    """

    products: int
    loaded_bytes: int
    vector_passes: int
    scalar_passes: int
    columns: int
    class_block: int

    def times(self) -> BlockTimes:
        """Return the estimated times of this work for one tile of positions."""
        columns = self.columns
        between = div_ceil(columns, self.class_block) * _GAP_COLUMNS
        # Without products beside it the second pass takes tiles of several blocks of classes.
        of_tile = min(GROUP_COLUMNS, WINDOW * self.class_block)
        wide = div_ceil(columns, of_tile) * (4 * _GAP_COLUMNS / _SCALAR_COLUMNS_PER_US + 2 * _TABLE_US)
        tables = 2 * _TABLE_US * columns / GROUP_COLUMNS
        rate = _KEPT_BYTES_PER_US * min(1.0, 0.6 + 0.2 * self.class_block / PARTITIONS)
        scalar = (columns + between) / _SCALAR_COLUMNS_PER_US
        vector = (columns + between) / _VECTOR_COLUMNS_PER_US
        return BlockTimes(
            self.products * columns / _COLUMNS_PER_US,
            self.scalar_passes * scalar,
            self.vector_passes * vector,
            4 * scalar + tables,
            2 * vector,
            4 * columns / _SCALAR_COLUMNS_PER_US + wide,
            columns * self.loaded_bytes / _WEIGHT_BYTES_PER_US,
            columns * PAIR_BYTES * PARTITIONS / rate,
        )


def blocks_us(blocks: Sequence[int], times: BlockTimes) -> float:
    """Return the estimated time of blocks of positions, one after the other, in us.

    Args:
        blocks: the number of tiles of each block.
        times: the times of a tile.
    """
    befores = (0, *blocks[:-1])
    beside = sum(times.beside(size, before) for size, before in zip(blocks, befores, strict=True))
    return beside + blocks[-1] * times.bare


def _slots(tiles: int, most: int, kept: int) -> Iterator[tuple[int, int]]:
    """Yield the ways to split the memory for kept scores between the two scratch tensors, as numbers of tiles of each.

    Args:
        tiles: the number of tiles of all positions.
        most: the largest number of tiles of a block.
        kept: the number of tiles that fit the memory.
    """
    most = min(most, tiles)
    if tiles <= min(most, kept):
        yield tiles, max(0, min(most, kept - tiles))
    for first in range(div_ceil(kept, 2), kept):
        yield min(most, first), min(most, kept - first)
        if first >= most:
            return


class _Left(NamedTuple):
    """The tiles of positions that are still to be divided into blocks.

    Attributes:
        tiles: the number of tiles.
        before: the number of tiles of the block before them.
        slot: the scratch tensor of the next block, 0 or 1.
    """

    tiles: int
    before: int
    slot: int


class _Choice(NamedTuple):
    """The best choice of the next block.

    Attributes:
        us: the time of all remaining blocks with this choice, in us.
        block: the number of tiles of the next block; 0 if no tiles remain.
    """

    us: float
    block: int


@lru_cache(maxsize=4096)
def _fastest(tiles: int, before: int, slots: tuple[int, int], times: BlockTimes) -> tuple[int, ...]:
    """Return the fastest division of the last ``tiles`` tiles of positions into blocks.

    Args:
        tiles: the number of tiles, at least 1.
        before: the number of tiles of the block before them; 0 for none.
        slots: the largest number of tiles of a block, for the blocks 1, 3, ... and for the blocks 2, 4, ....
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


def _unrolled(tiles: int, slots: tuple[int, int], times: BlockTimes) -> tuple[int, ...]:
    """Return the numbers of tiles of all blocks, without a loop.

    The last 48 tiles are divided in the fastest way; the tiles before them are in blocks of the largest size. ``slots``
    are the largest numbers of tiles of a block for the blocks 1, 3, ... and for the blocks 2, 4, ....
    """
    ahead, leading = max(0, tiles - _TILES_CHOSEN), list[int]()
    while ahead > 0:
        leading.append(min(slots[len(leading) % 2], ahead))
        ahead -= leading[-1]
    slot = len(leading) % 2
    before = leading[-1] if leading else 0
    return (*leading, *_fastest(min(tiles, _TILES_CHOSEN), before, (slots[slot], slots[1 - slot]), times))


def unrolled_blocks(tiles: int, most: int, kept: int, times: BlockTimes) -> MixtureBlocks:
    """Return the blocks of positions that are fastest in the model, without a loop.

    Args:
        tiles: the number of tiles of all positions.
        most: the largest number of tiles of a block.
        kept: the number of tiles whose scores fit the memory limit, at least 2, or 1 for one tile.
        times: the times of a tile.
    """
    candidates = [_unrolled(tiles, slots, times) for slots in _slots(tiles, most, kept)]
    return MixtureBlocks(min(candidates, key=lambda blocks: blocks_us(blocks, times)))


def looped_blocks(tiles: int, most: int, kept: int, times: BlockTimes) -> MixtureBlocks | None:
    """Return the blocks with a device loop over two blocks at a time; None if there are too few tiles for a loop.

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


@dataclass(frozen=True)
class KeptSizes:
    """The sizes of a launch that keeps scores.

    Attributes:
        forward: the sizes of the first pass.
        memory_limit: the bytes of HBM for kept scores, for which :func:`keeps_scores` is True.
    """

    forward: PairForwardSizes
    memory_limit: int

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of at most ``tiles`` tiles of positions and ``class_block``
        classes.
        """
        of_scales = self.forward.needs.temperatures * 2 * _SCALES
        numbers = _SUM_NUMBERS + _KEPT_NUMBERS + of_scales
        second = terms_bytes(tiles, class_block) + tiles * numbers * FLOAT32_BYTES
        return self.forward.bytes_of(tiles, class_block) + second

    def blocks(self, tiling: LinearTiling) -> MixtureBlocks:
        """Return blocks of at most as many positions as the tiling has, in a device loop if the program would be too
        long.

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

        It is extrapolated to all positions from the blocks whose code the program contains.
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
        of_pair, of_block = self.forward.pair_instructions, self.forward.block_instructions + _KEPT_BLOCK_INSTRUCTIONS
        copies = blocks.copies
        # Each block has a second pass; the second pass of the last block runs alone.
        body = sum(copies) * (of_pair + _KEPT_PAIR_INSTRUCTIONS) + (len(copies) + 1) * of_block
        return limited_instructions(self.forward.most_instructions) // body


def _fitting(sizes: KeptSizes, sbuf_bytes: int) -> Iterator[LinearTiling]:
    """Yield, for each number of classes of a block, the tiling with the most positions that fits.

    Tilings with fewer positions are not needed, because blocks of positions may be smaller than the tiling allows.
    """
    most = min(sizes.forward.position_tiles, POSITION_TILES_MAX)
    for class_block in CLASS_BLOCKS:
        fits = (tiles for tiles in range(most, 0, -1) if sizes.bytes_of(tiles, class_block) <= sbuf_bytes)
        tiles = next(fits, 0)
        if tiles > 0:
            yield LinearTiling(tiles * PARTITIONS, class_block)


def choose_kept_tiling(sizes: KeptSizes, sbuf_bytes: int) -> LinearTiling:
    """Return the tiling that is modelled to be fastest among those that fit ``sbuf_bytes`` of a partition."""
    tilings = list(_fitting(sizes, sbuf_bytes)) or [LinearTiling(PARTITIONS, PARTITIONS)]
    return min(tilings, key=sizes.time_us)
