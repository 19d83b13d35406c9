"""Sizes that all losses of elements have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nkilib.core.plan_limits import limited_piece_columns

# Columns of a piece at most: instructions of so many have little overhead, and their float32 tiles are 8 KiB a
# partition. A loss of many tiles takes smaller pieces, so that tensors have room.
PIECE_COLUMNS: Final = 2048
_TILES_OF_LARGE_PIECES, _TILES_OF_HALF_PIECES = 6, 10
# Elements that an accumulator of an engine adds up before it is read: their order is the engine's. Where all tensors
# have 16 bits their own rounding is far larger than that of a long run, whose instruction costs less of an element.
RUN_COLUMNS: Final = 512
LONG_RUN_COLUMNS: Final = PIECE_COLUMNS
_BYTES_OF_SHORT: Final = 2
# Scalar and Vector may each add up one part of the losses.
SUMS_OF_RUN: Final = 2
# Tiles whose sums of runs are on chip at a time.
SUM_TURNS: Final = 3


def piece_columns(scratch_tiles: int) -> int:
    """Columns of a piece of a loss that takes so many float32 tiles."""
    if scratch_tiles <= _TILES_OF_LARGE_PIECES:
        return limited_piece_columns(PIECE_COLUMNS)
    return limited_piece_columns(PIECE_COLUMNS // 2 if scratch_tiles <= _TILES_OF_HALF_PIECES else PIECE_COLUMNS // 4)


def run_columns(bytes_of_elements: Iterable[int], piece: int) -> int:
    """Columns of a run.

    Args:
        bytes_of_elements: of each tensor that losses are computed from.
        piece: columns of a piece, which runs divide.
    """
    return min(LONG_RUN_COLUMNS, piece) if max(bytes_of_elements) <= _BYTES_OF_SHORT else RUN_COLUMNS
