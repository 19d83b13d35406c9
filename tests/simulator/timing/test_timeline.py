# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""When instructions start and end on the timeline of trn2, worked out by hand from hardware/generations.py.

Vector runs at 0.96 GHz, Scalar at 1.2; results are ready 150 and 300 ns after the last cycle, another engine notices 60
ns later, and 100 cycles lie between two instructions of an engine. A transfer takes 1,000 ns and its rows, each at
least 58 ns or its bytes at 23 a ns, and is noticed after 300 ns more.

Further the last wait of each instruction, and barriers and exchanges on the timelines of both cores.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, Profile, profile, spec
from nkilib.simulator.timing.instruction_log import Event

VECTOR, SCALAR = 0.96, 1.2
N = 960


def events(body: Any, *arrays: Any, cores: int = 1, **assumptions: Any) -> list[Event]:
    """The instructions of a kernel that runs without data, in which tiles hold something from the start."""

    def kernel(_: Any, *inputs: Any) -> None:
        body(*inputs)

    arguments = [spec(array.shape, array.dtype) for array in arrays]
    parameters = replace(AS_ISSUED, **assumptions)
    return list(profile(nki.jit(kernel)[cores], spec((1,), nl.int32), *arguments, parameters=parameters).instructions)


def tiles(count: int, columns: int = N, partitions: int = 128, dtype: Any = nl.float32) -> list[Any]:
    """Make new tiles in a kernel."""
    return [nl.ndarray((partitions, columns), dtype) for _ in range(count)]


def nanoseconds(event: Event) -> tuple[float, float]:
    return event.start_us * 1000, event.end_us * 1000


def test_instructions_of_an_engine_follow_each_other() -> None:
    """1,000 ns of work (960 cycles), then 100 cycles, then the next, though they share nothing."""

    def body() -> None:
        a, b, c, d = tiles(4)
        nisa.tensor_copy(b, a)
        nisa.tensor_copy(d, c)

    first, second = events(body)
    assert nanoseconds(first) == pytest.approx((0.0, 1000.0))
    assert nanoseconds(second) == pytest.approx((1000 + 100 / VECTOR, 2000 + 100 / VECTOR))


def test_engines_run_side_by_side() -> None:
    def body() -> None:
        a, b, c, d = tiles(4)
        nisa.tensor_copy(b, a)
        nisa.activation(d, nl.exp, c)

    first, second = events(body)
    assert nanoseconds(first) == pytest.approx((0.0, 1000.0))
    assert second.start_us * 1000 == pytest.approx(1280)  # the first activation table
    assert second.end_us * 1000 == pytest.approx(1280 + N / SCALAR)


def test_a_reader_waits_for_the_result_and_a_writer_for_the_last_read() -> None:
    def body() -> None:
        a, b, c, d = tiles(4)
        nisa.activation(d, nl.exp, a)  # loads the table
        nisa.tensor_copy(b, a)
        nisa.activation(c, nl.exp, b)
        nisa.tensor_copy(b, a)

    _, copy, activation, again = events(body)
    assert activation.start_us * 1000 == pytest.approx(max(1280 + N / SCALAR + 100 / SCALAR, 1000 + 150 + 60))
    assert again.start_us * 1000 == pytest.approx(activation.end_us * 1000 + 60)
    assert copy.start_us == 0.0


def test_other_columns_and_other_partitions_are_no_reason_to_wait() -> None:
    def body() -> None:
        (a, b) = tiles(2)
        nisa.tensor_copy(a[:, 0:480], b[:, 0:480])
        nisa.activation(a[:, 480:960], nl.exp, b[:, 480:960])
        nisa.activation(a[0:64, 0:480], nl.exp, b[0:64, 0:480])

    copy, beside, within = events(body)
    assert beside.start_us * 1000 == pytest.approx(1280)
    assert within.start_us * 1000 == pytest.approx(beside.end_us * 1000 + 100 / SCALAR)
    assert copy.end_us * 1000 == pytest.approx(500)


