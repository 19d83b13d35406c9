# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cycles of every instruction, worked out from the published formulas; N is 1,024 elements a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, using
from nkilib.simulator.machine.issue import REGISTRY
from nkilib.simulator.profiling.profile import profile
from nkilib.simulator.timing.settling import SEQUENCER

N = 1024
BF16, FP32 = nl.bfloat16, nl.float32


def tile(dtype: Any = FP32, *, columns: int = N, partitions: int = 128, buffer: Any = nl.sbuf) -> Any:
    """Make a tile of ones, in a kernel."""
    return nl.ones((partitions, columns), dtype, buffer)


def cycles(body: Callable[[], Any], target: str = "trn2", **assumptions: Any) -> float:
    """The modelled cycles of the last instruction of a kernel."""
    with using(target=target):
        profiled = profile(nki.jit(lambda: body() and None), parameters=replace(AS_ISSUED, **assumptions))
    return profiled.instructions[-1].cycles


def copy(dst: Any, src: Any, **more: Any) -> Any:
    return nisa.tensor_copy(dst, src, **more)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda: copy(tile(), tile()), N),
        (lambda: copy(tile(BF16), tile(BF16)), N / 4),
        (lambda: copy(tile(BF16), tile(FP32)), N),
        (lambda: copy(tile(BF16, columns=N), tile(BF16, columns=2 * N)[:, 0 : 2 * N : 2]), N / 2),
        (lambda: copy(tile(BF16), tile(BF16, buffer=nl.psum)), N / 2),
        (lambda: copy(tile(BF16), tile(BF16), engine=nisa.engine.scalar), N),
        (lambda: copy(tile(BF16, columns=100), tile(BF16, columns=100)), 64),
        (lambda: nisa.tensor_scalar(tile(BF16), tile(BF16), nl.add, 1.0), N / 4),
        (lambda: nisa.tensor_tensor(tile(), tile(), tile(), nl.add), 2 * N),
        (lambda: nisa.tensor_tensor(tile(), tile(), tile(buffer=nl.psum), nl.add), N),
        (lambda: nisa.tensor_tensor(tile(BF16), tile(BF16), tile(BF16), nl.add), N),
        (lambda: nisa.scalar_tensor_tensor(tile(), tile(), nl.add, 1.0, nl.add, tile()), 2 * N),
        (lambda: nisa.scalar_tensor_tensor(tile(), tile(), nl.add, 1.0, nl.add, tile(buffer=nl.psum)), N + 100),
        (
            lambda: nisa.scalar_tensor_tensor(
                tile(), tile(), nl.add, 1.0, nl.add, tile(), reduce_op=nl.add, reduce_res=tile(columns=1)
            ),
            2 * N + 64,
        ),
        (lambda: nisa.tensor_reduce(tile(columns=1), nl.add, tile(), 1), N),
        (lambda: nisa.tensor_scalar_reduce(tile(), tile(), nl.add, 1.0, nl.add, tile(columns=1)), N + 64),
        (lambda: nisa.activation(tile(), nl.exp, tile()), N),
        (lambda: nisa.activation_reduce(tile(), nl.exp, tile(), nl.add, tile(columns=1)), N + 64),
        (lambda: nisa.reciprocal(tile(), tile()), 8 * N),
        (lambda: nisa.memset(tile(BF16), 0), N / 2),
        (lambda: nisa.memset(tile(BF16), 1), N),
        (lambda: nisa.iota(tile(nl.int32), [[1, N]]), 150 + N),
        (lambda: nisa.max8(tile(columns=8), tile()), N),
        (lambda: nisa.topk(tile(BF16, columns=40), tile(nl.uint32, columns=40), tile(BF16), 1000), 4 * 1000 + 40),
        (lambda: nisa.bn_stats(tile(columns=6), tile(columns=512)), 512),
        (lambda: nisa.tensor_tensor_scan(tile(), tile(), tile(), 0.0, nl.multiply, nl.add), 2 * N),
        (lambda: nisa.nc_transpose(nl.ndarray((128, 128), BF16, nl.psum), tile(BF16, columns=128)), 128),
    ],
)
def test_published_costs(body: Callable[[], Any], expected: float) -> None:
    assert cycles(body) == expected


@pytest.mark.parametrize(
    ("dtype", "columns", "moving", "expected"),
    [(BF16, 128, 512, 512), (FP32, 128, 512, 4 * 512), (BF16, 128, 8, 64), (BF16, 8, 8, 8)],
)
def test_matmul(dtype: Any, columns: int, moving: int, expected: float) -> None:
    def body() -> Any:
        dst = nl.ndarray((columns, moving), FP32, nl.psum)
        return nisa.nc_matmul(dst, tile(dtype, columns=columns), tile(dtype, columns=moving))

    assert cycles(body) == expected


