# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that lets work compute its results directly in HBM, if nothing but a store to HBM reads them."""

from __future__ import annotations

from dataclasses import dataclass

from ..work import Elementwise, Meeting, Move, Ref, Work
from .sizes import SMALLEST


@dataclass(eq=False)
class _Store:
    """A store to HBM after which nothing reads the stored tile, found in a walk from the end of a launch.

    Attributes:
        move: the store.
        target: the destination, as a matrix with the rows of the tile.
    """

    move: Move
    target: Ref


def without_stores(works: list[Work]) -> list[Work]:
    """Return the work of a core without the stores whose elements are computed in HBM instead."""
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
    """Return the store that a copy is, if it stores a tile of which no part is read later; else None."""
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
    """Tell whether ``work`` computes exactly what is stored, and can compute it at the destination of the store.

    It can if the elements that it reads there are those for the results at the same places.
    """
    dst, src = work.dst, store.move.src
    is_alike = dst.is_block and dst.place == src.place and dst.dtype == src.dtype and not work.is_dst_dead
    if not is_alike or (work.destination is not None and work.destination.meets(dst)):
        return False
    return all(not read.meets(store.target) or _is_in_place(read, store.target) for read in work.reads)


def _is_in_place(read: Ref, target: Ref) -> bool:
    """Tell whether each element that is read is where the result computed from it goes."""
    return read.as_matrix() == target.as_matrix() and read.dtype == target.dtype


def _forget_touched(waiting: dict[int, _Store], work: Work) -> None:
    """Drop waiting stores whose tile or destination ``work`` touches, because they cannot move to before it."""
    for number, store in list(waiting.items()):
        if work is store.move:
            continue
        for ref in (*work.reads, *work.writes):
            if ref.meets(store.move.src) or ref.meets(store.target):
                waiting.pop(number, None)


def _overwritten(read_later: dict[int, list[Ref]], ref: Ref) -> None:
    """Drop the later reads of these elements: they read the values that are written here, not earlier ones."""
    refs = read_later.get(ref.storage.number)
    if refs and ref.is_block:
        refs[:] = [read for read in refs if not ref.place.contains(read.place)]