def test_the_activation_table_is_loaded_where_the_function_changes() -> None:
    def body() -> None:
        a, b = tiles(2)
        for function in (nl.exp, nl.exp, nl.log, nl.exp):
            nisa.activation(b, function, a)

    results = events(body)
    gaps = [results[0].start_us, *(after.start_us - before.end_us for before, after in itertools.pairwise(results))]
    issue = 100 / SCALAR / 1000
    assert gaps == pytest.approx([1.28, issue, issue + 1.28, issue + 1.28])


@pytest.mark.parametrize(
    ("shape", "rows", "published"),
    [((4, 4096), 4 * 8192 / 23, 1416), ((128, 128), 8 * 58, 468)],
)
def test_a_transfer_takes_what_the_published_profiles_show(shape: tuple[int, int], rows: float, published: int) -> None:
    """Four rows of 8 KiB on one engine, and eight rows of 256 bytes on each of sixteen."""

    def body(x: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)

    (load,) = events(body, np.zeros(shape, ml_dtypes.bfloat16))
    assert nanoseconds(load) == pytest.approx((0.0, 1000 + rows))
    assert rows == pytest.approx(published, rel=0.01)


def test_what_computes_on_a_load_waits_for_it_and_the_store_waits_for_that() -> None:
    def body(x: Any) -> None:
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(tile, tile)
        nisa.dma_copy(x, tile)

    load, copy, store = events(body, np.zeros((128, N), np.float32))
    rows = 8 * N * 4 / 23
    assert nanoseconds(load) == pytest.approx((0.0, 1000 + rows))
    assert copy.start_us * 1000 == pytest.approx(1000 + rows + 300)
    assert store.start_us * 1000 == pytest.approx(copy.end_us * 1000 + 150 + 60)


def test_triggers_of_a_queue_are_apart_and_the_engines_are_shared() -> None:
    def body(x: Any, y: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)
        nisa.dma_copy(nl.ndarray(y.shape, y.dtype), y)

    rows = 8 * N * 4 / 23
    first, second = events(body, np.zeros((128, N), np.float32), np.zeros((128, N), np.float32))
    assert nanoseconds(first) == pytest.approx((0.0, 1000 + rows))
    assert nanoseconds(second) == pytest.approx((600.0, 1000 + 2 * rows))


def test_names_places_and_operands_are_reported() -> None:
    def body() -> None:
        a, b = tiles(2, columns=8, partitions=4)
        nisa.tensor_copy(b, a, name="here")

    (event,) = events(body)
    line = body.__code__.co_firstlineno + 2
    assert (event.core, event.engine, event.name, event.label) == (0, "vector", "tensor_copy", "here")
    assert event.place == f"{__file__}:{line}"
    assert event.operands == {"dst": ((4, 8), "float32"), "src": ((4, 8), "float32")}
    assert event.cycles == 64


def test_each_core_has_its_own_engines() -> None:
    def body() -> None:
        a, b = tiles(2)
        nisa.tensor_copy(b, a)

    results = events(body, cores=2)
    assert [event.core for event in results] == [0, 1]
    assert [nanoseconds(event) for event in results] == [pytest.approx((0.0, 1000.0))] * 2


def test_functions_that_share_a_table_load_it_once() -> None:
    """The functions that do are not published: they are a parameter. A copy needs no table."""

    def body() -> None:
        a, b = tiles(2)
        for function in (nl.exp, nl.copy, nl.log, nl.exp):
            nisa.activation(b, function, a)

    assert _table_loads(events(body)) == 3
    assert _table_loads(events(body, shared_tables=(frozenset({"exp", "log"}),))) == 1
    assert _table_loads(events(body, functions_without_table=frozenset())) == 4


def _table_loads(results: list[Event]) -> int:
    """How many table loads of 1.28 us fit what lies between the instructions beyond the 100 cycles of each."""
    between = results[-1].end_us - sum(event.end_us - event.start_us for event in results)
    return round((between - (len(results) - 1) * 100 / SCALAR / 1000) / 1.28)


ELEMENTS = 2048


