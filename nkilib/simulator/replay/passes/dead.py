# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that removes work whose results nothing reads."""

from __future__ import annotations

from ...memory.rectangles import Rectangle
from ..work import Elementwise, Ref, Work


class _Needed:
    """The elements of tiles that later work reads, in a walk from the end of a launch to its beginning."""

    def __init__(self) -> None:
        self._by_storage: dict[int, list[Rectangle]] = {}

    def read(self, ref: Ref) -> None:
        """Note that elements are read."""
        places = self._by_storage.setdefault(ref.storage.number, [])
        if not any(place.contains(ref.place) for place in places):
            places.append(ref.place)

    def overwrite(self, ref: Ref) -> None:
        """Note that all of these elements get new values, so that the values before that are not needed."""
        places = self._by_storage.get(ref.storage.number)
        if places and ref.is_block:
            places[:] = [place for place in places if not ref.place.contains(place)]

    def has(self, ref: Ref) -> bool:
        """Tell whether any of these elements is read later."""
        return any(place.meets(ref.place) for place in self._by_storage.get(ref.storage.number, ()))


def without_dead(works: list[Work]) -> list[Work]:
    """Return the work of a core without work whose results nothing reads.

    Elementwise results that are only reduced are computed, but not stored.
    """
    needed = _Needed()
    kept: list[Work] = []
    for work in reversed(works):
        is_live = not work.is_pure or any(ref.is_in_hbm or needed.has(ref) for ref in work.writes)
        if not is_live:
            continue
        if isinstance(work, Elementwise) and work.reduction is not None and work.dst.is_on_chip:
            work.is_dst_dead = not needed.has(work.dst)
        for ref in work.writes:
            needed.overwrite(ref)
        for ref in work.reads:
            needed.read(ref)
        kept.append(work)
    kept.reverse()
    return kept
