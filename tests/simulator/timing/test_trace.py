# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Times of device loops, registers and scalars, and what waits for them; constants as in test_timeline.py."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, Profile, profile, spec

FP32, INT32 = nl.float32, nl.int32
VECTOR = 0.96
N = 960
LOAD, ENTRY = 1.4, 25.0
# The smallest transfer: 1 us, a row of 58 ns on each engine that has one, and 300 ns until its consumer starts.
FLAG = 1.0 + 0.058 + 0.3
SYNC = 0.06
# What is under test; the figures by hand leave out what a compiler does besides.
OF_LOOPS = (
    "register_load_us",
    "waits_for_registers",
    "loops_drain",
    "loop_entry_us",
    "iterations_drain",
    "loop_iteration_us",
    "body_reuses_tiles",
)


def run(body: Any, *, trips: int | None = None, **assumptions: Any) -> Profile:
    """A kernel on shapes, given a flag of one element in HBM and a matrix of 128 rows."""
    of_loops = {name: getattr(ModelParameters(), name) for name in OF_LOOPS}
    parameters = replace(AS_ISSUED, **(of_loops | assumptions))

    def kernel(flag: Any, x: Any) -> None:
        body(flag, x)

    return profile(nki.jit(kernel), spec((1, 1), INT32), spec((128, 64), FP32), trips=trips, parameters=parameters)


def copies() -> Any:
    """The body of a loop: one copy of 1,000 ns on Vector."""

    def body(_: Any) -> None:
        source, target = nl.ndarray((128, N), FP32), nl.ndarray((128, N), FP32)
        nisa.tensor_copy(target, source)

    return body


def loaded(flag: Any) -> Any:
    """A scalar that is read from HBM by way of SBUF."""
    tile = nl.ndarray((1, 1), INT32)
    nisa.dma_copy(tile, flag)
    return nisa.scalar_load(tile)


def test_a_load_waits_for_its_tensor() -> None:
    def body(flag: Any, _: Any) -> None:
        loaded(flag)

    transfer, load = run(body).instructions
    assert load.start_us == pytest.approx(transfer.end_us + 0.3) == pytest.approx(FLAG)
    assert load.end_us - load.start_us == pytest.approx(LOAD)
    assert run(body, waits_for_registers=False).instructions[1].start_us == 0.0


def test_a_store_waits_for_the_load_and_its_reader_for_the_store() -> None:
    def body(flag: Any, x: Any) -> None:
        target = nl.ndarray((1, 1), INT32)
        nisa.scalar_store(target, loaded(flag))
        nisa.tensor_copy(nl.ndarray((1, 1), INT32), target)

    *_, store, copy = run(body, register_us=0.5).instructions
    assert store.start_us == pytest.approx(FLAG + LOAD)
    assert copy.start_us == pytest.approx(FLAG + LOAD + 0.5 + SYNC)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_waits_for_its_bound_and_takes_its_entry(trips: int) -> None:
    def body(flag: Any, _: Any) -> None:
        nl.fori_loop(0, loaded(flag), copies())
        nisa.memset(nl.ndarray((128, N), FP32), 1.0)

    result = run(body, trips=trips)
    *inside, last = result.instructions[2:]
    start = FLAG + LOAD + SYNC + ENTRY
    iteration = 1.0 + 0.15  # until the result can be used; all engines meet behind it
    assert [event.start_us for event in inside] == pytest.approx([start + turn * iteration for turn in range(trips)])
    assert last.start_us == pytest.approx(start + trips * iteration)
    assert result.time_us == pytest.approx(last.start_us + 1.0 + 0.15)
    assert {event.waited for event in (*inside, last)} == {"loop"}


def test_a_loop_with_known_bounds_waits_for_all_that_was_issued() -> None:
    def body(_: Any, x: Any) -> None:
        nisa.dma_copy(nl.ndarray((128, 64), FP32), x)
        nl.fori_loop(0, 2, copies())

    transfer, first, second = run(body).instructions
    assert first.start_us == pytest.approx(transfer.end_us + 0.3 + ENTRY)
    assert second.start_us == pytest.approx(first.end_us + 0.15)
    transfer, first, second = run(body, loops_drain=False, iterations_drain=False).instructions
    assert first.start_us == 0.0
    assert second.start_us == pytest.approx(first.end_us + 100 / VECTOR / 1000)


