# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles that are loaded ahead of the computation, as soon as their buffer slot is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nkilib.experimental.softmax.column_geometry import Part, Window
from nkilib.nki import nl


class LoadKey(NamedTuple):
    """The key of a load: the numbers of its window and part, and the number of its pass, 0 if it is loaded once."""

    window: int
    part: int
    visit: int


@dataclass(frozen=True)
class Load:
    """The load of a part of a window, for one pass or for both.

    Attributes:
        window, part: the window and the part that are loaded.
        visit: 0 if the part is loaded once, else the number of the pass.
    """

    window: Window
    part: Part
    visit: int

    @property
    def key(self) -> LoadKey:
        """The key of this load among all loads."""
        return LoadKey(self.window.number, self.part.number, self.visit)


def loads_of(windows: list[Window], parts: list[Part], passes: tuple[int, ...], is_read_twice: bool) -> list[Load]:
    """Return the loads in the order in which they are needed.

    If columns are read twice, each pass has its own loads: the first pass over a window runs beside the second pass
    over the window before.

    Args:
        windows: the windows of the core.
        parts: the parts of every column.
        passes: the numbers of the passes, 1 and 2, that need the loads.
        is_read_twice: whether each pass loads the columns for itself, because they do not fit on chip.
    """
    if not is_read_twice:
        return [Load(window, part, 0) for window in windows for part in parts]
    loads: list[Load] = []
    for place in range(len(windows) + 1):
        for part in parts:
            if 1 in passes and place < len(windows):
                loads.append(Load(windows[place], part, 1))
            if 2 in passes and place > 0:
                loads.append(Load(windows[place - 1], part, 2))
    return loads


@dataclass
class LoadRing:
    """A ring buffer of tiles for loads.

    Attributes:
        loads: all loads, in their order.
        tiles_sbuf: the buffer slots.
        fill: a function that issues the transfers of a load into a tile, and yields after each of them.
        issued: the number of loads that were issued.
        released: the keys of the loads whose buffer slots are free again.
        numbers: the index in ``loads`` of each load that was issued, by its key.
    """

    loads: list[Load]
    tiles_sbuf: list[nl.NkiTensor]
    fill: Callable[[nl.NkiTensor, Load], Iterator[None]]
    issued: int = 0
    released: set[LoadKey] = field(default_factory=set)
    numbers: dict[LoadKey, int] = field(default_factory=dict)

    def advance(self) -> Iterator[None]:
        """Issue every load that has a free buffer slot, and yield after each transfer."""
        while self.issued < len(self.loads) and self._has_free_slot():
            load = self.loads[self.issued]
            yield from self.fill(self.tiles_sbuf[self.issued % len(self.tiles_sbuf)], load)
            self.numbers[load.key] = self.issued
            self.issued += 1

    def _has_free_slot(self) -> bool:
        before = self.issued - len(self.tiles_sbuf)
        return before < 0 or self.loads[before].key in self.released

    def key(self, window: Window, part: Part, visit: int) -> LoadKey:
        """Return the key of the load that holds a part of a window for pass number ``visit``."""
        is_once = self.loads[0].visit == 0
        return LoadKey(window.number, part.number, 0 if is_once else visit)

    def has(self, key: LoadKey) -> bool:
        """Return whether the load with this key was issued."""
        return key in self.numbers

    def tile(self, key: LoadKey) -> nl.NkiTensor:
        """Return the tile that the load with this key fills."""
        return self.tiles_sbuf[self.numbers[key] % len(self.tiles_sbuf)]

    def release(self, key: LoadKey) -> None:
        """Free the buffer slot of a load that nothing reads or writes any more."""
        self.released.add(key)
