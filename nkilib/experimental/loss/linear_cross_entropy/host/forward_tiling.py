# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the forward's tiling: SBUF, length of the program, and the modelled time.

The more positions are on chip, the less often W is read; the more classes a block has, the fewer instructions there
are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.plan_limits import limited_instructions, limits_in_force
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.forward.plan import (
    CLASS_BLOCKS,
    SHARED_BLOCKS_MAX,
    SwapTimes,
    looped_positions,
    shared_by_override,
    shared_classes,
    unrolled_positions,
)
from nkilib.experimental.loss.linear.shared.sizes import STAGED_ELEMENTS, WINDOW, PositionPlan
from nkilib.experimental.loss.linear_cross_entropy.shared.forward_needs import GROUPS, ForwardNeeds

# Tiles of positions whose logits are side by side.
_GROUP_TILES = 4
# The same under a cap, where Scalar loads two tables for each group, if Scalar has about as much to do as Tensor: with
# up to _DEPTH_OF_CAP tiles of features.
_GROUP_TILES_OF_CAP, _DEPTH_OF_CAP = 8, 12
# Bytes of an element of the terms of a sum.
_TERM_BYTES = 2
# Numbers per position besides its statistics: plain, and further ones with any option.
_OF_POSITION, _OF_POSITION_WITH_OPTIONS = 16, 16

# Bytes of tiles that do not depend on the tiling, with room for alignment.
_SMALL_BYTES = 2048
# The time of a swap of the cores, and of a load until its first byte arrives. The blocks of classes that the cores
# share take as long as a swap.
_SWAP_US, _LOAD_US = 6.0, 2.3
# Instructions of a core's program for up to so many positions, and beyond.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 28_000, 56_000
# Instructions of a block of classes besides those of its tiles.
_OF_BLOCK = 20
# Numbers per target id of a position, if there are several: its place, the logit there, and values computed from it.
_OF_ID = 14
# Instructions of a staged tile: a transfer and a cast.
_OF_STAGED = 2

# Modelled rates of trn2 (docs/explanation/performance_model.md): Tensor takes a column a cycle, DMA transposes at 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# A pass of Vector and of Scalar over a tile: a column a cycle, and the time between two instructions. A table load.
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _BETWEEN, _TABLE_US = 960.0, 1200.0, 164.0, 1.28
# A loop's start and end; the edge of an iteration; the fixed time of a block of classes, and of a block of positions.
_LOOP_US, _ITERATION_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.1, 15.0


