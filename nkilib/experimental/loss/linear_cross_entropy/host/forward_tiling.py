"""How the forward is cut up: what fits SBUF, how long its program is, and what is modelled to be fastest.

The more positions are on chip, the less often W is read; the more classes a block has, the fewer instructions there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy.host.sizes import TILE, LinearTiling

# Tiles of positions whose logits stand side by side, and how many such groups there are.
TILES_OF_GROUP, GROUPS = 4, 2
# Blocks of classes whose statistics are combined at once; a trip of a loop has whole windows.
WINDOW = 8

# Classes of a block, of which the largest fills a bank of PSUM.
_CLASS_BLOCKS = (512, 384, 256, 128)
# Beyond so many tiles of positions nothing is gained, and statistics take too much.
_POSITION_TILES_MAX = 64
# Instructions of a core's program for up to so many positions, and beyond.
_FEW_POSITIONS = 4096
_INSTRUCTIONS, _INSTRUCTIONS_OF_MANY = 28_000, 56_000
# Of a tile of logits beside its products: plain, and with any option; of a block of classes.
_OF_TILE, _OF_TILE_WITH_OPTIONS, _OF_BLOCK = 3, 11, 20

# Rates of trn2 as modelled (docs/performance-model.md): Tensor takes a column a cycle, DMA transposes at 90%.
_COLUMNS_PER_US = 2400.0
_BYTES_PER_US = 331_000.0
# Vector's pass over a tile, us: a column a cycle and what lies between two instructions.
_VECTOR_COLUMNS_PER_US, _VECTOR_BETWEEN = 960.0, 164.0
# A loop's start and end; the edge of a trip; what a block of positions waits for at its start and its end.
_LOOP_US, _TRIP_US, _POSITIONS_US = 25.0, 5.0, 15.0


@dataclass(frozen=True)
class ForwardSizes:
    """What a launch of the forward is about.

    Attributes:
        num_positions, num_features, vocab_size: N, D and V.
        itemsize: bytes of an element of X and W.
        cores: of the launch.
    """

    num_positions: int
    num_features: int
    vocab_size: int
    itemsize: int
    cores: int

    @property
    def depth(self) -> int:
        """Tiles of features."""
        return div_ceil(self.num_features, TILE)

    @property
    def position_tiles(self) -> int:
        """Tiles of positions."""
        return div_ceil(self.num_positions, TILE)

    @property
    def class_tiles(self) -> int:
        """Tiles of classes of the core that has most."""
        return div_ceil(div_ceil(self.vocab_size, TILE), self.cores)

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Bytes of a partition of SBUF for blocks of so many tiles of positions, with every option.

        X and two blocks of W; the groups of logits and of tangents; bias, class weights, exponentials and terms of the
        sums, two each; statistics, eight of them exchanged, the weights and two of the moments.
        """
        operands = self.depth * self.itemsize * (tiles * TILE + 2 * class_block)
        logits = 2 * GROUPS * min(tiles, TILES_OF_GROUP) * class_block * 4
        rows = 2 * class_block * (3 * 4 + 2)
        statistics = tiles * 4 * (12 * self.cores * (WINDOW + 1) + 30)
        return operands + logits + rows + statistics + 2048

    def most_bodies(self, tiles: int, position_blocks: int, has_options: bool) -> int:
        """How many blocks of classes the program of a core may have for each block of positions."""
        of_tile = self.depth + (_OF_TILE_WITH_OPTIONS if has_options else _OF_TILE)
        total = _INSTRUCTIONS if self.num_positions <= _FEW_POSITIONS else _INSTRUCTIONS_OF_MANY
        return max(2 * WINDOW, total // position_blocks // (tiles * of_tile + _OF_BLOCK))

    def time_us(self, tiles: int, class_block: int) -> float:
        """About how long the launch takes."""
        blocks = div_ceil(self.position_tiles, tiles)
        tiles = div_ceil(self.position_tiles, blocks)
        steps = div_ceil(self.class_tiles, class_block // TILE)
        passes = 4 if self.itemsize == 4 else 1
        product = passes * self.depth * class_block / _COLUMNS_PER_US
        vector = (class_block + _VECTOR_BETWEEN) / _VECTOR_COLUMNS_PER_US
        load = class_block * self.depth * TILE * self.itemsize / _BYTES_PER_US
        found = steps * max(tiles * max(product, vector), load) + _POSITIONS_US
        bodies = self.most_bodies(tiles, blocks, False)
        if steps > bodies:
            found += _LOOP_US + _TRIP_US * steps / max(WINDOW, bodies // (2 * WINDOW) * WINDOW)
        return blocks * found


def choose_forward_tiling(sizes: ForwardSizes, sbuf_bytes: int) -> LinearTiling:
    """The tiling that is modelled to be fastest of those that fit so many bytes of a partition with every option."""
    best, least_us = LinearTiling(TILE, TILE), float("inf")
    whole = div_ceil(sizes.class_tiles, 1) * TILE
    for class_block in _CLASS_BLOCKS:
        if class_block > max(TILE, whole):
            continue
        for tiles in range(min(sizes.position_tiles, _POSITION_TILES_MAX), 0, -1):
            if sizes.bytes_of(tiles, class_block) > sbuf_bytes:
                continue
            time_us = sizes.time_us(tiles, class_block)
            if time_us < least_us:
                best, least_us = LinearTiling(tiles * TILE, class_block), time_us
    return best
