# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tilings of both fused linear losses, and the bytes of HBM that a backward takes: arithmetic only.

N positions, D features, V classes; X [N, D] and W are the operands; dX, dW and db are the gradients of X, W and the
bias. A *tile* is 128 positions, classes or features; a *block* is some tiles of positions or of classes.

For a forward, :func:`fastest_tiling` chooses, of the blocks of positions and classes that fit SBUF, those with the
least time. Each loss estimates this time from its sizes (:class:`TiledSizes`). :func:`shared_classes` tells how many of
the last classes both cores work on, so that they swap their statistics meanwhile.

For a backward, :func:`choose_backward_tiling` chooses from the sizes of a :class:`BackwardLaunch`. Tensor takes the
same time with every tiling. But DMA traffic and missing buffers delay Tensor, and the blocks with the least estimated
delay are chosen. :func:`backward_bytes` counts the bytes of HBM beyond inputs and outputs, and
:func:`split_backward_bytes` does so for very many positions, which are split into parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.experimental.loss.linear.backward.geometry import LEAST_ROOM, BackwardSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.block_schedule import PositionParts
from nkilib.experimental.loss.linear.launch import LinearTiling

# The largest number of blocks of classes that the cores share.
SHARED_BLOCKS_MAX = 4
# Possible numbers of classes of a block; the largest fills a bank of PSUM.
CLASS_BLOCKS = (512, 384, 256, 128)
# Beyond so many tiles of positions nothing is gained, and statistics take too much.
POSITION_TILES_MAX = 64
# Of a backward: the largest number of tiles of 128 classes of a block, and of blocks of positions.
_CLASS_TILES_MAX, _POSITION_BLOCKS_MAX = 16, 128
# Tiles of classes whose dW is accumulated at a time: for each such group X is loaded once.
_TILES_OF_GROUP = 6
# As modelled (docs/explanation/performance_model.md): the columns that Tensor takes and the bytes that the DMA engines
# of a core move in a microsecond, and the share of that rate that a transpose on the way reaches. float32 takes four
# passes of Tensor.
_COLUMNS_PER_US, _PASSES = 2400.0, {2: 1, 4: 4}
_BYTES_PER_US = {"trn2": 368_000.0, "trn3": 528_000.0}
_OF_TRANSPOSE = 0.9
# Bytes of an element of dX and of dW that are moved to add a float32 sum in HBM to another.
_ADDED_BYTES = 8.0
_LOGIT_BYTES = 4.0

# Fitted to profiles of some thirty launches on trn2: the share of Tensor's time by which transfers delay it, at a ratio
# of both times, and what too few buffers add.
_DELAY, _RATIO, _POWER = 0.8, 0.62, 1.4
_OF_ONE_INPUT_TILE, _OF_ONE_WEIGHT_STRIPE, _OF_FEW_RESULTS = 0.12, 0.10, 0.04
_OF_PIECES = {1: 0.06, 2: 0.012}
# One tile of X^T of each of two operand pairs is modelled to be enough from this share of the features on, 1 over it.
_PAIRS_IN_TURN = 3.0
# Where X^T and W^T stream, each half of a block has its own ratio, and delays from this one on. Rows of 512 elements of
# X and W take so much longer than their bytes. A loop alone loads nothing over the edges of its iterations, covers
# classes that are not the core's own, and clears dX before it and sums it up behind it, which takes as long as the
# products of so many classes.
_RATIO_OF_HALF, _OF_SHORT_ROWS, _OF_COVER, _CLASSES_OF_COVER = 0.8, 1.3, 0.02, 320.0
# The additional time of tiles of logits with fewer classes than that.
_WIDE_TILE, _OF_NARROW_TILES = 384, 0.04
# A group of one tile of classes waits for its X.
_OF_SHORT_GROUP = 0.03
# With about 8,192 features in 16 bits (not with 16,384), where X^T and X share memory, three blocks of positions and
# more are modelled to take 0.1 of the bound more than the traffic accounts for.
_OF_TURNS, _BLOCKS_IN_TURNS, _FEATURES_IN_TURNS = 0.05, 2, range(6145, 8193)
# In a fused forward-backward launch, whose program has a forward too, with more features and tiles of positions than
# that, longer blocks make the program too long.
_CLASS_TILES_OF_DEEP_PROGRAM, _FEATURES_OF_DEEP_PROGRAM, _TILES_OF_SHORT_PROGRAM = 6, 6144, 4
# Of two tilings that are nearly alike, the one of smaller blocks of classes leaves less of the last one unused.
_AS_GOOD = 0.002


