# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Memory for the tiles of replayed launches: one arena for each core number, which all plans share.

Only one plan runs at a time.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from .ghosts import Bytes

# About the size of SBUF and PSUM of a core, plus the elements that the simulator keeps in a wider type than the device.
# The operating system provides the memory page by page as plans use it.
_ARENA_BYTES = 64 << 20
# Tiles and buffers begin at multiples of this number of bytes, a cache line.
ALIGNMENT = 64


class Arenas:
    """The arena (a block of memory) of each core number, and the lock that a launch holds while it uses the arenas."""

    def __init__(self) -> None:
        self._arenas: dict[int, Bytes] = {}
        self._lock = Lock()

    def of(self, core: int) -> Bytes:
        """Return the arena of a core."""
        arena = self._arenas.get(core)
        if arena is None:
            arena = self._arenas[core] = np.empty(_ARENA_BYTES, np.uint8)
        return arena

    def take(self, *, waits: bool) -> bool:
        """Lock the arenas for a launch.

        Args:
            waits: whether to wait while a launch in another thread uses the arenas.

        Returns:
            Whether the arenas are locked, so that the launch may use them.
        """
        return self._lock.acquire(blocking=waits)

    def give_back(self) -> None:
        """Unlock the arenas, which the launch does not need any more."""
        self._lock.release()


class Piece:
    """The beginning of a core's arena, as far as one plan uses it; the plan allocates what does not fit into the arena.

    Attributes:
        own_bytes: the bytes that the plan allocated besides the arena.
    """

    def __init__(self, core: int) -> None:
        self._arena = ARENAS.of(core)
        self._top = 0
        self.own_bytes = 0

    def take(self, nbytes: int) -> Bytes:
        """Return ``nbytes`` bytes with arbitrary content that nothing else in the plan uses."""
        start = -(-self._top // ALIGNMENT) * ALIGNMENT
        if start + nbytes > self._arena.nbytes:
            self.own_bytes += nbytes
            return np.empty(nbytes, np.uint8)
        self._top = start + nbytes
        return self._arena[start : self._top]


ARENAS = Arenas()
