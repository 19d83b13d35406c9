# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What tiles of the gradient of the logits take of SBUF and of a program beside the products: arithmetic.

A tile has a turn of a ring of float32 tiles, and there are the numbers of the classes of a block. Everything else is
what a loss needs of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil

# Tiles that are made at a time: one is Scalar's, one Vector's, one is rounded.
TURNS: Final = 3
# Columns of positions, eight of which stay.
COLUMNS: Final = 14
# Of a tile of the gradient.
INSTRUCTIONS: Final = 7


@dataclass(frozen=True)
class TileNeeds:
    """What the tiles of a loss take.

    Attributes:
        columns: float32 numbers of each partition for a tile of positions, which stay.
        rows: float32 rows of a block of classes, such as a bias.
        rings: float32 tiles of which there are :data:`TURNS`.
        tiles: further float32 tiles.
        numbers: further float32 numbers of each partition.
        place_bytes: of a partition, for each logit of its position in a block.
        opened: float32 tiles that an opened tile keeps until it is made, where several are opened before the first of
            them is made; 0 where none are. ``rings`` has :data:`TURNS` of each already.
        instructions: of a tile.
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
        """Bytes of a partition for columns, rows, and rings with the fewest opened tiles."""
        columns = self.columns * div_ceil(num_positions, PARTITIONS)
        rings = (self.rings * TURNS + self.tiles) * classes_of_tile
        return (columns + self.rows * class_block + rings + self.numbers) * FLOAT32_BYTES

    def block_bytes(self, position_tiles: int, class_block: int, classes_of_tile: int, opened: int) -> int:
        """Bytes of a partition for what depends on the plan: every loss has the first two.

        Args:
            position_tiles: of a block.
            class_block: classes of a block.
            classes_of_tile: of a tile.
            opened: tiles of each ring of opened tiles.
        """
        places = position_tiles * div_ceil(class_block, classes_of_tile) * classes_of_tile
        tiles = TURNS + self.opened * (opened - TURNS)
        return (tiles * classes_of_tile + class_block) * FLOAT32_BYTES + self.place_bytes * places


# Of a loss without options.
NO_NEEDS: Final = TileNeeds()
