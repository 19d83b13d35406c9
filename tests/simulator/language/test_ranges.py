"""`nkilib.simulator.language.ranges`: loops that Python unrolls, and loops of the device, which count in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, UninitializedReadError
from nkilib.simulator.machine.core import current_core
from nkilib.simulator.tensors.registers import VirtualRegister
from tests.simulator.frame import refused, run, without_line

STATIC = [nl.static_range, nl.affine_range, nl.sequential_range]

UNSET = "the register was never set; give nisa.register_alloc a value, or nisa.register_load one first"
IN_NO_REORDER = "a dynamic loop cannot be inside nl.no_reorder(); put that into the loop's body"


@pytest.mark.parametrize("loop", STATIC)
def test_static_ranges_count_as_range_does(loop: Any) -> None:
    assert list(loop(4)) == [0, 1, 2, 3]
    assert list(loop(2, 5)) == [2, 3, 4]
    assert list(loop(1, 8, 3)) == [1, 4, 7]
    assert list(loop(1, stop=8, step=3)) == [1, 4, 7]
    assert list(loop(5, step=2)) == [0, 2, 4]
    assert list(loop(3, 3)) == list(loop(0)) == []


def register(value: int) -> VirtualRegister:
    """In a kernel: a register that holds `value`."""
    return nisa.register_alloc(value)


def values_of(make: Callable[[], Any]) -> list[int]:
    """The values that a `nl.dynamic_range` made by `make()` takes."""
    return run(lambda: [i.value("i") for i in make()])  # type: ignore[no-any-return]


def called(*bounds: Any, **step: int) -> list[int]:
    """The values with which `nl.fori_loop` calls its body; bounds in lists become registers."""
    seen: list[int] = []

    def kernel() -> None:
        lower, upper = (register(*bound) if isinstance(bound, list) else bound for bound in bounds)
        nl.fori_loop(lower, upper, lambda i: seen.append(i.value("i")), **step)

    run(kernel)
    return seen


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
def test_dynamic_loops_run_as_often_as_range(lower: int, upper: int, step: int) -> None:
    expected = list(range(lower, upper, step))
    assert values_of(lambda: nl.dynamic_range(lower, register(upper), step)) == expected
    assert called([lower], upper, step=step) == expected


def test_a_loop_may_end_at_the_largest_integer() -> None:
    top = 2**31 - 1
    assert values_of(lambda: nl.dynamic_range(top - 2, top)) == [top - 2, top - 1]
    assert called(top - 3, top, step=2) == [top - 3, top - 1]


def test_the_value_of_a_dynamic_range_is_a_frozen_register() -> None:
    def kernel() -> None:
        for i in nl.dynamic_range(2):
            assert isinstance(i, nisa.VirtualRegister) and i.frozen
            nisa.register_move(i, 7)

    message = refused(NkiValidationError, lambda: run(kernel))
    assert "nisa.register_move: operand 'dst': VirtualRegister(0, frozen) is the value of a loop" in message


@pytest.mark.parametrize("compute", [lambda i: i + 1, lambda i: i == 0, lambda i: range(i)])
def test_the_value_of_a_loop_is_no_python_integer(compute: Any) -> None:
    def kernel() -> None:
        nl.fori_loop(0, 2, compute)

    with pytest.raises(TypeError, match="Python cannot compute with VirtualRegister"):
        run(kernel)


@pytest.mark.parametrize("loop", ["dynamic_range", "fori_loop"])
def test_bounds_are_read_when_the_loop_starts(loop: str) -> None:
    seen: list[int] = []

    def kernel() -> None:
        stop = register(3)

        def body(i: Any) -> None:
            seen.append(i.value("i"))
            nisa.register_move(stop, 1)

        if loop == "fori_loop":
            nl.fori_loop(0, stop, body)
        else:
            for i in nl.dynamic_range(stop):
                body(i)

    run(kernel)
    assert seen == [0, 1, 2]


def test_fori_loop_counts_from_lower_to_upper() -> None:
    assert called(0, [3]) == [0, 1, 2]
    assert called([1], 8, step=3) == [1, 4, 7]
    assert called(-2, [0]) == [-2, -1]
    assert called(3, 3) == called(5, 2) == []


def test_the_body_of_fori_loop_may_write_its_register_without_effect_on_the_loop() -> None:
    seen: list[tuple[int, int]] = []

    def body(i: Any) -> None:
        before = i.value("i")
        nisa.register_move(i, 100)
        seen.append((before, i.value("i")))

    run(lambda: nl.fori_loop(0, 3, body))
    assert seen == [(0, 100), (1, 100), (2, 100)]


def test_fori_loop_leaves_its_bounds_alone() -> None:
    def kernel() -> Any:
        lower, upper = register(1), register(3)
        nl.fori_loop(lower, upper, lambda i: None)
        return lower.value("lower"), upper.value("upper")

    assert run(kernel) == (1, 3)


def test_effects_of_a_body_persist_after_the_loop() -> None:
    """The sum of 0 to 4, carried in SBUF."""

    def kernel() -> Any:
        total, index = nl.zeros((1, 1), nl.int32), nl.zeros((1, 1), nl.int32)

        def body(i: Any) -> None:
            nisa.register_store(index, i)
            nisa.tensor_tensor(total, total, index, nl.add)

        assert nl.fori_loop(0, register(5), body) is None  # type: ignore[func-returns-value]
        result = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        nisa.dma_copy(result, total)
        return result

    assert run(kernel).tolist() == [[10]]


def countdown(start: int) -> tuple[list[int], int]:
    """What `nl.while_loop` gives its body when that counts down from `start`, and what `init` holds afterwards."""
    seen: list[int] = []

    def kernel() -> int:
        init = register(start)

        def body(r: Any) -> Any:
            seen.append(r.value("r"))
            nisa.register_move(r, r.value("r") - 1)
            return r

        assert nl.while_loop(init, body) is None  # type: ignore[func-returns-value]
        return init.value("init")

    left = run(kernel)
    return seen, left


def test_while_loop_runs_until_the_returned_register_holds_0() -> None:
    assert countdown(3)[0] == [3, 2, 1]


def test_while_loop_checks_before_the_first_iteration() -> None:
    assert countdown(0)[0] == []


def test_a_negative_condition_is_true() -> None:
    seen: list[int] = []

    def body(r: Any) -> Any:
        seen.append(r.value("r"))
        return register(r.value("r") + 1)

    run(lambda: nl.while_loop(register(-2), body))
    assert seen == [-2, -1]


def test_the_condition_is_passed_by_value() -> None:
    assert countdown(2)[1] == 2


def test_the_next_condition_may_be_any_register() -> None:
    """The body ignores its argument and returns a flag that it loaded from memory."""

    def kernel() -> Any:
        flags, at = nl.zeros((1, 4), nl.int32), [0]
        nisa.memset(flags[:, 0:2], 1)

        def body(r: Any) -> Any:
            flag = nisa.register_alloc()
            nisa.register_load(flag, flags[:, at[0] : at[0] + 1])
            at[0] += 1
            return flag

        nl.while_loop(register(1), body)
        return at[0]

    assert run(kernel) == 3


def test_a_bare_while_runs_until_the_register_holds_0() -> None:
    def kernel() -> int:
        condition, turns = register(4), 0
        while condition:
            turns += 1
            nisa.register_move(condition, condition.value("it") - 1)
        return turns

    assert run(kernel) == 4


def float_register() -> Any:
    loaded = nisa.register_alloc()
    nisa.register_load(loaded, nl.full((1, 1), 1.5, nl.float32))
    return loaded


TILE = "tensor [1, 1] int32 in sbuf"
FLOAT = "must be an integer, got a register loaded with the float32 1.5"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: nl.dynamic_range(0, 4, 0), "nl.dynamic_range: step must be a positive integer, got 0"),
        (lambda: nl.dynamic_range(0, 4, -1), "nl.dynamic_range: step must be a positive integer, got -1"),
        (lambda: nl.dynamic_range(0, 4, 1.0), "nl.dynamic_range: step must be a positive integer, got 1.0"),
        (
            lambda: nl.dynamic_range(0, 4, register(1)),
            "nl.dynamic_range: step must be a positive integer, got VirtualRegister(1)",
        ),
        (lambda: nl.dynamic_range("n"), "nl.dynamic_range: stop must be an int32 or a register, got 'n'"),
        (lambda: nl.dynamic_range(0.5, 2), "nl.dynamic_range: start must be an int32 or a register, got 0.5"),
        (lambda: nl.dynamic_range(2**31), "nl.dynamic_range: stop must be an int32 or a register, got 2147483648"),
        (
            lambda: nl.dynamic_range(nl.zeros((1, 1), nl.int32)),
            f"nl.dynamic_range: stop must be an int32 or a register, got {TILE}; nisa.register_load it into a register",
        ),
        (lambda: nl.dynamic_range(float_register()), f"nl.dynamic_range: stop: {FLOAT}"),
        (
            lambda: nl.fori_loop(0, 2, lambda i: None, 0),
            "nl.fori_loop: step must be a positive integer, got 0",
        ),
        (
            lambda: nl.fori_loop(None, 2, lambda i: None),
            "nl.fori_loop: lower must be an int32 or a register, got None",
        ),
        (
            lambda: nl.fori_loop(0, 2.0, lambda i: None),
            "nl.fori_loop: upper must be an int32 or a register, got 2.0",
        ),
        (lambda: nl.fori_loop(0, 2, None), "nl.fori_loop: body_fun must be a function, got None"),
        (
            lambda: nl.fori_loop(0, 2, lambda i: 5),
            "nl.fori_loop: body_fun must return nothing, got 5; carry values from one iteration to the next in SBUF or "
            "HBM",
        ),
        (
            lambda: nl.while_loop(1, lambda r: r),
            "nl.while_loop: init must be a register of nisa.register_alloc, got 1",
        ),
        (lambda: nl.while_loop(float_register(), lambda r: r), f"nl.while_loop: init: {FLOAT}"),
        (lambda: nl.while_loop(register(1), 5), "nl.while_loop: body_fun must be a function, got 5"),
        (
            lambda: nl.while_loop(register(1), lambda r: None),
            "nl.while_loop: what body_fun returns must be a register of nisa.register_alloc, got None",
        ),
        (
            lambda: nl.while_loop(register(1), lambda r: float_register()),
            f"nl.while_loop: what body_fun returns: {FLOAT}",
        ),
    ],
)
def test_what_a_dynamic_loop_refuses(start: Any, message: str) -> None:
    assert without_line(refused(NkiValidationError, lambda: run(start))) == message


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (lambda: nl.dynamic_range(nisa.register_alloc()), "nl.dynamic_range: stop"),
        (lambda: nl.dynamic_range(nisa.register_alloc(), 2), "nl.dynamic_range: start"),
        (lambda: nl.fori_loop(0, nisa.register_alloc(), lambda i: None), "nl.fori_loop: upper"),
        (lambda: nl.while_loop(nisa.register_alloc(), lambda r: r), "nl.while_loop: init"),
        (
            lambda: nl.while_loop(nisa.register_alloc(1), lambda r: nisa.register_alloc()),
            "nl.while_loop: what body_fun returns",
        ),
    ],
)
def test_a_dynamic_loop_does_not_start_from_an_unset_register(start: Any, what: str) -> None:
    assert without_line(refused(UninitializedReadError, lambda: run(start))) == f"{what}: {UNSET}"


@pytest.mark.parametrize("name", ["dynamic_range", "fori_loop", "while_loop"])
def test_dynamic_loops_run_in_a_kernel_only(name: str) -> None:
    arguments = {"dynamic_range": [1], "fori_loop": [0, 1, print], "while_loop": [VirtualRegister(0), print]}[name]
    message = f"nl.{name} works inside a kernel only: decorate the function with @nki.jit and call it"
    assert refused(NkiValidationError, lambda: getattr(nl, name)(*arguments)) == message


def inside_no_reorder(loop: Callable[[], Any]) -> Callable[[], None]:
    def kernel() -> None:
        with nl.no_reorder():
            loop()

    return kernel


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        ("dynamic_range", lambda: nl.dynamic_range(1)),
        ("fori_loop", lambda: nl.fori_loop(0, 1, lambda i: None)),
        ("while_loop", lambda: nl.while_loop(register(0), lambda r: r)),
    ],
)
def test_no_dynamic_loop_is_inside_no_reorder(name: str, loop: Callable[[], Any]) -> None:
    message = without_line(refused(NkiValidationError, lambda: run(inside_no_reorder(loop))))
    assert message == f"nl.{name}: {IN_NO_REORDER}"
    run(loop)


def test_no_reorder_nests_and_ends() -> None:
    def kernel() -> list[int]:
        with nl.no_reorder():
            with nl.no_reorder():
                pass
            assert list(nl.affine_range(2)) == [0, 1]
        return [i.value("i") for i in nl.dynamic_range(2)]

    assert run(kernel) == [0, 1]

    def ended() -> None:
        with nl.no_reorder():
            with nl.no_reorder():
                pass
            nl.dynamic_range(2)

    assert without_line(refused(NkiValidationError, lambda: run(ended))) == f"nl.dynamic_range: {IN_NO_REORDER}"


def test_no_reorder_may_be_inside_a_dynamic_loop() -> None:
    def kernel() -> Any:
        total, result = nl.zeros((1, 1), nl.int32), nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        for _ in nl.dynamic_range(2):
            with nl.no_reorder():
                nisa.tensor_scalar(total, total, nl.add, 3)
                nisa.tensor_scalar(total, total, nl.multiply, 5)
        nisa.dma_copy(result, total)
        return result

    assert run(kernel).tolist() == [[((0 + 3) * 5 + 3) * 5]]


def test_no_reorder_outside_a_kernel_does_nothing() -> None:
    with nl.no_reorder():
        assert list(nl.affine_range(1)) == [0]


def scope() -> tuple[int, ...]:
    return current_core("test").loops.scope


def test_the_scope_names_every_iteration_of_every_dynamic_loop_around() -> None:
    """For edges between instructions: they may come from an enclosing scope, never from another iteration."""

    def kernel() -> None:
        seen: list[tuple[int, ...]] = []

        def inner(r: Any) -> Any:
            seen.append(scope())
            return register(0)

        def outer(i: Any) -> None:
            seen.append(scope())
            nl.while_loop(register(1), inner)
            assert scope() == seen[-2]

        assert scope() == ()
        nl.fori_loop(0, 2, outer)
        assert scope() == ()
        first, first_inner, second, second_inner = seen
        assert first_inner[:1] == first and second_inner[:1] == second
        assert [len(place) for place in seen] == [1, 2, 1, 2] and first != second

    run(kernel)


def test_the_scope_ends_with_a_dynamic_range_even_by_break() -> None:
    def kernel() -> None:
        for _ in nl.dynamic_range(3):
            assert len(scope()) == 1
            for _ in nl.static_range(2):
                assert len(scope()) == 1
            break
        assert scope() == ()

    run(kernel)


def test_a_static_loop_or_a_bare_while_is_no_scope() -> None:
    def kernel() -> None:
        condition = register(1)
        while condition:
            assert scope() == ()
            nisa.register_move(condition, 0)

    run(kernel)
