"""What every tile of a launch is, however its tensors are cut up: flat (:mod:`.flat`), or by rows (:mod:`.matrix`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from nkilib.nki import nl


class Tile(Protocol):
    """Some elements of each tensor."""

    @property
    def number(self) -> int:
        """Among all tiles of the launch."""

    @property
    def rows(self) -> int:
        """Partitions that it takes."""

    @property
    def columns(self) -> int:
        """Elements of each."""

    def of(self, flat_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a tensor [elements] that the tile is, a view [rows, columns]."""


AnyTile = TypeVar("AnyTile", bound=Tile)


def tiles_of_core(tiles: Sequence[AnyTile], cores: int, core: int) -> Sequence[AnyTile]:
    """Every ``cores``-th tile: shares differ by one tile at most."""
    return tiles[core::cores]
