# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How long the DMA engines of trn2 work on a transfer, and which queue triggers it; figures by hand.

An engine moves 23 bytes a nanosecond, takes at least 58 ns for a row and serves 8 partitions; a transfer takes 1,000 ns
besides. `BusyTimes`: work goes into the earliest gaps that are free, in pieces if need be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, Profile, profile, spec
from nkilib.simulator.timing.dma import BusyTimes, row_bytes_of, side_of

FP32, BF16 = nl.float32, nl.bfloat16


def modelled(body: Any, *specs: Any, **assumptions: Any) -> Profile:
    return profile(nki.jit(body), *specs, parameters=replace(AS_ISSUED, **assumptions))


def duration(body: Any, *specs: Any, **assumptions: Any) -> float:
    """Nanoseconds from the trigger of the last transfer to its last byte."""
    event = modelled(body, *specs, **assumptions).instructions[-1]
    return (event.end_us - event.start_us) * 1000


def load(x: Any) -> None:
    nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)


@pytest.mark.parametrize(
    ("shape", "nanoseconds"),
    [
        ((64, 2048), 8 * 8192 / 23),  # 8 rows on each of 8 engines
        ((128, 2048), 8 * 8192 / 23),  # the same on each of 16
        ((4, 2048), 4 * 8192 / 23),  # 4 rows on one engine
        ((12, 2048), 8 * 8192 / 23),  # 8 on one engine, 4 on another
        ((128, 1), 8 * 58),  # rows of 4 bytes
        ((1, 16384), 65536 / 23),
    ],
)
def test_rows_pass_through_the_engines_of_their_partitions(shape: tuple[int, int], nanoseconds: float) -> None:
    assert duration(load, spec(shape, FP32)) == pytest.approx(1000 + nanoseconds)


def test_partitions_have_engines_of_their_own() -> None:
    """Two loads of 64 partitions each do not meet; two to the same partitions share their engines."""

    def apart(x: Any) -> None:
        tile = nl.ndarray((128, 2048), FP32)
        nisa.dma_copy(tile[0:64, :], x[0:64, :])
        nisa.dma_copy(tile[64:128, :], x[64:128, :])

    def together(x: Any) -> None:
        nisa.dma_copy(nl.ndarray((64, 2048), FP32), x[0:64, :])
        nisa.dma_copy(nl.ndarray((64, 2048), FP32), x[64:128, :])

    rows = 8 * 8192 / 23
    x = spec((128, 2048), FP32)
    assert modelled(apart, x).instructions[1].end_us * 1000 == pytest.approx(600 + 1000 + rows)
    assert modelled(together, x).instructions[1].end_us * 1000 == pytest.approx(1000 + 2 * rows)


def test_a_row_is_what_is_contiguous_on_both_sides() -> None:
    def pieces(x: Any) -> None:
        nisa.dma_copy(nl.ndarray((128, 4, 512), FP32), x[:, :, 0:512])

    assert duration(pieces, spec((128, 4, 1024), FP32)) == pytest.approx(1000 + 8 * 4 * 2048 / 23)


def test_the_bytes_of_a_row_on_average() -> None:
    """Take the contiguous runs of the side with more of them, or the rows of a gather."""
    whole, rows = (side_of((64, 8), (pitch, 1), 4, nl.shared_hbm, 0, 0) for pitch in (8, 16))
    nothing = side_of((0, 8), (8, 1), 4, nl.shared_hbm, 0, 0)
    assert row_bytes_of([whole, whole], 0, is_transpose=False) == 64 * 8 * 4  # a single run
    assert row_bytes_of([whole, rows], 0, is_transpose=False) == 8 * 4
    assert row_bytes_of([whole, rows], 1, is_transpose=False) == 64 * 8 * 4
    assert row_bytes_of([nothing, nothing], 0, is_transpose=False) == row_bytes_of([whole], 0, is_transpose=True) == 0


def test_a_cast_moves_the_wider_type() -> None:
    def cast(x: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, FP32), x)

    assert duration(cast, spec((128, 2048), BF16)) == pytest.approx(1000 + 8 * 8192 / 23)


def test_between_tensors_in_hbm_all_engines_work() -> None:
    def copy(x: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype, nl.hbm), x)

    assert duration(copy, spec((1, 1 << 20), FP32)) == pytest.approx(1000 + (1 << 22) / 16 / 23)


def test_a_sum_reads_every_source() -> None:
    def add(x: Any, y: Any) -> None:
        nisa.dma_compute(nl.ndarray(x.shape, x.dtype), [x, y], nl.add)

    x = spec((128, 2048), FP32)
    assert duration(add, x, x) == pytest.approx(1000 + 2 * 8 * 8192 / 23)


def test_a_transpose_reaches_a_part_of_the_rate() -> None:
    """90% from HBM and 50% from SBUF (nki/guides/architecture/trainium2_arch.rst)."""

    def from_hbm(x: Any) -> None:
        nisa.dma_transpose(nl.ndarray((128, 512), x.dtype), x)

    def from_sbuf(_: Any) -> None:
        nisa.dma_transpose(nl.ndarray((128, 128), BF16), nl.ndarray((128, 128), BF16))

    assert duration(from_hbm, spec((512, 128), BF16)) == pytest.approx(1000 + 512 * 128 * 2 / 16 / (23 * 0.9))
    assert duration(from_sbuf, spec((1,), BF16)) == pytest.approx(1000 + 128 * 128 * 2 / 16 / (23 * 0.5))


