# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`sendrecv`: two simulated cores swap tiles; it never hangs, and says so when the two sides do not fit."""

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
from ...kernels import Body, execute, normal, refusal, sbuf, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule_on_two_cores, legal, rules
from ...sentences import COPY_FIRST, must

BARRIER = nkilib.simulator.BarrierError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
GPSIMD = nisa.dma_engine.gpsimd_dma


def swap(src: Any, dst: Any, pipe_id: Any = 0, **options: Any) -> Any:
    """Swap with the other core, in a kernel."""
    other = 1 - nl.program_id(0)
    return nisa.sendrecv(src, dst, other, other, pipe_id, **options)


def swapped(arrays: Any, **options: Any) -> Any:
    """Return what each core receives when core c sends `arrays[c]`."""

    def kernel(inputs: Any) -> Any:
        core = nl.program_id(0)
        results = [nl.ndarray(array.shape, array.dtype, nl.shared_hbm) for array in inputs]
        src, dst = (
            sbuf(*inputs[core].shape, dtype=inputs[core].dtype),
            sbuf(*inputs[core].shape, dtype=inputs[core].dtype),
        )
        nisa.dma_copy(src, inputs[core])
        swap(src, dst, **options)
        nisa.dma_copy(results[core], dst)
        return results

    return nki.jit(kernel)[2](list(arrays))


@pytest.mark.parametrize("shape", [(1, 1), (128, 3), (5, 2, 3), (7, 1, 4, 2)], ids=str)
@pytest.mark.parametrize("dma_engine", nisa.dma_engine, ids=lambda engine: engine.name)
def test_each_core_receives_what_the_other_one_sends(shape: Any, dma_engine: Any) -> None:
    first, second = normal(*shape), normal(*shape, seed=1)
    received = swapped([first, second], dma_engine=dma_engine)
    assert received[0].tolist() == second.tolist()
    assert received[1].tolist() == first.tolist()


def test_ranks_and_pipe_may_be_integers_of_numpy() -> None:
    def kernel() -> Any:
        core = nl.program_id(0)
        src, dst = nl.full((2, 2), core + 1.0, nl.float32), nl.ndarray((2, 2), nl.float32, nl.sbuf)
        nisa.sendrecv(src, dst, np.int64(1 - core), np.int64(1 - core), np.int32(0))
        results = [nl.ndarray((2, 2), nl.float32, nl.shared_hbm) for _ in range(2)]
        nisa.dma_copy(results[core], dst)
        return results

    assert [result.tolist() for result in nki.jit(kernel)[2]()] == [[[2.0] * 2] * 2, [[1.0] * 2] * 2]


@pytest.mark.parametrize(
    "kind", [np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.int32, np.uint32], ids=lambda kind: kind.__name__
)
def test_bits_of_every_type(kind: Any) -> None:
    """NaN with a payload included."""
    bits = np.random.default_rng(0).integers(0, 256, (2, 3, 8), np.uint8)
    first, second = (bits[core].view(kind) for core in range(2))
    received = swapped([first, second])
    assert received[0].tobytes() == second.tobytes() and received[1].tobytes() == first.tobytes()


def test_low_precision_stored_as_float32() -> None:
    """`NKI_PRECISE_FP=0`: what is held in float32 crosses in float32."""

    def kernel() -> Any:
        core = nl.program_id(0)
        result = nl.ndarray((2, 1), nl.bfloat16, nl.shared_hbm)
        received = sbuf(1, 1, dtype=nl.bfloat16)
        swap(tile(1, 1, dtype=nl.bfloat16, value=257.0 + core), received)
        nisa.dma_copy(result[core : core + 1], received)
        return result

    with nkilib.simulator.using(precise_fp=False):
        assert execute(kernel, cores=2).tolist() == [[258], [257]]


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_generations_with_two_cores(target: str) -> None:
    first, second = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)
    with nkilib.simulator.using(target=target):
        received = swapped([first, second])
    assert [array.tolist() for array in received] == [[[5, 6], [7, 8]], [[1, 2], [3, 4]]]


def test_parts_of_one_tile() -> None:
    """A core's own half and the other one's half of the same wider tile: views of the same shape, other strides."""

    def kernel(data: Any) -> Any:
        core = nl.program_id(0)
        result = nl.ndarray((2, 3, 8), nl.float32, nl.shared_hbm)
        whole = sbuf(3, 8)
        own, other = whole[:, core * 4 : core * 4 + 4], whole[:, 4 - core * 4 : 8 - core * 4]
        nisa.dma_copy(own, data[:, core * 4 : core * 4 + 4])
        swap(own, other)
        nisa.dma_copy(result[core], whole)
        return result

    values = normal(3, 8)
    assert nki.jit(kernel)[2](values).tolist() == [values.tolist()] * 2


