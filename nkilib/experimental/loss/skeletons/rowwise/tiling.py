# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling of a row-wise launch. For host code; arithmetic only.

:func:`choose_rowwise_tiling` returns the :class:`RowwiseTiling`; the other functions compute sizes that follow from it.
A *tile* is up to 128 partitions of rows, a *chunk* the part of a tile that is loaded at a time, and a *piece* the part
of a chunk that is processed at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_piece_columns, limited_sbuf_bytes

# The maximum bytes of a partition for buffers of a stream, and for buffers and scratch: statistics have the rest,
# which is reserved for them if a partition has fewer bytes, too.
_STREAM_BYTES, _BYTES, _REST_BYTES = 112 * 1024, 160 * 1024, 40 * 1024
# The maximum columns of a tile, and the divisor of those of a long row: whole runs of a sum.
_MOST_COLUMNS, _ROUND = 8192, 512
# A partition takes several rows at a time if they have at most this many columns: one instruction per row would be
# mostly overhead.
SHORT_COLUMNS = 512
# A launch is cut into at least so many tiles, where they stay long enough for DMA.
_FEWEST_TILES = 8
# Rows that a partition of a tile has at most.
MOST_EACH = 512
BUFFERS = 3
# Columns of a piece: instructions of so many have little overhead, and their float32 tiles are 8 KiB a partition.
PIECE_COLUMNS = 2048
# Elements that an accumulator of an engine adds up before it is read: their order is the engine's.
RUN_COLUMNS = 1024
# Tiles whose runs are on chip at a time: one is being summed, one waits to be combined.
RUN_SLOTS = 3


class RowwiseTiling(NamedTuple):
    """The tiling of a launch; pass it as ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        columns: the number of columns of a chunk; all columns of a row if ``each`` is over 1.
        each: the number of rows in each partition of a tile; if it is 1, a row is processed in chunks.
        buffers: the number of chunks of each tensor that are on chip at a time.
    """

    columns: int
    each: int
    buffers: int

    @property
    def width(self) -> int:
        """The number of elements per partition of a chunk."""
        return self.each * self.columns

    @property
    def piece_width(self) -> int:
        """The number of elements per partition of a piece."""
        return width_of_piece(self.columns, self.each)


def width_of_piece(columns: int, each: int) -> int:
    """Return the number of elements per partition of a piece; if ``each`` is over 1, a piece has whole rows.

    Args:
        columns: the number of columns of a chunk.
        each: the number of rows in each partition of a tile.
    """
    most = limited_piece_columns(PIECE_COLUMNS)
    if each == 1:
        return min(columns, most)
    return min(each, max(1, most // columns)) * columns


def choose_rowwise_tiling(rows: int, columns: int, bytes_of_element: int, scratch_tiles: int) -> RowwiseTiling:
    """Return the tiling of a launch; it does not depend on the number of cores.

    Args:
        rows, columns: the shape of a tensor.
        bytes_of_element: the sum, over all tensors that are read or written, of the bytes of one element.
        scratch_tiles: the number of float32 scratch tiles of a piece.
    """
    most_bytes = limited_sbuf_bytes(_BYTES + _REST_BYTES) - _REST_BYTES
    stream_bytes = min(_STREAM_BYTES, most_bytes - scratch_bytes(scratch_tiles, limited_piece_columns(PIECE_COLUMNS)))
    fitting = min(_MOST_COLUMNS, max(_ROUND, stream_bytes // (BUFFERS * bytes_of_element) // _ROUND * _ROUND))
    if columns <= SHORT_COLUMNS:
        spread = div_ceil(rows, PARTITIONS * _FEWEST_TILES)
        return RowwiseTiling(columns, max(1, min(fitting // columns, spread, MOST_EACH)), BUFFERS)
    chunks = div_ceil(columns, fitting)
    return RowwiseTiling(min(fitting, div_ceil(div_ceil(columns, chunks), _ROUND) * _ROUND), 1, BUFFERS)


def partitions_of_tile(rows: int) -> int:
    """Return the number of partitions of a tile: 128, but at most half of ``rows``, so that two cores have work."""
    return min(PARTITIONS, div_ceil(rows, 2))


def scratch_bytes(tiles: int, piece_width: int) -> int:
    """Return the bytes per partition of ``tiles`` float32 scratch tiles for each of two pieces."""
    return 2 * tiles * piece_width * FLOAT32_BYTES
