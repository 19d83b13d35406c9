"""How a flat stream is cut up: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.tiling import div_ceil

# Bytes of a partition that the buffers of a stream take at most; scratch and sums have the rest.
_STREAM_BYTES = 112 * 1024
# Columns of a tile at most, and what they are a multiple of: whole runs of a sum.
_MOST_COLUMNS, _ROUND = 8192, 512
# A launch is cut into at least so many tiles, where they stay long enough for DMA, so that loads, computation and
# stores of two cores overlap.
_FEWEST_TILES, _PARTITIONS = 8, 128
BUFFERS = 3


class ElementwiseTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        columns: elements of a partition of a tile.
        buffers: tiles of each tensor on chip at a time.
    """

    columns: int
    buffers: int


def choose_elementwise_tiling(elements: int, bytes_of_element: int) -> ElementwiseTiling:
    """From the number of elements of a tensor, and the bytes of one element of all tensors that are read or written.

    It does not depend on the number of cores, and so neither do the bits of a sum.
    """
    fitting = _STREAM_BYTES // (BUFFERS * bytes_of_element) // _ROUND * _ROUND
    spread = div_ceil(div_ceil(elements, _PARTITIONS * _FEWEST_TILES), _ROUND) * _ROUND
    return ElementwiseTiling(max(_ROUND, min(fitting, _MOST_COLUMNS, spread)), BUFFERS)
