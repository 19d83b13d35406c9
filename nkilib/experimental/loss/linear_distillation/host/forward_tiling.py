# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the forward of two models is cut up: what fits SBUF, how long its program is, and what is modelled to be fastest.

As in linear cross-entropy, with two streams of W^T: both take the same blocks of classes and of positions.
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

# Tiles of a ring without a softcap.
_LEAST_TURNS = 3
# Numbers of a position beside its statistics: those of rows, and what results are made of; and more with labels.
_OF_POSITION, _OF_LABEL = 48, 16
# Of tiles that do not depend on the tiling, with room for alignment.
_SMALL_BYTES = 3072
# So long the blocks of classes take that the cores share.
_SWAP = SwapTimes(6.0, 2.3)
# Instructions of a core's program for up to so many positions, and beyond.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 27_000, 54_000
# Instructions of a block of classes beside those of its pairs; of a staged tile: a transfer and a cast.
_OF_BLOCK, _OF_STAGED = 30, 2

# Rates of trn2 as modelled (docs/performance-model.md): Tensor takes a column a cycle, DMA transposes at 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# A pass of Vector, of Scalar and of GpSimd over a tile: a column a cycle, of GpSimd two, and what lies between two
# instructions. A table.
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _GPSIMD_COLUMNS_PER_US = 960.0, 1200.0, 600.0
_BETWEEN, _TABLE_US = 80.0, 1.28
# A loop's start and end; the edge of a trip; what a block of classes takes by itself, and one of positions.
_LOOP_US, _TRIP_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.3, 20.0


@dataclass(frozen=True)
class StreamSizes:
    """What one model's operands are about.

    Attributes:
        num_features: D.
        itemsize: bytes of an element of X and W on chip.
        weight_itemsize: bytes of an element of W in HBM where it is cast on its way; else 0.
        staging_bytes: of a partition, for operands that are transposed and then cast.
    """

    num_features: int
    itemsize: int
    weight_itemsize: int = 0
    staging_bytes: int = 0

    @property
    def depth(self) -> int:
        """Tiles of features."""
        return div_ceil(self.num_features, PARTITIONS)

    @property
    def products(self) -> int:
        """Passes of Tensor over a column of a tile: one for each tile of features, four in float32."""
        return self.depth * (4 if self.itemsize == 4 else 1)

    @property
    def chip_bytes(self) -> int:
        """Of a column of X^T or W^T in a partition."""
        return self.depth * self.itemsize

    @property
    def loaded_bytes(self) -> int:
        """Of a class of W that DMA moves."""
        return self.depth * PARTITIONS * (self.weight_itemsize or self.itemsize)


