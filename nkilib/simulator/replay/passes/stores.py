# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that computes results in HBM if only a store to HBM reads them."""

from __future__ import annotations

from dataclasses import dataclass

from ..work import Elementwise, Meeting, Move, Ref, Work
from .sizes import SMALLEST


@dataclass(eq=False)
class _Store:
    """A store of a tile that nothing reads afterwards, in a walk from the end.

    Attributes:
        move: the store.
        target: the destination, as a matrix with the rows of the tile.
    """

    move: Move
    target: Ref


def without_stores(works: list[Work]) -> list[Work]:
    """Return the work of a core, whose instructions compute in HBM the results that only a store would read."""
    waiting: dict[int, _Store] = {}  # by the number of the tile's storage
    read_later: dict[int, list[Ref]] = {}
    unneeded: set[int] = set()
    for work in reversed(works):
        if isinstance(work, Meeting):
            waiting.clear()
        if isinstance(work, Elementwise):
            store = waiting.get(work.dst.storage.number)
            if store is not None and _is_written_for(work, store):
                del waiting[work.dst.storage.number]
                unneeded.add(id(store.move))
                _overwritten(read_later, work.dst)
                work.dst = store.target
                work.writes[0] = store.target
        _forget_touched(waiting, work)
        for ref in work.writes:
            _overwritten(read_later, ref)
        store = _store_of(work, read_later) if isinstance(work, Move) else None
        for ref in work.reads:
            if ref.is_on_chip:
                read_later.setdefault(ref.storage.number, []).append(ref)
        if store is not None:
            waiting[store.move.src.storage.number] = store
    return [work for work in works if id(work) not in unneeded]


def _store_of(move: Move, read_later: dict[int, list[Ref]]) -> _Store | None:
    """Return the store of a tile of which no part is read later; None for other copies."""
    src, dst = move.src, move.dst
    if not (src.is_on_chip and dst.is_in_hbm and src.is_block and src.size >= SMALLEST):
        return None
    if src.dtype != dst.dtype or src.numpy_type != dst.numpy_type:
        return None
    if any(ref.place.meets(src.place) for ref in read_later.get(src.storage.number, ())):
        return None
    layout = dst.as_rows(src.rows, src.width)
    return None if layout is None else _Store(move, Ref(dst.view.with_layout(layout)))


def _is_written_for(work: Elementwise, store: _Store) -> bool:
    """Tell whether ``work`` computes exactly what is stored, and reads nothing that the store overwrites elsewhere."""
    dst, src = work.dst, store.move.src
    is_alike = dst.is_block and dst.place == src.place and dst.dtype == src.dtype and not work.is_dst_dead
    if not is_alike or (work.destination is not None and work.destination.meets(dst)):
        return False
    return all(not read.meets(store.target) or _is_in_place(read, store.target) for read in work.reads)


def _is_in_place(read: Ref, target: Ref) -> bool:
    """Tell whether each element that is read is at the place of the result for it."""
    return read.as_matrix() == target.as_matrix() and read.dtype == target.dtype


def _forget_touched(waiting: dict[int, _Store], work: Work) -> None:
    """Drop waiting stores whose tile or destination some work touches, because they cannot move before it."""
    for number, store in list(waiting.items()):
        if work is store.move:
            continue
        for ref in (*work.reads, *work.writes):
            if ref.meets(store.move.src) or ref.meets(store.target):
                waiting.pop(number, None)


def _overwritten(read_later: dict[int, list[Ref]], ref: Ref) -> None:
    """Drop later reads of these elements, because they read what is written here."""
    refs = read_later.get(ref.storage.number)
    if refs and ref.is_block:
        refs[:] = [read for read in refs if not ref.place.contains(read.place)]
