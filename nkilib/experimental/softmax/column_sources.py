# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where the items come from: each way gives views [columns, elements of the segment], in the order of the axis.

- :class:`TurnedSource`: the axis lies on partitions, as runs of HBM come, and Tensor turns every item into PSUM;
- :class:`TransposedSource`: the DMA engines turn 16-bit columns on their way into SBUF;
- :class:`StridedSource`: the axis lies along a partition, which has one of the outer places; nothing is turned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nkilib.experimental.softmax.column_geometry import Item, Part, Window
from nkilib.experimental.softmax.column_loads import Load, LoadRing
from nkilib.nki import nisa, nl


class Source(Protocol):
    """A tensor [O, C, I] of which items are read."""

    ring: LoadRing

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """The item, for a pass."""


@dataclass
class PsumBanks:
    """Banks of PSUM that are taken in turn, each by name, so that whoever writes waits for whoever reads."""

    tiles_psum: list[nl.NkiTensor]
    taken: int = 0

    @classmethod
    def make(cls, count: int, elements: int, dtype: nl.DType) -> PsumBanks:
        """For items of so many elements."""
        shape = (nl.tile_size.pmax, elements)
        return cls([nl.ndarray(shape, dtype=dtype, buffer=nl.psum) for _ in range(count)])

    def take(self) -> nl.NkiTensor:
        """The next one."""
        self.taken += 1
        return self.tiles_psum[(self.taken - 1) % len(self.tiles_psum)]


def natural_shape(windows: list[Window], parts: list[Part]) -> tuple[int, ...]:
    """A tile with the axis on partitions: [partitions, outer, segments, lines, inner]."""
    lines = max(segment.lines for part in parts for segment in part.segments)
    return (
        nl.tile_size.pmax,
        max(window.outer for window in windows),
        max(len(part.segments) for part in parts),
        lines,
        max(window.inner for window in windows),
    )


def copy_natural(tensor_hbm: nl.NkiTensor, tile_sbuf: nl.NkiTensor, load: Load, is_store: bool) -> Iterator[None]:
    """Load or store a part of a window: a transfer for each segment of each outer place, one after the other."""
    window = load.window
    for outer in range(window.outer):
        for segment in load.part.segments:
            place_sbuf = tile_sbuf[:, outer, load.part.slot(segment)]
            middle = segment.start + segment.full * segment.lines
            if segment.full > 0:
                of_hbm = window.of(tensor_hbm, outer, segment.start, middle)
                of_sbuf = place_sbuf[0 : segment.full, 0 : segment.lines, 0 : window.inner]
                _copy(of_hbm.reshape_dim(0, (segment.full, segment.lines)), of_sbuf, is_store)
            if segment.rest > 0:
                of_hbm = window.of(tensor_hbm, outer, middle, segment.end)
                of_sbuf = place_sbuf[segment.full : segment.full + 1, 0 : segment.rest, 0 : window.inner]
                _copy(of_hbm.reshape_dim(0, (1, segment.rest)), of_sbuf, is_store)
            yield


def _copy(of_hbm: nl.NkiTensor, of_sbuf: nl.NkiTensor, is_store: bool) -> None:
    if is_store:
        nisa.dma_copy(dst=of_hbm, src=of_sbuf)
    else:
        nisa.dma_copy(dst=of_sbuf, src=of_hbm)


def of_columns(tile_sbuf: nl.NkiTensor, item: Item) -> nl.NkiTensor:
    """The columns of an item in a natural tile, [partitions, outer, lines, inner]."""
    turn = item.turn
    slot = item.part.slot(item.segment)
    outer = slice(turn.first_outer, turn.first_outer + turn.outer)
    inner = slice(turn.first_inner, turn.first_inner + turn.inner)
    return tile_sbuf[:, outer, slot, :, inner]


@dataclass
class TurnedSource:
    """Natural tiles, turned item by item.

    Attributes:
        ring: of natural tiles.
        banks: for the first pass and the second.
    """

    ring: LoadRing
    banks: dict[int, PsumBanks]

    @classmethod
    def make(
        cls,
        tensor_hbm: nl.NkiTensor,
        shape: tuple[int, ...],
        loads: list[Load],
        buffers: int,
        longest: int,
        banks: dict[int, int],
    ) -> TurnedSource:
        """For the windows of a core.

        Args:
            tensor_hbm: [O, C, I].
            shape: of a natural tile.
            loads: all of them.
            buffers: natural tiles.
            longest: elements of a segment at most.
            banks: of PSUM, for each pass that reads.
        """
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            return copy_natural(tensor_hbm, tile_sbuf, load, is_store=False)

        of_passes = {visit: PsumBanks.make(count, longest, tensor_hbm.dtype) for visit, count in banks.items()}
        return cls(LoadRing(loads, tiles, fill), of_passes)

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """The item in PSUM; where it lies in the segment's order, each line has a stride of its lines."""
        segment, turn = item.segment, item.turn
        columns_sbuf = of_columns(self.ring.tile(self.ring.key(item.window, item.part, visit)), item)
        turned_psum = self.banks[visit].take()[0 : turn.columns]
        for line in range(segment.lines):
            partitions = segment.partitions(line)
            nisa.nc_transpose(
                dst=turned_psum[:, line : line + (partitions - 1) * segment.lines + 1 : segment.lines],
                data=columns_sbuf[0:partitions, :, line],
            )
        return turned_psum[:, 0 : segment.size]


@dataclass
class TransposedSource:
    """Tiles [columns, turns, elements of the part] that come turned.

    Attributes:
        ring: of these.
    """

    ring: LoadRing

    @classmethod
    def make(
        cls, tensor_hbm: nl.NkiTensor, windows: list[Window], parts: list[Part], loads: list[Load], buffers: int
    ) -> TransposedSource:
        """For the windows of a core."""
        turns = max(len(window.turns()) for window in windows)
        elements = max(part.segments[-1].end - part.segments[0].start for part in parts)
        shape = (nl.tile_size.pmax, turns, elements)
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            start, end = load.part.segments[0].start, load.part.segments[-1].end
            for turn in load.window.turns():
                of_window = load.window.of(tensor_hbm, turn.first_outer, start, end)
                nisa.dma_transpose(
                    dst=tile_sbuf[0 : turn.columns, turn.number, 0 : end - start],
                    src=of_window[:, turn.first_inner : turn.first_inner + turn.inner],
                )
                yield

        return cls(LoadRing(loads, tiles, fill))

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """The item in SBUF."""
        tile_sbuf = self.ring.tile(self.ring.key(item.window, item.part, visit))
        start = item.segment.start - item.part.segments[0].start
        return tile_sbuf[0 : item.turn.columns, item.turn.number, start : start + item.segment.size]
