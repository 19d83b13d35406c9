# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling of an elementwise launch, from its sizes only. For host code; arithmetic only.

:func:`choose_elementwise_tiling` makes the :class:`ElementwiseTiling`, and :func:`partition_bytes` counts its bytes of
SBUF. A *piece* is the part of a tile that is processed at a time (:func:`piece_columns`); a *run* is a range of columns
of a piece, over which an accumulator adds up losses before it is read (:func:`run_columns`). Tensors are flattened and
cut into tiles; only if a weight has one value per row or per column, they are cut as matrices (:func:`row_groups`,
:func:`columns_of_chunk`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from nkilib.core.cores import LEAF
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_piece_columns, limited_sbuf_bytes
from nkilib.core.rows.sbuf import PIECES_AT_A_TIME

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
SUM_SLOTS: Final = 3


def piece_columns(scratch_tiles: int) -> int:
    """Return the number of columns of a piece that uses ``scratch_tiles`` float32 tiles."""
    if scratch_tiles <= _TILES_OF_LARGE_PIECES:
        return limited_piece_columns(PIECE_COLUMNS)
    return limited_piece_columns(PIECE_COLUMNS // 2 if scratch_tiles <= _TILES_OF_HALF_PIECES else PIECE_COLUMNS // 4)


def run_columns(bytes_of_elements: Iterable[int], piece: int) -> int:
    """Return the number of columns of a run: longer if all tensors have 16 bits.

    Args:
        bytes_of_elements: for each tensor of the loss, the bytes of an element.
        piece: the number of columns of a piece.
    """
    return min(LONG_RUN_COLUMNS, piece) if max(bytes_of_elements) <= _BYTES_OF_SHORT else RUN_COLUMNS


class RowGroup(NamedTuple):
    """The rows of a matrix that a tile has.

    Attributes:
        first: the index of the first row.
        partitions: the number of partitions that hold the rows.
        each: the number of rows in each partition.
    """

    first: int
    partitions: int
    each: int


def columns_of_chunk(row_columns: int, columns: int) -> int:
    """Return how many columns of a matrix a tile has: all, or those of one of several nearly equal ranges.

    Args:
        row_columns: the number of columns of the matrix.
        columns: the maximum number of elements in a partition of a tile.
    """
    if row_columns <= columns:
        return row_columns
    even = div_ceil(row_columns, div_ceil(row_columns, columns))
    return min(columns, div_ceil(even, RUN_COLUMNS) * RUN_COLUMNS)


def row_groups(rows: int, row_columns: int, columns: int) -> list[RowGroup]:
    """Return the rows of each tile of a matrix [rows, row_columns], with at most ``columns`` elements in a partition.

    Full groups come first, then at most one group of 128 partitions with fewer rows in each, then at most one group of
    fewer than 128 partitions with one row in each.
    """
    most = max(1, columns // row_columns)
    size = PARTITIONS * most
    groups = [RowGroup(first, PARTITIONS, most) for first in range(0, rows - size + 1, size)]
    done = len(groups) * size
    each = (rows - done) // PARTITIONS
    if each > 0:
        groups.append(RowGroup(done, PARTITIONS, each))
        done += each * PARTITIONS
    return [*groups, RowGroup(done, rows - done, 1)] if done < rows else groups


def num_matrix_tiles(rows: int, row_columns: int, columns: int) -> int:
    """Return the number of tiles of a matrix [rows, row_columns], with at most ``columns`` elements in a partition."""
    chunks = div_ceil(row_columns, columns_of_chunk(row_columns, columns))
    return chunks * len(row_groups(rows, row_columns, columns))


# Bytes of a partition that buffers of a stream and scratch take at most; sums have the rest.
_CHIP_BYTES = 176 * 1024
# The maximum bytes of a launch, of the 208 KiB that trn2 has.
_MOST_BYTES = 207 * 1024
# The bytes of constants, upstream gradients and the last sums, with room for alignment.
_SMALL_BYTES = 8 * 1024
# Columns of a tile at most. They are a multiple of whole runs of a sum.
_MOST_COLUMNS = 8192
# A launch is cut into at least so many tiles, where they stay long enough for DMA, so that loads, computation and
# stores of two cores overlap.
_FEWEST_TILES = 8
BUFFERS = 3
_FEWEST_BUFFERS = 2
# A training launches the same shapes again and again, and on two cores.
_MOST_TILINGS = 256


class ElementwiseTiling(NamedTuple):
    """The tiling of a launch; pass it as ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        columns: the number of elements per partition of a tile.
        buffers: the number of tiles of each tensor that are on chip at a time.
    """

    columns: int
    buffers: int


def choose_elementwise_tiling(
    elements: int, bytes_of_element: int, scratch_tiles: int = 4, row_columns: int | None = None
) -> ElementwiseTiling:
    """Return the tiling of a launch; it does not depend on the number of cores.

    Args:
        elements: the number of elements of a tensor.
        bytes_of_element: the sum, over all tensors that are read or written, of the bytes of one element.
        scratch_tiles: the number of float32 scratch tiles of a piece.
        row_columns: the number of elements of a row if a weight has one value per row or per column; else None.
    """
    piece = piece_columns(scratch_tiles)
    return _chosen(elements, bytes_of_element, scratch_tiles, row_columns, piece, limited_sbuf_bytes(_MOST_BYTES))


@lru_cache(maxsize=_MOST_TILINGS)
def _chosen(
    elements: int, bytes_of_element: int, scratch_tiles: int, row_columns: int | None, piece: int, most_bytes: int
) -> ElementwiseTiling:
    """Return the result of :func:`choose_elementwise_tiling`, from a cache if possible.

    ``piece`` (columns of a piece) and ``most_bytes`` (usable bytes of a partition) are arguments because tests change
    the limits that they depend on.
    """
    scratch_bytes = _scratch_bytes(scratch_tiles, piece)
    chip_bytes = _CHIP_BYTES - (_MOST_BYTES - most_bytes)
    fitting = (chip_bytes - scratch_bytes) // (BUFFERS * bytes_of_element) // RUN_COLUMNS * RUN_COLUMNS
    spread = div_ceil(div_ceil(elements, PARTITIONS * _FEWEST_TILES), RUN_COLUMNS) * RUN_COLUMNS
    columns = max(RUN_COLUMNS, min(fitting, _MOST_COLUMNS, spread))
    # Whole pieces: the last one of a tile would be short, and instructions of few columns cost more of an element.
    chosen = ElementwiseTiling(columns // piece * piece if columns > piece else columns, BUFFERS)
    # The sums of tiles of a thousand million elements want room, too.
    shorter = range(chosen.columns, 0, -RUN_COLUMNS)
    for tiling in (ElementwiseTiling(*sizes) for sizes in product(shorter, (BUFFERS, _FEWEST_BUFFERS))):
        tiles = num_tiles(elements, tiling.columns, row_columns)
        if partition_bytes(tiling, tiles, bytes_of_element, scratch_tiles, LONG_RUN_COLUMNS) <= most_bytes:
            return tiling
    return chosen


def num_tiles(elements: int, columns: int, row_columns: int | None) -> int:
    """Return the maximum number of tiles for ``elements`` elements, with at most ``columns`` elements in a partition.

    ``row_columns`` is the number of elements of a row if tensors are cut as matrices; None if they are flattened.
    """
    if row_columns is None:
        return div_ceil(elements, PARTITIONS * columns) + 2
    return num_matrix_tiles(elements // row_columns, row_columns, columns)


def partition_bytes(
    tiling: ElementwiseTiling, tiles: int, bytes_of_element: int, scratch_tiles: int, run_columns: int
) -> int:
    """Return the bytes of an SBUF partition that a launch needs for buffers, scratch tiles and sums.

    Args:
        tiling: the tiling.
        tiles: the number of tiles of all cores.
        bytes_of_element: the sum, over all tensors that are read or written, of the bytes of one element.
        scratch_tiles: the number of float32 scratch tiles of a piece.
        run_columns: the number of columns of a run.
    """
    columns = min(tiling.columns, piece_columns(scratch_tiles))
    sums = 2 * div_ceil(tiles, LEAF) * LEAF
    runs = SUMS_OF_RUN * (SUM_SLOTS * div_ceil(tiling.columns, RUN_COLUMNS) + run_columns)
    sums_bytes = FLOAT32_BYTES * (sums + runs) + _SMALL_BYTES
    return tiling.buffers * tiling.columns * bytes_of_element + _scratch_bytes(scratch_tiles, columns) + sums_bytes


def _scratch_bytes(scratch_tiles: int, columns: int) -> int:
    return FLOAT32_BYTES * PIECES_AT_A_TIME * scratch_tiles * columns