@dataclass(frozen=True)
class PairForwardSizes:
    """What a launch of the forward is about.

    Attributes:
        num_positions, vocab_size: N and V.
        student, teacher: the operands of each model.
        cores: of the launch.
        needs: its options.
        program_share: of the instructions that a program may have, for the forward.
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
        """Passes of Tensor over a column of a pair of tiles."""
        return self.student.products + self.teacher.products

    @property
    def loaded_bytes(self) -> int:
        """Of a class of both W that DMA moves."""
        return self.student.loaded_bytes + self.teacher.loaded_bytes

    @property
    def staging_bytes(self) -> int:
        """Of a partition: both models take the same tiles."""
        return max(self.student.staging_bytes, self.teacher.staging_bytes)

    @property
    def position_tiles(self) -> int:
        """Tiles of positions."""
        return div_ceil(self.num_positions, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """Tiles of classes of the core that has most."""
        return div_ceil(div_ceil(self.vocab_size, PARTITIONS), self.cores)

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Bytes of a partition of SBUF for blocks of so many tiles of positions.

        X^T of both models and two blocks of W^T of each; the rings of groups of pairs; two rows of each bias;
        statistics of a window, which the cores swap, and what is made of them.
        """
        needs = self.needs
        operands = (self.student.chip_bytes + self.teacher.chip_bytes) * (tiles * PARTITIONS + 2 * class_block)
        # Of a single tile a softcap takes fewer turns: what fits with every option has to fit without one too.
        group = max(_LEAST_TURNS, needs.turns * min(tiles, needs.group_tiles))
        rings = group * needs.rings * class_block * FLOAT32_BYTES
        rows = 2 * sum(model.bias for model in needs.models) * class_block * FLOAT32_BYTES
        columns = self.cores * (WINDOW + 1) + SHARED_BLOCKS_MAX
        numbers = (needs.exchanged_statistics + needs.further_statistics) * columns + _OF_POSITION
        numbers += _OF_LABEL if needs.target else 0
        return operands + rings + rows + tiles * numbers * FLOAT32_BYTES + self.staging_bytes + _SMALL_BYTES

    def position_plan(self, position_block: int, class_block: int) -> PositionPlan:
        """Blocks of about equal size; a loop where the program would be too long to have all blocks of classes.

        Of very many positions they are a loop however few classes there are.
        """
        unrolled = unrolled_positions(self.num_positions, position_block)
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        return looped_positions(unrolled, self.num_positions, self.most_bodies(unrolled) < steps)

    def most_bodies(self, plan: PositionPlan) -> int:
        """How many blocks of classes the program of a core may have for each block of positions."""
        total = int(limited_instructions(self.most_instructions) * self.program_share)
        each = plan.tiles * self.pair_instructions + self.block_instructions
        return max(2 * WINDOW, total // plan.copies // each)

    @property
    def most_instructions(self) -> int:
        """Instructions that the program of a core may have."""
        return _INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY

    @property
    def pair_instructions(self) -> int:
        """Instructions of a pair of tiles."""
        return self.student.depth + self.teacher.depth + self.needs.instructions

    @property
    def block_instructions(self) -> int:
        """Instructions of a block of classes beside those of its pairs."""
        of_block = _OF_BLOCK
        for stream in (self.student, self.teacher):
            if stream.staging_bytes > 0:
                of_block += _OF_STAGED * div_ceil(stream.depth * CLASS_BLOCKS[0], STAGED_ELEMENTS)
        return of_block

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
            return shared_by_override("linear_distillation_forward", override, class_block, self.vocab_size)
        of_class = self.products * (plan.tiles // 2) / _COLUMNS_PER_US
        load = self.loaded_bytes / _BYTES_PER_US
        return shared_classes(of_class, load, class_block, self.vocab_size, _SWAP)

    def time_us(self, tiles: int, class_block: int) -> float:
        """About how long the launch takes."""
        plan = self.position_plan(tiles * PARTITIONS, class_block)
        tiles, needs = plan.tiles, self.needs
        steps = div_ceil(self.class_tiles, class_block // PARTITIONS)
        columns = self.class_tiles * PARTITIONS
        taken = columns + steps * _BETWEEN
        product = self.products * columns / _COLUMNS_PER_US
        vector = needs.vector_passes * taken / _VECTOR_COLUMNS_PER_US
        scalar = needs.scalar_passes * taken / _SCALAR_COLUMNS_PER_US
        if needs.softcap:
            scalar += 2 * _TABLE_US * steps / min(tiles, needs.group_tiles)
        gpsimd = needs.gpsimd_passes * taken / _GPSIMD_COLUMNS_PER_US
        load = columns * self.loaded_bytes / _BYTES_PER_US
        tile = (self.student.chip_bytes + self.teacher.chip_bytes) * PARTITIONS * PARTITIONS / _BYTES_PER_US
        found = max(tiles * max(product, vector, scalar, gpsimd), load) + steps * _STEP_US + tile + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            found += _LOOP_US + _TRIP_US * steps / (bodies - WINDOW)
        return plan.blocks * found + (_LOOP_US if plan.is_loop else 0.0)
