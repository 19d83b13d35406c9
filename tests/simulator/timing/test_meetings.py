# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Barriers and exchanges on the timelines of both cores, and instructions that no ``nisa`` call issues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, Profile, profile, spec
from nkilib.simulator.timing.event import Event

FP32 = nl.float32
N = 960  # Vector takes 1,000 ns


def modelled(body: Any, *args: Any, **assumptions: Any) -> Profile:
    return profile(nki.jit(body)[2], *args, parameters=replace(AS_ISSUED, **assumptions))


def of_core(result: Profile, core: int) -> list[Event]:
    return [event for event in result.instructions if event.core == core]


def busy(times: int) -> Any:
    """Make a tile in a kernel after `times` microseconds of work, give or take what lies between instructions."""
    tile = nl.ndarray((128, N), FP32)
    for _ in range(times):
        nisa.tensor_copy(tile, tile)
    return tile


def late_and_early(x: Any) -> None:
    """Core 1 works for three times as long before it stores and meets core 0, and both load what the other stored."""
    core = nl.program_id()
    tile = busy(1 + 2 * core)
    nisa.dma_copy(x[core], tile)
    nisa.core_barrier(x, (0, 1))
    nisa.dma_copy(nl.ndarray((128, N), FP32), x[1 - core])


@pytest.mark.parametrize("barrier_us", [2.0, 7.0])
def test_cores_leave_a_barrier_together(barrier_us: float) -> None:
    result = modelled(late_and_early, spec((2, 128, N), FP32), barrier_us=barrier_us)
    first, second = of_core(result, 0), of_core(result, 1)
    barriers = [next(event for event in events if event.name == "core_barrier") for events in (first, second)]
    stores = [next(event for event in events if event.name == "dma_copy") for events in (first, second)]
    assert stores[0].end_us < stores[1].end_us
    # A core comes when its store has arrived and is noticed; the barrier takes its time from the later one on.
    assert [barrier.start_us for barrier in barriers] == pytest.approx([store.end_us + 0.3 for store in stores])
    assert [barrier.end_us for barrier in barriers] == pytest.approx([barriers[1].start_us + barrier_us] * 2)
    assert {barrier.engine for barrier in barriers} == {"gpsimd"}
    # What touches x waits for it.
    assert [first[-1].start_us, second[-1].start_us] == pytest.approx([barriers[0].end_us + 0.06] * 2)


def test_a_barrier_holds_up_its_engine_and_its_data_only() -> None:
    def body(x: Any, y: Any) -> None:
        tile = busy(3) if nl.program_id() else nl.ndarray((128, N), FP32)
        nisa.dma_copy(x[nl.program_id()], tile)
        nisa.core_barrier(x, (0, 1))
        nisa.dma_copy(nl.ndarray((128, N), FP32), y)

    *_, barrier, load = of_core(modelled(body, spec((2, 128, N), FP32), spec((128, N), FP32)), 0)
    assert load.start_us == 0.0 < barrier.end_us


def test_with_data_the_cores_synchronise_at_the_same_time_as_without() -> None:
    x = np.zeros((2, 128, N), np.float32)

    def filled(x: Any) -> None:
        core = nl.program_id()
        tile = nl.zeros((128, N), FP32)
        for _ in range(1 + 2 * core):
            nisa.tensor_copy(tile, tile)
        nisa.dma_copy(x[core], tile)
        nisa.core_barrier(x, (0, 1))
        nisa.dma_copy(nl.ndarray((128, N), FP32), x[1 - core])

    assert modelled(filled, x).instructions == modelled(filled, spec(x.shape, FP32)).instructions


def swap(_: Any) -> None:
    core = nl.program_id()
    tile = busy(1 + 2 * core)
    nisa.sendrecv(tile, nl.ndarray((128, N), FP32), send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)


