# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How rows are cut up: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.plan_limits import limited_piece_columns, limited_sbuf_bytes
from nkilib.core.tiling import div_ceil

# Bytes of a partition that buffers of a stream take at most, and what they take with scratch at most: statistics have
# the rest, which is left for them where a partition has fewer bytes, too.
_STREAM_BYTES, _BYTES, _REST_BYTES = 112 * 1024, 160 * 1024, 40 * 1024
# Columns of a tile at most, and what those of a long row are a multiple of: whole runs of a sum.
_MOST_COLUMNS, _ROUND = 8192, 512
# Rows of at most so many columns are taken several at a time by a partition: an instruction a row would be mostly
# overhead.
SHORT_COLUMNS = 512
# A launch is cut into at least so many tiles, where they stay long enough for DMA.
_FEWEST_TILES, _PARTITIONS = 8, 128
# Rows that a partition of a tile has at most.
MOST_EACH = 512
BUFFERS = 3
# Columns of a piece: instructions of so many have little overhead, and their float32 tiles are 8 KiB a partition.
PIECE_COLUMNS = 2048
# Elements that an accumulator of an engine adds up before it is read: their order is the engine's.
RUN_COLUMNS = 1024
# Tiles whose runs are on chip at a time: one is summed up, one waits to be put together.
RUN_TURNS = 3


class RowwiseTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        columns: of a chunk of a row; where ``each`` is over 1, of a row.
        each: rows of a partition of a tile; 1: a row passes in chunks.
        buffers: tiles of each tensor on chip at a time.
    """

    columns: int
    each: int
    buffers: int

    @property
    def width(self) -> int:
        """Elements of a partition of a tile."""
        return self.each * self.columns

    @property
    def piece_width(self) -> int:
        """Of a piece of a tile."""
        return width_of_piece(self.columns, self.each)


def width_of_piece(columns: int, each: int) -> int:
    """Elements of a partition that instructions take at a time; of several rows, whole ones."""
    most = limited_piece_columns(PIECE_COLUMNS)
    if each == 1:
        return min(columns, most)
    return min(each, max(1, most // columns)) * columns


def choose_rowwise_tiling(rows: int, columns: int, bytes_of_element: int, scratch_tiles: int) -> RowwiseTiling:
    """How a launch is cut up, whatever the number of cores: so the bits of a sum do not depend on it either.

    Args:
        rows, columns: shape of a tensor.
        bytes_of_element: of one element of all tensors that are read or written.
        scratch_tiles: float32 tiles that a piece takes.
    """
    most_bytes = limited_sbuf_bytes(_BYTES + _REST_BYTES) - _REST_BYTES
    stream_bytes = min(_STREAM_BYTES, most_bytes - scratch_bytes(scratch_tiles, limited_piece_columns(PIECE_COLUMNS)))
    fitting = min(_MOST_COLUMNS, max(_ROUND, stream_bytes // (BUFFERS * bytes_of_element) // _ROUND * _ROUND))
    if columns <= SHORT_COLUMNS:
        spread = div_ceil(rows, _PARTITIONS * _FEWEST_TILES)
        return RowwiseTiling(columns, max(1, min(fitting // columns, spread, MOST_EACH)), BUFFERS)
    chunks = div_ceil(columns, fitting)
    return RowwiseTiling(min(fitting, div_ceil(div_ceil(columns, chunks), _ROUND) * _ROUND), 1, BUFFERS)


def partitions_of_tile(rows: int) -> int:
    """Rows in as many partitions as there are, but for few rows: half of them for each of two cores."""
    return min(_PARTITIONS, div_ceil(rows, 2))


def scratch_bytes(tiles: int, piece_width: int) -> int:
    """Bytes of a partition that so many float32 tiles take for two pieces."""
    return 2 * tiles * piece_width * 4
