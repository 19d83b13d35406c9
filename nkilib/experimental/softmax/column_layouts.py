# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the source of items and the destination of results (:class:`.Source`, :class:`.Results`) by the layout
of a plan.
"""

from __future__ import annotations

from collections.abc import Callable

from nkilib.experimental.softmax.column_geometry import Item
from nkilib.experimental.softmax.column_loads import loads_of
from nkilib.experimental.softmax.column_plan import OWN_TILES, ColumnPlan, Layout
from nkilib.experimental.softmax.column_results import OwnTiles, Results, TransposedResults
from nkilib.experimental.softmax.column_sources import (
    DmaTransposedSource,
    Source,
    TensorTransposedSource,
    natural_shape,
)
from nkilib.experimental.softmax.column_strided import StridedResults, StridedSource, strided_shape
from nkilib.nki import nl


def source_of(tensor_hbm: nl.NkiTensor, plan: ColumnPlan, banks: dict[int, int]) -> Source:
    """Return the source of the items of a tensor [O, C, I]; ``banks`` has the number of PSUM banks for each pass that
    reads the tensor, by the number of the pass.
    """
    passes = tuple(banks)
    buffers = plan.buffers_of(passes)
    loads = loads_of(plan.windows, plan.parts, passes, plan.is_read_twice)
    if plan.layout is Layout.STRIDED:
        return StridedSource.make(tensor_hbm, plan.windows, loads, buffers)
    if plan.layout is Layout.DMA_TRANSPOSED:
        return DmaTransposedSource.make(tensor_hbm, plan.windows, plan.parts, loads, buffers)
    return TensorTransposedSource.make(
        tensor_hbm, natural_shape(plan.windows, plan.parts), loads, buffers, plan.longest, banks
    )


def results_of(result_hbm: nl.NkiTensor, plan: ColumnPlan, overwritten: Source | None, scalar_share: float) -> Results:
    """Return the destination of the results, which collects them in the tiles of ``overwritten``, or in tiles of its
    own if that is None.
    """
    tile = _own_tiles(result_hbm, plan).tile if overwritten is None else _tile_of_source(overwritten)
    if plan.layout is Layout.STRIDED:
        return StridedResults(result_hbm, tile)
    return TransposedResults.make(result_hbm, plan.longest, scalar_share, tile)


def _own_tiles(result_hbm: nl.NkiTensor, plan: ColumnPlan) -> OwnTiles:
    shape: tuple[int, ...] = natural_shape(plan.windows, plan.parts)
    if plan.layout is Layout.STRIDED:
        shape = strided_shape(plan.windows, result_hbm.shape[1])
    return OwnTiles([nl.ndarray(shape, dtype=result_hbm.dtype, buffer=nl.sbuf) for _ in range(OWN_TILES)])


def _tile_of_source(source: Source) -> Callable[[Item], nl.NkiTensor]:
    """Return a function that gives the tile of an item's input, over which the result of the item is written."""
    ring = source.ring
    return lambda item: ring.tile(ring.key(item.window, item.part, 2))
