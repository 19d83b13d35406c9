# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Ring buffers of tiles on chip."""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.nki import nl


def ring_of(count: int, columns: int, dtype: nl.DType) -> list[nl.NkiTensor]:
    """Allocate ``count`` tiles [128, columns]."""
    return [nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]


@dataclass
class Ring:
    """Tiles of one shape, used round-robin: the next tile is the one that was taken longest ago.

    The body of a device loop is traced once, so every iteration has to start at the same tile: :meth:`restart`.

    Attributes:
        tiles: the tiles in their order.
    """

    tiles: list[nl.NkiTensor]
    _taken: int = field(default=0, init=False)

    @classmethod
    def of_sbuf(cls, count: int, shape: tuple[int, ...], dtype: nl.DType) -> Ring:
        """Allocate the tiles of a ring in SBUF."""
        return cls([nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)])

    def next_tile(self) -> nl.NkiTensor:
        """Return the next tile of the ring."""
        self._taken += 1
        return self.tiles[(self._taken - 1) % len(self.tiles)]

    def restart(self) -> None:
        """Make the first tile the next one."""
        self._taken = 0
