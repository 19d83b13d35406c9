"""How a flat stream is cut up: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.sizes import PARTITIONS, PIECES_AT_A_TIME, RUN_COLUMNS, piece_columns

# Bytes of a partition that buffers of a stream and scratch take at most; sums have the rest.
_CHIP_BYTES = 176 * 1024
# Columns of a tile at most. They are a multiple of whole runs of a sum.
_MOST_COLUMNS = 8192
# A launch is cut into at least so many tiles, where they stay long enough for DMA, so that loads, computation and
# stores of two cores overlap.
_FEWEST_TILES = 8
BUFFERS = 3


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
    scratch_bytes = 4 * PIECES_AT_A_TIME * scratch_tiles * piece_columns(scratch_tiles)
    fitting = (_CHIP_BYTES - scratch_bytes) // (BUFFERS * bytes_of_element) // RUN_COLUMNS * RUN_COLUMNS
    spread = div_ceil(div_ceil(elements, PARTITIONS * _FEWEST_TILES), RUN_COLUMNS) * RUN_COLUMNS
    columns = max(RUN_COLUMNS, min(fitting, _MOST_COLUMNS, spread))
    # Whole pieces: the last one of a tile would be short, and instructions of few columns cost more of an element.
    piece = piece_columns(scratch_tiles)
    return ElementwiseTiling(columns // piece * piece if columns > piece else columns, BUFFERS)