def gather(x: Any) -> None:
    index = nl.ndarray((128, 1), nl.int32)
    nisa.dma_copy(nl.ndarray((128, 1), FP32), x.reshape((x.shape[0], 1)).vector_select(0, index))


def test_a_gather_takes_software_descriptors() -> None:
    """2 us and 60 ns a row on each engine, after 1 us on GpSimd."""
    result = modelled(gather, spec((4096,), FP32))
    (event,) = result.instructions
    assert event.start_us == pytest.approx(1.0)
    assert event.end_us == pytest.approx(1.0 + 2.0 + 8 * 0.06)
    assert result.engine_busy_us["gpsimd"] == 1.0
    assert result.hbm_read_bytes == 128 * 4
    assumed = dict(indirect_gpsimd_us=3.0, indirect_base_us=5.0, indirect_row_ns=1000.0)
    (event,) = modelled(gather, spec((4096,), FP32), **assumed).instructions
    assert (event.start_us, event.end_us) == pytest.approx((3.0, 3.0 + 5.0 + 8.0))


def test_a_scatter_waits_for_the_stores_of_its_rows() -> None:
    """The rows that it writes are known at run time: it waits for every store that it may meet."""

    def body(x: Any) -> None:
        tile, index = nl.ndarray((128, 64), FP32), nl.ndarray((128, 1), nl.int32)
        column = nl.ndarray((128, 1), FP32)
        nisa.dma_copy(x[128:256, :], tile)
        nisa.dma_copy(x.reshape((256 * 64, 1)).vector_select(0, index), column)

    store, scatter = modelled(body, spec((256, 64), FP32)).instructions
    assert scatter.start_us == pytest.approx(store.end_us + 0.3 + 1.0)


def test_a_store_that_waits_holds_up_loads_of_the_same_queue_only() -> None:
    def body(x: Any, y: Any) -> None:
        tile, other = nl.ndarray((128, 960), FP32), nl.ndarray((128, 960), FP32)
        nisa.tensor_copy(tile, tile)  # 1 us
        nisa.dma_copy(x, tile)
        nisa.dma_copy(other, y)

    x = spec((128, 960), FP32)
    _, store, load = modelled(body, x, x).instructions
    assert (store.start_us, load.start_us) == pytest.approx((1.21, 0.0))
    _, store, load = modelled(body, x, x, queues_by_direction=False).instructions
    assert (store.start_us, load.start_us) == pytest.approx((1.21, 1.81))


def test_the_kernel_may_name_the_queue() -> None:
    def body(x: Any) -> None:
        for engine in (nisa.engine.sync, nisa.engine.scalar, nisa.engine.sync):
            nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x, dge_mode=nisa.dge_mode.hwdge, engine=engine)

    starts = [event.start_us for event in modelled(body, spec((4, 4), FP32)).instructions]
    assert starts == pytest.approx([0.0, 0.0, 0.6])


def test_the_time_between_triggers_is_a_parameter() -> None:
    def body(x: Any) -> None:
        load(x)
        load(x)

    assert modelled(body, spec((4, 4), FP32)).instructions[1].start_us == pytest.approx(0.6)
    assert modelled(body, spec((4, 4), FP32), trigger_us=0.85).instructions[1].start_us == pytest.approx(0.85)


def test_work_follows_work() -> None:
    engine = BusyTimes()
    assert engine.add(10.0, 5.0) == 15.0
    assert engine.add(0.0, 3.0) == 3.0  # before it there was time
    assert engine.add(12.0, 5.0) == 20.0
    assert engine.total_ns == 13.0


def test_work_is_cut_where_a_gap_is_too_short() -> None:
    """Busy from 10 to 20 and 25 to 30: nine hours from 5 on are 5 to 10 and 20 to 24."""
    engine = BusyTimes()
    engine.add(10.0, 10.0)
    engine.add(25.0, 5.0)
    assert engine.add(5.0, 9.0) == 24.0
    assert engine.add(0.0, 7.0) == 31.0  # 0 to 5, 24 to 25, 30 to 31


def test_no_work_is_done_at_once() -> None:
    engine = BusyTimes()
    engine.add(0.0, 10.0)
    assert engine.add(4.0, 0.0) == 4.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30))
def test_every_hour_is_given_once_and_none_before_its_time(jobs: list[tuple[int, int]]) -> None:
    """The result is compared with a list of hours, each free or taken."""
    engine, free = BusyTimes(), [True] * 400
    for earliest, duration in jobs:
        hours = [hour for hour in range(earliest, len(free)) if free[hour]][:duration]
        for hour in hours:
            free[hour] = False
        expected = hours[-1] + 1 if hours else earliest
        assert engine.add(float(earliest), float(duration)) == expected
    assert engine.total_ns == sum(duration for _, duration in jobs)