def test_iterations_share_the_tiles_of_the_body() -> None:
    """A load into a tile that the last iteration still reads waits, unless each iteration has tiles of its own."""

    def body(_: Any, x: Any) -> None:
        def turn(i: Any) -> None:
            tile, target = nl.ndarray((128, 64), FP32), nl.ndarray((128, N), FP32)
            nisa.dma_copy(tile, x)
            nisa.tensor_copy(target, target)
            nisa.tensor_copy(target[:, 0:64], tile)

        nl.fori_loop(0, 3, turn)

    def loads(**assumptions: Any) -> list[float]:
        result = run(body, loops_drain=False, iterations_drain=False, loop_entry_us=0.0, **assumptions)
        return [event.start_us for event in result.instructions if event.name == "dma_copy"]

    assert loads(body_reuses_tiles=False) == pytest.approx([0.0, 0.6, 1.2])
    first, second, third = loads()
    assert (first, second > 1.5, third > second + 1.0) == (0.0, True, True)


def test_iterations_can_take_time_for_themselves() -> None:
    def body(_: Any, x: Any) -> None:
        nl.fori_loop(0, 3, copies())

    plain, taking = (run(body, loop_iteration_us=number).time_us for number in (0.0, 2.0))
    assert taking == pytest.approx(plain + 3 * 2.0)
    overlapping = {"loops_drain": False, "iterations_drain": False}
    plain, taking = (run(body, loop_iteration_us=number, **overlapping).time_us for number in (0.0, 2.0))
    assert plain + 2 * 2.0 < taking < plain + 3 * 2.0 + 0.01


def test_what_has_its_address_from_a_register_waits_for_it() -> None:
    def body(flag: Any, x: Any) -> None:
        scalar = loaded(flag)
        nisa.dma_copy(nl.ndarray((1, 64), FP32), x[nl.ds(scalar, 1)])
        nisa.dma_copy(nl.ndarray((1, 64), FP32), x[nl.ds(2 * scalar + 1, 1)])
        register = nisa.register_alloc()
        nisa.register_load(register, flag)
        nisa.tensor_copy(nl.ndarray((128, 8), FP32), nl.ndarray((128, 64), FP32)[:, nl.ds(register, 8)])

    _, load, first, second, register_load, copy = run(body).instructions
    assert first.start_us == pytest.approx(load.end_us + SYNC)
    assert second.start_us == pytest.approx(first.start_us + 0.6)
    assert copy.start_us == pytest.approx(register_load.end_us + SYNC)
    assert (first.waited, first.waited_for) == ("data", load.number)
    assert run(body, waits_for_registers=False).instructions[2].start_us == pytest.approx(0.6)


def test_the_model_of_before_knows_no_time_of_loops_and_registers() -> None:
    def body(flag: Any, _: Any) -> None:
        nl.fori_loop(0, loaded(flag), copies())

    def kernel(flag: Any) -> None:
        body(flag, None)

    results = profile(nki.jit(kernel), spec((1, 1), INT32), trips=2, parameters=AS_ISSUED).instructions
    assert [event.start_us for event in results] == pytest.approx([0.0, 0.0, 0.0, 1.0 + 100 / VECTOR / 1000])


def test_loops_within_loops_share_the_tiles_of_their_bodies() -> None:
    """The inner body has one copy, whichever iteration of the outer loop it is in."""

    def body(_: Any, x: Any) -> None:
        def inner(i: Any) -> None:
            tile = nl.ndarray((128, 64), FP32)
            nisa.dma_copy(tile, x)
            nisa.tensor_copy(nl.ndarray((128, 64), FP32), tile)

        nl.fori_loop(0, 3, lambda i: nl.fori_loop(0, 2, inner))

    overlapping = {"loops_drain": False, "iterations_drain": False, "loop_entry_us": 0.0}
    loads = [event.start_us for event in run(body, **overlapping).instructions if event.name == "dma_copy"]
    gaps = [after - before for before, after in itertools.pairwise(loads)]
    assert gaps == pytest.approx(gaps[:1] * 5)
    assert gaps[0] > 1.0
