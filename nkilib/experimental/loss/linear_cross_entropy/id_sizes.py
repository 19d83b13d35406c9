"""What several target ids of a position take of the backward: arithmetic, before anything is traced.

Sorted ids and their gradients stay in SBUF for all positions. For each tile of logits Vector looks for eight ids at a
time, and what it finds becomes a tile of gradients.
"""

from __future__ import annotations

from typing import Final

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.sizes import IDS_OF_SEARCH, TILE, searched_ids

# Tiles that are gathered at a time.
ID_TURNS: Final = 2
_FLOAT32_BYTES = 4
# Of a tile beside the searches: the ids of its positions, how many are below it, a running sum, places, the same as
# indices, the gather and the sum.
_INSTRUCTIONS = 7
# A running sum and, by turn, indices and gradients.
_TILES = 1 + 2 * ID_TURNS


def bytes_of_ids(ids: int, num_positions: int, classes_of_tile: int) -> int:
    """Bytes of a partition: sorted ids, the same counted from a block, gradients, and what tiles take."""
    if ids == 1:
        return 0
    searched = searched_ids(ids)
    kept = div_ceil(num_positions, TILE) * (3 * searched + 1)
    searches = 2 * (classes_of_tile + searched) + searched
    return (kept + searches + _TILES * classes_of_tile) * _FLOAT32_BYTES


def bytes_of_places(ids: int, position_tiles: int, class_block: int, classes_of_tile: int) -> int:
    """Bytes of a partition: a place for each logit of a block."""
    return 0 if ids == 1 else position_tiles * div_ceil(class_block, classes_of_tile) * classes_of_tile


def instructions_of_ids(ids: int) -> int:
    """Of a tile of the gradient."""
    return 0 if ids == 1 else searched_ids(ids) // IDS_OF_SEARCH + _INSTRUCTIONS