def waits(body: Any, cores: int = 1, **assumptions: Any) -> list[list[tuple[str, str, int]]]:
    """Return by core: each instruction's name, what it has waited for, and the number of the one that held it up."""

    def kernel(x: Any) -> None:
        body(x)

    inputs = spec((128, ELEMENTS), nl.float32)
    results = profile(nki.jit(kernel)[cores], inputs, parameters=ModelParameters(**assumptions)).instructions
    return [
        [(event.name, event.waited, event.waited_for) for event in results if event.core == core]
        for core in range(cores)
    ]


def tile(columns: int = ELEMENTS) -> Any:
    return nl.ndarray((128, columns), nl.float32)


def test_data_and_the_engine() -> None:
    def body(x: Any) -> None:
        a, b, c = tile(), tile(), tile()
        nisa.dma_copy(a, x)
        nisa.tensor_copy(b, a, engine=nisa.vector_engine)
        nisa.tensor_copy(c, a, engine=nisa.vector_engine)
        nisa.activation(c, nl.exp, b)

    assert waits(body) == [
        [
            ("dma_copy", "nothing", 0),
            ("tensor_copy", "data", 1),
            ("tensor_copy", "engine", 2),
            ("activation", "reuse", 3),  # of the tile that the copy before it writes
        ]
    ]


def test_a_tile_that_is_used_again() -> None:
    """The second load may not overwrite what Vector still reads; the copy that follows waits for its data."""

    def body(x: Any) -> None:
        a, b = tile(), tile()
        for _ in range(2):
            nisa.dma_copy(a, x)
            nisa.tensor_copy(b, a, engine=nisa.vector_engine)

    assert waits(body)[0][2:] == [("dma_copy", "reuse", 2), ("tensor_copy", "data", 3)]


def test_the_trigger_of_a_queue() -> None:
    def body(x: Any) -> None:
        for _ in range(3):
            nisa.dma_copy(tile(1), x[:, 0:1])

    assert [wait[1:] for wait in waits(body)[0]] == [("nothing", 0), ("trigger", 1), ("trigger", 2)]


def test_the_last_of_several_tiles_that_are_read() -> None:
    def body(x: Any) -> None:
        a, b, c = tile(), tile(1), tile()
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, x[:, 0:1])
        nisa.tensor_scalar(c, a, nl.add, b)

    assert waits(body)[0][2] == ("tensor_scalar", "data", 2)  # its rows pass behind those of the large tile


def test_the_other_core() -> None:
    def body(x: Any) -> None:
        a = tile()
        shared = nl.ndarray((128, ELEMENTS), nl.float32, nl.shared_hbm)
        if nl.program_id(0) == 1:
            nisa.tensor_copy(tile(), a, engine=nisa.vector_engine)
            nisa.dma_copy(shared, a)
        nisa.core_barrier(shared, cores=[0, 1], engine=nisa.vector_engine)
        nisa.tensor_copy(tile(), a, engine=nisa.vector_engine)

    first, second = waits(body, cores=2)
    assert first == [("core_barrier", "meeting", 0), ("tensor_copy", "engine", 1)]
    assert second[2:] == [("core_barrier", "reuse", 2), ("tensor_copy", "engine", 3)]


def test_registers_are_moved_one_after_the_other() -> None:
    def body(_: Any) -> None:
        for value in range(2):
            nisa.register_move(nisa.register_alloc(), value)

    assert [wait[1:] for wait in waits(body, register_us=0.5)[0]] == [("nothing", 0), ("engine", 1)]


def test_a_transfer_says_what_it_moves() -> None:
    def kernel(x: Any) -> None:
        nisa.dma_copy(tile(16), x[:, 0:16])
        whole = tile()
        nisa.dma_copy(whole, x)
        nisa.dma_copy(x, whole)

    results = profile(nki.jit(kernel), np.zeros((128, ELEMENTS), np.float32)).instructions
    moved = [(event.queue, event.nbytes, event.row_bytes) for event in results]
    assert moved == [
        ("load", 128 * 16 * 4, 16 * 4),
        ("load", 128 * ELEMENTS * 4, ELEMENTS * 4),
        ("store", 128 * ELEMENTS * 4, ELEMENTS * 4),
    ]


FP32 = nl.float32


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
