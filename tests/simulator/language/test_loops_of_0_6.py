# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nl.dynamic_range` and `while` on a register, which NKI 0.7 removed: with the front end of 0.6 they still run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, UninitializedReadError, using
from nkilib.simulator.machine.core import current_core
from nkilib.simulator.tensors.device_integers import VirtualRegister
from tests.simulator.frame import counted, refused, run, without_line


@pytest.fixture(autouse=True, scope="module")
def _front_end_of_0_6() -> Iterator[None]:
    with using(frontend="custom"):
        yield


def register(value: int) -> VirtualRegister:
    """Make a register that holds `value`, in a kernel."""
    return nisa.register_alloc(value)


def values_of(make: Callable[[], Any]) -> list[int]:
    """The values that a `nl.dynamic_range` made by `make()` takes."""
    return run(lambda: [i.value("i") for i in make()])  # type: ignore[no-any-return]


def test_a_dynamic_range_has_the_arguments_of_range() -> None:
    assert values_of(lambda: nl.dynamic_range(4)) == [0, 1, 2, 3]
    assert values_of(lambda: nl.dynamic_range(2, 5)) == [2, 3, 4]
    assert values_of(lambda: nl.dynamic_range(1, 8, 3)) == [1, 4, 7]
    assert values_of(lambda: nl.dynamic_range(1, stop=8, step=3)) == [1, 4, 7]
    assert values_of(lambda: nl.dynamic_range(5, step=2)) == [0, 2, 4]
    assert values_of(lambda: nl.dynamic_range(np.int64(2))) == [0, 1]  # type: ignore[arg-type]


def test_its_bounds_may_be_registers() -> None:
    assert values_of(lambda: nl.dynamic_range(register(3))) == [0, 1, 2]
    assert values_of(lambda: nl.dynamic_range(1, register(3))) == [1, 2]
    assert values_of(lambda: nl.dynamic_range(register(-2), 1)) == [-2, -1, 0]
    assert values_of(lambda: nl.dynamic_range(register(0), register(512), 128)) == [0, 128, 256, 384]


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 4))
def test_it_runs_as_often_as_range(lower: int, upper: int, step: int) -> None:
    assert values_of(lambda: nl.dynamic_range(lower, register(upper), step)) == list(range(lower, upper, step))


def test_its_value_is_a_frozen_register() -> None:
    def kernel() -> None:
        for i in nl.dynamic_range(2):
            assert isinstance(i, nisa.VirtualRegister) and i.frozen
            nisa.register_move(i, 7)

    message = refused(NkiValidationError, lambda: run(kernel))
    assert "nisa.register_move: operand 'dst': VirtualRegister(0, frozen) is the value of a loop" in message


def test_its_value_indexes_a_tensor() -> None:
    def kernel(data: Any) -> Any:
        output = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        for i in nl.dynamic_range(4):
            nisa.dma_copy(output[i], data.select(0, i))
        return output

    np.testing.assert_array_equal(run(kernel, counted(4, 3)), counted(4, 3))


def test_its_bounds_are_read_when_it_starts() -> None:
    def kernel() -> list[int]:
        stop, seen = register(3), []
        for i in nl.dynamic_range(stop):
            seen.append(i.value("i"))
            nisa.register_move(stop, 1)
        return seen

    assert run(kernel) == [0, 1, 2]


def test_a_bare_while_runs_until_the_register_holds_0() -> None:
    def kernel() -> int:
        condition, turns = register(4), 0
        while condition:
            turns += 1
            nisa.register_move(condition, condition.value("it") - 1)
        return turns

    assert run(kernel) == 4


def test_it_is_a_scope_that_ends_even_by_break_and_a_bare_while_is_none() -> None:
    def scope() -> int:
        return current_core("test").loops.depth

    def kernel() -> None:
        for _ in nl.dynamic_range(3):
            assert scope() == 1
            break
        assert scope() == 0
        condition = register(1)
        while condition:
            assert scope() == 0
            nisa.register_move(condition, 0)

    run(kernel)


def test_scalars_came_later() -> None:
    message = refused(NkiValidationError, lambda: run(lambda: nisa.scalar_load(nl.zeros((1, 1), nl.int32))))
    assert message.endswith(
        "nisa.scalar_load: scalars need the tracer, and NKI_COMPILER_FRONTEND=custom asks for the front end of NKI "
        "0.6: unset it, or use nisa.register_alloc and nisa.register_load"
    )


TILE = "tensor [1, 1] int32 in sbuf"
WANTED = "must be an int32, a register or a scalar, got"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: nl.dynamic_range(0, 4, 0), "step must be a positive integer, got 0"),
        (lambda: nl.dynamic_range(0, 4, -1), "step must be a positive integer, got -1"),
        (lambda: nl.dynamic_range(0, 4, register(1)), "step must be a positive integer, got VirtualRegister(1)"),
        (lambda: nl.dynamic_range("n"), f"stop {WANTED} 'n'"),
        (lambda: nl.dynamic_range(0.5, 2), f"start {WANTED} 0.5"),
        (
            lambda: nl.dynamic_range(nl.zeros((1, 1), nl.int32)),
            f"stop {WANTED} {TILE}; nisa.scalar_load reads a scalar from it",
        ),
    ],
)
def test_what_it_refuses(start: Any, message: str) -> None:
    assert without_line(refused(NkiValidationError, lambda: run(start))) == f"nl.dynamic_range: {message}"


def test_it_runs_in_a_kernel_only() -> None:
    message = refused(NkiValidationError, lambda: nl.dynamic_range(1))
    assert message.startswith("nl.dynamic_range works inside a kernel only")


def test_it_does_not_start_from_an_unset_register_nor_in_no_reorder() -> None:
    message = refused(UninitializedReadError, lambda: run(lambda: nl.dynamic_range(nisa.register_alloc())))
    assert without_line(message).startswith("nl.dynamic_range: stop: the register was never set")

    def kernel() -> None:
        with nl.no_reorder():
            nl.dynamic_range(1)

    message = without_line(refused(NkiValidationError, lambda: run(kernel)))
    assert message.startswith("nl.dynamic_range: a dynamic loop cannot be inside nl.no_reorder()")
