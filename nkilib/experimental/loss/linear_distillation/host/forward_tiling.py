# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of the forward of two models: the room in SBUF, the length of the program, and the modelled time.

As in linear cross-entropy, with two streams of W^T: both use the same blocks of classes and of positions.
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
from nkilib.experimental.loss.linear_distillation.host.needs import PairNeeds

# Tiles of a ring buffer without a softcap.
_FEWEST_SLOTS = 3
# Numbers of a position besides its statistics: per-row scalars and the operands of results; and more with labels.
_OF_POSITION, _OF_LABEL = 48, 16
# Bytes of a partition for tiles that do not depend on the tiling, with room for alignment.
_SMALL_BYTES = 3072
# Times that determine how many classes the cores share.
_SWAP = SwapTimes(6.0, 2.3)
# Instructions of a core's program for up to this many positions, and for more.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 27_000, 54_000
# Instructions of a block of classes besides those of its pairs; of a staged tile: a transfer and a cast.
_OF_BLOCK, _OF_STAGED = 30, 2

# Rates of trn2 as modelled (docs/explanation/performance_model.md): Tensor takes a column per cycle, DMA transposes at
# 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# A pass over a tile: Vector and Scalar take a column per cycle, GpSimd takes two cycles; the gap between two
# instructions, in columns; the load of a table.
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _GPSIMD_COLUMNS_PER_US = 960.0, 1200.0, 600.0
_BETWEEN, _TABLE_US = 80.0, 1.28
# A loop's start and end; the edge of an iteration; the fixed time of a block of classes, and of a block of positions.
_LOOP_US, _ITERATION_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.3, 20.0


@dataclass(frozen=True)
class StreamSizes:
    """The sizes of one model's operands.

    Attributes:
        num_features: D.
        itemsize: bytes of an element of X and W on chip.
        weight_itemsize: bytes of an element of W in HBM if it is cast while it is loaded; else 0.
        staging_bytes: bytes of a partition for operands that are transposed and then cast.
    """

    num_features: int
    itemsize: int
    weight_itemsize: int = 0
    staging_bytes: int = 0

    @property
    def depth(self) -> int:
        """The number of tiles of features."""
        return div_ceil(self.num_features, PARTITIONS)

    @property
    def products(self) -> int:
        """The passes of Tensor over a column of a tile: one for each tile of features, four in float32."""
        return self.depth * (4 if self.itemsize == 4 else 1)

    @property
    def chip_bytes(self) -> int:
        """The bytes per partition of SBUF that one column of X^T takes; a column of W^T takes as many."""
        return self.depth * self.itemsize

    @property
    def loaded_bytes(self) -> int:
        """The bytes that DMA moves for a class of W."""
        return self.depth * PARTITIONS * (self.weight_itemsize or self.itemsize)


