# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Passes over the work of a core, which reduce the steps and the memory of a plan, with bitwise identical results.

:func:`with_sums` joins the matmuls that add to one matrix into one piece of work. :func:`without_loads`,
:func:`without_dead` and :func:`without_stores` remove work, in this order. :func:`grouped` forms groups of row-wise
work that runs on a few rows at a time, so that these stay in the CPU's cache.

*Work* is the reads, writes and computations of one instruction (:class:`.work.Work`); a :class:`.work.Ref` names the
elements that it reads or writes. A *load* copies from HBM to a tile, a *store* from a tile to HBM.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..memory.deferred import Rectangle
from ..tensors.view import View
from ..terms.layout import Layout
from .work import Elementwise, Meeting, Move, Product, Reduced, Ref, Sum, Work, is_large, needs_all_rows

# The size, in elements, from which the passes consider a tile: moving fewer takes no longer than any step does.
_SMALLEST = 4096
# Longer groups are rare, and each work that is added is compared with all before it.
_MOST_IN_A_GROUP = 64


def _touches(work: Work, pending: Sum) -> bool:
    target = pending.dst.storage
    if any(ref.storage is target for ref in (*work.reads, *work.writes)):
        return True
    # A tile that changes anywhere ends the sum, as in a launch: which products are neighbours decides the distance of
    # the rows of their operands, and with it how BLAS sums the elements of a vector.
    return any(written.storage is read.storage for written in work.writes for read in pending.reads)


def _settle(waiting: dict[int, Sum], summed: list[Work], work: Work, but: Sum | None) -> None:
    """Move to ``summed`` those waiting sums that must be computed before ``work``.

    A sum must be computed first if ``work`` accesses its result or changes one of its operands.

    Args:
        waiting: the waiting sums, by the number of the storage of their result.
        summed: the work so far, in the order of the plan.
        work: the next work.
        but: a waiting sum that stays, or None.
    """
    if isinstance(work, Meeting):
        summed.extend(waiting.values())
        waiting.clear()
        return
    for number, pending in list(waiting.items()):
        if pending is not but and _touches(work, pending):
            summed.append(waiting.pop(number))


def with_sums(works: list[Work]) -> list[Work]:
    """Return the work with sums (:class:`.work.Sum`) in place of single products.

    Products that are added to one matrix are collected into a sum until other work accesses the matrix or changes an
    operand.
    """
    summed: list[Work] = []
    waiting: dict[int, Sum] = {}  # by the number of the storage that takes it
    for work in works:
        if isinstance(work, Product) and work.is_added:
            pending = waiting.get(work.dst.storage.number)
            if pending is not None and pending.dst.layout == work.dst.layout:
                _settle(waiting, summed, work, but=pending)
                pending.add(work)
                continue
        _settle(waiting, summed, work, but=None)
        if isinstance(work, Product):
            waiting[work.dst.storage.number] = Sum(work.dst, work.is_added)
            waiting[work.dst.storage.number].add(work)
        else:
            summed.append(work)
    return [*summed, *waiting.values()]


@dataclass(eq=False)
class _Load:
    """A load. Work that reads the tile may read HBM instead, until a part of the tile is overwritten.

    Attributes:
        move: the load.
        source: the elements in HBM, as a matrix with the rows of the tile.
        is_current: whether HBM still has the loaded elements.
        is_needed: whether some work reads the tile itself.
    """

    move: Move
    source: Layout
    is_current: bool = True
    is_needed: bool = False

    def place_of(self, ref: Ref) -> Ref | None:
        """Return the elements in HBM that were loaded into ``ref``, a part of the tile; None if they are not known."""
        tile = self.move.dst
        width = tile.numpy_type.itemsize
        is_part = ref.is_block and tile.place.contains(ref.place) and ref.dtype == tile.dtype
        if not is_part or (ref.place.left - tile.place.left) % width:
            return None
        column = (ref.place.left - tile.place.left) // width
        offset = self.source.offset + (ref.place.top - tile.place.top) * self.source.strides[0] + column
        layout = Layout((ref.rows, ref.width), (self.source.strides[0], 1), offset)
        return Ref(self.move.src.view.with_layout(layout))


def _source_of(move: Move) -> Layout | None:
    """Return the source of a load as a matrix with the rows of the tile; None if work cannot read the source
    instead.
    """
    dst, src = move.dst, move.src
    if not (dst.is_on_chip and src.is_in_hbm and dst.is_block and dst.size >= _SMALLEST):
        return None
    if dst.dtype != src.dtype or dst.numpy_type != src.numpy_type:
        return None
    return src.as_rows(dst.rows, dst.width)


