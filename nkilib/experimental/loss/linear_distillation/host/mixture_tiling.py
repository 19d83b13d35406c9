"""How a second visit that computes the scores again is cut up: what fits SBUF, how long its program is, its time.

The more positions are on chip, the less often W of both models is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.plan_limits import limited_instructions, limited_positions
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.sizes import (
    POSITIONS_UNSPLIT,
    STAGED_ELEMENTS,
    TILE,
    WINDOW,
    LinearTiling,
    PositionPlan,
)

# Columns of tiles of which Scalar takes softplus before the exponentials, a group, and groups that are on chip.
GROUP_COLUMNS, GROUPS = 2048, 2
# float32 tiles of a pair: scores of both models, both logs.
TILES_OF_PAIR = 4
# Sums of a position, each with a window of blocks of classes, a total and one of the other core.
SUMS = 4
_NUMBERS_OF_SUM = WINDOW + 3
# Further numbers of a position: scalars of the row, what they are made of, results.
_OF_POSITION = 40
_FLOAT32_BYTES = 4

# Classes of a block, of which the largest fills a bank of PSUM.
_CLASS_BLOCKS = (512, 384, 256, 128)
# Beyond so many tiles of positions nothing is gained.
_POSITION_TILES_MAX = 64
_SMALL_BYTES = 3072
# Instructions of a core's program for up to so many positions, and beyond; those of a block of classes beside its
# tiles, and those of a tile beside its products; of a staged tile.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 28_000, 56_000
_OF_BLOCK, _OF_TILE, _OF_STAGED = 24, 9, 2

# Rates of trn2 as modelled (docs/performance-model.md): Tensor takes a column a cycle, DMA transposes at 90%; a pass of
# Vector and of Scalar over a tile takes a column a cycle and what lies between two instructions.
_COLUMNS_PER_US, _BYTES_PER_US = 2400.0, 331_000.0
_VECTOR_COLUMNS_PER_US, _SCALAR_COLUMNS_PER_US, _BETWEEN, _TABLE_US = 960.0, 1200.0, 164.0, 1.28
_LOOP_US, _TRIP_US, _STEP_US, _POSITIONS_US = 25.0, 5.0, 0.1, 15.0


def group_tiles(tiles: int, class_block: int) -> int:
    """Tiles of positions of a group, of blocks of so many."""
    return max(1, min(tiles, GROUP_COLUMNS // class_block))


def terms_bytes(tiles: int, class_block: int) -> int:
    """Bytes of a partition for the pairs of all groups."""
    return TILES_OF_PAIR * GROUPS * group_tiles(tiles, class_block) * class_block * _FLOAT32_BYTES


@dataclass(frozen=True)
class ModelSizes:
    """What one model adds.

    Attributes:
        num_features: D.
        itemsize: bytes of an element of the products.
        weight_itemsize: bytes of an element of W in HBM.
        has_bias, has_cap: the model has them.
    """

    num_features: int
    itemsize: int
    weight_itemsize: int
    has_bias: bool = False
    has_cap: bool = False

    @property
    def depth(self) -> int:
        """Tiles of features."""
        return div_ceil(self.num_features, TILE)

    @property
    def passes(self) -> int:
        """Tensor's passes over the tiles of features."""
        return self.depth * (4 if self.itemsize == 4 else 1)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of a class that DMA moves."""
        return self.depth * TILE * self.weight_itemsize


@dataclass(frozen=True)
class MixtureSizes:
    """What a second visit is about.

    Attributes:
        num_positions, vocab_size: N and V.
        models: student and teacher.
        cores: of the launch.
        staging_bytes: of a partition, for operands that are transposed and then cast.
        has_ratio: the models have scores of unlike units.
        program_share: of the instructions that a program may have.
    """

    num_positions: int
    vocab_size: int
    models: tuple[ModelSizes, ModelSizes]
    cores: int
    staging_bytes: int = 0
    has_ratio: bool = False
    program_share: float = 1.0

    @property
    def position_tiles(self) -> int:
        """Tiles of positions."""
        return div_ceil(self.num_positions, TILE)

    @property
    def class_tiles(self) -> int:
        """Tiles of classes of the core that has most."""
        return div_ceil(div_ceil(self.vocab_size, TILE), self.cores)

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Bytes of a partition of SBUF for blocks of so many tiles of positions."""
        operands = sum(model.depth * model.itemsize for model in self.models) * (tiles * TILE + 2 * class_block)
        pairs = terms_bytes(tiles, class_block)
        biases = 2 * sum(model.has_bias for model in self.models) * class_block * _FLOAT32_BYTES
        of_tiles = tiles * (SUMS * _NUMBERS_OF_SUM + _OF_POSITION) * _FLOAT32_BYTES
        return operands + pairs + biases + of_tiles + self.staging_bytes + _SMALL_BYTES

    def position_plan(self, tiling: LinearTiling) -> PositionPlan:
        """Blocks of about equal size; a loop where the program would be too long to have all blocks of classes."""
        count = div_ceil(self.position_tiles, min(tiling.position_block // TILE, self.position_tiles))
        size = div_ceil(self.position_tiles, count) * TILE
        whole, rest = divmod(self.num_positions, size)
        unrolled = PositionPlan(size, whole, rest, False)
        steps = div_ceil(self.class_tiles, tiling.class_block // TILE)
        is_long = self.most_bodies(unrolled) < steps or self.num_positions > limited_positions(POSITIONS_UNSPLIT)
        return unrolled._replace(is_loop=whole > 1 and is_long)

    def most_bodies(self, plan: PositionPlan) -> int:
        """How many blocks of classes the program of a core may have for each block of positions."""
        of_model = [model.depth + 2 * (model.has_cap and model.has_bias) for model in self.models]
        of_block = _OF_BLOCK
        if self.staging_bytes > 0:
            depth = sum(model.depth for model in self.models)
            of_block += _OF_STAGED * div_ceil(depth * _CLASS_BLOCKS[0], STAGED_ELEMENTS)
        total = limited_instructions(_INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY)
        of_position_block = plan.tiles * (sum(of_model) + _OF_TILE) + of_block
        return max(2 * WINDOW, int(total * self.program_share) // plan.copies // of_position_block)

    def time_us(self, tiles: int, class_block: int) -> float:
        """About how long the launch takes."""
        plan = self.position_plan(LinearTiling(tiles * TILE, class_block))
        steps, columns = div_ceil(self.class_tiles, class_block // TILE), self.class_tiles * TILE
        product = sum(model.passes for model in self.models) * columns / _COLUMNS_PER_US
        vector_passes = 4 + self.has_ratio + sum(model.has_cap and model.has_bias for model in self.models)
        scalar_passes = 4 + sum(model.has_cap for model in self.models)
        vector = vector_passes * (columns + steps * _BETWEEN) / _VECTOR_COLUMNS_PER_US
        scalar = scalar_passes * (columns + steps * _BETWEEN) / _SCALAR_COLUMNS_PER_US
        scalar += (2 + (scalar_passes > 4)) * _TABLE_US * steps / group_tiles(plan.tiles, class_block)
        loaded = sum(model.loaded_bytes for model in self.models)
        load = columns * loaded / _BYTES_PER_US
        found = max(plan.tiles * max(product, vector, scalar), load) + steps * _STEP_US
        found += loaded * TILE / _BYTES_PER_US + _POSITIONS_US
        bodies = self.most_bodies(plan)
        if steps > bodies:
            found += _LOOP_US + _TRIP_US * steps / (bodies - WINDOW)
        return plan.blocks * found + (_LOOP_US if plan.is_loop else 0.0)


def choose_mixture_tiling(sizes: MixtureSizes, sbuf_bytes: int) -> LinearTiling:
    """The tiling that is modelled to be fastest of those that fit so many bytes of a partition."""
    best, least_us = LinearTiling(TILE, TILE), float("inf")
    for class_block in _CLASS_BLOCKS:
        for tiles in range(min(sizes.position_tiles, _POSITION_TILES_MAX), 0, -1):
            if sizes.bytes_of(tiles, class_block) > sbuf_bytes:
                continue
            time_us = sizes.time_us(tiles, class_block)
            if time_us < least_us:
                best, least_us = LinearTiling(tiles * TILE, class_block), time_us
    return best
