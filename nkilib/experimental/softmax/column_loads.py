# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles that are loaded ahead of the computation, as early as their place is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nkilib.experimental.softmax.column_geometry import Part, Window
from nkilib.nki import nl


class LoadKey(NamedTuple):
    """A load among all loads: numbers of its window and part, and which pass it is for, 0 if it is loaded once."""

    window: int
    part: int
    visit: int


@dataclass(frozen=True)
class Load:
    """A part of a window, for one pass or for both.

    Attributes:
        window, part: which.
        visit: 0 if it is loaded once, else the number of the pass.
    """

    window: Window
    part: Part
    visit: int

    @property
    def key(self) -> LoadKey:
        """It among all loads."""
        return LoadKey(self.window.number, self.part.number, self.visit)


def loads_of(windows: list[Window], parts: list[Part], passes: tuple[int, ...], is_read_twice: bool) -> list[Load]:
    """In the order in which they are needed.

    What is read twice is loaded by each pass: the first pass over a window stands beside the second one over the window
    before.

    Args:
        windows: of the core.
        parts: of every column.
        passes: which of them, 1 and 2, need the loads.
        is_read_twice: columns do not fit on chip.
    """
    if not is_read_twice:
        return [Load(window, part, 0) for window in windows for part in parts]
    found: list[Load] = []
    for place in range(len(windows) + 1):
        for part in parts:
            if 1 in passes and place < len(windows):
                found.append(Load(windows[place], part, 1))
            if 2 in passes and place > 0:
                found.append(Load(windows[place - 1], part, 2))
    return found


@dataclass
class LoadRing:
    """Tiles that loads take in turn.

    Attributes:
        loads: all of them, in their order.
        tiles_sbuf: the places.
        fill: loads a tile, one transfer after the other.
        issued, released: how many were loaded, and the keys of those whose places are free again.
    """

    loads: list[Load]
    tiles_sbuf: list[nl.NkiTensor]
    fill: Callable[[nl.NkiTensor, Load], Iterator[None]]
    issued: int = 0
    released: set[LoadKey] = field(default_factory=set)
    numbers: dict[LoadKey, int] = field(default_factory=dict)

    def advance(self) -> Iterator[None]:
        """Load whatever has a place, one transfer after the other."""
        while self.issued < len(self.loads) and self._has_place():
            load = self.loads[self.issued]
            yield from self.fill(self.tiles_sbuf[self.issued % len(self.tiles_sbuf)], load)
            self.numbers[load.key] = self.issued
            self.issued += 1

    def _has_place(self) -> bool:
        before = self.issued - len(self.tiles_sbuf)
        return before < 0 or self.loads[before].key in self.released

    def key(self, window: Window, part: Part, visit: int) -> LoadKey:
        """That of the load which a pass reads."""
        is_once = self.loads[0].visit == 0
        return LoadKey(window.number, part.number, 0 if is_once else visit)

    def has(self, key: LoadKey) -> bool:
        """Whether it was loaded."""
        return key in self.numbers

    def tile(self, key: LoadKey) -> nl.NkiTensor:
        """Where it is."""
        return self.tiles_sbuf[self.numbers[key] % len(self.tiles_sbuf)]

    def release(self, key: LoadKey) -> None:
        """Nothing reads or writes it any more."""
        self.released.add(key)