def _read_at(work: Work, ref: Ref, place: Ref) -> bool:
    """Make ``work`` read the elements ``place`` instead of ``ref``; return False if this kind of work cannot."""
    if isinstance(work, Elementwise) and ref in work.tiles:
        work.tiles[work.tiles.index(ref)] = place
    elif isinstance(work, Reduced):
        work.tile = place
    else:
        return False
    work.reads[work.reads.index(ref)] = place
    return True


def _read(work: Work, loads: dict[int, list[_Load]]) -> None:
    # If the tile cannot be replaced by its source in HBM, the load is marked as needed.
    for ref in list(work.reads):
        overlapping = [load for load in loads.get(ref.storage.number, ()) if load.move.dst.place.meets(ref.place)]
        if not overlapping:
            continue
        place = overlapping[0].place_of(ref) if len(overlapping) == 1 and overlapping[0].is_current else None
        if place is None or ref.size < _SMALLEST or not _read_at(work, ref, place):
            for load in overlapping:
                load.is_needed = True


def _drop_loads(loads: dict[int, list[_Load]], ref: Ref) -> None:
    """Update the loads for a write to ``ref``.

    The loads of a tile that ``ref`` overlaps are removed from ``loads``. A load whose source ``ref`` overlaps gets
    ``is_current`` False.
    """
    tile_loads = loads.get(ref.storage.number)
    if tile_loads:
        for load in tile_loads:
            if load.move.dst.place.meets(ref.place) and not (ref.is_block and ref.place.contains(load.move.dst.place)):
                load.is_needed = True  # of a part of it, perhaps
        tile_loads[:] = [load for load in tile_loads if not load.move.dst.place.meets(ref.place)]
    if ref.is_in_hbm:
        for load in [load for tile_loads in loads.values() for load in tile_loads]:
            if load.move.src.meets(ref):
                load.is_current = False


def without_loads(works: list[Work], written: Collection[int]) -> list[Work]:
    """Make work read HBM instead of loaded tiles where possible, and return the work without loads that nothing needs.

    Args:
        works: the work of one core; the reads in it are changed.
        written: the numbers of the storages that any core writes; after a barrier or exchange these storages may differ
            from a tile that was loaded before.
    """
    loads: dict[int, list[_Load]] = {}
    unneeded: dict[int, _Load] = {}
    for work in works:
        if isinstance(work, Meeting):
            for load in [load for tile_loads in loads.values() for load in tile_loads]:
                load.is_current &= load.move.src.storage.number not in written
        _read(work, loads)
        for ref in work.writes:
            _drop_loads(loads, ref)
        if isinstance(work, Move):
            source = _source_of(work)
            if source is not None:
                load = unneeded[id(work)] = _Load(work, source)
                loads.setdefault(work.dst.storage.number, []).append(load)
    return [work for work in works if id(work) not in unneeded or unneeded[id(work)].is_needed]


class _Needed:
    """The elements of tiles that later work needs, collected from the end of a launch to its beginning."""

    def __init__(self) -> None:
        self._by_storage: dict[int, list[Rectangle]] = {}

    def read(self, ref: Ref) -> None:
        """Record that later work reads the elements of ``ref``."""
        places = self._by_storage.setdefault(ref.storage.number, [])
        if not any(place.contains(ref.place) for place in places):
            places.append(ref.place)

    def overwrite(self, ref: Ref) -> None:
        """Record that work overwrites all elements of ``ref``, so that earlier values are not needed."""
        places = self._by_storage.get(ref.storage.number)
        if places and ref.is_block:
            places[:] = [place for place in places if not ref.place.contains(place)]

    def has(self, ref: Ref) -> bool:
        return any(place.meets(ref.place) for place in self._by_storage.get(ref.storage.number, ()))