@nkilib.simulator.using(overlapping_copies="ignore")
def test_dma_moves_what_no_compute_engine_accesses() -> None:
    """Every second partition from partition 3 on, five free dimensions, a packed type."""

    def kernel(data: Any) -> Any:
        core = nl.program_id(0)
        result = nl.ndarray((2, 10, 1, 2, 1, 2, 3), nl.uint32, nl.shared_hbm)
        made = sbuf(10, 1, 2, 1, 2, 3, dtype=nl.uint32)
        nisa.dma_copy(made, data[core])
        view = made.view(nl.float8_e5m2_x4)[3:10:2]
        swap(view, view)
        nisa.dma_copy(result[core], made)
        return result

    data = np.random.default_rng(4).integers(0, 2**32, (2, 10, 1, 2, 1, 2, 3), np.uint32)
    expected = data.copy()
    expected[:, 3::2] = data[::-1, 3::2]
    assert nki.jit(kernel)[2](data).tolist() == expected.tolist()


@nkilib.simulator.using(overlapping_copies="ignore")
def test_in_place() -> None:
    """`src` and `dst` may be one tile: it is sent before it is overwritten."""

    def kernel() -> Any:
        core = nl.program_id(0)
        result, made = nl.ndarray((2, 2), nl.float32, nl.shared_hbm), tile(1, 2, value=10 + core)
        swap(made, made)
        nisa.dma_copy(result[core : core + 1], made)
        return result

    assert execute(kernel, cores=2).tolist() == [[11, 11], [10, 10]]


def test_a_tile_may_be_overwritten_as_soon_as_it_was_sent() -> None:
    """Many times, with the cores in turn the late one, for the threads."""

    def kernel() -> Any:
        core = nl.program_id(0)
        result, made, received = nl.ndarray((2, 40), nl.float32, nl.shared_hbm), tile(1, 1), sbuf(1, 1)
        for number in range(40):
            nisa.memset(made, float(100 * core + number))
            if number % 10 == core:
                time.sleep(0.001)
            swap(made, received)
            nisa.dma_copy(result[core : core + 1, number : number + 1], received)
        return result

    result = execute(kernel, cores=2)
    for core in range(2):
        assert result[core].tolist() == [100 * (1 - core) + number for number in range(40)]


def test_pipes_follow_each_other() -> None:
    """Exchanges with unlike pipe_id in the same order on both cores, and a barrier between them."""

    def kernel() -> Any:
        core = nl.program_id(0)
        result = nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        received = sbuf(1, 3)
        for pipe in range(3):
            swap(tile(1, 1, value=10 * pipe + core), received[:, pipe : pipe + 1], pipe)
            if pipe == 1:
                nisa.core_barrier(result, (0, 1))
        nisa.dma_copy(result[core : core + 1], received)
        return result

    assert execute(kernel, cores=2).tolist() == [[1, 11, 21], [0, 10, 20]]


def test_what_a_core_did_before_the_other_one_sees_afterwards() -> None:
    """The exchange orders the cores as a barrier does: core 1 reads what core 0 had stored."""

    def kernel() -> Any:
        core = nl.program_id(0)
        events.append(("before", core))
        if core == 0:
            time.sleep(0.01)
        swap(tile(1, 1), sbuf(1, 1))
        events.append(("after", core))

    events: list[tuple[str, int]] = []
    execute(kernel, cores=2)
    assert {event for event, _ in events[:2]} == {"before"} and {event for event, _ in events[2:]} == {"after"}


def test_what_was_received_counts_as_written() -> None:
    """And nothing else."""

    def body(columns: int) -> Body:
        def kernel() -> None:
            received = sbuf(2, 4)
            swap(tile(2, columns), received[:, 0:columns])
            nisa.dma_copy(nl.ndarray((2, 4), nl.float32, nl.private_hbm), received)

        return kernel

    assert refusal(body(3), cores=2, error=UNINITIALIZED).partition(": ")[2] == (
        "operand 'src': 2 of the 8 elements of tensor [2, 4] float32 in sbuf were never written"
    )
    execute(body(4), cores=2)


@pytest.mark.parametrize(("dma_engine", "engine"), [(nisa.dma_engine.dma, "dma"), (GPSIMD, "gpsimd")])
def test_the_dma_engine_of_gpsimd_implies_gpsimd(dma_engine: Any, engine: str) -> None:
    with nkilib.simulator.recording() as record:
        swapped([normal(2, 2), normal(2, 2)], dma_engine=dma_engine)
    assert record.instruction_counts["sendrecv"] == 2
    assert record.instructions_per_engine == {"dma": 4 + (2 if engine == "dma" else 0)} | (
        {"gpsimd": 2} if engine == "gpsimd" else {}
    )


