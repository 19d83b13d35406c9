# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nkilib.simulator.language.loops`: loops that Python unrolls, and loops of the device, by the rules of NKI 0.7.

Those of 0.6 are in `test_ranges_of_0_6`.
"""

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
from nkilib.simulator.tensors.device_integers import VirtualRegister
from nkilib.simulator.terms.errors import RegisterTypeError
from nkilib.simulator.terms.scopes import CORE
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


@pytest.mark.parametrize("loop", STATIC)
@pytest.mark.parametrize("bounds", [(256 / 128,), (0, np.float32(2.5)), (0, 4, 2.0)], ids=str)
def test_a_static_range_takes_no_floats_and_advises_the_division_of_integers(loop: Any, bounds: Any) -> None:
    message = refused(NkiValidationError, lambda: run(lambda: loop(*bounds)))
    value = next(bound for bound in bounds if not isinstance(bound, int))
    assert without_line(message) == (
        f"nl.{loop.__name__}: bounds and step must be integers, got the float {value!r}; of two integers, / makes a "
        f"float and // an integer"
    )
    assert message.startswith(f"{__file__}:")


def register(value: int) -> VirtualRegister:
    """Make a register that holds `value`, in a kernel."""
    return nisa.register_alloc(value)


def called(*bounds: Any, **step: int) -> list[int]:
    """The values with which `nl.fori_loop` calls its body; bounds in lists become registers, those in sets scalars."""
    seen: list[int] = []

    def kernel() -> None:
        make = {list: register, set: scalar}
        lower, upper = (make[type(bound)](*bound) if type(bound) in make else bound for bound in bounds)
        nl.fori_loop(lower, upper, lambda i: seen.append(i.value("i")), **step)

    run(kernel)
    return seen


def scalar(value: int, dtype: Any = nl.int32) -> Any:
    """Read a scalar of this value from memory, in a kernel."""
    return nisa.scalar_load(nl.full((1, 2), value, nl.int32).view(dtype)[:, :1])


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 4))
def test_dynamic_loops_run_as_often_as_range(lower: int, upper: int, step: int) -> None:
    assert called([lower], upper, step=step) == called(lower, {upper}, step=step) == list(range(lower, upper, step))


def test_bounds_and_step_may_be_integers_of_numpy() -> None:
    assert called(np.int64(1), np.int32(8), step=np.int64(3)) == [1, 4, 7]


def test_a_loop_may_end_at_the_largest_integer() -> None:
    top = 2**31 - 1
    assert called(top - 3, top, step=2) == [top - 3, top - 1]


def test_a_loop_may_begin_at_the_least_integer() -> None:
    least = -(2**31)
    assert called(least, least + 3, step=2) == [least, least + 2]
    assert called(0, least) == []


def test_a_counted_loop_gives_a_scalar_unless_a_bound_is_a_register() -> None:
    inputs: list[type] = []

    def kernel() -> None:
        for lower, upper in [(0, 1), (scalar(0), 1), (0, scalar(1)), (register(0), 1), (scalar(0), register(1))]:
            nl.fori_loop(lower, upper, lambda i: inputs.append(type(i)))

    run(kernel)
    assert inputs == [nisa.NkiScalar] * 3 + [nisa.VirtualRegister] * 2
    inputs.clear()
    run(lambda: nl.fori_loop(0, 1, lambda i: inputs.append(type(i))), frontend="custom")
    assert inputs == [nisa.VirtualRegister]


def test_a_bound_may_be_computed_from_scalars() -> None:
    seen: list[int] = []
    run(lambda: nl.fori_loop(scalar(2) - 1, scalar(2) * scalar(2), lambda i: seen.append(i.value("i"))))
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("compute", [lambda i: i + 1, lambda i: i == 0, lambda i: range(i)])
def test_a_register_that_a_loop_counts_in_is_no_python_integer(compute: Any) -> None:
    with pytest.raises(TypeError, match="Python cannot compute with VirtualRegister"):
        run(lambda: nl.fori_loop(0, register(2), compute))


@pytest.mark.parametrize("go_by", [bool, int, range, float, lambda i: i == 0 and 1, lambda i: [1, 2][i]])
def test_a_scalar_that_a_loop_counts_in_steers_no_python(go_by: Any) -> None:
    with pytest.raises(TypeError, match="has its value on the device only"):
        run(lambda: nl.fori_loop(0, 2, go_by))


def test_bounds_are_read_when_the_loop_starts() -> None:
    seen: list[int] = []

    def kernel() -> None:
        stop = register(3)

        def body(i: Any) -> None:
            seen.append(i.value("i"))
            nisa.register_move(stop, 1)

        nl.fori_loop(0, stop, body)

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

    run(lambda: nl.fori_loop(0, register(3), body))
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
    """Return what `nl.while_loop` passes to a body that counts down from `start`, and what `init` holds afterwards."""
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


def test_a_bare_while_is_refused() -> None:
    def kernel() -> None:
        while register(4):
            pass

    message = without_line(refused(RegisterTypeError, lambda: run(kernel)))
    assert message.startswith("Python cannot go by VirtualRegister(4)")
    assert "nl.fori_loop" in message and "nl.while_loop" in message


def test_dynamic_range_was_removed() -> None:
    assert without_line(refused(RegisterTypeError, lambda: run(lambda: nl.dynamic_range(4)))) == (
        "nl.dynamic_range was removed in NKI 0.7: give the body to nl.fori_loop(lower, upper, body), or to "
        "nl.while_loop(register, body). NKI_COMPILER_FRONTEND=custom runs the loops of NKI 0.6"
    )


def float_register() -> Any:
    loaded = nisa.register_alloc()
    nisa.register_load(loaded, nl.full((1, 1), 1.5, nl.float32))
    return loaded


TILE = "tensor [1, 1] int32 in sbuf"
FLOAT = "must be an integer, got a register loaded with the float32 1.5"
LOWER = "nl.fori_loop: lower must be an int32, a register or a scalar, got"
UPPER = "nl.fori_loop: upper must be an int32, a register or a scalar, got"
STEP = "nl.fori_loop: step must be a positive integer, got"
INIT = "nl.while_loop: init must be a register of nisa.register_alloc, got"
RETURNED = "nl.while_loop: what body_fun returns"


def nothing(_: Any) -> None:
    """A body that does nothing."""


def same(register: Any) -> Any:
    """A body that returns its register."""
    return register


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: nl.fori_loop(0, 2, nothing, 0), f"{STEP} 0"),
        (lambda: nl.fori_loop(None, 2, nothing), f"{LOWER} None"),
        (lambda: nl.fori_loop(0, 2.0, nothing), f"{UPPER} 2.0"),
        (lambda: nl.fori_loop(0, 2**31, nothing), f"{UPPER} 2147483648"),
        (lambda: nl.fori_loop(-(2**31) - 1, 0, nothing), f"{LOWER} -2147483649"),
        (
            lambda: nl.fori_loop(0, nl.zeros((1, 1), nl.int32), nothing),  # type: ignore[arg-type]
            f"{UPPER} {TILE}; nisa.scalar_load reads a scalar from it",
        ),
        (lambda: nl.fori_loop(0, float_register(), nothing), f"nl.fori_loop: upper: {FLOAT}"),
        (
            lambda: nl.fori_loop(0, scalar(0, nl.int64), nothing),
            "nl.fori_loop: upper must be an int32, got NkiScalar(0, int64); nisa.scalar_load it from a tensor of int32",
        ),
        (lambda: nl.fori_loop(0, 4, nothing, register(1)), f"{STEP} VirtualRegister(1)"),  # type: ignore[arg-type]
        (lambda: nl.fori_loop(0, 4, nothing, scalar(1)), f"{STEP} NkiScalar(1, int32)"),
        (
            lambda: nl.while_loop(scalar(1), same),
            f"{INIT} NkiScalar(1, int32); nisa.scalar_store it, and nisa.register_load it from there",
        ),
        (lambda: nl.fori_loop(0, 2, None), "nl.fori_loop: body_fun must be a function, got None"),
        (
            lambda: nl.fori_loop(0, 2, lambda i: 5),
            "nl.fori_loop: body_fun must return nothing, got 5; carry values from one iteration to the next in SBUF or "
            "HBM",
        ),
        (lambda: nl.while_loop(1, same), f"{INIT} 1"),
        (lambda: nl.while_loop(float_register(), same), f"nl.while_loop: init: {FLOAT}"),
        (lambda: nl.while_loop(register(1), 5), "nl.while_loop: body_fun must be a function, got 5"),
        (
            lambda: nl.while_loop(register(1), lambda r: None),  # type: ignore[return-value]
            f"{RETURNED} must be a register of nisa.register_alloc, got None",
        ),
        (lambda: nl.while_loop(register(1), lambda r: float_register()), f"{RETURNED}: {FLOAT}"),
    ],
)
def test_what_a_dynamic_loop_refuses(start: Any, message: str) -> None:
    assert without_line(refused(NkiValidationError, lambda: run(start))) == message


@pytest.mark.parametrize(
    ("start", "what"),
    [
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


@pytest.mark.parametrize("name", ["fori_loop", "while_loop"])
def test_dynamic_loops_run_in_a_kernel_only(name: str) -> None:
    arguments = {"fori_loop": [0, 1, print], "while_loop": [VirtualRegister(0), print]}[name]
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
        ("fori_loop", lambda: nl.fori_loop(0, 1, lambda i: None)),
        ("while_loop", lambda: nl.while_loop(register(0), lambda r: r)),
    ],
)
def test_no_dynamic_loop_is_inside_no_reorder(name: str, loop: Callable[[], Any]) -> None:
    message = without_line(refused(NkiValidationError, lambda: run(inside_no_reorder(loop))))
    assert message == f"nl.{name}: {IN_NO_REORDER}"
    run(loop)


def test_no_reorder_nests_and_ends() -> None:
    def kernel() -> None:
        with nl.no_reorder():
            with nl.no_reorder():
                pass
            assert list(nl.affine_range(2)) == [0, 1]
        nl.fori_loop(0, 2, lambda i: None)

    run(kernel)

    def ended() -> None:
        with nl.no_reorder():
            with nl.no_reorder():
                pass
            nl.fori_loop(0, 2, lambda i: None)

    assert without_line(refused(NkiValidationError, lambda: run(ended))) == f"nl.fori_loop: {IN_NO_REORDER}"


def test_no_reorder_may_be_inside_a_dynamic_loop() -> None:
    def kernel() -> Any:
        total, result = nl.zeros((1, 1), nl.int32), nl.ndarray((1, 1), nl.int32, nl.shared_hbm)

        def body(_: Any) -> None:
            with nl.no_reorder():
                nisa.tensor_scalar(total, total, nl.add, 3)
                nisa.tensor_scalar(total, total, nl.multiply, 5)

        nl.fori_loop(0, 2, body)
        nisa.dma_copy(result, total)
        return result

    assert run(kernel).tolist() == [[((0 + 3) * 5 + 3) * 5]]


def test_no_reorder_outside_a_kernel_does_nothing() -> None:
    with nl.no_reorder():
        assert list(nl.affine_range(1)) == [0]


def scope() -> tuple[int, ...]:
    """The iterations of the loops around the current instruction."""
    return current_core("test").scope[CORE:]


def test_the_scope_names_every_iteration_of_every_dynamic_loop_around() -> None:
    """Edges between instructions may come from an enclosing scope, never from another iteration."""

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


def test_a_static_loop_is_no_scope() -> None:
    def body(_: Any) -> None:
        for _ in nl.static_range(2):
            assert len(scope()) == 1

    run(lambda: nl.fori_loop(0, 1, body))