def without_dead(works: list[Work]) -> list[Work]:
    """Return the work of a core without the work whose results nothing reads.

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


@dataclass(eq=False)
class _Store:
    """A store after which nothing reads the tile, so that its elements could be computed in HBM directly.

    Attributes:
        move: the store.
        target: the destination, as a matrix with the rows of the tile.
    """

    move: Move
    target: Ref


def _store_of(move: Move, read_later: dict[int, list[Ref]]) -> _Store | None:
    """Return the copy ``move`` as a :class:`_Store` if it stores a tile of which no part is read later; else None."""
    src, dst = move.src, move.dst
    if not (src.is_on_chip and dst.is_in_hbm and src.is_block and src.size >= _SMALLEST):
        return None
    if src.dtype != dst.dtype or src.numpy_type != dst.numpy_type:
        return None
    if any(ref.place.meets(src.place) for ref in read_later.get(src.storage.number, ())):
        return None
    layout = dst.as_rows(src.rows, src.width)
    return None if layout is None else _Store(move, Ref(dst.view.with_layout(layout)))


def _is_in_place(read: Ref, target: Ref) -> bool:
    """Return whether element i of ``read`` is where result i is stored in ``target``: layouts and types are equal."""
    return read.as_matrix() == target.as_matrix() and read.dtype == target.dtype


def _is_written_for(work: Elementwise, store: _Store) -> bool:
    """Return whether ``work`` computes exactly the elements that ``store`` stores, and could compute them in HBM
    directly.

    If ``work`` reads the store's destination, it must read element i for result i only, which is stored there.
    """
    dst, src = work.dst, store.move.src
    is_alike = dst.is_block and dst.place == src.place and dst.dtype == src.dtype and not work.is_dst_dead
    if not is_alike or (work.destination is not None and work.destination.meets(dst)):
        return False
    return all(not read.meets(store.target) or _is_in_place(read, store.target) for read in work.reads)


def _forget_touched(waiting: dict[int, _Store], work: Work) -> None:
    # A store whose tile or destination ``work`` accesses cannot happen earlier than ``work``.
    for number, store in list(waiting.items()):
        if work is store.move:
            continue
        for ref in (*work.reads, *work.writes):
            if ref.meets(store.move.src) or ref.meets(store.target):
                waiting.pop(number, None)


def _drop_later_reads(read_later: dict[int, list[Ref]], ref: Ref) -> None:
    # Later reads within ``ref``, which is written here, do not read the earlier values.
    refs = read_later.get(ref.storage.number)
    if refs and ref.is_block:
        refs[:] = [read for read in refs if not ref.place.contains(read.place)]


def without_stores(works: list[Work]) -> list[Work]:
    """Make work compute its results in HBM directly where possible. Return the work without the stores of these
    results.
    """
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
                _drop_later_reads(read_later, work.dst)
                work.dst = store.target
                work.writes[0] = store.target
        _forget_touched(waiting, work)
        for ref in work.writes:
            _drop_later_reads(read_later, ref)
        store = _store_of(work, read_later) if isinstance(work, Move) else None
        for ref in work.reads:
            if ref.is_on_chip:
                read_later.setdefault(ref.storage.number, []).append(ref)
        if store is not None:
            waiting[store.move.src.storage.number] = store
    return [work for work in works if id(work) not in unneeded]


def _trimmed(group: list[Work]) -> list[list[Work]]:
    # Work at both ends of a group that is small enough to run on all rows at once gets its own group.
    if len(group) == 1:
        return [group]
    large = [place for place, work in enumerate(group) if is_large(work)]
    if not large:
        return [[work] for work in group]
    first, last = large[0], large[-1] + 1
    return [*[[work] for work in group[:first]], group[first:last], *[[work] for work in group[last:]]]


def _has_a_row_a_partition(ref: Ref) -> bool:
    # Whether the rows of a tile lie in successive partitions, one row in each.
    return ref.rows == 1 or ref.layout.strides[0] * ref.numpy_type.itemsize == ref.storage.partition_bytes


class _Rows(tuple[int, int]):
    """The partitions that row-wise work accesses, as a pair (first partition, number of partitions)."""

    __slots__ = ()

    @classmethod
    def of(cls, work: Work) -> _Rows | None:
        # None if a result in one row may depend on another row.
        if isinstance(work, Elementwise):
            if needs_all_rows(work) or (work.reduction is not None and isinstance(work.reduction.initial, View)):
                return None
        elif not isinstance(work, Reduced):
            return None
        refs = [*work.reads, *work.writes]
        on_chip = [ref for ref in refs if ref.is_on_chip]
        if not on_chip or not all(_has_a_row_a_partition(ref) for ref in on_chip):
            return None
        starts = {(ref.place.top, ref.rows) for ref in on_chip}
        if len(starts) > 1 or len({ref.rows for ref in refs}) > 1:
            return None
        return cls(starts.pop())


def _may_follow(work: Work, group: Sequence[Any]) -> bool:
    """Return whether ``work`` may join a group.

    It must access no HBM elements that the group writes. It may write HBM elements that the group reads only where
    :func:`_is_in_place` holds.
    """
    for other in group:
        for written in other.writes:
            if written.is_in_hbm and any(ref.meets(written) for ref in (*work.reads, *work.writes)):
                return False
        for written in work.writes:
            if written.is_in_hbm and any(ref.meets(written) and not _is_in_place(ref, written) for ref in other.reads):
                return False
    return True


def grouped(works: Sequence[Work]) -> list[list[Work]]:
    """Return the work of a core in its order, divided into groups whose work can run on a block of rows at a time."""
    groups: list[list[Work]] = []
    for work in works:
        rows = _Rows.of(work)
        last = groups[-1] if groups else []
        if (
            rows is not None
            and last
            and len(last) < _MOST_IN_A_GROUP
            and _Rows.of(last[0]) == rows
            and _may_follow(work, last)
        ):
            last.append(work)
        else:
            groups.append([work])
    return [part for group in groups for part in _trimmed(group)]