def test_nothing_crosses_hbm() -> None:
    with nkilib.simulator.recording() as record:
        execute(lambda: swap(tile(2, 2), sbuf(2, 2)), cores=2)
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (0, 0)


@pytest.mark.parametrize("dtype", [nl.float32, nl.int32, nl.bfloat16, nl.uint16, nl.int8], ids=str)
def test_the_dma_engine_of_gpsimd_takes_256_elements_a_partition(dtype: Any) -> None:
    """1024 bytes of 32-bit types, 512 of 16-bit and 256 of 8-bit, in however many dimensions."""

    def body(columns: int, **options: Any) -> Body:
        def kernel() -> None:
            nisa.sendrecv(
                src=tile(2, columns, 2, dtype=dtype),
                dst=sbuf(2, columns, 2, dtype=dtype),
                send_to_rank=1 - nl.program_id(0),
                recv_from_rank=1 - nl.program_id(0),
                pipe_id=0,
                **options,
            )

        return kernel

    message = refusal(body(129, dma_engine=GPSIMD), cores=2).partition(": ")[2]
    width = dtype.itemsize
    assert message == (
        f"dma_engine=gpsimd_dma takes at most {256 * width} bytes a partition of {dtype}, got {258 * width} in tensor "
        f"[2, 129, 2] {dtype} in sbuf; use dma_engine.dma, or several calls"
    )
    execute(body(128, dma_engine=GPSIMD), cores=2)
    execute(body(129), cores=2)


# -- what one core can get wrong -------------------------------------------------------------------------------------


ONE_SHAPE = "operands 'src' and 'dst' must have one shape and type, got {src} and {dst}"
OTHER, ITSELF = lazily(lambda: 1 - nl.program_id(0)), lazily(nl.program_id, 0)
UNWRITTEN = Sbuf(2, 2, value=None)


