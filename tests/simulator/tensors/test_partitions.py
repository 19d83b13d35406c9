# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Partitions in which a view lies: where the kernel placed its tensor, and which accumulator registers follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator.tensors.partitions import (
    allowed_starts,
    first_lane,
    first_partition,
    possible_starts,
    start_partition,
)

from ..kernels import execute, store, tile

COMMAND = nisa.reduce_cmd


@pytest.mark.parametrize(
    ("partitions", "starts"),
    [(1, (0, 32, 64, 96)), (32, (0, 32, 64, 96)), (33, (0, 64)), (64, (0, 64)), (65, (0,)), (128, (0,))],
)
def test_where_an_access_may_start(partitions: int, starts: tuple[int, ...]) -> None:
    assert allowed_starts(partitions) == starts


def test_a_view_of_a_tensor_that_the_compiler_places() -> None:
    def kernel() -> None:
        tensor = nl.ndarray((64, 4), nl.float32)
        for view, start in ((tensor, 0), (tensor[32:64, 1:3], 32), (tensor.view(nl.int8)[32:48], 32)):
            assert start_partition(view) == first_lane(view) == start
            assert first_partition(view) is None
            assert possible_starts(view) == (start, 64 + start)

    execute(kernel)


def test_a_view_of_a_tensor_that_the_kernel_places() -> None:
    def kernel() -> None:
        tensor = nl.ndarray((64, 4), nl.float32, address=(64, 0))
        view = tensor[32:64, 1:3]
        assert start_partition(view) == 32
        assert first_lane(view) == first_partition(view) == 96
        assert possible_starts(view) == (96,)

    execute(kernel)


@pytest.mark.parametrize("reduces", ["scalar", "vector"])
def test_placed_tiles_use_the_registers_of_their_partitions(reduces: str) -> None:
    """Sums of a tile of ones and of one of tens, in other partitions: the second leaves the first one's alone."""

    def reduce(data: Any, command: Any, result: Any = None) -> None:
        out = nl.ndarray(data.shape, nl.float32)
        if reduces == "scalar":
            nisa.activation(out, nl.copy, data, reduce_op=nl.add, reduce_res=result, reduce_cmd=command)
        else:
            nisa.tensor_scalar_reduce(out, data, nl.add, 0.0, nl.add, result, reduce_cmd=command)

    def kernel() -> Any:
        ones = nl.ndarray((32, 2), nl.float32, address=(0, 0))
        tens = nl.ndarray((32, 2), nl.float32, address=(32, 0))
        nisa.memset(ones, 1)
        nisa.memset(tens, 10)
        reduce(ones, COMMAND.reset_reduce)
        reduce(tens, COMMAND.reset_reduce)
        results = [nl.ndarray((32, 1), nl.float32) for _ in range(2)]
        reduce(ones, COMMAND.reduce, results[0])
        reduce(tens, COMMAND.reduce, results[1])
        return [store(result) for result in results]

    first, second = execute(kernel)
    assert (first == 2 + 2).all()
    assert (second == 20 + 20).all()


def test_tensor_indirection_scatters_where_its_base_is() -> None:
    """Element i of partitions 32 to 47 goes to column 15 - i; the others keep their sevens."""

    def kernel() -> Any:
        target, offsets = tile(64, 16, value=7), nl.ndarray((64, 1), nl.uint16)
        nisa.iota(offsets[32:48], [[0, 1]], offset=15, channel_multiplier=-1)
        view = target[32:48].indirect(offsets[32:48], num_elem=16)
        source = nl.ndarray((16, 16), nl.float32)
        nisa.iota(source, [[1, 16]])
        nisa.tensor_copy(view, source)
        return store(target)

    result = execute(kernel, "trn3")
    assert (result[:32] == 7).all() and (result[48:] == 7).all()
    assert (result[32:48] == np.arange(15, -1, -1)).all()


def test_tensor_indirection_uses_the_registers_of_the_partitions_that_it_reads() -> None:
    """Cumulative sums of four ones, continued from 4 in partitions 0 to 31 and from 132 in the others."""

    def kernel() -> Any:
        data, offsets = tile(64, 4, value=1), tile(64, 1, dtype=nl.uint16)
        for low in (0, 32):
            nisa.tensor_scalar_cumulative(tile(32, 4), data[low : low + 32], nl.add, nl.add, float(low))
        results = [tile(32, 4), tile(32, 4)]
        for low, result in zip((0, 32), results, strict=True):
            view = data[low : low + 32].indirect(offsets[low : low + 32], num_elem=4)
            nisa.tensor_scalar_cumulative(result, view, nl.add, nl.add, 0.0, reduce_cmd=COMMAND.reduce)
        return [store(result) for result in results]

    first, second = execute(kernel, "trn3")
    assert (first == [5, 6, 7, 8]).all()  # 4 ones, and one more each
    assert (second == [133, 134, 135, 136]).all()  # 4 * (1 + 32) = 132
