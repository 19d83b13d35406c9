"""What several target ids of a position take of the backward: arithmetic, before anything is traced.

Sorted ids and their gradients stay in SBUF for all positions. For each tile of logits Vector looks for eight ids at a
time, and what it finds becomes a tile of gradients.
"""

from __future__ import annotations

from typing import Final

from nkilib.experimental.loss.linear.sizes import IDS_OF_SEARCH, searched_ids

# Tiles that are gathered at a time.
ID_TURNS: Final = 2
# Of a tile beside the searches: the ids of its positions, how many are below it, a running sum, places, the same as
# indices, the gather and the sum.
_INSTRUCTIONS = 7
# A running sum and, by turn, indices and gradients.
_TILES = 1 + 2 * ID_TURNS


def columns_of_ids(ids: int) -> int:
    """Numbers of a partition for a tile of positions: sorted ids, the same counted from a block, gradients."""
    return 0 if ids == 1 else 3 * searched_ids(ids) + 1


def tiles_of_ids(ids: int) -> int:
    """Float32 tiles of logits: numbers of classes with and without marks, and what gathers take."""
    return 0 if ids == 1 else 2 + _TILES


def numbers_of_ids(ids: int) -> int:
    """Numbers of a partition beside the tiles: ids behind the numbers of classes, and those below a tile."""
    return 0 if ids == 1 else 3 * searched_ids(ids)


def instructions_of_ids(ids: int) -> int:
    """Of a tile of the gradient."""
    return 0 if ids == 1 else searched_ids(ids) // IDS_OF_SEARCH + _INSTRUCTIONS
