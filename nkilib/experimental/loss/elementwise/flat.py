"""Tensors of any shape as one flat stream of elements, cut into tiles that do not depend on the number of cores."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PARTITIONS
from nkilib.nki import nl


@dataclass(frozen=True)
class FlatTile:
    """Elements of the stream: ``rows`` runs of ``columns``, one a partition.

    Attributes:
        number: among all tiles of the launch.
        first: its first element.
        rows, columns: of it.
    """

    number: int
    first: int
    rows: int
    columns: int

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a tensor [elements] that the tile is, a view [rows, columns]."""
        return flat_hbm[self.first : self.first + self.rows * self.columns].reshape((self.rows, self.columns))


def flat_tiles(elements: int, columns: int) -> list[FlatTile]:
    """All tiles of a stream: full ones, one of all partitions for what is left, and one of less than 128 elements."""
    size = PARTITIONS * columns
    tiles = [FlatTile(number, number * size, PARTITIONS, columns) for number in range(elements // size)]
    done = len(tiles) * size
    left = (elements - done) // PARTITIONS
    if left > 0:
        tiles.append(FlatTile(len(tiles), done, PARTITIONS, left))
        done += left * PARTITIONS
    if done < elements:
        tiles.append(FlatTile(len(tiles), done, 1, elements - done))
    return tiles
