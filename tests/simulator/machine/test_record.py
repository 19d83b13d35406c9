# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.recording``: what a launch did, in instructions and bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Record, recording
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
