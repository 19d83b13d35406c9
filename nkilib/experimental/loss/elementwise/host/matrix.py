"""How a matrix is cut into rows and columns, where a loss has a weight of rows or of columns: arithmetic only."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.partial_sums import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.sizes import RUN_COLUMNS


class RowGroup(NamedTuple):
    """Rows that a tile has.

    Attributes:
        first: of them.
        partitions: that they are in.
        each: rows in a partition.
    """

    first: int
    partitions: int
    each: int


def columns_of_chunk(row_columns: int, columns: int) -> int:
    """Columns of a row that a tile has: all, or about as many as every other tile, and whole runs of a sum."""
    if row_columns <= columns:
        return row_columns
    even = div_ceil(row_columns, div_ceil(row_columns, columns))
    return min(columns, div_ceil(even, RUN_COLUMNS) * RUN_COLUMNS)


def row_groups(rows: int, row_columns: int, columns: int) -> list[RowGroup]:
    """Those of tiles of at most ``columns`` elements in a partition.

    Full groups, one of all partitions for what is left, and one of less than 128 rows.
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
    """How many tiles there are."""
    chunks = div_ceil(row_columns, columns_of_chunk(row_columns, columns))
    return chunks * len(row_groups(rows, row_columns, columns))