class TiledSizes(Protocol):
    """The sizes of a forward for which :func:`fastest_tiling` searches a tiling, with the memory and the time of each
    tiling.
    """

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of ``tiles`` tiles of positions and ``class_block``
        classes.
        """

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the approximate time of the launch in us, for blocks of ``tiles`` tiles of positions and
        ``class_block`` classes.
        """


def fastest_tiling(sizes: TiledSizes, sbuf_bytes: int) -> LinearTiling:
    """Return the tiling that is modelled to be fastest of those that fit ``sbuf_bytes`` bytes of a partition."""
    best, least_us = LinearTiling(PARTITIONS, PARTITIONS), float("inf")
    for class_block in CLASS_BLOCKS:
        for tiles in range(min(sizes.position_tiles, POSITION_TILES_MAX), 0, -1):
            if sizes.bytes_of(tiles, class_block) > sbuf_bytes:
                continue
            time_us = sizes.time_us(tiles, class_block)
            if time_us < least_us:
                best, least_us = LinearTiling(tiles * PARTITIONS, class_block), time_us
    return best


class SwapTimes(NamedTuple):
    """Modelled times in us.

    Attributes:
        swap: the time in which the cores swap their statistics.
        load: the time of a load until its first byte arrives.
    """

    swap: float
    load: float


def shared_classes(of_class: float, load: float, class_block: int, vocab_size: int, times: SwapTimes) -> int:
    """Return how many of the last classes both cores process, so that their products take longer than a swap of
    statistics.

    The result is 0 if a block of these classes would be multiplied before the next block is loaded, or if they would be
    more than an eighth of the classes.

    Args:
        of_class: the time of the products of a class, in us, for half the positions of a block.
        load: the time to load the weights of a class, in us.
        class_block: the number of classes of a block.
        vocab_size: the number of all classes.
        times: the times of the device.
    """
    if class_block * (of_class - load) < times.load:
        return 0
    classes = div_ceil(int(times.swap / of_class), PARTITIONS) * PARTITIONS
    return classes - PARTITIONS + 1 if 8 * classes <= vocab_size else 0


def shared_by_override(function: str, override: int, class_block: int, vocab_size: int) -> int:
    """Return the number of shared classes that a test requests (``override``), reduced so that at least 128 are not
    shared.

    Raises:
        ValueError: for more classes than four blocks have; the statistics have no columns for more blocks.
    """
    most = SHARED_BLOCKS_MAX * class_block
    if override > most:
        raise ValueError(
            f"{function}: PlanLimits.shared_classes must be at most {SHARED_BLOCKS_MAX} blocks of {class_block} "
            f"classes, for which the statistics have room, got {override}; give at most {most}"
        )
    return max(0, min(override, vocab_size - PARTITIONS))


