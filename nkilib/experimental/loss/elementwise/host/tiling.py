"""How a launch is cut up: arithmetic only, for host code."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

from nkilib.core.partial_sums import LEAF
from nkilib.core.plan_limits import limited_sbuf_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.host.matrix import num_matrix_tiles
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
# Of a training, that launches with the same shapes again and again, and on two cores.
_MOST_TILINGS = 256


class ElementwiseTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        columns: elements of a partition of a tile.
        buffers: tiles of each tensor on chip at a time.
    """

    columns: int
    buffers: int


def choose_elementwise_tiling(
    elements: int, bytes_of_element: int, scratch_tiles: int = 4, row_columns: int | None = None
) -> ElementwiseTiling:
    """From the size of a launch; it does not depend on the number of cores, and so neither do the bits of a sum.

    Args:
        elements: of a tensor.
        bytes_of_element: of one element of all tensors that are read or written.
        scratch_tiles: that a piece of the loss takes.
        row_columns: elements of a row, where a weight is one of rows or of columns; None: there is no such weight.
    """
    piece = piece_columns(scratch_tiles)
    return _chosen(elements, bytes_of_element, scratch_tiles, row_columns, piece, limited_sbuf_bytes(_MOST_BYTES))


@lru_cache(maxsize=_MOST_TILINGS)
def _chosen(
    elements: int, bytes_of_element: int, scratch_tiles: int, row_columns: int | None, piece: int, most_bytes: int
) -> ElementwiseTiling:
    """As above; all that obeys limits is among the arguments."""
    scratch_bytes = _scratch_bytes(scratch_tiles, piece)
    chip_bytes = _CHIP_BYTES - (_MOST_BYTES - most_bytes)
    fitting = (chip_bytes - scratch_bytes) // (BUFFERS * bytes_of_element) // RUN_COLUMNS * RUN_COLUMNS
    spread = div_ceil(div_ceil(elements, PARTITIONS * _FEWEST_TILES), RUN_COLUMNS) * RUN_COLUMNS
    columns = max(RUN_COLUMNS, min(fitting, _MOST_COLUMNS, spread))
    # Whole pieces: the last one of a tile would be short, and instructions of few columns cost more of an element.
    chosen = ElementwiseTiling(columns // piece * piece if columns > piece else columns, BUFFERS)
    # The sums of tiles of a thousand million elements want room, too.
    shorter = range(chosen.columns, 0, -RUN_COLUMNS)
    for tiling in (ElementwiseTiling(*each) for each in product(shorter, (BUFFERS, _FEWEST_BUFFERS))):
        tiles = num_tiles(elements, tiling.columns, row_columns)
        if partition_bytes(tiling, tiles, bytes_of_element, scratch_tiles, LONG_RUN_COLUMNS) <= most_bytes:
            return tiling
    return chosen


def num_tiles(elements: int, columns: int, row_columns: int | None) -> int:
    """Of tensors of so many elements, in rows of so many where that is given; at most so many."""
    if row_columns is None:
        return div_ceil(elements, PARTITIONS * columns) + 2
    return num_matrix_tiles(elements // row_columns, row_columns, columns)


def partition_bytes(
    tiling: ElementwiseTiling, tiles: int, bytes_of_element: int, scratch_tiles: int, run_columns: int
) -> int:
    """What a launch takes of a partition of SBUF: buffers, scratch, and the sums of runs and tiles."""
    columns = min(tiling.columns, piece_columns(scratch_tiles))
    sums = 2 * div_ceil(tiles, LEAF) * LEAF
    runs = SUMS_OF_RUN * (SUM_TURNS * div_ceil(tiling.columns, RUN_COLUMNS) + run_columns)
    sums_bytes = _FLOAT32_BYTES * (sums + runs) + _SMALL_BYTES
    return tiling.buffers * tiling.columns * bytes_of_element + _scratch_bytes(scratch_tiles, columns) + sums_bytes


def _scratch_bytes(scratch_tiles: int, columns: int) -> int:
    return _FLOAT32_BYTES * PIECES_AT_A_TIME * scratch_tiles * columns
