# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where tiles lie in PSUM: a new tile takes the place of those that were used longest ago, and waits for them.

A kernel that makes a new tile in every step has as many as it likes in the simulator; on the device there are 8 banks
of 2 KiB (``trainium_inferentia2_arch.rst``), so that the first product in a new tile waits until what lay there is
read. Which place a compiler takes is not published: here the one that is free longest. SBUF is not looked at: a
compiler loads into it out of order, and a public product whose tiles fill it is measured without such waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ..hardware.limits import PARTITIONS, PSUM_BANK_BYTES, PSUM_PARTITION_BYTES
from ..terms.enums import Engine
from .footprints import Tracked
from .uses import NOTHING, Done, Place, TileUses

_QUARTER = PARTITIONS // 4


class Vacated:
    """The tiles whose place another tile takes, which waits until they are read and written.

    Attributes:
        storage: the number of the storage of one of them.
    """

    __slots__ = ("_uses", "storage")

    def __init__(self, uses: Sequence[TileUses]) -> None:
        self._uses = uses
        self.storage = uses[0].storage

    def last_write(self, by: Engine) -> Done:
        """As :meth:`last_access`: who reads what nobody wrote waits for its place, too."""
        return self.last_access(by)[0]

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        """What used the place last."""
        accesses = [place.last_access(by) for uses in self._uses for place in uses.values()]
        return max(accesses, key=lambda access: access[0].ready_ns(by), default=(NOTHING, False))

    def note_read(self, done: Done) -> None:
        """What lies there now keeps its own account."""

    def note_write(self, done: Done) -> None:
        """What lies there now keeps its own account."""


class Banks:
    """PSUM of one core, and the tiles in it, those that were used longest ago first."""

    def __init__(self) -> None:
        self._free = float(PSUM_PARTITION_BYTES)
        self._tiles: OrderedDict[Tracked, float] = OrderedDict()

    def use(self, known: Tracked) -> Place | None:
        """A tile is used: for the first time it gets a place, for whose old tiles it has to wait."""
        tiles = self._tiles
        if known.has_place:
            if known in tiles:
                tiles.move_to_end(known)
            return None
        known.has_place = True
        size = _size(known)
        vacated: list[TileUses] = []
        while self._free < size and tiles:
            old, freed = tiles.popitem(last=False)
            self._free += freed
            if isinstance(old.uses, TileUses):
                vacated.append(old.uses)
        self._free -= size
        tiles[known] = size
        return Vacated(vacated) if vacated else None


def _size(known: Tracked) -> float:
    """Bytes of a partition, on average over all: tiles of few partitions lie beside each other, by quarters of them."""
    views = known.views
    nbytes = views.bytes_each
    if nbytes > PSUM_BANK_BYTES:
        nbytes = -(-nbytes // PSUM_BANK_BYTES) * PSUM_BANK_BYTES
    quarters = next(count for count in (1, 2, 4) if views.partitions <= count * _QUARTER)
    return nbytes * quarters / 4
