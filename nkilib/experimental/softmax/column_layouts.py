# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sources and results for the layout of a plan."""

from __future__ import annotations

from collections.abc import Callable

from nkilib.experimental.softmax.column_geometry import Item
from nkilib.experimental.softmax.column_loads import loads_of
from nkilib.experimental.softmax.column_plan import OWN_TILES, ColumnPlan, Layout
from nkilib.experimental.softmax.column_results import OwnTiles, Results, TurnedResults
from nkilib.experimental.softmax.column_sources import Source, TransposedSource, TurnedSource, natural_shape
from nkilib.experimental.softmax.column_strided import StridedResults, StridedSource, strided_shape
from nkilib.nki import nl


def source_of(tensor_hbm: nl.NkiTensor, plan: ColumnPlan, banks: dict[int, int]) -> Source:
    """Items of a tensor [O, C, I]; ``banks`` are those of PSUM for each pass that reads them."""
    passes = tuple(banks)
    buffers = plan.buffers_of(passes)
    loads = loads_of(plan.windows, plan.parts, passes, plan.is_read_twice)
    if plan.layout is Layout.STRIDED:
        return StridedSource.make(tensor_hbm, plan.windows, loads, buffers)
    if plan.layout is Layout.TRANSPOSED:
        return TransposedSource.make(tensor_hbm, plan.windows, plan.parts, loads, buffers)
    return TurnedSource.make(tensor_hbm, natural_shape(plan.windows, plan.parts), loads, buffers, plan.longest, banks)


def results_of(result_hbm: nl.NkiTensor, plan: ColumnPlan, overwritten: Source | None, scalar_share: float) -> Results:
    """Items of the result; in the tiles of ``overwritten``, or in their own."""
    tile = _own_tiles(result_hbm, plan).tile if overwritten is None else _tile_of_source(overwritten)
    if plan.layout is Layout.STRIDED:
        return StridedResults(result_hbm, tile)
    return TurnedResults.make(result_hbm, plan.longest, scalar_share, tile)


def _own_tiles(result_hbm: nl.NkiTensor, plan: ColumnPlan) -> OwnTiles:
    shape: tuple[int, ...] = natural_shape(plan.windows, plan.parts)
    if plan.layout is Layout.STRIDED:
        shape = strided_shape(plan.windows, result_hbm.shape[1])
    return OwnTiles([nl.ndarray(shape, dtype=result_hbm.dtype, buffer=nl.sbuf) for _ in range(OWN_TILES)])


def _tile_of_source(source: Source) -> Callable[[Item], nl.NkiTensor]:
    """An item is written over the one that it was made of."""
    ring = source.ring
    return lambda item: ring.tile(ring.key(item.window, item.part, 2))
