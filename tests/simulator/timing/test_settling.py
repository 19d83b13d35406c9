# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A new tile in PSUM waits for those in whose place it lies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, profile, spec
from nkilib.simulator.timing.instruction_log import Event

FP32 = nl.float32


def products(count: int, columns: int = 512, reuses: bool = True) -> list[Event]:
    """The products of a kernel that makes a new tile for each and reads it on Scalar, which takes longer."""

    def kernel(_: Any) -> None:
        moving = nl.ndarray((128, columns), nl.bfloat16)
        stationary = nl.ndarray((128, 128), nl.bfloat16)
        for _ in range(count):
            tile = nl.ndarray((128, columns), FP32, nl.psum)
            nisa.nc_matmul(tile, stationary, moving)
            nisa.activation(nl.ndarray((128, columns), FP32), nl.exp, tile)

    parameters = replace(AS_ISSUED, reuses_psum_banks=reuses)
    return list(profile(nki.jit(kernel), spec((1,), nl.int32), parameters=parameters).instructions)


def test_the_ninth_tile_of_a_bank_waits_for_the_reader_of_the_first() -> None:
    result = products(12)
    matmuls, readers = result[::2], result[1::2]
    for number in range(8):
        assert matmuls[number].start_us == pytest.approx(number * 512 / 2.4 / 1000)
    for number in range(8, 12):
        assert matmuls[number].start_us == pytest.approx(readers[number - 8].end_us + 0.06)


def test_two_tiles_of_half_a_bank_lie_beside_each_other() -> None:
    matmuls = products(17, columns=256)[::2]
    gaps = [later.start_us - earlier.end_us for earlier, later in itertools.pairwise(matmuls)]
    assert gaps[:-1] == pytest.approx([0.0] * 15) and gaps[-1] > 0.1


def test_without_banks_there_is_always_room() -> None:
    matmuls = products(40, reuses=False)[::2]
    assert matmuls[-1].end_us == pytest.approx(40 * 512 / 2.4 / 1000)
