# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that removes unnecessary loads: work reads a loaded tile in HBM, as long as HBM has the same elements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...terms.layout import Layout
from ..work import Elementwise, Meeting, Move, Reduced, Ref, Work
from .sizes import SMALLEST


@dataclass(eq=False)
class _Load:
    """A load of a tile from HBM, as long as no part of the tile has been overwritten.

    Attributes:
        move: the load.
        source: the elements in HBM, as a matrix with the rows of the tile.
        is_current: whether HBM still has the loaded elements.
        is_needed: whether something reads the tile itself.
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


def without_loads(works: list[Work], written: Collection[int]) -> list[Work]:
    """Return the work of a core without the loads whose tiles nothing reads, once reads are redirected to HBM.

    Args:
        works: the work of one core; the reads in it are changed.
        written: the numbers of the storages that any core writes; after a barrier or exchange, HBM may have other
            elements there than a tile loaded before.
    """
    loads: dict[int, list[_Load]] = {}
    unneeded: dict[int, _Load] = {}
    for work in works:
        if isinstance(work, Meeting):
            for load in [load for tile_loads in loads.values() for load in tile_loads]:
                load.is_current &= load.move.src.storage.number not in written
        _read(work, loads)
        for ref in work.writes:
            _overwrite(ref, loads)
        if isinstance(work, Move):
            source = _source_of(work)
            if source is not None:
                load = unneeded[id(work)] = _Load(work, source)
                loads.setdefault(work.dst.storage.number, []).append(load)
    return [work for work in works if id(work) not in unneeded or unneeded[id(work)].is_needed]


def _source_of(move: Move) -> Layout | None:
    """Return the source of a load as a matrix with the rows of the tile; None if the tile cannot be read there."""
    dst, src = move.dst, move.src
    if not (dst.is_on_chip and src.is_in_hbm and dst.is_block and dst.size >= SMALLEST):
        return None
    if dst.dtype != src.dtype or dst.numpy_type != src.numpy_type:
        return None
    return src.as_rows(dst.rows, dst.width)


def _read(work: Work, loads: dict[int, list[_Load]]) -> None:
    """Redirect the reads of ``work`` to HBM where possible, and mark the loads of its other reads as needed."""
    for ref in list(work.reads):
        overlapping = [load for load in loads.get(ref.storage.number, ()) if load.move.dst.place.meets(ref.place)]
        if not overlapping:
            continue
        place = overlapping[0].place_of(ref) if len(overlapping) == 1 and overlapping[0].is_current else None
        if place is None or ref.size < SMALLEST or not _read_at(work, ref, place):
            for load in overlapping:
                load.is_needed = True


def _read_at(work: Work, ref: Ref, place: Ref) -> bool:
    """Let ``work`` read ``place`` instead of ``ref``, and return True; return False if it cannot."""
    if isinstance(work, Elementwise) and ref in work.tiles:
        work.tiles[work.tiles.index(ref)] = place
    elif isinstance(work, Reduced):
        work.tile = place
    else:
        return False
    work.reads[work.reads.index(ref)] = place
    return True


def _overwrite(ref: Ref, loads: dict[int, list[_Load]]) -> None:
    """Note a write to ``ref``: to elements of loaded tiles, or to elements of HBM that were loaded."""
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
