"""What a dynamic loop keeps to itself: edges between instructions, and tensors made in its body."""

from __future__ import annotations

from typing import Any

from nkilib.nki import nisa, nl

from ..kernels import Rule, check_rule, rules, tile


def out_of_a_loop() -> None:
    seen: list[Any] = []
    nl.fori_loop(0, 1, lambda i: seen.append(nisa.memset(tile(1, 1), 1)))
    nisa.memset(tile(1, 1), 2).depends_on(seen[0])


def into_a_loop() -> None:
    """Allowed: the producer is in an enclosing scope."""
    before = nisa.memset(tile(1, 1), 1)
    nl.fori_loop(0, 2, lambda i: nisa.memset(tile(1, 1), 2).depends_on(before) and None)


def between_iterations() -> None:
    seen: list[Any] = []
    for _ in nl.dynamic_range(2):
        new = nisa.memset(tile(1, 1), 1)
        if seen:
            new.depends_on(*seen)
        seen.append(new)


def within_an_iteration() -> None:
    for _ in nl.dynamic_range(2):
        first = nisa.memset(tile(1, 1), 1)
        nisa.memset(tile(1, 1), 1).depends_on(first)


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
    for _ in nl.dynamic_range(2):
        made.append(tile(1, 1))
        nisa.tensor_copy(tile(1, 1), made[0])


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


@rules(
    Rule("edge out of a loop", out_of_a_loop, CANNOT_WAIT, into_a_loop),
    Rule("edge between iterations", between_iterations, CANNOT_WAIT, within_an_iteration),
    Rule("tensor after the loop", a_tensor_used_after_the_loop, NOT_HERE, a_tensor_made_before_the_loop),
    Rule("tensor in the next iteration", a_tensor_used_in_the_next_iteration, NOT_HERE, a_tensor_of_a_static_loop),
)
def test_a_dynamic_loop_keeps_its_instructions_and_tensors(rule: Rule) -> None:
    check_rule(rule)
