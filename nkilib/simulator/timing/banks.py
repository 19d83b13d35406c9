# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The places of tiles in PSUM: a new tile takes the place of the tiles that were used longest ago, and waits for them.

In the simulator, a kernel that makes a new tile in every step has as many as it likes. The device has 8 banks of 2 KiB
(``trainium_inferentia2_arch.rst``), so that the first product in a new tile waits until the previous content of its
place has been read. The place that a compiler takes is not published: the model takes the one that is free longest.
SBUF is not modelled this way: a compiler loads into it out of order, and a public product whose tiles fill it is
measured without such waits.
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
    """The tiles that gave up their place in PSUM for a new tile, which waits until they have been read and written.

    Attributes:
        storage: the number of the storage of the first of these tiles.
    """

    __slots__ = ("_uses", "storage")

    def __init__(self, uses: Sequence[TileUses]) -> None:
        self._uses = uses
        self.storage = uses[0].storage

    def last_write(self, by: Engine) -> Done:
        """Return the same as :meth:`last_access`: even a read of the new tile waits until its place is free."""
        return self.last_access(by)[0]

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        """Return the last access to any of the tiles that were in the place."""
        accesses = [place.last_access(by) for uses in self._uses for place in uses.values()]
        return max(accesses, key=lambda access: access[0].ready_ns(by), default=(NOTHING, False))

    def note_read(self, done: Done) -> None:
        """Do nothing, because the new tile has its own record."""

    def note_write(self, done: Done) -> None:
        """Do nothing, because the new tile has its own record."""


class Banks:
    """The PSUM of one core with the tiles that have a place in it, ordered by their last use, the earliest first."""

    def __init__(self) -> None:
        self._free = float(PSUM_PARTITION_BYTES)
        self._tiles: OrderedDict[Tracked, float] = OrderedDict()

    def use(self, known: Tracked) -> Place | None:
        """Note the use of a tile, which gets a place at its first use.

        Returns:
            The tiles that were in the place, for which the new tile has to wait; None if there were none.
        """
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
    """Return the bytes that a tile takes of PSUM, per partition and averaged over all partitions.

    A tile of few partitions takes a quarter or a half of the partitions, beside other such tiles.
    """
    views = known.views
    nbytes = views.bytes_each
    if nbytes > PSUM_BANK_BYTES:
        nbytes = -(-nbytes // PSUM_BANK_BYTES) * PSUM_BANK_BYTES
    quarters = next(count for count in (1, 2, 4) if views.partitions <= count * _QUARTER)
    return nbytes * quarters / 4