@dataclass(frozen=True)
class ForwardSizes:
    """The sizes and options of a forward launch from which its tiling is chosen.

    Attributes:
        num_positions, num_features, vocab_size: N, D and V.
        itemsize: bytes of an element of X and W.
        cores: the number of cores of the launch.
        needs: the options that take memory or time, beyond loss and log-sum-exp.
        program_share: the forward's share of the instructions that a program may have.
        weight_itemsize: bytes of an element of W in HBM if it is cast while it is loaded; else 0.
        staging_bytes: bytes per partition for operands that are transposed and then cast.
        ids: the number of target ids per position.
    """

    num_positions: int
    num_features: int
    vocab_size: int
    itemsize: int
    cores: int
    needs: ForwardNeeds = field(default_factory=ForwardNeeds)
    program_share: float = 1.0
    weight_itemsize: int = 0
    staging_bytes: int = 0
    ids: int = 1

    @property
    def loaded_itemsize(self) -> int:
        """The bytes of an element of W that DMA moves."""
        return self.weight_itemsize or self.itemsize

    @property
    def depth(self) -> int:
        """The number of tiles of features."""
        return div_ceil(self.num_features, PARTITIONS)

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return div_ceil(self.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """The number of tiles of classes of the core with the most classes."""
        return div_ceil(div_ceil(self.vocab_size, PARTITIONS), self.cores)

    @property
    def passes(self) -> int:
        """The number of passes that Tensor takes for a product: four for float32, else one."""
        return 4 if self.itemsize == 4 else 1

    @property
    def group_tiles(self) -> int:
        """The largest number of tiles of positions whose logits are processed side by side, as a group."""
        is_busy = self.needs.softcap and self.passes * self.depth <= _DEPTH_OF_CAP
        return _GROUP_TILES_OF_CAP if is_busy else _GROUP_TILES

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of ``tiles`` tiles of positions.

        They hold X and two blocks of W; logits, tangents, z for the argmax and exponentials of two groups; two tiles of
        16 bits each for Scalar and for Vector; two rows each of bias and class weights, and one row that marks the
        classes that are not masked; the statistics of a window of blocks of classes, which the cores swap, and values
        computed from them.
        """
        needs = self.needs
        operands = self.depth * self.itemsize * (tiles * PARTITIONS + 2 * class_block)
        rings = GROUPS * min(tiles, self.group_tiles) * needs.group_rings * class_block * FLOAT32_BYTES
        terms = GROUPS * (1 + needs.has_vector_terms) * class_block * _TERM_BYTES
        rows = (2 * (needs.bias + needs.class_weights) + needs.counts_classes) * class_block * FLOAT32_BYTES
        columns = self.cores * (WINDOW + 1) + SHARED_BLOCKS_MAX
        numbers = (needs.exchanged_statistics + needs.further_statistics) * columns + _OF_POSITION
        numbers += 0 if needs == ForwardNeeds() else _OF_POSITION_WITH_OPTIONS
        numbers += _OF_ID * self.ids if self.ids > 1 else 0
        of_tiles = tiles * numbers * FLOAT32_BYTES
        return operands + rings + terms + rows + of_tiles + self.staging_bytes + _SMALL_BYTES

    def position_plan(self, position_block: int, class_block: int) -> PositionPlan:
        """Return the split of the positions into blocks of about equal size.

        The blocks are a loop if a program with all blocks of classes for each of them would be too long, or if there
        are very many positions, however few classes there are.
        """
        unrolled = unrolled_positions(self.num_positions, position_block)
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        return looped_positions(unrolled, self.num_positions, self.most_bodies(unrolled) < steps)

    def most_bodies(self, plan: PositionPlan) -> int:
        """Return how many blocks of classes the program of a core may have for each block of positions."""
        of_tile = self.depth + self.needs.instructions
        of_block = _OF_BLOCK
        if self.staging_bytes > 0:
            of_block += _OF_STAGED * div_ceil(self.depth * CLASS_BLOCKS[0], STAGED_ELEMENTS)
        total = limited_instructions(_INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY)
        return max(2 * WINDOW, int(total * self.program_share) // plan.copies // (plan.tiles * of_tile + of_block))

    def shared_classes(self, plan: PositionPlan, class_block: int) -> int:
        """Return how many of the last classes the cores share, so that their products take longer than a swap does.

        It is 0 where a block of them would be multiplied before the next one is loaded, or where they would be too
        many. Both conditions are about time alone; a test may set the number
        (:class:`nkilib.core.plan_limits.PlanLimits`).

        Raises:
            ValueError: if a test asks for more classes than the statistics have columns for.
        """
        if self.cores == 1:
            return 0
        override = limits_in_force().shared_classes
        if override is not None:
            return shared_by_override("linear_cross_entropy_forward", override, class_block, self.vocab_size)
        of_class = self.passes * self.depth * (plan.tiles // 2) / _COLUMNS_PER_US
        load = self.depth * PARTITIONS * self.loaded_itemsize / _BYTES_PER_US
        return shared_classes(of_class, load, class_block, self.vocab_size, SwapTimes(_SWAP_US, _LOAD_US))

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the approximate time of the launch in us."""
        plan = self.position_plan(tiles * PARTITIONS, class_block)
        tiles = plan.tiles
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        columns = self.class_tiles * PARTITIONS
        product = self.passes * self.depth * columns / _COLUMNS_PER_US
        vector = self.needs.vector_passes * (columns + steps * _BETWEEN) / _VECTOR_COLUMNS_PER_US
        scalar = self.needs.scalar_passes * (columns + steps * _BETWEEN) / _SCALAR_COLUMNS_PER_US
        if self.needs.softcap:
            scalar += 2 * _TABLE_US * steps / min(tiles, self.group_tiles)
        load = columns * self.depth * PARTITIONS * self.loaded_itemsize / _BYTES_PER_US
        tile = self.depth * PARTITIONS * PARTITIONS * self.itemsize / _BYTES_PER_US
        block_us = max(tiles * max(product, vector, scalar), load) + steps * _STEP_US + tile + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            block_us += _LOOP_US + _ITERATION_US * steps / (bodies - WINDOW)
        return plan.blocks * block_us + (_LOOP_US if plan.is_loop else 0.0)