@dataclass(frozen=True)
class PairForwardSizes:
    """The sizes and options of a launch of the forward.

    Attributes:
        num_positions, vocab_size: N and V.
        student, teacher: the operands of each model.
        cores: the number of cores of the launch.
        needs: the options of the launch.
        program_share: the forward's share of the instructions that a program may have.
    """

    num_positions: int
    vocab_size: int
    student: StreamSizes
    teacher: StreamSizes
    cores: int
    needs: PairNeeds = field(default_factory=PairNeeds)
    program_share: float = 1.0

    @property
    def products(self) -> int:
        """The passes of Tensor over a column of a pair of tiles."""
        return self.student.products + self.teacher.products

    @property
    def loaded_bytes(self) -> int:
        """The bytes that DMA moves for a class of the weights of both models."""
        return self.student.loaded_bytes + self.teacher.loaded_bytes

    @property
    def staging_bytes(self) -> int:
        """The bytes of a partition for staging: both models use the same tiles."""
        return max(self.student.staging_bytes, self.teacher.staging_bytes)

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return div_ceil(self.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """The number of tiles of classes of the core that has most."""
        return div_ceil(div_ceil(self.vocab_size, PARTITIONS), self.cores)

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes of a partition of SBUF for blocks of ``tiles`` tiles of positions.

        These are X^T of both models and two blocks of W^T of each; the ring buffers of groups of pairs; two rows of
        each bias; statistics of a window, which the cores exchange, and the numbers computed from them.
        """
        needs = self.needs
        operands = (self.student.chip_bytes + self.teacher.chip_bytes) * (tiles * PARTITIONS + 2 * class_block)
        # For a single tile a softcap needs fewer slots; but sizes that fit with every option must fit without one too.
        group = max(_FEWEST_SLOTS, needs.slots * min(tiles, needs.group_tiles))
        rings = group * needs.rings * class_block * FLOAT32_BYTES
        rows = 2 * sum(model.bias for model in needs.models) * class_block * FLOAT32_BYTES
        columns = self.cores * (WINDOW + 1) + SHARED_BLOCKS_MAX
        numbers = (needs.exchanged_statistics + needs.further_statistics) * columns + _OF_POSITION
        numbers += _OF_LABEL if needs.target else 0
        return operands + rings + rows + tiles * numbers * FLOAT32_BYTES + self.staging_bytes + _SMALL_BYTES

    def position_plan(self, position_block: int, class_block: int) -> PositionPlan:
        """Plan blocks of about equal size, in a loop if a program with all blocks of classes would be too long.

        Very many positions always have a loop, however few classes there are.
        """
        unrolled = unrolled_positions(self.num_positions, position_block)
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        return looped_positions(unrolled, self.num_positions, self.most_bodies(unrolled) < steps)

    def most_bodies(self, plan: PositionPlan) -> int:
        """Return the largest number of blocks of classes in the program of a core for each block of positions."""
        total = int(limited_instructions(self.most_instructions) * self.program_share)
        body = plan.tiles * self.pair_instructions + self.block_instructions
        return max(2 * WINDOW, total // plan.copies // body)

    @property
    def most_instructions(self) -> int:
        """The largest number of instructions in the program of a core."""
        return _INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY

    @property
    def pair_instructions(self) -> int:
        """The number of instructions of a pair of tiles."""
        return self.student.depth + self.teacher.depth + self.needs.instructions

    @property
    def block_instructions(self) -> int:
        """The number of instructions of a block of classes besides those of its pairs."""
        of_block = _OF_BLOCK
        for stream in (self.student, self.teacher):
            if stream.staging_bytes > 0:
                of_block += _OF_STAGED * div_ceil(stream.depth * CLASS_BLOCKS[0], STAGED_ELEMENTS)
        return of_block

    def shared_classes(self, plan: PositionPlan, class_block: int) -> int:
        """Return how many of the last classes the cores share, so that their products take longer than an exchange.

        It is 0 if a block of them would be multiplied before the next one is loaded, or if they would be too many. Both
        reasons are only about time, and a test may set the number (:class:`nkilib.core.plan_limits.PlanLimits`).

        Raises:
            ValueError: if a test asks for more classes than the statistics have columns for.
        """
        if self.cores == 1:
            return 0
        override = limits_in_force().shared_classes
        if override is not None:
            return shared_by_override("linear_distillation_forward", override, class_block, self.vocab_size)
        of_class = self.products * (plan.tiles // 2) / _COLUMNS_PER_US
        load = self.loaded_bytes / _BYTES_PER_US
        return shared_classes(of_class, load, class_block, self.vocab_size, _SWAP)

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the estimated time of the launch in us."""
        plan = self.position_plan(tiles * PARTITIONS, class_block)
        tiles, needs = plan.tiles, self.needs
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        columns = self.class_tiles * PARTITIONS
        vector_columns = columns + steps * _BETWEEN
        product = self.products * columns / _COLUMNS_PER_US
        vector = needs.vector_passes * vector_columns / _VECTOR_COLUMNS_PER_US
        scalar = needs.scalar_passes * vector_columns / _SCALAR_COLUMNS_PER_US
        if needs.softcap:
            scalar += 2 * _TABLE_US * steps / min(tiles, needs.group_tiles)
        gpsimd = needs.gpsimd_passes * vector_columns / _GPSIMD_COLUMNS_PER_US
        load = columns * self.loaded_bytes / _BYTES_PER_US
        tile = (self.student.chip_bytes + self.teacher.chip_bytes) * PARTITIONS * PARTITIONS / _BYTES_PER_US
        block_us = max(tiles * max(product, vector, scalar, gpsimd), load) + steps * _STEP_US + tile + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            block_us += _LOOP_US + _ITERATION_US * steps / (bodies - WINDOW)
        return plan.blocks * block_us + (_LOOP_US if plan.is_loop else 0.0)
