# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiles that the bodies of device loops make: the device has one copy of a body, and so one place for each tile."""

from __future__ import annotations

from ..memory.storage import Storage
from .footprints import Tracked, tracked


class Body:
    """The body of a loop: its tiles and inner loops, in the order in which an iteration reaches them.

    The calls of :meth:`tile` and :meth:`loop` in one iteration count through them; :meth:`again` starts from the front.
    """

    def __init__(self) -> None:
        self._tiles: list[tuple[object, Tracked]] = []
        self._loops: list[Body] = []
        self._tile = self._loop = 0

    def again(self) -> None:
        """Start the next iteration."""
        self._tile = self._loop = 0

    def tile(self, storage: Storage) -> Tracked:
        """Return the record of the tile that the body makes next: the same record in every iteration.

        It is a new record if the tile differs from the previous iteration's in shape, type or memory.
        """
        key = storage.shape, storage.dtype, storage.region
        at, self._tile = self._tile, self._tile + 1
        if at == len(self._tiles):
            self._tiles.append((key, tracked(storage)))
        elif self._tiles[at][0] != key:  # the front end of 0.6 may choose by iteration
            self._tiles[at] = (key, tracked(storage))
        return self._tiles[at][1]

    def loop(self) -> Body:
        """Return the body of the next inner loop."""
        at, self._loop = self._loop, self._loop + 1
        if at == len(self._loops):
            self._loops.append(Body())
        self._loops[at].again()
        return self._loops[at]
