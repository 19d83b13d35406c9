# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Places of a core's tiles in its memory: tiles that are not alive at the same time share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..arenas import ALIGNMENT
from ..ghosts import Ghost
from ..work import Elementwise, Work


@dataclass(eq=False)
class _Life:
    """The life of a tile: the numbers of the first and the last group of work that touch it."""

    ghost: Ghost
    first: int
    last: int


@dataclass(frozen=True)
class Placed:
    """The places of a core's tiles in one block of memory.

    Attributes:
        offsets: the offset of each tile, in bytes.
        nbytes: the size of the block.
    """

    offsets: dict[Ghost, int]
    nbytes: int


def placed(groups: Sequence[Sequence[Work]], is_own: Callable[[Ghost], bool]) -> Placed:
    """Return places for the tiles of a core; ``is_own`` tells which storages are its tiles."""
    offsets: dict[Ghost, int] = {}
    alive: list[tuple[int, int, int]] = []  # last group, offset, end
    nbytes = 0
    for life in sorted(_lives(groups, is_own), key=lambda life: life.first):
        alive = [span for span in alive if span[0] >= life.first]
        size = -(-max(1, life.ghost.nbytes) // ALIGNMENT) * ALIGNMENT
        offset = 0
        for _, start, end in sorted(alive, key=lambda span: span[1]):
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[life.ghost] = offset
        alive.append((life.last, offset, offset + size))
        nbytes = max(nbytes, offset + size)
    return Placed(offsets, nbytes)


def _lives(groups: Sequence[Sequence[Work]], is_own: Callable[[Ghost], bool]) -> list[_Life]:
    lives: dict[int, _Life] = {}
    for number, group in enumerate(groups):
        for work in group:
            for ghost in _touched(work):
                life = lives.get(ghost.number)
                if life is not None:
                    life.last = number
                elif is_own(ghost):
                    lives[ghost.number] = _Life(ghost, number, number)
    return list(lives.values())


def _touched(work: Work) -> list[Ghost]:
    """Return the storages that some work reads or writes."""
    is_dead = isinstance(work, Elementwise) and work.is_dst_dead
    writes = work.writes[1:] if is_dead else work.writes
    return [ref.storage for ref in (*work.reads, *writes)]
