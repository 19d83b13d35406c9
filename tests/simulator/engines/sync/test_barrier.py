# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`core_barrier` between two simulated cores, and how it ends when the other core does not come."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ...frame import error_of_cores
from ...kernels import execute, refusal, tile
from ...made import Hbm, Psum
from ...rules import Rule, broken, check_rule_on_two_cores, legal, rules
from ...sentences import must

BARRIER = nkilib.simulator.BarrierError
ENGINE = nisa.engine


def shared(*shape: int) -> Any:
    """Make a tensor that both cores see, in a kernel."""
    return nl.ndarray(shape, nl.float32, nl.shared_hbm)


def meet(data: Any, **options: Any) -> Any:
    return nisa.core_barrier(data, (0, 1), **options)


def present(make_data: Any, target: str = "trn2") -> list[int]:
    """How many cores had come to a barrier on `make_data()` when each of them went on; one of them comes late."""
    came: list[int] = []
    seen: list[int] = []

    def kernel() -> None:
        data = make_data()
        time.sleep(0.01 * nl.program_id(0))
        came.append(nl.program_id(0))
        meet(data)
        seen.append(len(came))

    execute(kernel, target, cores=2)
    return seen


def test_what_a_core_writes_before_the_barrier_the_other_one_reads_after_it() -> None:
    """The documentation's example: each core writes its half, then reads the other's; many times, for the threads."""

    def kernel() -> Any:
        exchange, result = shared(2, 4), shared(2, 40)
        core = nl.program_id(0)
        for number in range(10):
            nisa.dma_copy(exchange[core : core + 1], tile(1, 4, value=10 * number + core))
            if core == number % 2:
                time.sleep(0.001)
            meet(exchange)
            received = nl.ndarray((1, 4), nl.float32)
            nisa.dma_copy(received, exchange[1 - core : 2 - core])
            nisa.dma_copy(result[core : core + 1, 4 * number : 4 * number + 4], received)
            meet(exchange)
        return result

    received = execute(kernel, cores=2)
    for core in range(2):
        assert received[core].tolist() == [10 * number + 1 - core for number in range(10) for _ in range(4)]


@pytest.mark.parametrize("engine", ["gpsimd", "tensor", "vector", "scalar", "sync"])
def test_the_barrier_runs_on_the_engine_asked_for(engine: str) -> None:
    with nkilib.simulator.recording() as record:
        execute(lambda: meet(shared(1, 1), engine=getattr(ENGINE, engine)), cores=2)
    assert record.instruction_counts["core_barrier"] == 2
    assert record.instructions_per_engine == {engine: 2}


def test_the_default_engine_is_gpsimd() -> None:
    with nkilib.simulator.recording() as record:
        execute(lambda: meet(shared(1, 1)), cores=2)
    assert record.instructions_per_engine == {"gpsimd": 2}


def test_the_barrier_reads_nothing() -> None:
    """It waits for a tensor; it does not matter that nothing has been written to it yet."""
    with nkilib.simulator.recording() as record:
        assert present(lambda: shared(4, 4), "trn3") == [2, 2]
    assert record.hbm_read_bytes == 0


def test_the_barrier_waits_for_any_part_of_a_tensor() -> None:
    assert present(lambda: shared(300, 4)[5:7, 1:3]) == [2, 2]


def test_the_barrier_does_not_wait_for_rows_chosen_at_run_time() -> None:
    def kernel() -> None:
        index = tile(2, 1, dtype=nl.int32)
        nisa.core_barrier(shared(4, 4).vector_select(0, index), (0, 1))

    assert refusal(kernel, cores=2).partition(": ")[2] == (
        "operand 'data': only DMA accepts a view with a vector offset, got tensor [2, 4] float32 in shared_hbm"
    )


def test_inputs_of_a_kernel_on_two_cores_are_shared() -> None:
    """Each core writes its row of the input, and reads the other one's from it."""

    def kernel(data: Any) -> Any:
        core, result, received = nl.program_id(0), shared(2, 2), nl.ndarray((1, 2), nl.float32)
        nisa.dma_copy(data[core : core + 1], tile(1, 2, value=core + 1))
        meet(data)
        nisa.dma_copy(received, data[1 - core : 2 - core])
        nisa.dma_copy(result[core : core + 1], received)
        return result

    data = np.zeros((2, 2), np.float32)
    assert nki.jit(kernel)[2](data).tolist() == [[2, 2], [1, 1]]
    assert data.tolist() == [[1, 1], [2, 2]]


@rules(
    legal(nisa.core_barrier, data=Hbm(2, 2, value=None, buffer=nl.shared_hbm), cores=(0, 1)),
    broken("memory", data=Hbm(2, 2, value=None)).says(must("data", "be in shared_hbm")),
    broken("PSUM", data=Psum(2, 2, value=None)).says(must("data", "be in shared_hbm")),
    broken("one of two cores", cores=(0,)).says("cores must be (0, 1), got (0,)"),
    broken("cores", cores=(0, 1, 2, 3)).says("cores must be (0, 1), got (0, 1, 2, 3)").fixed(cores=[0, 1]),
    broken("number of cores", cores=2).says("cores must be (0, 1), got 2"),
    broken("engine", engine=ENGINE.dma)
    .says(
        "engine must be one of nki.isa.engine.gpsimd, nki.isa.engine.tensor, nki.isa.engine.vector, "
        "nki.isa.engine.scalar, nki.isa.engine.sync, got nki.isa.engine.dma"
    )
    .fixed(engine=ENGINE.sync),
)
def test_rules_on_two_cores(rule: Rule) -> None:
    check_rule_on_two_cores(rule)


