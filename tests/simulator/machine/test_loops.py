# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""State that a dynamic loop keeps to itself: edges between instructions, and tensors made in its body."""

from __future__ import annotations

from typing import Any

import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError

from ..frame import refused, run, without_line
from ..kernels import tile
from ..rules import Rule, check_rule, rules

RUNTIME = nisa.dependency.runtime


def out_of_a_loop() -> None:
    seen: list[Any] = []
    nl.fori_loop(0, 1, lambda i: seen.append(nisa.memset(tile(1, 1), 1)))
    nisa.memset(tile(1, 1), 2).depends_on(seen[0], kind=RUNTIME)


def into_a_loop() -> None:
    """Allowed: the producer is in an enclosing scope."""
    before = nisa.memset(tile(1, 1), 1)
    nl.fori_loop(0, 2, lambda i: nisa.memset(tile(1, 1), 2).depends_on(before, kind=RUNTIME) and None)


def between_iterations() -> None:
    seen: list[Any] = []

    def body(_: Any) -> None:
        new = nisa.memset(tile(1, 1), 1)
        if seen:
            new.depends_on(*seen, kind=RUNTIME)
        seen.append(new)

    nl.fori_loop(0, 2, body)


def within_an_iteration() -> None:
    def body(_: Any) -> None:
        first = nisa.memset(tile(1, 1), 1)
        nisa.memset(tile(1, 1), 1).depends_on(first, kind=RUNTIME)

    nl.fori_loop(0, 2, body)


CANNOT_WAIT = (
    "NkiInstruction.depends_on: <nisa.memset> cannot wait for <nisa.memset>, which is in a dynamic loop, or an "
    "iteration of one, that <nisa.memset> is not in; both must be in the same iteration, or the producer in an "
    "enclosing scope"
)


def a_tensor_used_after_the_loop() -> None:
    made: list[Any] = []
    nl.fori_loop(0, 1, lambda i: made.append(tile(1, 1)))
    nisa.tensor_copy(tile(1, 1), made[0])


def a_tensor_used_in_the_next_iteration() -> None:
    made: list[Any] = []

    def body(_: Any) -> None:
        made.append(tile(1, 1))
        nisa.tensor_copy(tile(1, 1), made[0])

    nl.fori_loop(0, 2, body)


def a_tensor_made_before_the_loop() -> None:
    before = tile(1, 1)
    nl.fori_loop(0, 2, lambda i: nisa.tensor_copy(tile(1, 1), before) and None)
    nisa.tensor_copy(tile(1, 1), before)


def a_tensor_of_a_static_loop() -> None:
    made: list[Any] = []
    for _ in nl.affine_range(2):
        made.append(tile(1, 1))
    nisa.tensor_copy(tile(1, 1), made[0])


NOT_HERE = (
    "nisa.tensor_copy: operand 'src': tensor [1, 1] float32 in sbuf was made in the body of a dynamic loop, or in "
    "another iteration of it, and cannot be used here; make it before the loop"
)


def a_scalar_used_after_the_loop() -> None:
    made: list[Any] = []
    nl.fori_loop(0, 1, lambda i: made.append(i + 1))
    nisa.scalar_store(tile(1, 1, dtype=nl.int32), made[0])


def a_sum_of_scalars_across_iterations() -> None:
    """Python would add up what the device, which runs one copy of the body, does not."""
    total = [nisa.scalar_load(tile(1, 1, dtype=nl.int32))]

    def body(i: Any) -> None:
        total[0] += i

    nl.fori_loop(0, 2, body)


def a_sum_in_memory() -> None:
    total = tile(1, 1, dtype=nl.int32)
    nl.fori_loop(0, 2, lambda i: nisa.scalar_store(total, nisa.scalar_load(total) + i))


def no_scalar_here(what: str, scalar: str) -> str:
    return (
        f"{what}: {scalar} was made in the body of a dynamic loop, or in another iteration of it, and cannot be used "
        f"here; nisa.scalar_store it to a tensor made before the loop, and nisa.scalar_load it here"
    )


SCALAR_AFTER = no_scalar_here("nisa.scalar_store: operand 'value'", "NkiScalar(1, int32)")
SCALAR_ACROSS = no_scalar_here("operator +", "NkiScalar(0, int32)")


