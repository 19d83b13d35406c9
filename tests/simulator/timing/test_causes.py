# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The last wait of each instruction, and the instruction that it has waited for."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ModelParameters, profile, spec

ELEMENTS = 2048


def waits(body: Any, cores: int = 1, **assumptions: Any) -> list[list[tuple[str, str, int]]]:
    """Return by core: each instruction's name, what it has waited for, and the number of the one that held it up."""

    def kernel(x: Any) -> None:
        body(x)

    inputs = spec((128, ELEMENTS), nl.float32)
    results = profile(nki.jit(kernel)[cores], inputs, parameters=ModelParameters(**assumptions)).instructions
    return [
        [(event.name, event.waited, event.waited_for) for event in results if event.core == core]
        for core in range(cores)
    ]


def tile(columns: int = ELEMENTS) -> Any:
    return nl.ndarray((128, columns), nl.float32)


def test_data_and_the_engine() -> None:
    def body(x: Any) -> None:
        a, b, c = tile(), tile(), tile()
        nisa.dma_copy(a, x)
        nisa.tensor_copy(b, a, engine=nisa.vector_engine)
        nisa.tensor_copy(c, a, engine=nisa.vector_engine)
        nisa.activation(c, nl.exp, b)

    assert waits(body) == [
        [
            ("dma_copy", "nothing", 0),
            ("tensor_copy", "data", 1),
            ("tensor_copy", "engine", 2),
            ("activation", "reuse", 3),  # of the tile that the copy before it writes
        ]
    ]


def test_a_tile_that_is_used_again() -> None:
    """The second load may not overwrite what Vector still reads; the copy that follows waits for its data."""

    def body(x: Any) -> None:
        a, b = tile(), tile()
        for _ in range(2):
            nisa.dma_copy(a, x)
            nisa.tensor_copy(b, a, engine=nisa.vector_engine)

    assert waits(body)[0][2:] == [("dma_copy", "reuse", 2), ("tensor_copy", "data", 3)]


def test_the_trigger_of_a_queue() -> None:
    def body(x: Any) -> None:
        for _ in range(3):
            nisa.dma_copy(tile(1), x[:, 0:1])

    assert [wait[1:] for wait in waits(body)[0]] == [("nothing", 0), ("trigger", 1), ("trigger", 2)]


def test_the_last_of_several_tiles_that_are_read() -> None:
    def body(x: Any) -> None:
        a, b, c = tile(), tile(1), tile()
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, x[:, 0:1])
        nisa.tensor_scalar(c, a, nl.add, b)

    assert waits(body)[0][2] == ("tensor_scalar", "data", 2)  # its rows pass behind those of the large tile


def test_the_other_core() -> None:
    def body(x: Any) -> None:
        a = tile()
        shared = nl.ndarray((128, ELEMENTS), nl.float32, nl.shared_hbm)
        if nl.program_id(0) == 1:
            nisa.tensor_copy(tile(), a, engine=nisa.vector_engine)
            nisa.dma_copy(shared, a)
        nisa.core_barrier(shared, cores=[0, 1], engine=nisa.vector_engine)
        nisa.tensor_copy(tile(), a, engine=nisa.vector_engine)

    first, second = waits(body, cores=2)
    assert first == [("core_barrier", "meeting", 0), ("tensor_copy", "engine", 1)]
    assert second[2:] == [("core_barrier", "reuse", 2), ("tensor_copy", "engine", 3)]


def test_registers_are_moved_one_after_the_other() -> None:
    def body(_: Any) -> None:
        for value in range(2):
            nisa.register_move(nisa.register_alloc(), value)

    assert [wait[1:] for wait in waits(body, register_us=0.5)[0]] == [("nothing", 0), ("engine", 1)]


def test_a_transfer_says_what_it_moves() -> None:
    def kernel(x: Any) -> None:
        nisa.dma_copy(tile(16), x[:, 0:16])
        whole = tile()
        nisa.dma_copy(whole, x)
        nisa.dma_copy(x, whole)

    results = profile(nki.jit(kernel), np.zeros((128, ELEMENTS), np.float32)).instructions
    moved = [(event.queue, event.nbytes, event.row_bytes) for event in results]
    assert moved == [
        ("load", 128 * 16 * 4, 16 * 4),
        ("load", 128 * ELEMENTS * 4, ELEMENTS * 4),
        ("store", 128 * ELEMENTS * 4, ELEMENTS * 4),
    ]
