# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`core_barrier` and `sendrecv_compute` between two simulated cores, and how they end when the cores do not agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ...frame import error_of_cores
from ...kernels import execute, hbm, hbm_zeros, normal, refusal, sbuf, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule_on_two_cores, legal, rules
from ...sentences import COPY_FIRST, must

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


# `sendrecv_compute`: two simulated cores swap tensors, and each reduces its own with the other's.

NUMPY = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


def reduce_with_other(src: Any, dst: Any, op: Any = nl.add) -> Any:
    """Reduce with the other core, in a kernel."""
    other = 1 - nl.program_id(0)
    return nisa.sendrecv_compute(src, dst, other, other, op)


def reduced(arrays: Any, op: Any, make: Callable[..., Any] = sbuf) -> Any:
    """Return what each core holds when core c has brought `arrays[c]`; `make` says in which memory."""

    def kernel(inputs: Any) -> Any:
        core = nl.program_id(0)
        results = [nl.ndarray(array.shape, array.dtype, nl.shared_hbm) for array in inputs]
        src, dst = (make(*inputs[core].shape, dtype=inputs[core].dtype) for _ in range(2))
        nisa.dma_copy(src, inputs[core])
        reduce_with_other(src, dst, op)
        nisa.dma_copy(results[core], dst)
        return results

    return nki.jit(kernel)[2](list(arrays))


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("make", [sbuf, hbm], ids=["sbuf", "private_hbm"])
@pytest.mark.parametrize("shape", [(128, 3), (5, 2, 3), (7, 1, 4, 2)], ids=str)
def test_both_cores_get_the_reduction(name: str, make: Any, shape: Any) -> None:
    first, second = normal(*shape), normal(*shape, seed=1)
    results = reduced([first, second], getattr(nl, name), make)
    # Of float64, rounded once.
    expected = NUMPY[name](first.astype(np.float64), second.astype(np.float64)).astype(np.float32)
    assert [result.tolist() for result in results] == [expected.tolist()] * 2


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        (ml_dtypes.bfloat16, [1, 256], [2, 1.5], [3, 258]),  # 257.5 lies between 256 and 258, nearer to the latter
        (np.float16, [2048, 1], [1, 1], [2048, 2]),  # 2049 rounds to even
        (np.int8, [100, -100], [100, -100], [127, -128]),
        (np.int32, [2**24 + 1, 5], [0, -9], [2**24, -4]),  # by way of float32, as every arithmetic of DMA
    ],
)
def test_sums_are_of_float32_and_cast_to_the_type(kind: Any, first: Any, second: Any, expected: Any) -> None:
    for result in reduced([np.array([first], kind), np.array([second], kind)], nl.add):
        assert result.astype(np.float64).tolist() == [expected]


def test_nan_and_infinity() -> None:
    first, second = np.array([[np.nan, np.inf, 1]], np.float32), np.array([[1, -np.inf, np.inf]], np.float32)
    for op, expected in ((nl.add, [np.nan, np.nan, np.inf]), (nl.maximum, [np.nan, np.inf, np.inf])):
        for result in reduced([first, second], op):
            assert np.array_equal(result, [expected], equal_nan=True)


@nkilib.simulator.using(overlapping_copies="ignore")
def test_in_place_and_again() -> None:
    """A core brings what it held before: 1 and 2, then 3 on both."""

    def kernel() -> Any:
        core = nl.program_id(0)
        result, made = nl.ndarray((2, 2), nl.float32, nl.shared_hbm), tile(1, 2, value=1 + core)
        for number in range(2):
            if number == core:
                time.sleep(0.001)
            reduce_with_other(made, made)
        nisa.dma_copy(result[core : core + 1], made)
        return result

    assert execute(kernel, cores=2).tolist() == [[6, 6]] * 2


def test_parts_of_a_tile_that_no_compute_engine_accesses() -> None:
    """Every second partition from 1 on, and the columns beside."""

    def kernel(data: Any) -> Any:
        core = nl.program_id(0)
        result, made = nl.ndarray((2, 6, 4), nl.float32, nl.shared_hbm), sbuf(6, 4)
        nisa.dma_copy(made, data[core])
        reduce_with_other(made[1:6:2, 0:2], made[1:6:2, 2:4], nl.minimum)
        nisa.dma_copy(result[core], made)
        return result

    data = normal(2, 6, 4)
    expected = data.copy()
    expected[:, 1::2, 2:] = data[:, 1::2, :2].min(axis=0)
    assert nki.jit(kernel)[2](data).tolist() == expected.tolist()


