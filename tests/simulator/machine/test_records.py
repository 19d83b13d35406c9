# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.recording``, and what observers of a core are told, of which none changes a result."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Record, recording
from nkilib.simulator.machine.observer import Issued, Observer, Observers, Watcher, watching
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.tensors.view import View
from nkilib.simulator.terms.errors import NkiValidationError
from tests.simulator.kernels import load

X = np.zeros((4, 6), np.float32)


@nki.jit
def double(x: Any) -> Any:
    tile = load(x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    nisa.activation(tile, nl.copy, tile)
    half = nl.ndarray(x.shape, nl.bfloat16)
    nisa.tensor_copy(half, tile, engine=nisa.engine.gpsimd)
    result = nl.ndarray(x.shape, nl.bfloat16, nl.shared_hbm)
    rows = nl.program_id(), x.shape[0], nl.num_programs()
    nisa.dma_copy(result[rows[0] : rows[1] : rows[2]], half[rows[0] : rows[1] : rows[2]])
    return result


def test_a_launch_on_one_core() -> None:
    with recording() as record:
        double(X)
    assert record.instruction_counts == {"dma_copy": 2, "tensor_tensor": 1, "activation": 1, "tensor_copy": 1}
    assert record.instructions_per_engine == {"dma": 2, "vector": 1, "scalar": 1, "gpsimd": 1}
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (4 * 6 * 4, 4 * 6 * 2)


def test_two_cores_are_counted_together() -> None:
    with recording() as record:
        double[2](X)
    assert record.instruction_counts == {"dma_copy": 4, "tensor_tensor": 2, "activation": 2, "tensor_copy": 2}
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (2 * 4 * 6 * 4, 4 * 6 * 2)


def test_launches_add_up_and_blocks_nest() -> None:
    with recording() as outer:
        double(X)
        with recording() as inner:
            double(X)
        double(X)
    double(X)
    assert inner.instruction_counts["dma_copy"] == 2
    assert outer.instruction_counts["dma_copy"] == 6


def test_without_a_launch_nothing_is_counted() -> None:
    with recording() as record:
        pass
    assert record == Record()


def test_what_ran_before_an_error_is_counted() -> None:
    @nki.jit
    def fails(x: Any) -> None:
        nisa.memset(load(x), 0)
        nisa.memset(load(x), None)

    with recording() as record, pytest.raises(nisa.NkiValidationError):
        fails(X)
    assert record.instruction_counts == {"dma_copy": 2, "memset": 1}


def test_creation_counts_as_the_instruction_that_fills() -> None:
    @nki.jit
    def kernel() -> None:
        nl.ndarray((2, 3), nl.float32)
        nl.zeros((2, 3), nl.float32)
        nl.full((2, 3), 1, nl.bfloat16, nl.hbm)

    with recording() as record:
        kernel()
    assert record.instruction_counts == {"memset": 1, "dma_copy": 1}
    assert record.instructions_per_engine == {"vector": 1, "dma": 1}
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (0, 12)


def test_bytes_are_those_of_the_device_and_of_hbm_alone() -> None:
    @nki.jit
    def kernel(x: Any, index_hbm: Any) -> Any:
        tile = load(x)
        nisa.dma_copy(nl.ndarray(x.shape, nl.float32), tile)
        gathered = nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        nisa.dma_copy(gathered, x.vector_select(0, load(index_hbm)))
        return gathered

    x = np.zeros((5, 3), ml_dtypes.bfloat16)
    for precise in ("1", "0"):
        with pytest.MonkeyPatch.context() as patch, recording() as record:
            patch.setenv("NKI_PRECISE_FP", precise)
            kernel(x, np.array([[4], [0]], np.int32))
        assert record.hbm_read_bytes == 5 * 3 * 2 + 2 * 4 + 2 * 3 * 2
        assert record.hbm_written_bytes == 2 * 3 * 4


ROWS, COLUMNS = 128, 8
MATRIX = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


class Everything(Observer):
    """Writes down all that it is told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[Any] = []

    def allocated(self, storage: Storage) -> None:
        self.told.append(("allocated", storage.shape))

    def issued(self, call: Issued) -> None:
        self.told.append(("issued", call.number, call.definition.name, call.engine.name))

    def moved(self, view: View, is_write: bool, rows: Any, values: Any) -> None:
        named = None if rows is None else rows.tolist()
        self.told.append(("wrote" if is_write else "read", view.shape, named, None if values is None else values.size))

    def arrives(self, call: Issued) -> int:
        self.told.append(("arrives", call.definition.name))
        return self.number

    def meets(self, call: Issued, brought: int) -> None:
        self.told.append(("meets", brought))

    def ended(self) -> None:
        self.told.append("ended")


class Ends(Observer):
    """Wants to know of one event only."""

    def __init__(self) -> None:
        self.has_ended = False

    def ended(self) -> None:
        self.has_ended = True


class Watching(Watcher):
    def __init__(self) -> None:
        self.cores: list[Everything] = []
        self.concluded: list[bool] = []

    def watch(self, number: int, observers: Observers) -> Observer:
        self.cores.append(Everything(number))
        return self.cores[-1]

    def conclude(self, has_ended: bool) -> None:
        self.concluded.append(has_ended)


@nki.jit
def gathered(x: Any, rows: Any) -> Any:
    out = nl.ndarray((3, COLUMNS), nl.float32, nl.shared_hbm)
    index = nl.load(rows)
    tile = nl.ndarray((3, COLUMNS), nl.float32)
    nisa.dma_copy(tile, x.vector_select(0, index))
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out


def test_an_observer_is_called_in_program_order() -> None:
    watcher = Watching()
    rows = np.array([[5], [0], [7]], np.int32)
    with watching(watcher):
        result = gathered(MATRIX, rows)
    np.testing.assert_array_equal(result, 2 * MATRIX[[5, 0, 7]])
    (core,) = watcher.cores
    assert core.told == [
        ("allocated", (3, 1)),
        ("read", (3, 1), None, None),
        ("issued", 1, "dma_copy", "dma"),
        ("allocated", (3, COLUMNS)),
        ("read", (ROWS, COLUMNS), [5, 0, 7], None),
        ("issued", 2, "dma_copy", "dma"),
        ("issued", 3, "tensor_scalar", "vector"),
        ("wrote", (3, COLUMNS), None, 3 * COLUMNS),
        ("issued", 4, "dma_copy", "dma"),
        "ended",
    ]
    assert watcher.concluded == [True]


def test_observers_of_both_cores_hand_each_other_what_they_bring() -> None:
    @nki.jit
    def meeting(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        half = ROWS // 2
        first = nl.program_id(0) * half
        nisa.core_barrier(out, (0, 1))
        nl.store(out[first : first + half, :], nl.load(x[first : first + half, :]))
        return out

    watcher = Watching()
    with watching(watcher):
        np.testing.assert_array_equal(meeting[2](MATRIX), MATRIX)
    for core in watcher.cores:
        assert core.told[:3] == [
            ("arrives", "core_barrier"),
            ("meets", 1 - core.number),
            ("issued", 1, "core_barrier", "gpsimd"),
        ]


def test_a_kernel_that_fails_does_not_end_and_concludes() -> None:
    @nki.jit
    def failing(x: Any) -> Any:
        nisa.memset(nl.ndarray((1, 1), nl.int8), 999)

    watcher = Watching()
    with watching(watcher), pytest.raises(NkiValidationError, match="999"):
        failing(MATRIX)
    assert watcher.concluded == [False]
    assert watcher.cores[0].told == [("allocated", (1, 1))]  # the instruction has not run


def test_outside_the_with_block_nobody_watches() -> None:
    watcher = Watching()
    with watching(watcher):
        pass
    gathered(MATRIX, np.zeros((3, 1), np.int32))
    assert watcher.cores == []


def test_an_observer_is_called_for_the_events_that_it_defines() -> None:
    observers, ends = Observers(), Ends()
    observers.add(ends)
    assert observers.allocated == observers.issued == observers.moved == []
    assert observers.find(Ends) is ends and observers.find(Everything) is None
    observers.end()
    assert ends.has_ended
