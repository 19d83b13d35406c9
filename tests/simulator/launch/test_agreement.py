# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Both cores of a launch make and return the same tensors, else an error shows both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, per_rank, ranks
from tests.hangs import HANG_SECONDS

from ..frame import refused, run
from ..kernels import tile


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Results(nl.NKIObject):
    loss: Any
    other: Any = None


def two_tensors(x: Any) -> tuple[Any, Any]:
    """Two tensors of which each core writes its row."""
    made = tuple(nl.ndarray((2, 4), nl.float32, nl.shared_hbm, name=name) for name in "ab")
    row = nl.program_id(0)
    for tensor in made:
        part = tile(1, 4)
        nisa.dma_copy(part, x[row : row + 1])
        nisa.dma_copy(tensor[row : row + 1], part)
    return made[0], made[1]


X = np.arange(8, dtype=np.float32).reshape(2, 4)
Return = Callable[[Any, Any, int], Any]
A, B = (f"tensor '{name}' [2, 4] float32 in shared_hbm" for name in "ab")
PART = (
    "tensor 'a' [1, 4] float32 in shared_hbm (number 0 of those that the kernel makes, from element {} on, with "
    "strides "
)
# Of each: what a core returns of a, b and its number; where this differs; what core 0 and core 1 return there.
DIFFERENT: dict[str, tuple[Return, str, str, str]] = {
    "structure": (lambda a, b, core: (b, a) if core else a, "", A, f"({B}, {A})"),
    "tensor": (lambda a, b, core: (a, a if core else b), "[1]", B, A),
    "nothing on core 1": (lambda a, b, core: None if core else a, "", A, "None"),
    "nothing on core 0": (lambda a, b, core: a if core else None, "", "None", A),
    "length": (lambda a, b, core: [a, b][: 2 - core], "", f"[{A}, {B}]", f"[{A}]"),
    "list and tuple": (lambda a, b, core: [a] if core else (a,), "", f"({A},)", f"[{A}]"),
    "named tuple": (lambda a, b, core: Pair(a, b) if core else Pair(b, a), "[0]", B, A),
    "keys": (lambda a, b, core: {"ab"[core]: a}, "", f"{{'a': {A}}}", f"{{'b': {A}}}"),
    "an item": (lambda a, b, core: {"x": [a, (a, b)[core]]}, "['x'][1]", A, B),
    "a field": (lambda a, b, core: Results(a, b if core else None), ".other", "None", B),
    "part": (lambda a, b, core: a[core : core + 1], "", f"{PART.format(0)}[4, 1])", f"{PART.format(4)}[4, 1])"),
    "type": (lambda a, b, core: a.view(nl.int32) if core else a, "", A, A.replace("float32", "int32")),
    "a tile": (lambda a, b, core: tile(2, 4) if core else a, "", A, "tensor [2, 4] float32 in sbuf"),
    "a number": (lambda a, b, core: (a, 1 if core else None), "[1]", "None", "1"),
}


@pytest.mark.parametrize("way", DIFFERENT)
def test_cores_that_return_different_things_are_refused(way: str) -> None:
    choose, path, first, second = DIFFERENT[way]

    def kernel(x: Any, as_core_0: bool) -> Any:
        return choose(*two_tensors(x), 0 if as_core_0 else nl.program_id(0))

    run(kernel, X, True, cores=2)
    message = refused(NkiValidationError, lambda: run(kernel, X, False, cores=2))
    assert message == (
        f"kernel: both cores must return the same tensors in the same structure; result{path} is {first} on core 0 and "
        f"{second} on core 1"
    )


def test_long_results_are_cut_in_the_message() -> None:
    def kernel(x: Any) -> Any:
        a, _ = two_tensors(x)
        return [a] * (50 + nl.program_id(0))

    message = refused(NkiValidationError, lambda: run(kernel, X, cores=2))
    assert message.count(A) == 2 * (400 // (len(A) + 2)) and message.count("...") == 2


@pytest.mark.parametrize("core", [0, 1])
def test_a_shared_tensor_that_one_core_makes_alone_is_refused(core: int) -> None:
    def kernel(x: Any, on: tuple[int, ...]) -> Any:
        a, _ = two_tensors(x)
        if nl.program_id(0) in on:
            nl.ndarray((3, 5), nl.bfloat16, nl.shared_hbm, name="extra")
        return a

    for on in ((), (0, 1)):
        np.testing.assert_array_equal(run(kernel, X, on, cores=2), X)
    message = refused(NkiValidationError, lambda: run(kernel, X, (core,), cores=2))
    counts = [3 - core, 2 + core]
    assert message == (
        "kernel: both cores must make the same tensors in nl.shared_hbm, in the same order; core 0 makes "
        f"{counts[0]} and core 1 makes {counts[1]}: number 2, tensor 'extra' [3, 5] bfloat16 in shared_hbm, is made on "
        f"core {core} alone"
    )


def test_shared_tensors_at_different_addresses_are_refused() -> None:
    def kernel(offset: int) -> None:
        nl.ndarray((2, 4), nl.float32, nl.shared_hbm, address=(offset * nl.program_id(0),))

    run(kernel, 0, cores=2)
    message = refused(NkiValidationError, lambda: run(kernel, 64, cores=2))
    assert "number 0 is [2, 4] float32 at address (" in message
    assert "at address (0,)" in message and "at address (64,)" in message


def test_ranks_may_return_different_things_and_the_cores_of_a_rank_may_not() -> None:
    def kernel(x: Any, chooses: bool, rank: int) -> Any:
        a, b = two_tensors(x)
        return (a, b)[nl.program_id(0) if chooses else rank]

    group, shares = ranks(2, timeout=HANG_SECONDS)(nki.jit(kernel)[2]), per_rank([X, X + 1])
    first, second = group(shares, False, per_rank([0, 1]))
    np.testing.assert_array_equal(second, first + 1)
    message = refused(NkiValidationError, lambda: group(shares, per_rank([False, True]), 0))
    assert message.startswith("rank 1: kernel: both cores must return the same tensors")


def test_launches_without_values_compare_the_results_too() -> None:
    def kernel(x: Any) -> Any:
        a, b = two_tensors(x)
        return a if nl.program_id(0) else b

    skipping = nkilib.simulator.simulate(nki.jit(kernel)[2], skip_arithmetic=True)
    for launch, x in ((nki.jit(kernel)[2], nkilib.simulator.spec((2, 4), nl.float32)), (skipping, X)):
        assert "result is tensor 'b'" in refused(NkiValidationError, lambda launch=launch, x=x: launch(x))
