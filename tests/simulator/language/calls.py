# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Calls of a function of `nki.language` on tiles: numpy arrays go in, the result and what it is come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import nkilib.simulator
from nkilib.nki import nki

from ..kernels import Array, Tile, load, store
from ..rules import Rule, check_rule

EPSILON = 2.0**-24  # half a unit in the last place of a float32 in [1, 2)


class Outcome(NamedTuple):
    """The result of a function, and the instructions that it took.

    Attributes:
        values: the elements.
        dtype, buffer: type and memory of the tile.
        instructions: number of instructions by name, those that load and store excluded.
        engines: number of instructions by engine, likewise.
    """

    values: Array
    dtype: Any
    buffer: Any
    instructions: dict[str, int]
    engines: dict[str, int]


def outcome(function: Callable[..., Any], *inputs: Array | Tile, target: str = "trn2") -> Outcome:
    """Return the outcome of `function(*tiles)` when it is called in a kernel."""
    arguments = [item if isinstance(item, Tile) else Tile(item) for item in inputs]
    seen: dict[str, Any] = {}

    def kernel(arrays: list[Any], is_empty: bool) -> Any:
        tiles = [
            load(array, None, tensor.dtype, tensor.buffer) for array, tensor in zip(arrays, arguments, strict=True)
        ]
        result = tiles[0] if is_empty else function(*tiles)
        seen["tile"] = result
        return store(result)

    counts = []
    with nkilib.simulator.using(target=target):
        for is_empty in (True, False):
            with nkilib.simulator.recording() as record:
                values = nki.jit(kernel)([item.array for item in arguments], is_empty)
            if is_empty:
                seen["first"] = seen["tile"]
            counts.append(record)
    # A result that is left in PSUM takes one more copy to be stored, an operand there is not the function's affair.
    moves = int(seen["tile"].buffer.value == "psum") - int(seen["first"].buffer.value == "psum")
    counts[1].instruction_counts["tensor_copy"] -= moves
    counts[1].instructions_per_engine["vector"] -= moves
    return Outcome(
        values,
        seen["tile"].dtype,
        seen["tile"].buffer,
        dict(+(counts[1].instruction_counts - counts[0].instruction_counts)),
        dict(+(counts[1].instructions_per_engine - counts[0].instructions_per_engine)),
    )


def call(function: Callable[..., Any], *inputs: Array | Tile, target: str = "trn2") -> Array:
    """The elements of what `function(*tiles)` returns."""
    return outcome(function, *inputs, target=target).values


def wide(values: Any) -> npt.NDArray[np.float64]:
    """Values of any type in float64, in which expected values are computed."""
    return np.asarray(values).astype(np.float64)


def check_call(rule: Rule) -> None:
    """`check_rule` for kernels that return the tile which a function of the language gives them."""
    check_rule(rule._replace(corrected=lambda: store(rule.corrected())))
