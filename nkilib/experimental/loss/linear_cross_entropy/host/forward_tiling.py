# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the forward is cut up: what fits SBUF, how long its program is, and what is modelled to be fastest.

The more positions are on chip, the less often W is read; the more classes a block has, the fewer are the instructions.
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

# Tiles of positions whose logits stand side by side.
_GROUP_TILES = 4
# So many under a cap, where Scalar loads two tables for each group, if it has about as much to do as Tensor: with up to
# so many tiles of features.
_GROUP_TILES_OF_CAP, _DEPTH_OF_CAP = 8, 12
# Bytes of what a sum goes through.
_TERM_BYTES = 2
# Numbers of a position beside its statistics: plain, and more with any option.
_OF_POSITION, _OF_POSITION_WITH_OPTIONS = 16, 16

# Of tiles that do not depend on the tiling, with room for alignment.
_SMALL_BYTES = 2048
# How long the cores take for a swap, and a load until its first byte is there. So long the blocks of classes take that
# they share.
_SWAP_US, _LOAD_US = 6.0, 2.3
# Instructions of a core's program for up to so many positions, and beyond.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 28_000, 56_000
# Instructions of a block of classes beside those of its tiles.
_OF_BLOCK = 20
# Numbers of each of several target ids of a position: where it is, what is found there, and what is made of that.
_OF_ID = 14
# Of a staged tile: a transfer and a cast.
_OF_STAGED = 2

# Rates of trn2 as modelled (docs/performance-model.md): Tensor takes a column a cycle, DMA transposes at 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# A pass of Vector and of Scalar over a tile: a column a cycle and what lies between two instructions. A table.
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _BETWEEN, _TABLE_US = 960.0, 1200.0, 164.0, 1.28
# A loop's start and end; the edge of a trip; what a block of classes takes by itself, and one of positions.
_LOOP_US, _TRIP_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.1, 15.0


@dataclass(frozen=True)
class ForwardSizes:
    """What a launch of the forward is about.

    Attributes:
        num_positions, num_features, vocab_size: N, D and V.
        itemsize: bytes of an element of X and W.
        cores: of the launch.
        needs: beyond loss and log-sum-exp.
        program_share: of the instructions that a program may have, for the forward.
        weight_itemsize: bytes of an element of W in HBM where it is cast on its way; else 0.
        staging_bytes: of a partition, for operands that are transposed and then cast.
        ids: target ids of a position.
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
        """Bytes of an element of W that DMA moves."""
        return self.weight_itemsize or self.itemsize

    @property
    def depth(self) -> int:
        """Tiles of features."""
        return div_ceil(self.num_features, PARTITIONS)

    @property
    def position_tiles(self) -> int:
        """Tiles of positions."""
        return div_ceil(self.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """Tiles of classes of the core that has most."""
        return div_ceil(div_ceil(self.vocab_size, PARTITIONS), self.cores)

    @property
    def passes(self) -> int:
        """Of Tensor for a product."""
        return 4 if self.itemsize == 4 else 1

    @property
    def group_tiles(self) -> int:
        """Tiles of positions of a group, at most."""
        is_busy = self.needs.softcap and self.passes * self.depth <= _DEPTH_OF_CAP
        return _GROUP_TILES_OF_CAP if is_busy else _GROUP_TILES

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Bytes of a partition of SBUF for blocks of so many tiles of positions.

        X and two blocks of W; of two groups the logits, tangents, multiples and exponentials; of Scalar and of Vector
        two tiles of 16 bits; two rows of bias and class weights, and one that says which classes count; statistics of a
        window, which the cores swap, and what is made of them.
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
        """Blocks of about equal size; a loop where the program would be too long to have all blocks of classes.

        Of very many positions they are a loop however few classes there are.
        """
        unrolled = unrolled_positions(self.num_positions, position_block)
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        return looped_positions(unrolled, self.num_positions, self.most_bodies(unrolled) < steps)

    def most_bodies(self, plan: PositionPlan) -> int:
        """How many blocks of classes the program of a core may have for each block of positions."""
        of_tile = self.depth + self.needs.instructions
        of_block = _OF_BLOCK
        if self.staging_bytes > 0:
            of_block += _OF_STAGED * div_ceil(self.depth * CLASS_BLOCKS[0], STAGED_ELEMENTS)
        total = limited_instructions(_INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY)
        return max(2 * WINDOW, int(total * self.program_share) // plan.copies // (plan.tiles * of_tile + of_block))

    def shared_classes(self, plan: PositionPlan, class_block: int) -> int:
        """How many of the last classes the cores share: their products take longer than a swap does.

        None where a block of them would be multiplied before the next one is loaded, or where they are too many. Both
        are about time alone, and a test may say how many they are (:class:`nkilib.core.plan_limits.PlanLimits`).

        Raises:
            ValueError: a test asks for more than there are statistics for.
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
        """About how long the launch takes."""
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
        found = max(tiles * max(product, vector, scalar), load) + steps * _STEP_US + tile + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            found += _LOOP_US + _TRIP_US * steps / (bodies - WINDOW)
        return plan.blocks * found + (_LOOP_US if plan.is_loop else 0.0)