@rules(
    legal(nisa.sendrecv, src=Sbuf(2, 2), dst=UNWRITTEN, send_to_rank=OTHER, recv_from_rank=OTHER, pipe_id=0),
    broken("src in PSUM", src=Psum(2, 2)).says(must("src", "be in sbuf", COPY_FIRST)),
    broken("dst in HBM", dst=Hbm(2, 2, value=None, buffer=nl.shared_hbm)).says(must("dst", "be in sbuf")),
    broken("type", dst=Sbuf(2, 2, dtype=nl.bfloat16, value=None)).says(ONE_SHAPE),
    broken("shape", src=Sbuf(2, 6), dst=Sbuf(2, 2, 3, value=None))
    .says(ONE_SHAPE)
    .fixed(dst=Sbuf(2, 2, 3, value=None).reshape((2, 6))),
    broken("to itself", send_to_rank=ITSELF).says(
        "send_to_rank must be the other core, {{other}} on core {{core}}, got {{core}}"
    ),
    broken("from no core", recv_from_rank=2).says(
        "recv_from_rank must be the other core, {{other}} on core {{core}}, got 2"
    ),
    broken("from a string", recv_from_rank="0").says(
        "recv_from_rank must be the other core, {{other}} on core {{core}}, got '0'"
    ),
    broken("negative pipe", pipe_id=-1).says("pipe_id must be an integer >= 0, got -1").fixed(pipe_id=1),
    broken("no number of a pipe", pipe_id="a").says("pipe_id must be an integer >= 0, got 'a'").fixed(pipe_id=7),
    broken("dma_engine", dma_engine=True)
    .says("dma_engine must be a member of nki.isa.dma_engine, got True")
    .fixed(dma_engine=GPSIMD),
    broken("unwritten src", src=UNWRITTEN, error=UNINITIALIZED).says(
        "operand 'src': 4 of the 4 elements of {src} were never written"
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule_on_two_cores(rule)


def test_it_needs_two_cores() -> None:
    message = "nisa.sendrecv: needs a launch on two cores: kernel[2](...)"
    assert refusal(lambda: nisa.sendrecv(tile(1, 1), sbuf(1, 1), 1, 1, 0), cores=1) == message


def test_it_needs_trn2() -> None:
    message = (
        "nisa.sendrecv: needs gen3 or newer; the target is trn1 (gen2), set NEURON_PLATFORM_TARGET_OVERRIDE to change "
        "it"
    )
    assert refusal(lambda: nisa.sendrecv(tile(1, 1), sbuf(1, 1), 1, 1, 0), "trn1") == message


# -- when the two sides do not fit -----------------------------------------------------------------------------------


def error_of(body: Callable[[Any], Any]) -> BaseException:
    """The exception with which `body(core)` ends on two cores; fails if it hangs."""
    return error_of_cores(lambda: body(nl.program_id(0)))


def test_unlike_shapes_name_both_sides() -> None:
    """Core 0 is reported, whichever core came first."""
    for late in range(2):

        def kernel(core: int, late: int = late) -> None:
            if core == late:
                time.sleep(0.02)
            swap(tile(2, 3 + core), sbuf(2, 3 + core))

        error = error_of(kernel)
        assert type(error) is nisa.NkiValidationError
        assert str(error).partition(": ")[2] == (
            "nisa.sendrecv on core 0: the cores must swap tiles of one shape and type: core 0 sends tensor [2, 3] "
            "float32 in sbuf and core 1 sends tensor [2, 4] float32 in sbuf"
        )


def test_unlike_types_name_both_sides() -> None:
    def kernel(core: int) -> None:
        dtype = (nl.float32, nl.int32)[core]
        swap(tile(2, 2, dtype=dtype), sbuf(2, 2, dtype=dtype))

    assert str(error_of(kernel)).partition(": ")[2] == (
        "nisa.sendrecv on core 0: the cores must swap tiles of one shape and type: core 0 sends tensor [2, 2] float32 "
        "in sbuf and core 1 sends tensor [2, 2] int32 in sbuf"
    )


def test_unlike_dma_engines_name_both_sides() -> None:
    def kernel(core: int) -> None:
        swap(tile(2, 2), sbuf(2, 2), dma_engine=(GPSIMD, nisa.dma_engine.dma)[core])

    assert str(error_of(kernel)).partition(": ")[2] == (
        "nisa.sendrecv on core 0: the cores must name one dma_engine: core 0 gives gpsimd_dma and core 1 dma"
    )


ORDER = (
    "; instructions run in program order here, so both cores must come to their barriers and exchanges in the same "
    "order"
)


def test_pipes_in_another_order_on_each_core() -> None:
    """The documentation lets them overtake each other; the simulator, which runs in program order, says why not."""
    for late in range(2):

        def kernel(core: int, late: int = late) -> None:
            if core == late:
                time.sleep(0.02)
            for pipe in (0, 1) if core == 0 else (1, 0):
                swap(tile(1, 1), sbuf(1, 1), pipe)

        error = error_of(kernel)
        assert type(error) is BARRIER
        assert str(error).partition(": ")[2] == (
            "nisa.sendrecv on core 0: sendrecv(pipe_id=0): the other core waits in sendrecv(pipe_id=1) instead" + ORDER
        )


def test_a_core_that_waits_at_a_barrier_instead() -> None:
    def kernel(core: int) -> None:
        if core == 0:
            nisa.core_barrier(nl.ndarray((1, 1), nl.float32, nl.shared_hbm), (0, 1))
        else:
            swap(tile(1, 1), sbuf(1, 1))

    error = error_of(kernel)
    assert type(error) is BARRIER
    assert str(error).partition(": ")[2] == (
        "nisa.core_barrier on core 0: core_barrier: the other core waits in sendrecv(pipe_id=0) instead" + ORDER
    )


@pytest.mark.parametrize("absent", [0, 1])
@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_a_core_that_ends_without_coming(absent: int, delay: float) -> None:
    def kernel(core: int) -> None:
        if core == absent:
            time.sleep(delay)
        else:
            swap(tile(1, 1), sbuf(1, 1), 3)

    error = error_of(kernel)
    assert type(error) is BARRIER
    assert str(error).partition(": ")[2] == (
        f"nisa.sendrecv on core {1 - absent}: sendrecv(pipe_id=3): the other core ended without reaching this barrier"
    )


@pytest.mark.parametrize("absent", [0, 1])
def test_a_core_that_comes_once_less(absent: int) -> None:
    def kernel(core: int) -> None:
        swap(tile(1, 1), sbuf(1, 1))
        if core != absent:
            swap(tile(1, 1), sbuf(1, 1))

    assert type(error_of(kernel)) is BARRIER


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_a_core_that_fails_ends_the_waiting_one_and_its_error_is_raised(failing: int, delay: float) -> None:
    def kernel(core: int) -> None:
        if core == failing:
            time.sleep(delay)
            raise AssertionError("rows must be positive")
        swap(tile(1, 1), sbuf(1, 1))

    error = error_of(kernel)
    assert type(error) is AssertionError and str(error).startswith("rows must be positive")


def test_a_core_that_swallows_the_error_does_not_synchronise_with_a_core_that_has_left() -> None:
    """After its partner ended, the second call is refused like the first: nobody stays counted as waiting."""

    def kernel(core: int) -> None:
        if core == 1:
            return
        with pytest.raises(BARRIER):
            swap(tile(1, 1), sbuf(1, 1))
        swap(tile(1, 1), sbuf(1, 1))

    assert type(error_of(kernel)) is BARRIER
