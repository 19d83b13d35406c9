# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.sbuf``: how a partition is divided, and that what the plan says is what the simulator counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.core.hardware import FLOAT32_BYTES
from nkilib.core.rows.sbuf import MAX_CHUNK_BUFFERS, DividedSbuf, SbufPlan, TileRing, dtype_bytes
from nkilib.nki import nisa, nki, nl

TYPES = [nl.bfloat16, nl.float32]
by_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def bytes_of(plan: SbufPlan, sbuf: DividedSbuf) -> int:
    """Return the bytes that chunk buffers and scratch of a division take."""
    scratch = plan.num_scratch * sbuf.turns * sbuf.chunk_size * FLOAT32_BYTES
    return scratch + sbuf.chunk_buffers * sbuf.chunk_size * dtype_bytes(sbuf.dtype)


@by_type
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@given(data=st.data())
def test_a_division_fits_and_leaves_no_room_for_more(data: st.DataObject, dtype: Any, target: str) -> None:
    plan = SbufPlan(data.draw(st.integers(0, 20000), "small"), data.draw(st.integers(0, 5), "scratch"))
    with nkilib.simulator.using(target=target):
        chunk_size = data.draw(st.integers(1, plan.largest_chunk(dtype)), "chunk")
        loads = data.draw(st.integers(1, 9), "loads")
        sbuf = plan.divided(3, chunk_size, dtype, loads)
        fitting = nl.tile_size.sbuf_fmax_bytes - plan.small_bytes
        assert plan.bytes_that_fit == fitting
    chunk_bytes = chunk_size * dtype_bytes(dtype)
    of_one = plan.num_scratch * chunk_size * FLOAT32_BYTES + chunk_bytes
    room = fitting - bytes_of(plan, sbuf)
    assert room >= 0
    assert 1 <= sbuf.chunk_buffers <= min(MAX_CHUNK_BUFFERS, loads)
    assert sbuf.chunk_buffers == min(MAX_CHUNK_BUFFERS, loads) or room < chunk_bytes
    assert sbuf.turns == (2 if loads > 1 and 2 * of_one <= fitting else 1)


@by_type
@pytest.mark.parametrize("num_scratch", [0, 1, 3])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_the_largest_chunk_is_the_largest(target: str, num_scratch: int, dtype: Any) -> None:
    plan = SbufPlan(4096, num_scratch)
    of_element = dtype_bytes(dtype) + num_scratch * FLOAT32_BYTES
    with nkilib.simulator.using(target=target):
        largest = plan.largest_chunk(dtype)
        assert largest * of_element <= plan.bytes_that_fit < (largest + 1) * of_element


def laid_out(plan: SbufPlan, chunk_size: int, dtype: Any, loads: int, small_bytes: int) -> nkilib.simulator.Record:
    """Return the simulator's record of a kernel that uses all tiles of a plan at one time, on all partitions.

    Tiles of a quarter of the partitions may lie below each other, and take less.
    """

    def kernel() -> None:
        sbuf = plan.divided(128, chunk_size, dtype, loads)
        rings = [sbuf.ring(True) for _ in range(plan.num_scratch)]
        tiles = [*sbuf.buffers(), *(tile for ring in rings for tile in ring.tiles_sbuf)]
        if small_bytes:
            tiles.append(nl.ndarray((128, small_bytes), dtype=nl.uint8, buffer=nl.sbuf))
        for tile_sbuf in tiles:
            nisa.memset(dst=tile_sbuf[:, 0:1], value=0)
        for tile_sbuf in tiles:
            nisa.tensor_copy(dst=tile_sbuf[:, 0:1], src=tile_sbuf[:, 0:1])

    with nkilib.simulator.recording() as record:
        nki.jit(kernel)()
    return record


@by_type
@pytest.mark.parametrize("num_scratch", [0, 1, 3])
@pytest.mark.parametrize("loads", [1, 2, 9])
@pytest.mark.parametrize("chunk_size", [64, 8192, 12288])
def test_the_simulator_counts_what_the_plan_counts(chunk_size: int, loads: int, num_scratch: int, dtype: Any) -> None:
    plan = SbufPlan(4096, num_scratch)
    sbuf = plan.divided(128, chunk_size, dtype, loads)
    record = laid_out(plan, chunk_size, dtype, loads, small_bytes=0)
    assert record.sbuf_peak_bytes == bytes_of(plan, sbuf)
    assert record.instruction_counts["memset"] == sbuf.chunk_buffers + num_scratch * sbuf.turns


@by_type
@pytest.mark.parametrize("num_scratch", [0, 1, 3])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_the_largest_chunk_fits_sbuf_beside_the_small_tiles(target: str, num_scratch: int, dtype: Any) -> None:
    """Such chunks have one buffer; one element more per chunk, or some bytes more of small tiles, do not fit."""
    small = 4096
    plan = SbufPlan(small, num_scratch)
    with nkilib.simulator.using(target=target):
        largest = plan.largest_chunk(dtype)
        record = laid_out(plan, largest, dtype, 9, small)
        of_element = dtype_bytes(dtype) + num_scratch * FLOAT32_BYTES
        assert record.sbuf_peak_bytes == small + largest * of_element
        for chunk_size, small_bytes in ((largest + 1, small), (largest, small + of_element)):
            with pytest.raises(nkilib.simulator.CapacityError):
                laid_out(plan, chunk_size, dtype, 9, small_bytes)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_chunks_take_the_tiles_of_a_ring_in_turn(turns: int) -> None:
    """After chunk number k was written, the tile of the chunk before still holds it, if the ring has another one."""
    chunks = [(4, 6), (4, 6), (4, 2), (3, 6), (3, 2)]

    def kernel() -> Any:
        result_hbm = nl.zeros((4, len(chunks)), dtype=nl.float32, buffer=nl.shared_hbm)
        ring = TileRing([nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.sbuf) for _ in range(turns)])
        like = [nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf) for shape in chunks]
        for load, like_sbuf in enumerate(like):
            tile_sbuf = ring.tile(load, like_sbuf)
            assert tile_sbuf.shape == chunks[load] and tile_sbuf.dtype == nl.float32
            nisa.memset(dst=tile_sbuf, value=load + 1)
            before_sbuf = ring.tile(max(load - 1, 0), like_sbuf)
            rows = chunks[load][0]
            nisa.dma_copy(dst=result_hbm[0:rows, load : load + 1], src=before_sbuf[:, 0:1])
        return result_hbm

    expected = np.zeros((4, len(chunks)), np.float32)
    for load, (rows, _) in enumerate(chunks):
        expected[:rows, load] = load + 1 if turns == 1 else max(load, 1)
    np.testing.assert_array_equal(nki.jit(kernel)(), expected)


def test_a_ring_that_nobody_needs_takes_no_room() -> None:
    seen: list[TileRing] = []

    def kernel() -> None:
        seen.append(SbufPlan(0, 2).divided(4, 8, nl.float32, 3).ring(False))

    with nkilib.simulator.recording() as record:
        nki.jit(kernel)()
    assert [ring.tiles_sbuf for ring in seen] == [[]]
    assert record.sbuf_peak_bytes == 0


def test_bytes_of_the_two_types() -> None:
    assert [dtype_bytes(dtype) for dtype in TYPES] == [2, 4]
