# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rows of matrices [N, D], cut into tiles, and the tiles of a core in groups. No tile depends on the
number of cores.

Long rows: each partition of a tile has one row, which is processed in chunks of columns. Short rows: each
partition has several whole rows, which follow each other in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.skeletons.rowwise.host.tiling import RowwiseTiling, partitions_of_tile
from nkilib.nki import nl

PARTITIONS = 128
# Tiles whose rows are finished together: the small instructions for them cost the same for one and for all.
GROUP_TILES = 16
# The maximum rows of a partition of a group of several tiles.
GROUP_ROWS = 512


@dataclass(frozen=True)
class RowTile:
    """A tile of adjacent rows, of which each partition has ``each``.

    Attributes:
        number: the index among all tiles of the launch.
        first: the first row.
        partitions: the number of partitions that the tile takes.
        each: the rows of a partition.
    """

    number: int
    first: int
    partitions: int
    each: int

    @property
    def end(self) -> int:
        """The index of the row after the tile's last one."""
        return self.first + self.partitions * self.each

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns [start, end) of the tile's rows of a matrix, as a view [partitions, each * columns].

        If ``each`` is over 1, they must be all columns.
        """
        if self.each == 1:
            return matrix_hbm[self.first : self.end, start:end]
        return matrix_hbm[self.first : self.end, :].reshape((self.partitions, self.each * matrix_hbm.shape[1]))

    def of_vector(self, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the numbers of the tile's rows in a vector [N], as a view [partitions, each]."""
        return vector_hbm[self.first : self.end].reshape((self.partitions, self.each))


@dataclass(frozen=True)
class RowGroup:
    """A group of tiles of a core, all of one size, whose losses are computed together.

    Attributes:
        tiles: the tiles in order; their numbers differ by the number of cores.
        start: the index of the first tile among the tiles of the core.
        cores: the number of cores of the launch.
    """

    tiles: list[RowTile]
    start: int
    cores: int

    @property
    def partitions(self) -> int:
        """The number of partitions of each tile."""
        return self.tiles[0].partitions

    @property
    def rows(self) -> int:
        """The number of rows in each partition, over all tiles of the group."""
        return len(self.tiles) * self.tiles[0].each

    def columns(self, tile: int) -> tuple[int, int]:
        """Return the columns of tile number ``tile`` in a tensor [partitions, rows] of the group, as (first, end)."""
        each = self.tiles[0].each
        return tile * each, (tile + 1) * each

    def lines_of(self, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the numbers of the group's rows in a vector [N], as a view [tiles, partitions], if each partition of
        a tile has one row.
        """
        first, last, size = self.tiles[0], self.tiles[-1], self.partitions
        lines_hbm = vector_hbm[first.first : last.end].reshape(((last.end - first.first) // size, size))
        return lines_hbm if len(self.tiles) == 1 else lines_hbm[:: self.cores, :]


def row_tiles(rows: int, partitions: int, each: int) -> list[RowTile]:
    """Return all tiles for a number of rows: full ones; then, for the rest, at most one of fewer rows per partition,
    and at most one of fewer partitions, with one row each.

    Args:
        rows: N.
        partitions, each: the partitions and the rows per partition of a full tile.
    """
    tiles: list[RowTile] = []
    done = 0
    for share in sorted({each, 1}, reverse=True):
        while rows - done >= partitions * share:
            tiles.append(RowTile(len(tiles), done, partitions, share))
            done += partitions * share
        left = (rows - done) // partitions
        if share > 1 and left > 1:
            tiles.append(RowTile(len(tiles), done, partitions, left))
            done += partitions * left
    if done < rows:
        tiles.append(RowTile(len(tiles), done, rows - done, 1))
    return tiles


def groups_of_core(tiles: list[RowTile], cores: int, core: int) -> list[RowGroup]:
    """Return the tiles of a core, every ``cores``-th one, in groups of adjacent tiles of one size."""
    own = tiles[core::cores]
    groups: list[RowGroup] = []
    for number, tile in enumerate(own):
        if groups and _joins(groups[-1], tile):
            groups[-1].tiles.append(tile)
        else:
            groups.append(RowGroup([tile], number, cores))
    return groups


def _joins(group: RowGroup, tile: RowTile) -> bool:
    last = group.tiles[-1]
    is_alike = (last.partitions, last.each) == (tile.partitions, tile.each)
    most = min(GROUP_TILES, max(1, GROUP_ROWS // tile.each))
    return is_alike and len(group.tiles) < most


@dataclass(frozen=True)
class RowLaunch:
    """The tensors of a launch, of one shape, and the sizes into which they are cut.

    Attributes:
        matrices_hbm: [N, D] each, in the order of the loss definition's numbers; [1, D] for one that all rows share.
        vectors_hbm: per-row scalars, float32 [N] each, in the order of the loss definition.
        tiling: the tiling of the rows.
    """

    matrices_hbm: tuple[nl.NkiTensor, ...]
    tiling: RowwiseTiling
    vectors_hbm: tuple[nl.NkiTensor, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows, N."""
        return int(self.matrices_hbm[0].shape[0])

    @property
    def columns(self) -> int:
        """The number of columns, D."""
        return int(self.matrices_hbm[0].shape[1])

    def tiles(self) -> list[RowTile]:
        """Return the tiles of all cores."""
        return row_tiles(self.rows, partitions_of_tile(self.rows), self.tiling.each)

    def groups(self) -> list[RowGroup]:
        """Return the groups of this core."""
        return groups_of_core(self.tiles(), nl.num_programs(), nl.program_id(0))