def test_an_exchange_starts_when_both_cores_are_ready() -> None:
    results = modelled(swap, spec((1,), FP32))
    ends = [[event.end_us for event in of_core(results, core) if event.name == "tensor_copy"][-1] for core in (0, 1)]
    exchanges = [of_core(results, core)[-1] for core in (0, 1)]
    ready = ends[1] + 0.15 + 0.06
    assert [event.start_us for event in exchanges] == pytest.approx([ready + 2.0] * 2)
    assert [event.end_us for event in exchanges] == pytest.approx([ready + 2.0 + 1.0 + 8 * N * 4 / 23 / 1000] * 2)
    assert {event.engine for event in exchanges} == {"dma"}
    assert results.hbm_read_bytes == results.hbm_written_bytes == 0


@pytest.mark.parametrize(("place", "traffic"), [(nl.sbuf, 0), (nl.private_hbm, 2 * 128 * N * 4)])
def test_an_exchange_with_a_reduction_reads_two_sources(place: Any, traffic: int) -> None:
    """The core's own and the other one's, so that the engines work twice as long as to swap tiles."""

    def body(_: Any) -> None:
        other = 1 - nl.program_id()
        src, dst = (nl.ndarray((128, N), FP32, place) for _ in range(2))
        nisa.sendrecv_compute(src, dst, other, other, nl.add)

    result = modelled(body, spec((1,), FP32))
    for core in (0, 1):
        (event,) = of_core(result, core)
        assert event.start_us == pytest.approx(2.0)
        assert event.end_us == pytest.approx(2.0 + 1.0 + 2 * 8 * N * 4 / 23 / 1000)
    assert result.hbm_read_bytes == result.hbm_written_bytes == traffic


def test_an_exchange_by_gpsimd_has_its_queue() -> None:
    def body(_: Any) -> None:
        other = 1 - nl.program_id()
        tile, result = (nl.ndarray((128, 8), FP32) for _ in range(2))
        nisa.sendrecv(tile, result, other, other, 0, dma_engine=nisa.dma_engine.gpsimd_dma)
        nisa.sendrecv(tile, nl.ndarray((128, 8), FP32), other, other, 1)

    first, second = of_core(modelled(body, spec((1,), FP32)), 0)
    assert first.start_us == second.start_us == 2.0


def test_cores_that_disagree_about_an_exchange_are_refused_without_data() -> None:
    def body(_: Any) -> None:
        core = nl.program_id()
        tile, result = (nl.ndarray((128, 8 + core), FP32) for _ in range(2))
        nisa.sendrecv(tile, result, 1 - core, 1 - core, 0)

    with pytest.raises(Exception, match="the cores must swap tiles of one shape and type"):
        modelled(body, spec((1,), FP32))


def test_making_a_filled_tensor_takes_a_memset_or_a_transfer() -> None:
    def body(_: Any) -> None:
        tile = nl.zeros((128, N), nl.bfloat16)
        nl.full((128, N), 1.0, FP32, nl.hbm, name="ones")
        nisa.activation(nl.ndarray((128, N), FP32), nl.exp, tile)

    profiled = profile(nki.jit(body), spec((1,), FP32), parameters=AS_ISSUED)
    memset, copy, activation = profiled.instructions
    assert (memset.name, memset.engine, memset.cycles) == ("memset", "vector", N / 2)
    assert memset.end_us == pytest.approx(0.5)
    assert (copy.name, copy.engine) == ("dma_copy", "dma")
    assert copy.end_us == pytest.approx(1.0 + 128 * N * 4 / 16 / 23 / 1000)
    assert activation.start_us == pytest.approx(0.5 + 0.15 + 0.06 + 1.28)
    assert profiled.hbm_written_bytes_by_tensor == {"ones": 128 * N * 4}


def test_every_instruction_is_on_the_timeline() -> None:
    def body(x: Any) -> None:
        register = nisa.register_alloc(1)
        nisa.register_move(register, 2)
        tile = nl.load(x)
        nl.softmax(nl.add(tile, 1.0), axis=1)
        nl.ones((4, 4), FP32)
        nisa.core_barrier(x, (0, 1))

    results = modelled(body, spec((128, 64), FP32))
    assert Counter(event.name for event in results.instructions) == results.instruction_counts
    for core in (0, 1):
        numbers = [event.number for event in of_core(results, core)]
        assert numbers == sorted(set(numbers))