@dataclass(frozen=True)
class BackwardLaunch:
    """The sizes, cores and device of a backward launch.

    Attributes:
        sizes: N, D, V and the options.
        cores: the number of cores of the launch.
        target: the generation of the device, ``"trn2"`` or ``"trn3"``.
        available_bytes: the usable bytes of a partition of SBUF.
    """

    sizes: BackwardSizes
    cores: int
    target: str
    available_bytes: int

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return div_ceil(self.sizes.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """The number of tiles of classes of the core with the most classes."""
        return div_ceil(div_ceil(self.sizes.vocab_size, PARTITIONS), self.cores)

    def plan(self, tiling: LinearTiling) -> BackwardPlan:
        """Return the plan of a tiling, with as many buffers as fit."""
        return BackwardPlan.of(self.sizes, *tiling, self.available_bytes)

    def delay(self, tiling: LinearTiling, plan: BackwardPlan) -> float:
        """Return the approximate delay of Tensor by transfers and missing buffers, as a fraction of Tensor's own time.

        Args:
            plan: the plan of ``tiling``.
        """
        class_blocks = div_ceil(self.class_tiles, tiling.class_block // PARTITIONS)
        tiles_per_block = div_ceil(self.class_tiles, class_blocks)
        buffers = plan.buffers
        position_blocks = div_ceil(self.sizes.num_positions, tiling.position_block)
        waits_for_inputs = 0.0
        if plan.streams_inputs:
            of_transfers = self._delay_of_halves(plan, tiles_per_block) + self._delay_of_cover(
                plan, class_blocks * tiles_per_block
            )
        else:
            ratio = (
                self._transfers_us(tiling.position_block, class_blocks, tiles_per_block, plan.streams_weight)
                / self._tensor_us
            )
            of_transfers = _DELAY * max(0.0, ratio - _RATIO) ** _POWER
            waits_for_inputs = self._waits_for_inputs * (buffers.input_tiles < min(2, plan.position_tiles))
        return (
            of_transfers
            + _OF_ONE_INPUT_TILE * waits_for_inputs
            + _OF_ONE_WEIGHT_STRIPE * (buffers.weight_stripes < 2)
            + _OF_PIECES.get(buffers.tiles_of_piece, 0.0) * (buffers.tiles_of_piece < plan.position_tiles)
            + _OF_FEW_RESULTS * (buffers.input_results < 4)
            + _OF_NARROW_TILES * max(0.0, _WIDE_TILE / plan.classes_of_tile - 1.0)
            + _OF_SHORT_GROUP * (tiles_per_block > _TILES_OF_GROUP and tiles_per_block % _TILES_OF_GROUP == 1)
            + _OF_TURNS * (self._is_deep and bool(buffers.shares_memory) and position_blocks > _BLOCKS_IN_TURNS)
        )

    @property
    def most_class_tiles(self) -> int:
        """The largest number of tiles of a block of classes."""
        is_deep_program = (
            self.sizes.keeps_logits
            and self.sizes.num_features > _FEATURES_OF_DEEP_PROGRAM
            and self.position_tiles > _TILES_OF_SHORT_PROGRAM
        )
        return min(_CLASS_TILES_OF_DEEP_PROGRAM if is_deep_program else _CLASS_TILES_MAX, self.class_tiles)

    @property
    def _waits_for_inputs(self) -> float:
        """The fraction of the loads of X^T for which Tensor waits if each operand pair has a single buffer of X^T.

        With two pairs, a tile is loaded while the other pair is multiplied, if that takes long enough.
        """
        if not self.sizes.further:
            return 1.0
        features = [self.sizes.num_features, *(pair.features for pair in self.sizes.further)]
        return max(0.0, 1.0 - _PAIRS_IN_TURN * min(features) / sum(features))

    @property
    def _is_deep(self) -> bool:
        # With so many features, in 16 bits, X^T of some thousand positions fills SBUF.
        return self.sizes.itemsize == 2 and self.sizes.num_features in _FEATURES_IN_TURNS

    @property
    def _tensor_us(self) -> float:
        """The time of Tensor's products in us: dX, dW, and the logits that are not kept, of all operand pairs."""
        depth = div_ceil(self.sizes.num_features, PARTITIONS)
        columns = (2 if self.sizes.keeps_logits else 3) * self.position_tiles * self.class_tiles * depth * PARTITIONS
        further = sum(_PASSES[pair.itemsize] * pair.feature_tiles for pair in self.sizes.further)
        columns_of_further = further * self.position_tiles * self.class_tiles * PARTITIONS
        return (_PASSES[self.sizes.itemsize] * columns + columns_of_further) / _COLUMNS_PER_US

    def _delay_of_halves(self, plan: BackwardPlan, block_tiles: int) -> float:
        """Return the estimated delay of Tensor by the transfers of a round, as a fraction of Tensor's own time.

        A round is the work for a block of classes and a block of positions. It has two halves: the logits, and the
        products for dX and dW. In the first half X^T streams once per tile of classes, and W^T once per batch of
        positions; the method is for plans that do so.
        """
        sizes, positions, classes = self.sizes, plan.position_tiles * PARTITIONS, block_tiles * PARTITIONS
        of_logits = positions * div_ceil(classes, plan.classes_of_tile) + classes * plan.batches_of_tiles
        of_sums = _ADDED_BYTES * (plan.position_blocks - 1 + sizes.adds_to_weight) + sizes.loaded_itemsize
        of_input = _ADDED_BYTES + _OF_SHORT_ROWS * sizes.itemsize * div_ceil(block_tiles, _TILES_OF_GROUP)
        of_weight = _OF_SHORT_ROWS * sizes.loaded_itemsize + of_sums / plan.position_blocks
        tensor_us = plan.position_tiles * classes / _COLUMNS_PER_US
        halves = (
            (1, sizes.itemsize * of_logits / _OF_TRANSPOSE),
            (2, positions * of_input + classes * of_weight),
        )
        delay = 0.0
        for products, moved in halves:
            ratio = moved * PARTITIONS / _BYTES_PER_US[self.target] / (products * tensor_us)
            delay += products / 3 * _DELAY * max(0.0, ratio - _RATIO_OF_HALF) ** _POWER
        return delay

    def _delay_of_cover(self, plan: BackwardPlan, covered: int) -> float:
        """Return the delay added by a device loop that covers all classes, ``covered`` tiles (:class:`ClassCover`).

        It is 0 for a single block of positions, and if there are blocks of classes outside the loop.
        """
        if plan.position_blocks == 1 or plan.blocks_of_program(self.sizes.num_positions) >= LEAST_ROOM:
            return 0.0
        return _OF_COVER + _CLASSES_OF_COVER / (self.class_tiles * PARTITIONS) + covered / self.class_tiles - 1.0

    def _transfers_us(self, position_block: int, class_blocks: int, block_tiles: int, keeps_inputs: bool) -> float:
        """Return the time in us of the transfers of a launch with ``class_blocks`` blocks of ``block_tiles`` tiles of
        classes.

        The transfers are X^T, X and dX for each block of classes; W and dW for each block of positions; and W^T once.
        Kept logits are loaded in place of X^T and W^T. X^T is loaded only once if ``keeps_inputs``. Further operand
        pairs load only X^T and W^T.
        """
        sizes = self.sizes
        of_input = 0.0 if keeps_inputs or sizes.keeps_logits else sizes.itemsize / _OF_TRANSPOSE
        of_input += sizes.itemsize * div_ceil(block_tiles, _TILES_OF_GROUP) + _ADDED_BYTES
        position_blocks = div_ceil(sizes.num_positions, position_block)
        of_weight = 0.0 if sizes.keeps_logits else sizes.loaded_itemsize / _OF_TRANSPOSE
        of_weight += sizes.loaded_itemsize * (position_blocks + 1)
        of_weight += _ADDED_BYTES * (position_blocks - 1 + sizes.adds_to_weight)
        moved = sizes.num_positions * class_blocks * of_input + self.class_tiles * PARTITIONS * of_weight
        logits = sizes.num_positions * self.class_tiles * PARTITIONS * _LOGIT_BYTES if sizes.keeps_logits else 0.0
        further = sum(
            sizes.num_positions * class_blocks * pair.features * pair.itemsize
            + self.class_tiles * PARTITIONS * pair.features * pair.loaded_itemsize
            for pair in sizes.further
        )
        return (moved * sizes.num_features + logits + further / _OF_TRANSPOSE) / _BYTES_PER_US[self.target]


def _position_tiles(tiles: int) -> set[int]:
    """Return the possible numbers of tiles of a block, for ``tiles`` tiles divided into nearly equal blocks."""
    return {div_ceil(tiles, blocks) for blocks in range(1, min(tiles, _POSITION_BLOCKS_MAX) + 1)}


def choose_backward_tiling(launch: BackwardLaunch) -> LinearTiling:
    """Return the tiling that is estimated to delay Tensor least, of those that fit.

    Raises:
        ValueError: if not even the smallest tiling fits.
    """
    best, least = None, float("inf")
    for position_tiles in sorted(_position_tiles(launch.position_tiles), reverse=True):
        for class_tiles in range(1, launch.most_class_tiles + 1):
            tiling = LinearTiling(position_tiles * PARTITIONS, class_tiles * PARTITIONS)
            plan = launch.plan(tiling)
            if not plan.fits:
                continue
            delay = launch.delay(tiling, plan)
            if delay < least - _AS_GOOD:
                best, least = tiling, delay
    if best is None:
        sizes = launch.sizes
        raise ValueError(
            f"choose_linear_tiling: {sizes.num_positions} positions and {sizes.num_features} features must leave room "
            f"for a tile of each in SBUF, and do not; split the positions"
        )
    return best


def backward_bytes(
    num_positions: int, num_features: int, position_block: int, class_block: int, *, cores: int = 2
) -> int:
    """Return the largest number of bytes of HBM that a backward takes, for positions that are not split into parts.

    Args:
        num_positions: N.
        num_features: D.
        position_block, class_block: the tiling.
        cores: the number of cores of the launch.
    """
    weight_sum = class_block * num_features if num_positions > position_block else 0
    return FLOAT32_BYTES * cores * (num_positions * num_features + 2 * weight_sum)


def split_backward_bytes(
    parts: PositionParts,
    num_features: int,
    vocab_size: int,
    tiling: LinearTiling,
    *,
    input_itemsize: int,
    has_weight_sum: bool,
    cores: int = 2,
) -> int:
    """Return the largest number of bytes of HBM that a backward takes, for positions that are split into parts.

    Args:
        parts: the parts of the positions.
        num_features: D.
        vocab_size: V.
        tiling: the tiling of a part.
        input_itemsize: the bytes of an element of dX.
        has_weight_sum: whether dW is float32, or added to a float32 sum.
        cores: the number of cores of the launch.
    """
    sizes = (parts.size, parts.rest) if parts.rest > 0 else (parts.size,)
    of_parts = sum(backward_bytes(size, num_features, *tiling, cores=cores) for size in sizes)
    weight_sum = 0 if has_weight_sum else vocab_size * num_features
    of_bias = parts.copies * vocab_size
    return of_parts + input_itemsize * parts.size * num_features + FLOAT32_BYTES * (weight_sum + of_bias)
