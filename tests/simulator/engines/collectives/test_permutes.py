# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``collective_permute`` and the permutes round a ring: results on 2, 4 and 8 ranks beside numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import per_rank, ranks
from tests.simulator.ranked import MEMORIES, MEMORY_IDS, all_of, around, integers, ncc, on_ranks

PAIRS = {
    "a ring": (4, [(0, 1), (1, 2), (2, 3), (3, 0)]),
    "swaps": (8, [(0, 1), (1, 0), (2, 5), (5, 2), (3, 4), (4, 3), (6, 7), (7, 6)]),
    "to oneself": (2, [(0, 0), (1, 1)]),
    "a chain, without ranks 0 and 3": (4, [(1, 2)]),
}


@pytest.mark.parametrize(("count", "pairs"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize(("memory", "cores"), MEMORIES[:3], ids=MEMORY_IDS[:3])
def test_collective_permute(count: int, pairs: list[tuple[int, int]], memory: Any, cores: int) -> None:
    """A rank that is no target keeps what it had."""

    def exchange(src: Any, dst: Any) -> None:
        nisa.dma_copy(dst, nl.full((3, 4), 100, nl.float32))
        ncc.collective_permute([src], [dst], pairs)

    x = integers(count, count, 3, 4)
    expected = [np.full((3, 4), 100.0)] * count
    for source, target in pairs:
        expected[target] = x[source].astype(np.float64)
    results = on_ranks(around(exchange, (3, 4), memory), x, cores)
    assert all(np.array_equal(result, expected[rank]) for rank, result in enumerate(results))


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), MEMORIES, ids=MEMORY_IDS)
def test_collective_permute_implicit(count: int, memory: Any, cores: int) -> None:
    """Each rank receives from its predecessor in the list."""
    x = integers(count, count, 3, 4)
    order = list(reversed(range(count)))
    group = ncc.ReplicaGroup([order])
    kernel = around(lambda src, dst: ncc.collective_permute_implicit([[src]], [[dst]], group), (3, 4), memory)
    for rank, result in enumerate(on_ranks(kernel, x, cores)):
        assert np.array_equal(result, x[order[order.index(rank) - 1]])


def test_channels_carry_different_tensors() -> None:
    def kernel(x: Any) -> Any:
        src, dst = nl.ndarray((2, 3, 4), x.dtype, nl.private_hbm), nl.ndarray((2, 3, 4), x.dtype, nl.private_hbm)
        nisa.dma_copy(src, x)
        ncc.collective_permute_implicit(
            [[src[0]], [src[1]]], [[dst[1]], [dst[0]]], all_of(4), channel_ids=[0, 1], name="both"
        )
        return dst

    x = integers(1, 4, 2, 3, 4)
    for rank, result in enumerate(on_ranks(nki.jit(kernel), x)):
        assert np.array_equal(result, x[rank - 1][::-1])


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), MEMORIES, ids=MEMORY_IDS)
def test_collective_permute_implicit_reduce(count: int, memory: Any, cores: int) -> None:
    def kernel(x: Any, y: Any) -> Any:
        left, right, dst = (nl.ndarray((3, 4), x.dtype, memory) for _ in range(3))
        nisa.dma_copy(left, x)
        nisa.dma_copy(right, y)
        ncc.collective_permute_implicit_reduce([[left]], [[right]], [[dst]], all_of(count), nl.maximum)
        result = nl.ndarray((3, 4), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, dst)
        return result

    x, y = integers(count, count, 3, 4), integers(count + 1, count, 3, 4)
    results = ranks(count)(nki.jit(kernel)[cores])(per_rank(x), per_rank(y))
    for rank, result in enumerate(results):
        assert np.array_equal(result, np.maximum(x[rank - 1], y[rank - 1]))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_whose_data_a_rank_has(count: int) -> None:
    """An all-gather made of permutes: the register says where each tensor that comes by belongs."""
    group = ncc.ReplicaGroup([[*range(1, count), 0]])

    def kernel(x: Any) -> Any:
        kept = [nl.ndarray((3, 4), x.dtype, nl.private_hbm) for _ in range(count)]
        result = nl.ndarray((count, 3, 4), x.dtype, nl.shared_hbm)
        nisa.dma_copy(kept[0], x)
        for step in range(count):
            owner = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
            nisa.dma_copy(result.ap([[4, 3], [1, 4]], scalar_offset=owner, indirect_dim=0), kept[step])
            if step + 1 < count:
                ncc.collective_permute_implicit([[kept[step]]], [[kept[step + 1]]], group)
        return result

    x = integers(count, count, 3, 4)
    assert all(np.array_equal(result, x) for result in on_ranks(nki.jit(kernel), x))
