# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Collective operations with shares of one size, and permutes: results on 2, 4 and 8 ranks beside numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import per_rank, ranks, using
from tests.simulator.ranked import MEMORIES, MEMORY_IDS, all_of, around, integers, ncc, on_ranks

REDUCTIONS = {"add": np.add.reduce, "minimum": np.minimum.reduce, "maximum": np.maximum.reduce}
FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn]
FLOATS += [ml_dtypes.float8_e5m2]
INTEGERS = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32]


def name_of(dtype: Any) -> str:
    return np.dtype(dtype).name


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), MEMORIES, ids=MEMORY_IDS)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_all_reduce(count: int, memory: Any, cores: int, op: str) -> None:
    x = integers(count, count, 4, 6)
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(count), getattr(nl, op)), (4, 6), memory)
    expected = REDUCTIONS[op](x.astype(np.float64))
    assert all(np.array_equal(result, expected) for result in on_ranks(kernel, x, cores))


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), MEMORIES, ids=MEMORY_IDS)
def test_all_gather(count: int, memory: Any, cores: int) -> None:
    x = integers(count, count, 3, 5)
    kernel = around(lambda src, dst: ncc.all_gather([src], [dst], all_of(count), 0), (3 * count, 5), memory)
    expected = x.reshape(3 * count, 5)
    assert all(np.array_equal(result, expected) for result in on_ranks(kernel, x, cores))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_all_gather_in_sbuf_along_the_free_dimension(count: int) -> None:
    x = integers(count, count, 3, 5)
    kernel = around(lambda src, dst: ncc.all_gather([src], [dst], all_of(count), 1), (3, 5 * count), nl.sbuf)
    expected = np.concatenate(list(x), axis=1)
    assert all(np.array_equal(result, expected) for result in on_ranks(kernel, x))


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), MEMORIES, ids=MEMORY_IDS)
def test_reduce_scatter(count: int, memory: Any, cores: int) -> None:
    x = integers(count, count, 2 * count, 5)
    kernel = around(lambda src, dst: ncc.reduce_scatter([src], [dst], all_of(count), 0, nl.add), (2, 5), memory)
    expected = x.astype(np.float64).sum(axis=0).reshape(count, 2, 5)
    for rank, result in enumerate(on_ranks(kernel, x, cores)):
        assert np.array_equal(result, expected[rank])


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("memory", "cores"), MEMORIES[:3], ids=MEMORY_IDS[:3])
def test_all_to_all(count: int, memory: Any, cores: int) -> None:
    x = integers(count, count, count, 2, 3)  # sender, receiver, share
    shape = (2 * count, 3)
    kernel = around(lambda src, dst: ncc.all_to_all([src], [dst], all_of(count), 0), shape, memory)
    shares = x.reshape(count, 2 * count, 3)
    for rank, result in enumerate(on_ranks(kernel, shares, cores)):
        assert np.array_equal(result, x[:, rank].reshape(shape))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=name_of)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_types_of_a_reduction(dtype: Any, op: str) -> None:
    """Results are computed in float32 and rounded once; they saturate in integer types of 8 or 16 bits."""
    x = integers(0, 4, 4, 6, dtype=dtype, low=0 if np.dtype(dtype).kind == "u" else -8)
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(4), getattr(nl, op)), (4, 6), nl.private_hbm)
    expected = REDUCTIONS[op](x.astype(np.float64)).astype(np.float32).astype(dtype)
    for result in on_ranks(kernel, x):
        assert result.dtype == dtype and np.array_equal(result, expected)


def test_a_sum_is_rounded_once() -> None:
    """Added one by one in bfloat16, the ones would be lost beside 256."""
    x = np.stack([np.full((1, 2), 256.0), *[np.full((1, 2), 1.0)] * 7]).astype(ml_dtypes.bfloat16)
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(8), nl.add), (1, 2), nl.private_hbm)
    assert all(result.astype(np.float64).tolist() == [[264.0, 264.0]] for result in on_ranks(kernel, x))


@pytest.mark.parametrize(
    ("dtype", "values", "total"),
    [(np.int8, (100, 100), 127), (np.uint8, (200, 100), 255), (np.int32, (2**31 - 1, 2), -(2**31) + 1)],
    ids=["int8 saturates", "uint8 saturates", "int32 wraps"],
)
def test_sums_beyond_an_integer_type(dtype: Any, values: tuple[int, int], total: int) -> None:
    x = [np.array([[value]], dtype) for value in values]
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(2), nl.add), (1, 1), nl.private_hbm)
    assert [result.item() for result in on_ranks(kernel, x)] == [total, total]


MOVED = [*FLOATS, *INTEGERS, ml_dtypes.float8_e8m0fnu, np.bool_]


@pytest.mark.parametrize("dtype", MOVED, ids=name_of)
def test_bits_are_gathered_unchanged(dtype: Any) -> None:
    """NaN payloads and subnormal numbers too."""
    width = np.dtype(dtype).itemsize
    bits = np.random.default_rng(1).integers(0, 2 if dtype is np.bool_ else 256, (2, 3, 8 * width), np.uint8)
    x = bits.view(dtype)
    kernel = around(lambda src, dst: ncc.all_gather([src], [dst], all_of(2), 0), (6, 8), nl.private_hbm)
    for result in on_ranks(kernel, x):
        assert np.ascontiguousarray(result).view(np.uint8).tolist() == bits.reshape(6, -1).tolist()


