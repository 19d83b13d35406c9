# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Columns of tensors with few inner places: an outer place lies on a partition, with all that it has.

A column is then every I-th element of a partition, and results are written over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nkilib.experimental.softmax.column_geometry import Item, Window
from nkilib.experimental.softmax.column_loads import Load, LoadRing
from nkilib.nki import nisa, nl


def strided_shape(windows: list[Window], count: int) -> tuple[int, ...]:
    """A tile [outer, elements of a column, inner]."""
    return max(window.outer for window in windows), count, windows[0].inner


def _of_window(tensor_hbm: nl.NkiTensor, window: Window) -> nl.NkiTensor:
    return tensor_hbm[window.first_outer : window.first_outer + window.outer]


def _of_item(tile_sbuf: nl.NkiTensor, item: Item) -> nl.NkiTensor:
    segment = item.segment
    return tile_sbuf[0 : item.turn.outer, segment.start : segment.end, item.turn.first_inner]


@dataclass
class StridedSource:
    """Tiles with an outer place on each partition.

    Attributes:
        ring: of these.
    """

    ring: LoadRing

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, windows: list[Window], loads: list[Load], buffers: int) -> StridedSource:
        """For the windows of a core."""
        shape = strided_shape(windows, tensor_hbm.shape[1])
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            nisa.dma_copy(dst=tile_sbuf[0 : load.window.outer], src=_of_window(tensor_hbm, load.window))
            yield

        return cls(LoadRing(loads, tiles, fill))

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """The item in SBUF."""
        return _of_item(self.ring.tile(self.ring.key(item.window, item.part, visit)), item)


@dataclass
class StridedResults:
    """Results that lie as they are to be stored.

    Attributes:
        result_hbm: [O, C, I].
        tile: of an item: where its window is written.
    """

    result_hbm: nl.NkiTensor
    tile: Callable[[Item], nl.NkiTensor]

    def piece(self, item: Item) -> nl.NkiTensor:
        """The column in the tile."""
        return _of_item(self.tile(item), item)

    def turn_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Nothing is turned."""
        return piece_sbuf

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Store the window after its last item."""
        if item.ends_part:
            tile_sbuf = self.tile(item)[0 : item.window.outer]
            nisa.dma_copy(dst=_of_window(self.result_hbm, item.window), src=tile_sbuf)
