# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of a second visit that recomputes the scores: the room in SBUF, the length of the program, its time.

The more positions are on chip, the less often W of both models is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.plan_limits import limited_instructions, limited_positions
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.sizes import POSITIONS_UNSPLIT, WINDOW, LinearTiling, PositionPlan
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import (
    PairForwardSizes,
)

# Columns of a group of tiles, of which Scalar computes softplus before the exponentials, and groups on chip.
GROUP_COLUMNS, GROUPS = 2048, 2
# float32 tiles of a pair: scores of both models, both logs.
TILES_OF_PAIR = 4
# Sums of a position, each with a window of blocks of classes, a total and the other core's total.
SUMS = 4
_NUMBERS_OF_SUM = WINDOW + 3
# Further numbers of a position: per-row scalars, their operands, results.
_OF_POSITION = 40

_SMALL_BYTES = 3072
# Instructions of a pair of tiles besides its products.
_OF_PAIR = 9

# Rates of trn2 as modelled (docs/explanation/performance_model.md): Tensor takes a column per cycle, DMA transposes at
# 90%; a pass of Vector and of Scalar over a tile takes a column per cycle and the gap between two instructions.
_COLUMNS_PER_US, _BYTES_PER_US = 2400.0, 331_000.0
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _BETWEEN, _TABLE_US = 960.0, 1200.0, 164.0, 1.28
_LOOP_US, _ITERATION_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.1, 15.0


def group_tiles(tiles: int, class_block: int) -> int:
    """Return the number of tiles of positions whose functions Scalar computes as a group.

    ``tiles`` is the number of tiles of a block of positions.
    """
    return max(1, min(tiles, GROUP_COLUMNS // class_block))


def terms_bytes(tiles: int, class_block: int) -> int:
    """Return the bytes of a partition for the scores and logs of all groups."""
    return TILES_OF_PAIR * GROUPS * group_tiles(tiles, class_block) * class_block * FLOAT32_BYTES


@dataclass(frozen=True)
class MixtureSizes:
    """The sizes of a second visit that recomputes the scores.

    Attributes:
        forward: the sizes of both models and the options, as for a first visit.
    """

    forward: PairForwardSizes

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""
        return self.forward.position_tiles

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes of a partition of SBUF for blocks of ``tiles`` tiles of positions."""
        forward = self.forward
        operands = (forward.student.chip_bytes + forward.teacher.chip_bytes) * (tiles * PARTITIONS + 2 * class_block)
        biases = 2 * sum(model.bias for model in forward.needs.models) * class_block * FLOAT32_BYTES
        of_tiles = tiles * (SUMS * _NUMBERS_OF_SUM + _OF_POSITION) * FLOAT32_BYTES
        staging = forward.staging_bytes
        return operands + terms_bytes(tiles, class_block) + biases + of_tiles + staging + _SMALL_BYTES

    def position_plan(self, tiling: LinearTiling) -> PositionPlan:
        """Plan blocks of about equal size, in a loop if a program with all blocks of classes would be too long."""
        forward = self.forward
        count = div_ceil(self.position_tiles, min(tiling.position_block // PARTITIONS, self.position_tiles))
        size = div_ceil(self.position_tiles, count) * PARTITIONS
        whole, remainder = divmod(forward.num_positions, size)
        unrolled = PositionPlan(size, whole, remainder, False)
        steps = div_ceil(forward.class_tiles, tiling.class_block // PARTITIONS)
        is_long = self.most_bodies(unrolled) < steps or forward.num_positions > limited_positions(POSITIONS_UNSPLIT)
        return unrolled._replace(is_loop=whole > 1 and is_long)

    def most_bodies(self, plan: PositionPlan) -> int:
        """Return the largest number of blocks of classes in the program of a core for each block of positions."""
        forward = self.forward
        of_pair = forward.student.depth + forward.teacher.depth + _OF_PAIR + 2 * self._masked_caps
        total = int(limited_instructions(forward.most_instructions) * forward.program_share)
        return max(2 * WINDOW, total // plan.copies // (plan.tiles * of_pair + forward.block_instructions))

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the estimated time of the launch in us."""
        forward, plan = self.forward, self.position_plan(LinearTiling(tiles * PARTITIONS, class_block))
        needs = forward.needs
        steps, columns = div_ceil(forward.class_tiles, class_block // PARTITIONS), forward.class_tiles * PARTITIONS
        product = forward.products * columns / _COLUMNS_PER_US
        caps = sum(model.softcap for model in needs.models)
        vector = (4 + self._masked_caps) * (columns + steps * _BETWEEN) / _VECTOR_COLUMNS_PER_US
        scalar = (4 + caps) * (columns + steps * _BETWEEN) / _SCALAR_COLUMNS_PER_US
        scalar += (2 + (caps > 0)) * _TABLE_US * steps / group_tiles(plan.tiles, class_block)
        load = columns * forward.loaded_bytes / _BYTES_PER_US
        block_us = max(plan.tiles * max(product, vector, scalar), load) + steps * _STEP_US
        block_us += forward.loaded_bytes * PARTITIONS / _BYTES_PER_US + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            block_us += _LOOP_US + _ITERATION_US * steps / (bodies - WINDOW)
        return plan.blocks * block_us + (_LOOP_US if plan.is_loop else 0.0)

    @property
    def _masked_caps(self) -> int:
        """The number of models whose tangents are replaced at masked classes."""
        return sum(model.softcap and model.bias for model in self.forward.needs.models)
