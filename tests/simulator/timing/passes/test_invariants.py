# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions that a line computes again are dropped only if their inputs and their result are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nkilib.nki import nisa, nl

from .running import dropped, events

SWITCH = "hoists_invariants"
FP32 = nl.float32


def new() -> Any:
    return nl.ndarray((128, 512), FP32)


def product_of_what_stays(x: Any) -> None:
    left, right = nl.load(x[0:128, :]), nl.load(x[128:256, :])
    total = nl.load(x[256:384, :])
    for _ in range(4):
        product = new()
        nisa.tensor_tensor(product, left, right, nl.multiply)
        nisa.tensor_tensor(total, total, product, nl.add)


def product_of_what_is_loaded(x: Any) -> None:
    total = nl.load(x[256:384, :])
    for _ in range(4):
        left, right = nl.load(x[0:128, :]), nl.load(x[128:256, :])
        product = new()
        nisa.tensor_tensor(product, left, right, nl.multiply)
        nisa.tensor_tensor(total, total, product, nl.add)


def changed_between(x: Any) -> None:
    left, right = nl.load(x[0:128, :]), nl.load(x[128:256, :])
    for _ in range(4):
        product = new()
        nisa.tensor_tensor(product, left, right, nl.multiply)
        nisa.tensor_tensor(left, left, product, nl.add)


def other_constants(x: Any) -> None:
    tile = nl.load(x[0:128, :])
    for number in range(4):
        nisa.tensor_tensor(tile, tile, scaled(tile, number), nl.add)


def scaled(tile: Any, number: int) -> Any:
    result = new()
    nisa.memset(result, float(number))
    return result


def accumulators(x: Any) -> None:
    """Each is changed after it is filled: none can be another one."""
    totals = []
    for _ in range(4):
        total = new()
        nisa.memset(total, 0.0)
        totals.append(total)
    for total in totals:
        nisa.tensor_tensor(total, total, nl.load(x[0:128, :]), nl.add)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (product_of_what_stays, ["tensor_tensor"] * 3),
        (product_of_what_is_loaded, []),
        (changed_between, []),
        (other_constants, []),
        (accumulators, []),
    ],
)
def test_what_is_dropped(body: Callable[[Any], None], names: list[str]) -> None:
    assert dropped(body, SWITCH) == names


def test_constants_are_filled_in_once_with_all_that_follows_from_them() -> None:
    def body(x: Any) -> None:
        total = nl.load(x[0:128, :])
        for _ in range(4):
            ones, twos = new(), new()
            nisa.memset(ones, 1.0)
            nisa.tensor_scalar(twos, ones, nl.multiply, 2.0)
            nisa.tensor_tensor(total, total, twos, nl.add)

    assert dropped(body, SWITCH) == ["memset", "tensor_scalar"] * 3


def test_a_reader_waits_for_the_instruction_that_runs() -> None:
    """The second of two equal fills is dropped, and its reader starts when the first one is done."""

    def body(_: Any) -> None:
        for _ in range(2):
            ones = new()
            nisa.memset(ones, 1.0)
            nisa.activation(new(), nl.exp, ones)

    memset, first, again, second = events(body, SWITCH)
    assert again.dropped_by == SWITCH and again.start_us == again.end_us
    assert first.start_us > memset.end_us and second.start_us >= first.end_us