@pytest.mark.parametrize(("make", "nbytes"), [(tile, 0), (hbm_zeros, 2 * 2 * 3 * 4)], ids=["sbuf", "private_hbm"])
def test_bytes_that_cross_hbm_are_counted(make: Any, nbytes: int) -> None:
    """The bytes count on both cores, once read and once written, besides what makes the tensors."""

    def traffic(meets: bool) -> tuple[int, int]:
        def kernel() -> None:
            src, dst = make(2, 3), make(2, 3)
            if meets:
                reduce_with_other(src, dst)

        with nkilib.simulator.recording() as record:
            execute(kernel, cores=2)
        return record.hbm_read_bytes, record.hbm_written_bytes

    (read, written), (read_before, written_before) = traffic(True), traffic(False)
    assert (read - read_before, written - written_before) == (nbytes, nbytes)


OTHER, ITSELF = lazily(lambda: 1 - nl.program_id(0)), lazily(nl.program_id, 0)
UNWRITTEN = Sbuf(2, 2, value=None)


@rules(
    legal(nisa.sendrecv_compute, Sbuf(2, 2), UNWRITTEN, OTHER, OTHER, nl.add),
    broken("operator", reduce_op=nl.multiply)
    .says("reduce_op must be nl.add, nl.maximum or nl.minimum, got nl.multiply")
    .fixed(reduce_op=nl.max),
    broken("one in HBM", dst=Hbm(2, 2, value=None))
    .says("operands 'src' and 'dst' must both be in sbuf or both in HBM, got {src} and {dst}")
    .fixed(src=Hbm(2, 2)),
    broken("dst in shared HBM", dst=Hbm(2, 2, value=None, buffer=nl.shared_hbm)).says(
        must("dst", "be in private_hbm or sbuf")
    ),
    broken("src in PSUM", src=Psum(2, 2)).says(must("src", "be in private_hbm or sbuf", COPY_FIRST)),
    broken("type", dst=Sbuf(2, 2, dtype=nl.bfloat16, value=None)).says(
        "operands 'src' and 'dst' must have one shape and type, got {src} and {dst}"
    ),
    broken("to itself", send_to_rank=ITSELF).says(
        "send_to_rank must be the other core, {{other}} on core {{core}}, got {{core}}"
    ),
    broken("unwritten src", src=UNWRITTEN, error=nkilib.simulator.UninitializedReadError).says(
        "operand 'src': 4 of the 4 elements of {src} were never written"
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule_on_two_cores(rule)


def test_it_needs_two_cores_and_trn2() -> None:
    def alone() -> None:
        nisa.sendrecv_compute(tile(1, 1), sbuf(1, 1), 1, 1, nl.add)

    assert refusal(alone) == "nisa.sendrecv_compute: needs a launch on two cores: kernel[2](...)"
    assert refusal(alone, "trn1").startswith("nisa.sendrecv_compute: needs gen3 or newer; the target is trn1 (gen2)")


# -- when the two sides do not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda core: reduce_with_other(tile(2, 3 + core), sbuf(2, 3 + core)),
            "the cores must swap tiles of one shape and type: core 0 sends tensor [2, 3] float32 in sbuf and core 1 "
            "sends tensor [2, 4] float32 in sbuf",
        ),
        (
            lambda core: reduce_with_other(tile(2, 2), sbuf(2, 2), nl.add if core else nl.minimum),
            "the cores must name one reduce_op and memory: core 0 gives nl.minimum in sbuf and core 1 nl.add in sbuf",
        ),
        (
            lambda core: (
                reduce_with_other(tile(2, 2), sbuf(2, 2)) if core else reduce_with_other(hbm_zeros(2, 2), hbm(2, 2))
            ),
            "the cores must name one reduce_op and memory: core 0 gives nl.add in private_hbm and core 1 nl.add in "
            "sbuf",
        ),
    ],
)
def test_both_sides_are_named(call: Any, message: str) -> None:
    error = error_of_cores(lambda: call(nl.program_id(0)))
    assert type(error) is nisa.NkiValidationError
    assert str(error).partition(": ")[2] == f"nisa.sendrecv_compute on core 0: {message}"


def test_a_core_that_comes_to_another_exchange_or_not_at_all() -> None:
    def elsewhere() -> None:
        if nl.program_id(0):
            nisa.sendrecv(tile(1, 1), sbuf(1, 1), 0, 0, 3)
        else:
            reduce_with_other(tile(1, 1), sbuf(1, 1))

    def absent() -> None:
        if nl.program_id(0):
            reduce_with_other(tile(1, 1), sbuf(1, 1))

    error = error_of_cores(elsewhere)
    assert type(error) is BARRIER and "the other core waits in sendrecv(pipe_id=3) instead" in str(error)
    error = error_of_cores(absent)
    assert type(error) is BARRIER and "the other core ended without reaching this barrier" in str(error)
