# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Memory for the tiles of launches that are replayed: one piece a core number, which all plans use in turn."""

from __future__ import annotations

from threading import Lock

import numpy as np

from .ghosts import Bytes

# About what SBUF and PSUM of a core hold, and what elements take that are held wider than the device has them. The
# operating system gives it out page by page as plans use it.
_ARENA_BYTES = 64 << 20
# Tiles and buffers begin at such a multiple of bytes, a line of a cache.
ALIGNMENT = 64


class Arenas:
    """The memory of each core number, and who has it."""

    def __init__(self) -> None:
        self._arenas: dict[int, Bytes] = {}
        self._lock = Lock()

    def of(self, core: int) -> Bytes:
        """The arena of a core."""
        arena = self._arenas.get(core)
        if arena is None:
            arena = self._arenas[core] = np.empty(_ARENA_BYTES, np.uint8)
        return arena

    def take(self, *, waits: bool) -> bool:
        """Whether a launch may use the arenas from here on; not while another one does, in another thread."""
        return self._lock.acquire(blocking=waits)

    def give_back(self) -> None:
        """The launch does not need them any more."""
        self._lock.release()


class Piece:
    """What one plan uses of the arena of a core, from its beginning; what does not fit is the plan's own.

    Attributes:
        own_bytes: bytes that are the plan's own.
    """

    def __init__(self, core: int) -> None:
        self._arena = ARENAS.of(core)
        self._top = 0
        self.own_bytes = 0

    def take(self, nbytes: int) -> Bytes:
        """So many bytes, with arbitrary content; nobody else of the plan has them."""
        start = -(-self._top // ALIGNMENT) * ALIGNMENT
        if start + nbytes > self._arena.nbytes:
            self.own_bytes += nbytes
            return np.empty(nbytes, np.uint8)
        self._top = start + nbytes
        return self._arena[start : self._top]


ARENAS = Arenas()