def test_the_cores_may_synchronise_on_a_tile_of_their_own() -> None:
    """Published kernels do so at the end of an iteration. It orders nothing in shared HBM."""

    def kernel(*, on_tile: bool) -> Any:
        exchange, result, core = shared(2, 1), shared(2, 1), nl.program_id(0)
        own = tile(1, 1, value=core + 1)
        nisa.dma_copy(exchange[core : core + 1], own)
        meet(own if on_tile else exchange)
        nisa.dma_copy(own, exchange[1 - core : 2 - core])
        nisa.dma_copy(result[core : core + 1], own)
        return result

    with nkilib.simulator.using(races="ignore"):
        assert execute(lambda: kernel(on_tile=True), cores=2).tolist() == [[2], [1]]
    with pytest.raises(nkilib.simulator.RaceError):
        execute(lambda: kernel(on_tile=True), cores=2)
    assert execute(lambda: kernel(on_tile=False), cores=2).tolist() == [[2], [1]]


def test_a_tile_and_a_shared_tensor_are_two_barriers() -> None:
    def kernel() -> None:
        meet(tile(2, 2) if nl.program_id(0) else shared(2, 2))

    with pytest.raises(BARRIER, match="the cores wait on different tensors"):
        execute(kernel, cores=2)


@pytest.mark.parametrize("cores", [0, (0,), [0], (0, 1)])
def test_one_core_waits_for_none(cores: Any) -> None:
    """Since NKI 0.7 the barrier is for one core too, and takes ``(0, 1)`` there; published kernels pass ``(0)``."""
    with nkilib.simulator.recording() as record:
        execute(lambda: nisa.core_barrier(shared(2, 2), cores), cores=1)
    assert record.instructions_per_engine == {"gpsimd": 1}


def test_one_core_has_no_second_one_to_name() -> None:
    message = "nisa.core_barrier: cores must be (0, 1), got (1,)"
    assert refusal(lambda: nisa.core_barrier(shared(2, 2), (1,)), cores=1) == message


def test_it_needs_trn2() -> None:
    message = (
        "nisa.core_barrier: needs gen3 or newer; the target is trn1 (gen2), set NEURON_PLATFORM_TARGET_OVERRIDE to "
        "change it"
    )
    assert refusal(lambda: nisa.core_barrier(shared(2, 2), (0, 1)), "trn1") == message
    for target in ("trn2", "trn3"):
        execute(lambda: meet(shared(2, 2)), target, cores=2)


# -- when the other core does not come -------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [0, 1])
def test_a_core_that_ends_without_coming(absent: int) -> None:
    def kernel() -> None:
        if nl.program_id(0) != absent:
            nisa.core_barrier(shared(2, 2), (0, 1))

    error = error_of_cores(kernel)
    assert type(error) is BARRIER and isinstance(error, nisa.NkiValidationError)
    place, _, message = str(error).partition(": ")
    code = kernel.__code__
    assert place == f"{code.co_filename}:{code.co_firstlineno + 2}"
    assert message == (
        f"nisa.core_barrier on core {1 - absent}: core_barrier: the other core ended without reaching this barrier"
    )


@pytest.mark.parametrize("absent", [0, 1])
def test_a_core_that_comes_once_less(absent: int) -> None:
    def kernel() -> None:
        data = shared(2, 2)
        meet(data)
        if nl.program_id(0) != absent:
            meet(data)

    assert type(error_of_cores(kernel)) is BARRIER


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_core_that_fails_ends_the_waiting_one_and_its_error_is_raised(failing: int, delay: float) -> None:
    def kernel() -> None:
        if nl.program_id(0) == failing:
            time.sleep(delay)
            raise AssertionError("rows must be positive")
        meet(shared(2, 2))

    error = error_of_cores(kernel)
    assert type(error) is AssertionError and str(error).startswith("rows must be positive")


@pytest.mark.parametrize("failing", [0, 1])
def test_a_core_that_fails_ends_one_that_works(failing: int) -> None:
    """A core that never waits is ended at its next instruction."""

    def kernel() -> None:
        if nl.program_id(0) == failing:
            raise AssertionError("rows must be positive")
        while True:
            tile(1, 1)

    error = error_of_cores(kernel)
    assert type(error) is AssertionError and str(error).startswith("rows must be positive")


def test_a_kernel_cannot_swallow_the_end_of_the_other_core() -> None:
    """A kernel that catches Exception around a barrier still ends, with the other core's error."""

    def kernel() -> None:
        if nl.program_id(0) == 1:
            raise AssertionError("rows must be positive")
        try:
            meet(shared(2, 2))
        except Exception:
            tile(1, 1)

    error = error_of_cores(kernel)
    assert type(error) is AssertionError and str(error).startswith("rows must be positive")


def test_a_launch_after_a_failed_one_is_sound() -> None:
    def failing() -> None:
        if nl.program_id(0) == 0:
            raise AssertionError("rows must be positive")
        meet(shared(2, 2))

    for _ in range(3):
        assert type(error_of_cores(failing)) is AssertionError
        assert present(lambda: shared(2, 2)) == [2, 2]
