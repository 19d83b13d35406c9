"""How a flat stream is cut up: arithmetic only, for host code."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from nkilib.core.partial_sums import LEAF
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.sizes import (
    LONG_RUN_COLUMNS,
    PARTITIONS,
    PIECES_AT_A_TIME,
    RUN_COLUMNS,
    SUM_TURNS,
    SUMS_OF_RUN,
    piece_columns,
)

# Bytes of a partition that buffers of a stream and scratch take at most; sums have the rest.
_CHIP_BYTES = 176 * 1024
# What a launch takes at most, of the 208 KiB that trn2 has.
_MOST_BYTES = 207 * 1024
# Of constants, upstream gradients and the last sums, with room for alignment.
_SMALL_BYTES = 8 * 1024
_FLOAT32_BYTES = 4
# Columns of a tile at most. They are a multiple of whole runs of a sum.
_MOST_COLUMNS = 8192
# A launch is cut into at least so many tiles, where they stay long enough for DMA, so that loads, computation and
# stores of two cores overlap.
_FEWEST_TILES = 8
BUFFERS = 3
_FEWEST_BUFFERS = 2


class ElementwiseTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        columns: elements of a partition of a tile.
        buffers: tiles of each tensor on chip at a time.
    """

    columns: int
    buffers: int


def choose_elementwise_tiling(elements: int, bytes_of_element: int, scratch_tiles: int = 4) -> ElementwiseTiling:
    """From the number of elements of a tensor, and the bytes of one element of all tensors that are read or written.

    ``scratch_tiles`` are those that a piece of the loss takes.

    It does not depend on the number of cores, and so neither do the bits of a sum.
    """
    scratch_bytes = _scratch_bytes(scratch_tiles, piece_columns(scratch_tiles))
    fitting = (_CHIP_BYTES - scratch_bytes) // (BUFFERS * bytes_of_element) // RUN_COLUMNS * RUN_COLUMNS
    spread = div_ceil(div_ceil(elements, PARTITIONS * _FEWEST_TILES), RUN_COLUMNS) * RUN_COLUMNS
    columns = max(RUN_COLUMNS, min(fitting, _MOST_COLUMNS, spread))
    # Whole pieces: the last one of a tile would be short, and instructions of few columns cost more of an element.
    piece = piece_columns(scratch_tiles)
    chosen = ElementwiseTiling(columns // piece * piece if columns > piece else columns, BUFFERS)
    # The sums of tiles of a thousand million elements want room, too.
    shorter = range(chosen.columns, 0, -RUN_COLUMNS)
    for tiling in (ElementwiseTiling(*each) for each in product(shorter, (BUFFERS, _FEWEST_BUFFERS))):
        if partition_bytes(tiling, elements, bytes_of_element, scratch_tiles, LONG_RUN_COLUMNS) <= _MOST_BYTES:
            return tiling
    return chosen


def partition_bytes(
    tiling: ElementwiseTiling, elements: int, bytes_of_element: int, scratch_tiles: int, run_columns: int
) -> int:
    """What a launch takes of a partition of SBUF: buffers, scratch, and the sums of runs and tiles."""
    columns = min(tiling.columns, piece_columns(scratch_tiles))
    tiles = 2 * div_ceil(div_ceil(elements, PARTITIONS * tiling.columns) + 2, LEAF) * LEAF
    runs = SUMS_OF_RUN * (SUM_TURNS * div_ceil(tiling.columns, RUN_COLUMNS) + run_columns)
    sums_bytes = _FLOAT32_BYTES * (tiles + runs) + _SMALL_BYTES
    return tiling.buffers * tiling.columns * bytes_of_element + _scratch_bytes(scratch_tiles, columns) + sums_bytes


def _scratch_bytes(scratch_tiles: int, columns: int) -> int:
    return _FLOAT32_BYTES * PIECES_AT_A_TIME * scratch_tiles * columns
