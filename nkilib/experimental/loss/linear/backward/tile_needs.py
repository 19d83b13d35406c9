# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""SBUF and instructions of the tiles of the gradient of the logits, besides the products: arithmetic.

Every loss has a ring buffer of float32 tiles, and the class numbers of a block. Everything else is specific to a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil

# Tiles in work at a time: one on Scalar, one on Vector, one that is rounded.
SLOTS: Final = 3
# Columns of positions, eight of which stay.
COLUMNS: Final = 14
# Instructions of a tile of the gradient.
INSTRUCTIONS: Final = 7
# Further instructions of a tile that is added to sums before it is rounded.
INSTRUCTIONS_OF_SUMS: Final = 2


@dataclass(frozen=True)
class TileNeeds:
    """The SBUF and instructions that a loss needs for its tiles of the gradient of the logits.

    Attributes:
        columns: float32 numbers that stay in each partition, for every tile of positions.
        rows: float32 rows of a block of classes, such as a bias, or the sums of gradients for its own gradient.
        rings: ring buffers of :data:`SLOTS` float32 tiles.
        tiles: further float32 tiles.
        numbers: further float32 numbers per partition.
        place_bytes: bytes that stay for each logit of a block, such as a table place of :class:`IdTiles`.
        opened: float32 tiles that an opened tile keeps until it is computed, if several are opened before the first of
            them is computed; 0 otherwise. ``rings`` has :data:`SLOTS` of each already.
        instructions: instructions of a tile.
    """

    columns: int = COLUMNS
    rows: int = 0
    rings: int = 0
    tiles: int = 0
    numbers: int = 0
    place_bytes: int = 0
    opened: int = 0
    instructions: int = INSTRUCTIONS

    def option_bytes(self, num_positions: int, class_block: int, classes_of_tile: int) -> int:
        """Return the bytes per partition of columns, rows and ring buffers, with :data:`SLOTS` opened tiles."""
        columns = self.columns * div_ceil(num_positions, PARTITIONS)
        rings = (self.rings * SLOTS + self.tiles) * classes_of_tile
        return (columns + self.rows * class_block + rings + self.numbers) * FLOAT32_BYTES

    def block_bytes(self, position_tiles: int, class_block: int, classes_of_tile: int, opened: int) -> int:
        """Return the bytes per partition that depend on the plan.

        They hold a ring buffer of tiles and the class numbers, which every loss has, further opened tiles, and places.

        Args:
            position_tiles: tiles of positions of a block.
            class_block: classes of a block.
            classes_of_tile: classes of a tile.
            opened: the number of tiles in each ring buffer for opened tiles.
        """
        places = position_tiles * div_ceil(class_block, classes_of_tile) * classes_of_tile
        tiles = SLOTS + self.opened * (opened - SLOTS)
        return (tiles * classes_of_tile + class_block) * FLOAT32_BYTES + self.place_bytes * places


# The needs of a loss without options.
NO_NEEDS: Final = TileNeeds()