@rules(
    Rule("edge out of a loop", out_of_a_loop, CANNOT_WAIT, into_a_loop),
    Rule("edge between iterations", between_iterations, CANNOT_WAIT, within_an_iteration),
    Rule("tensor after the loop", a_tensor_used_after_the_loop, NOT_HERE, a_tensor_made_before_the_loop),
    Rule("tensor in the next iteration", a_tensor_used_in_the_next_iteration, NOT_HERE, a_tensor_of_a_static_loop),
    Rule("scalar after the loop", a_scalar_used_after_the_loop, SCALAR_AFTER, a_sum_in_memory),
    Rule("scalar in the next iteration", a_sum_of_scalars_across_iterations, SCALAR_ACROSS, a_sum_in_memory),
)
def test_a_dynamic_loop_keeps_its_instructions_tensors_and_scalars(rule: Rule) -> None:
    check_rule(rule)


def loop_of(turns: Any) -> None:
    """A loop of `turns[core]` iterations, in each of which another one runs twice."""
    nl.fori_loop(0, turns[nl.program_id()], lambda i: nl.fori_loop(0, 2, lambda j: None))


def while_of(turns: Any) -> None:
    def body(r: Any) -> Any:
        nisa.register_move(r, r.value("r") - 1)
        return r

    nl.while_loop(nisa.register_alloc(turns[nl.program_id()]), body)


@pytest.mark.parametrize(("loop", "name"), [(loop_of, "nl.fori_loop"), (while_of, "nl.while_loop")])
def test_two_cores_run_a_loop_equally_often(loop: Any, name: str) -> None:
    expected = (
        f"{name}: on two cores a dynamic loop must run equally often on both, got 3 iterations on core 0 and 2 on core "
        f"1; pad the shorter one"
    )
    assert without_line(refused(NkiValidationError, lambda: run(lambda: loop([3, 2]), cores=2))) == expected
    run(lambda: loop([3, 3]), cores=2)


def test_a_loop_that_one_core_alone_runs_is_not_compared() -> None:
    ran: list[int] = []

    def kernel() -> None:
        if nl.program_id() == 0:
            nl.fori_loop(0, 3, lambda _: ran.append(nl.program_id()))

    run(kernel, cores=2)
    assert ran == [0, 0, 0]


def test_the_front_end_of_0_6_does_not_compare_loops() -> None:
    ran: list[int] = []
    turns = [3, 2]
    run(
        lambda: nl.fori_loop(0, turns[nl.program_id()], lambda _: ran.append(nl.program_id())),
        cores=2,
        frontend="custom",
    )
    assert sorted(ran) == [0, 0, 0, 1, 1]


def chosen_by(first: Any, then: Any) -> Any:
    """A kernel whose loop runs one body in its first iteration and another one in the second."""

    def kernel() -> None:
        bodies = [first, then]
        nl.fori_loop(0, 2, lambda i: bodies.pop(0)(i))

    return kernel


def fill(_: Any) -> None:
    nisa.memset(tile(1, 1), 1)


def copy(_: Any) -> None:
    nisa.tensor_copy(tile(1, 1), tile(1, 1))


def nothing(_: Any) -> None:
    """Runs no instruction."""


def inner(_: Any) -> None:
    nl.fori_loop(0, 3, fill)


@pytest.mark.parametrize(
    ("first", "then", "ran"),
    [
        (copy, fill, "nothing where the first one ran nisa.tensor_copy"),
        (nothing, fill, "nisa.memset where the first one ran nothing"),
        (inner, fill, "nisa.memset where the first one ran nl.fori_loop"),
    ],
)
def test_python_does_not_choose_by_iteration(first: Any, then: Any, ran: str) -> None:
    """The device has one copy of the body."""
    assert without_line(refused(NkiValidationError, lambda: run(chosen_by(first, then)))) == (
        f"nl.fori_loop: iteration 2 ran {ran}: the device runs one copy of the body, which is traced once, and Python "
        f"cannot choose by iteration"
    )
    run(chosen_by(first, first))
    run(chosen_by(first, then), frontend="custom")


def test_an_inner_loop_may_run_as_often_as_the_data_say() -> None:
    ran: list[str] = []

    def inner(name: str, turns: int) -> Any:
        return lambda _: nl.fori_loop(0, turns, lambda _: ran.append(name))

    run(chosen_by(inner("first", 1), inner("then", 4)))
    assert ran == ["first"] + ["then"] * 4


def test_functions_on_tiles_run_the_same_instructions_in_each_iteration() -> None:
    shapes: list[Any] = []

    def body(_: Any) -> None:
        data = nl.rand((32, 32), nl.float32)
        result = nl.softmax(nl.transpose(nl.matmul(data, data)), axis=1)
        dropped = nl.add(nl.dropout(data, 0.5), nl.sum(data, axis=1, keepdims=True))
        shapes.append([tensor.shape for tensor in (result, dropped, nl.shared_identity_matrix(32))])

    run(lambda: nl.fori_loop(0, 3, body))
    assert shapes == [[(32, 32)] * 3] * 3