def test_trn1_has_no_fast_modes() -> None:
    assert cycles(lambda: copy(tile(BF16), tile(BF16)), "trn1") == N


def test_trn3_takes_two_bf16_elements_a_cycle_on_scalar() -> None:
    assert cycles(lambda: nisa.activation(tile(BF16), nl.exp, tile(BF16)), "trn3") == N / 2
    assert cycles(lambda: nisa.activation(tile(FP32), nl.exp, tile(BF16)), "trn3") == N


def test_an_activation_on_gpsimd_takes_its_time_there() -> None:
    """And neither Scalar's two elements a cycle nor its tables: one on each engine run side by side."""
    gpsimd = nisa.engine.gpsimd
    assert cycles(lambda: nisa.activation(tile(BF16), nl.exp, tile(BF16), engine=gpsimd), "trn3") == N
    assert cycles(lambda: nisa.activation(tile(), nl.exp, tile(), engine=gpsimd), "trn3", other_cycles=3.0) == 3 * N

    def second_of(engine: Any) -> tuple[str, bool]:
        """The engine of the second of two activations, and whether it starts before the first one has ended."""

        def kernel() -> None:
            for data, where in ((tile(), nisa.engine.scalar), (tile(), engine)):
                nisa.activation(data, nl.exp, data, engine=where)

        with using(target="trn3"):
            results = profile(nki.jit(kernel)).instructions
        first, second = sorted((entry for entry in results if entry.name == "activation"), key=lambda item: item.number)
        return second.engine, second.start_us < first.end_us

    assert second_of(gpsimd) == ("gpsimd", True)
    assert second_of(nisa.engine.scalar) == ("scalar", False)


def test_assumptions_change_what_they_name() -> None:
    def maximum() -> Any:
        return nisa.tensor_reduce(tile(BF16, columns=1), nl.max, tile(BF16), 1)

    assert cycles(maximum) == N
    assert cycles(maximum, halves_bf16_max=True) == N / 2
    assert cycles(lambda: nisa.tensor_reduce(tile(columns=1), nl.max, tile(), 1), halves_bf16_max=True) == N

    def exponential(dtype: Any) -> Callable[[], Any]:
        return lambda: nisa.exponential(tile(dtype), tile(dtype))

    assert cycles(exponential(BF16), "trn3") == N / 4
    assert cycles(exponential(FP32), "trn3") == N / 2
    assert cycles(exponential(FP32), "trn3", fp32_exponential_cycles=1.0) == N

    def select() -> Any:
        return nisa.select_reduce(tile(), tile(nl.uint8), tile(), 0.0)

    assert cycles(select) == 2 * N
    assert cycles(select, select_reduce_cycles=3.0) == 3 * N

    def gather() -> Any:
        return nisa.nc_n_gather(tile(), tile(), tile(nl.uint32))

    assert cycles(gather) == N
    assert cycles(gather, other_cycles=5.0) == 5 * N


def test_every_instruction_has_a_cost_or_needs_none() -> None:
    without = {name for name, definition in REGISTRY.items() if definition.cost is None and not definition.is_transfer}
    on_registers = {"register_move", "register_load", "register_store", "scalar_load", "scalar_store"}
    assert without == {"core_barrier", *on_registers}
    assert {name for name, definition in REGISTRY.items() if definition.engines == SEQUENCER} == on_registers
    assert {name for name, definition in REGISTRY.items() if definition.is_transfer} == {
        "dma_copy",
        "dma_transpose",
        "dma_compute",
        "sendrecv",
        "sendrecv_compute",
    }


@pytest.mark.parametrize(("register_us", "register_load_us"), [(0.0, 1.4), (1.5, 2.0), (0.0, 0.0)])
def test_instructions_on_registers_and_scalars_take_what_is_assumed_of_them(
    register_us: float, register_load_us: float
) -> None:
    def body() -> None:
        flag, register = nl.ndarray((1, 1), nl.int32), nisa.register_alloc(1)
        nisa.register_move(register, 2)
        nisa.register_store(flag, register)
        nisa.register_load(register, flag)
        nisa.scalar_store(flag, nisa.scalar_load(flag) * 2 + 1)

    parameters = replace(
        AS_ISSUED, register_us=register_us, register_load_us=register_load_us, waits_for_registers=False
    )
    events = profile(nki.jit(body), parameters=parameters).instructions
    assert [event.name.partition("_")[0] for event in events] == ["register"] * 3 + ["scalar"] * 2
    took = [register_us, register_us, register_load_us, register_load_us, register_us]
    assert [event.end_us - event.start_us for event in events] == pytest.approx(took)
    assert events[-1].end_us == pytest.approx(sum(took))
