# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Columns of tensors with few inner indices: a partition holds an outer index with all its elements.

A column is then every I-th element of a partition, and results are written over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nkilib.experimental.softmax.column_geometry import Item, Window
from nkilib.experimental.softmax.column_loads import Load, LoadRing
from nkilib.nki import nisa, nl


def strided_shape(windows: list[Window], count: int) -> tuple[int, ...]:
    """Return the shape of a tile that holds a window: [outer, elements of a column, inner]."""
    return max(window.outer for window in windows), count, windows[0].inner


def _of_window(tensor_hbm: nl.NkiTensor, window: Window) -> nl.NkiTensor:
    return tensor_hbm[window.first_outer : window.first_outer + window.outer]


def _of_item(tile_sbuf: nl.NkiTensor, item: Item) -> nl.NkiTensor:
    segment = item.segment
    return tile_sbuf[0 : item.strip.outer, segment.start : segment.end, item.strip.first_inner]


@dataclass
class StridedSource:
    """Tiles that hold a window with one outer index on each partition.

    Attributes:
        ring: the ring buffer of these tiles.
    """

    ring: LoadRing

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, windows: list[Window], loads: list[Load], buffers: int) -> StridedSource:
        """Allocate the tiles for the windows of a core."""
        shape = strided_shape(windows, tensor_hbm.shape[1])
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            nisa.dma_copy(dst=tile_sbuf[0 : load.window.outer], src=_of_window(tensor_hbm, load.window))
            yield

        return cls(LoadRing(loads, tiles, fill))

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return the view of an item in SBUF."""
        return _of_item(self.ring.tile(self.ring.key(item.window, item.part, visit)), item)


@dataclass
class StridedResults:
    """Results that are already in the layout in which they are stored.

    Attributes:
        result_hbm: the result tensor, [O, C, I].
        tile: a function that returns the tile for the results of an item's window.
    """

    result_hbm: nl.NkiTensor
    tile: Callable[[Item], nl.NkiTensor]

    def piece(self, item: Item) -> nl.NkiTensor:
        """Return the view of the item's columns in the tile."""
        return _of_item(self.tile(item), item)

    def transpose_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the result unchanged, because nothing is transposed."""
        return piece_sbuf

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Store the window after its last item."""
        if item.ends_part:
            tile_sbuf = self.tile(item)[0 : item.window.outer]
            nisa.dma_copy(dst=_of_window(self.result_hbm, item.window), src=tile_sbuf)