@pytest.mark.parametrize("dtype", [nl.float8_e4m3fn_x4, nl.float4_e2m1fn_x4], ids=str)
def test_packed_types_are_gathered_and_not_reduced(dtype: Any) -> None:
    def kernel(x: Any) -> Any:
        src = nl.ndarray(x.shape, x.dtype, nl.private_hbm)
        dst = nl.ndarray((2 * x.shape[0], x.shape[1]), x.dtype, nl.private_hbm)
        nisa.dma_copy(src, x)
        ncc.all_gather([src.view(dtype)], [dst.view(dtype)], all_of(2), 0)
        return dst

    word = np.uint32 if dtype is nl.float8_e4m3fn_x4 else np.uint16
    x = np.arange(12, dtype=word).reshape(2, 2, 3)
    assert all(np.array_equal(result, x.reshape(4, 3)) for result in on_ranks(nki.jit(kernel), x))


def test_lists_of_a_group_work_by_themselves_in_their_own_order() -> None:
    """Ranks 2 and 0 gather in this order, and so do 1 and 3."""
    x = integers(3, 4, 2, 5)
    group = ncc.ReplicaGroup([[2, 0], [1, 3]])
    kernel = around(lambda src, dst: ncc.all_gather([src], [dst], group, 0), (4, 5), nl.private_hbm)
    expected = {0: (2, 0), 2: (2, 0), 1: (1, 3), 3: (1, 3)}
    for rank, result in enumerate(on_ranks(kernel, x)):
        assert np.array_equal(result, np.concatenate([x[other] for other in expected[rank]]))


def test_several_tensors_in_one_operation() -> None:
    def kernel(x: Any, y: Any) -> Any:
        srcs = [nl.ndarray(array.shape, array.dtype, nl.private_hbm) for array in (x, y)]
        dsts = [nl.ndarray(array.shape, array.dtype, nl.private_hbm) for array in (x, y)]
        nisa.dma_copy(srcs[0], x)
        nisa.dma_copy(srcs[1], y)
        ncc.all_reduce(srcs, dsts, all_of(2), nl.add)
        return tuple(dsts)

    x, y = integers(5, 2, 2, 3), integers(6, 2, 4, 1, dtype=np.int32)
    for first, second in ranks(2)(nki.jit(kernel))(per_rank(x), per_rank(y)):
        assert np.array_equal(first, x.astype(np.float64).sum(axis=0))
        assert np.array_equal(second, y.astype(np.int64).sum(axis=0))


@using(overlapping_copies="ignore")
def test_parts_of_tensors_are_operands() -> None:
    """A column block of a tile, and rows of a tensor in HBM; what is beside the result stays."""

    def kernel(x: Any) -> Any:
        tile = nl.ndarray((2, 8), x.dtype, nl.sbuf)
        nisa.dma_copy(tile[:, 0:4], x)
        nisa.memset(tile[:, 4:8], -1.0)
        ncc.all_reduce([tile[:, 0:4]], [tile[:, 2:6]], all_of(2), nl.add)
        result = nl.ndarray((2, 8), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, tile)
        return result

    x = integers(7, 2, 2, 4)
    for rank, result in enumerate(on_ranks(nki.jit(kernel), x)):
        total = x.astype(np.float64).sum(axis=0)
        assert np.array_equal(result, np.concatenate([x[rank][:, :2], total, np.full((2, 2), -1)], axis=1))


def test_each_core_of_a_rank_reduces_what_it_has() -> None:
    """The tensors are in SBUF: core 0 has the first rows and core 1 the others."""

    def kernel(x: Any) -> Any:
        core = nl.program_id(0)
        tile, total = nl.ndarray((2, 5), x.dtype, nl.sbuf), nl.ndarray((2, 5), x.dtype, nl.sbuf)
        nisa.dma_copy(tile, x[2 * core : 2 * core + 2])
        ncc.all_reduce([tile], [total], all_of(4), nl.add)
        result = nl.ndarray((4, 5), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result[2 * core : 2 * core + 2], total)
        return result

    x = integers(8, 4, 4, 5)
    expected = x.astype(np.float64).sum(axis=0)
    assert all(np.array_equal(result, expected) for result in on_ranks(nki.jit(kernel), x, 2))


def test_an_operation_of_the_rank_orders_its_tensors_for_both_cores() -> None:
    """Each core writes half of the source and reads the other's half of the result: no race, without a barrier."""

    def kernel(x: Any) -> Any:
        core = nl.program_id(0)
        src, dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        own, other = slice(2 * core, 2 * core + 2), slice(2 - 2 * core, 4 - 2 * core)
        nisa.dma_copy(src[own], x[own])
        ncc.all_reduce([src], [dst], all_of(2), nl.add)
        result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(result[other], dst[other])
        nisa.dma_copy(src[other], dst[other])
        return result

    x = integers(9, 2, 4, 5)
    expected = x.astype(np.float64).sum(axis=0)
    assert all(np.array_equal(result, expected) for result in on_ranks(nki.jit(kernel), x, 2))


def test_low_precision_that_is_kept_in_float32() -> None:
    x = integers(10, 2, 2, 3, dtype=ml_dtypes.bfloat16)
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(2), nl.add), (2, 3), nl.private_hbm)
    with using(precise_fp=False):
        results = on_ranks(kernel, x)
    assert all(np.array_equal(result, x.astype(np.float64).sum(axis=0)) for result in results)


# ``collective_permute`` and the permutes round a ring: results on 2, 4 and 8 ranks beside numpy.

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
