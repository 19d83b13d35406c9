# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles on chip that are taken in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.nki import nl


def ring_of(count: int, columns: int, dtype: nl.DType) -> list[nl.NkiTensor]:
    """So many tiles [128, columns]."""
    return [nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]


@dataclass
class Ring:
    """Tiles of one shape: each next one is that which was taken longest ago.

    The body of a loop of the device is traced once, so it has to begin where it ended: :meth:`restart`.

    Attributes:
        tiles: in their order.
    """

    tiles: list[nl.NkiTensor]
    _taken: int = field(default=0, init=False)

    @classmethod
    def of_sbuf(cls, count: int, shape: tuple[int, ...], dtype: nl.DType) -> Ring:
        """New tiles."""
        return cls([nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)])

    def next_tile(self) -> nl.NkiTensor:
        """The next one."""
        self._taken += 1
        return self.tiles[(self._taken - 1) % len(self.tiles)]

    def restart(self) -> None:
        """The next one is the first one."""
        self._taken = 0
