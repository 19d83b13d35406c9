# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The sources of items (:class:`.column_geometry.Item`): each gives views [columns, elements of the segment], in the
order of the axis.

- :class:`TensorTransposedSource`: the axis lies on partitions, which gives long runs in HBM, and the Tensor engine
  transposes every item into PSUM;
- :class:`DmaTransposedSource`: the DMA engines transpose 16-bit columns on their way into SBUF;
- :class:`.StridedSource`: the axis lies along a partition, which holds one of the outer indices; nothing is transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nkilib.experimental.softmax.column_geometry import Item, Part, Window
from nkilib.experimental.softmax.column_loads import Load, LoadRing
from nkilib.nki import nisa, nl


class Source(Protocol):
    """A tensor [O, C, I] from which items are read."""

    ring: LoadRing

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return the view of an item, [columns, elements of the segment], for pass number ``visit``."""


@dataclass
class PsumBanks:
    """PSUM banks that are used round-robin. Each is a tensor of its own, so that its writer waits for its reader."""

    tiles_psum: list[nl.NkiTensor]
    taken: int = 0

    @classmethod
    def make(cls, count: int, elements: int, dtype: nl.DType) -> PsumBanks:
        """Allocate banks for items of ``elements`` elements."""
        shape = (nl.tile_size.pmax, elements)
        return cls([nl.ndarray(shape, dtype=dtype, buffer=nl.psum) for _ in range(count)])

    def take(self) -> nl.NkiTensor:
        """Return the next bank."""
        self.taken += 1
        return self.tiles_psum[(self.taken - 1) % len(self.tiles_psum)]


def natural_shape(windows: list[Window], parts: list[Part]) -> tuple[int, ...]:
    """Return the shape of a natural tile, in which the axis lies on partitions: [partitions, outer, segments, lines,
    inner], with the lines of :class:`.Segment`.
    """
    lines = max(segment.lines for part in parts for segment in part.segments)
    return (
        nl.tile_size.pmax,
        max(window.outer for window in windows),
        max(len(part.segments) for part in parts),
        lines,
        max(window.inner for window in windows),
    )


def copy_natural(tensor_hbm: nl.NkiTensor, tile_sbuf: nl.NkiTensor, load: Load, is_store: bool) -> Iterator[None]:
    """Load or store a part of a window, with one transfer after the other for each segment of each outer index."""
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
    """Return the view of an item's elements in a natural tile, [partitions, outer, lines, inner]."""
    strip = item.strip
    slot = item.part.slot(item.segment)
    outer = slice(strip.first_outer, strip.first_outer + strip.outer)
    inner = slice(strip.first_inner, strip.first_inner + strip.inner)
    return tile_sbuf[:, outer, slot, :, inner]


@dataclass
class TensorTransposedSource:
    """Natural tiles (:func:`natural_shape`) whose items the Tensor engine transposes one by one.

    Attributes:
        ring: the ring buffer of natural tiles.
        banks: the PSUM banks for each pass that transposes, by the number of the pass.
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
    ) -> TensorTransposedSource:
        """Allocate the tiles and banks for the windows of a core.

        Args:
            tensor_hbm: the tensor, [O, C, I].
            shape: the shape of a natural tile.
            loads: all loads, in their order.
            buffers: the number of natural tiles.
            longest: the maximum number of elements of a segment.
            banks: the number of PSUM banks for each pass that reads, by the number of the pass.
        """
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            return copy_natural(tensor_hbm, tile_sbuf, load, is_store=False)

        of_passes = {visit: PsumBanks.make(count, longest, tensor_hbm.dtype) for visit, count in banks.items()}
        return cls(LoadRing(loads, tiles, fill), of_passes)

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Transpose an item into PSUM, in the order of the axis: line i becomes every ``segment.lines``-th element from
        element i on.
        """
        segment, strip = item.segment, item.strip
        columns_sbuf = of_columns(self.ring.tile(self.ring.key(item.window, item.part, visit)), item)
        transposed_psum = self.banks[visit].take()[0 : strip.columns]
        for line in range(segment.lines):
            partitions = segment.partitions(line)
            nisa.nc_transpose(
                dst=transposed_psum[:, line : line + (partitions - 1) * segment.lines + 1 : segment.lines],
                data=columns_sbuf[0:partitions, :, line],
            )
        return transposed_psum[:, 0 : segment.size]


@dataclass
class DmaTransposedSource:
    """Tiles [columns, strips, elements of the part] that the DMA engines fill with transposed columns.

    Attributes:
        ring: the ring buffer of these tiles.
    """

    ring: LoadRing

    @classmethod
    def make(
        cls, tensor_hbm: nl.NkiTensor, windows: list[Window], parts: list[Part], loads: list[Load], buffers: int
    ) -> DmaTransposedSource:
        """Allocate the tiles for the windows of a core."""
        strips = max(len(window.strips()) for window in windows)
        elements = max(part.segments[-1].end - part.segments[0].start for part in parts)
        shape = (nl.tile_size.pmax, strips, elements)
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            start, end = load.part.segments[0].start, load.part.segments[-1].end
            for strip in load.window.strips():
                of_window = load.window.of(tensor_hbm, strip.first_outer, start, end)
                nisa.dma_transpose(
                    dst=tile_sbuf[0 : strip.columns, strip.number, 0 : end - start],
                    src=of_window[:, strip.first_inner : strip.first_inner + strip.inner],
                )
                yield

        return cls(LoadRing(loads, tiles, fill))

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return the view of an item in SBUF."""
        tile_sbuf = self.ring.tile(self.ring.key(item.window, item.part, visit))
        start = item.segment.start - item.part.segments[0].start
        return tile_sbuf[0 : item.strip.columns, item.strip.number, start : start + item.segment.size]
