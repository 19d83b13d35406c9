# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`local_gather` and `nc_n_gather`: which element each index takes, in which order, and that bits move unchanged."""

from __future__ import annotations

import inspect
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, engine_of, execute, normal, refusal, run, store, tile
from ...made import Made, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, must, one_type, same_elements, same_partitions

UNINITIALIZED = nkilib.simulator.UninitializedReadError
OUT_OF_RANGE = nkilib.simulator.OutOfRangeError


def numbered(*shape: int) -> Any:
    """1000 p + c for element c of partition p: every element of it tells where it comes from."""
    columns = np.arange(prod(shape[1:]), dtype=np.float32)
    return (1000 * np.arange(shape[0], dtype=np.float32)[:, np.newaxis] + columns).reshape(shape)


def random_indices(limit: int, dtype: Any, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, limit, shape).astype(dtype)


# -- local_gather: the order of the indices --------------------------------------------------------------------------


def gathered_locally(source: Any, index: Any, elements: int = 1, count: int | None = None) -> Any:
    """`local_gather` one element at a time: index k of a group is in its partition k % 16, column k // 16."""
    partitions = source.shape[0]
    source, index = source.reshape(partitions, -1), index.reshape(partitions, -1)
    used = 16 * index.shape[1] if count is None else count
    result = np.empty((partitions, used * elements), source.dtype)
    for partition in range(partitions):
        group = partition // 16 * 16
        for k in range(used):
            start = int(index[group + k % 16, k // 16])
            for j in range(elements):
                result[partition, k * elements + j] = source[partition, start + j]
    return result


def test_indices_run_over_the_partitions_of_a_core_first() -> None:
    """Index 0 is in partition 0, index 1 in partition 1, index 16 in partition 0 again, one column on."""
    index = np.zeros((16, 2), np.uint16)
    index[0, 0], index[1, 0], index[15, 0], index[0, 1], index[15, 1] = 3, 4, 5, 6, 7
    result = run(nisa.local_gather, [numbered(16, 8), index], Result((16, 32)))
    for partition in range(16):
        row = [1000 * partition] * 32
        for k, element in ((0, 3), (1, 4), (15, 5), (16, 6), (31, 7)):
            row[k] += element
        assert result[partition].tolist() == row


def test_every_core_gathers_with_the_indices_of_its_own_16_partitions() -> None:
    index = np.repeat(np.arange(8, dtype=np.uint16), 16)[:, np.newaxis]
    result = run(nisa.local_gather, [numbered(128, 8), index], Result((128, 16)))
    assert result.tolist() == [[1000 * partition + partition // 16] * 16 for partition in range(128)]


def test_the_example_of_the_documentation() -> None:
    """(128, 512, 4) gathered by (128, 4) indices of 4 elements: `np.take` along axis 1 by the list in column order."""
    source = normal(128, 512, 4)
    index = np.tile(random_indices(512, np.uint16, 16, 4), (8, 1))
    result = run(
        lambda dst, src, index: nisa.local_gather(dst, src, index, 4, 64),
        [source, index * np.uint16(4)],
        Result((128, 4, 16, 4)),
    )
    for group in range(0, 128, 16):
        taken = np.take(source[group : group + 16], index[group : group + 16].flatten(order="F"), axis=1)
        assert np.array_equal(result[group : group + 16], taken.reshape(16, 4, 16, 4))


@pytest.mark.parametrize("elements", [1, 2, 4, 8, 16, 32])
def test_contiguous_elements_of_an_index(elements: int) -> None:
    """An index counts elements, not groups of them, and need not be a multiple of their number."""
    source, index = numbered(32, 40), random_indices(41 - elements, np.uint16, 32, 2, seed=elements)
    result = run(
        lambda dst, src, index: nisa.local_gather(dst, src, index, num_elem_per_idx=elements),
        [source, index],
        Result((32, 32 * elements)),
    )
    assert np.array_equal(result, gathered_locally(source, index, elements))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_and_any_number_of_valid_indices(data: Any) -> None:
    """The free dimensions of every tile are flattened, the last one changing fastest."""
    partitions = 16 * data.draw(st.integers(1, 8))
    source_shape = (partitions, *data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    index_shape = (partitions, *data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    limit, columns = prod(source_shape[1:]), prod(index_shape[1:])
    elements = data.draw(st.sampled_from([n for n in (1, 2, 4, 8, 16, 32) if n <= limit]))
    count = data.draw(st.one_of(st.none(), st.integers(1, 16 * columns)))
    source = numbered(*source_shape)
    index = random_indices(limit - elements + 1, np.uint16, *index_shape, seed=data.draw(st.integers(0, 9)))
    used = 16 * columns if count is None else count
    result = run(
        lambda dst, src, index: nisa.local_gather(dst, src, index, elements, count),
        [source, index],
        Result((partitions, used, elements)),
    )
    assert np.array_equal(result.reshape(partitions, -1), gathered_locally(source, index, elements, count))


def test_indices_that_are_not_valid_are_never_looked_at() -> None:
    """They may lead nowhere, and may be unwritten: of 2 columns only the first 5 elements of the second one count."""

    def body(dst: Any, source: Any) -> None:
        index = nl.ndarray((16, 2), nl.uint16)
        nisa.memset(index[:, 0:1], 2)
        nisa.memset(index[0:5, 1:2], 3)
        nisa.local_gather(dst, source, index, num_valid_indices=21)

    result = run(body, [numbered(16, 4)], Result((16, 21)))
    assert result.tolist() == [[1000 * p + 2] * 16 + [1000 * p + 3] * 5 for p in range(16)]
    wild = np.full((16, 1), 60000, np.uint16)
    wild[0:3] = 1
    result = run(
        lambda dst, source, index: nisa.local_gather(dst, source, index, num_valid_indices=3),
        [numbered(16, 4), wild],
        Result((16, 3)),
    )
    assert result.tolist() == [[1000 * p + 1] * 3 for p in range(16)]


def test_the_largest_number_of_indices() -> None:
    index = random_indices(100, np.uint16, 16, 256)
    source = numbered(16, 100)
    result = run(nisa.local_gather, [source, index], Result((16, 4096)))
    assert np.array_equal(result, gathered_locally(source, index))


def test_the_largest_index() -> None:
    index = np.full((16, 1), 65535, np.uint16)
    source = np.tile(np.arange(65536, dtype=np.uint16).reshape(4, 16384), (16, 1, 1))
    result = run(nisa.local_gather, [source, index], Result((16, 16), nl.uint16))
    assert (result == 65535).all()


# -- nc_n_gather -----------------------------------------------------------------------------------------------------


def test_every_partition_gathers_with_its_own_indices() -> None:
    index = np.array([[3, 0, 0, 1], [2, 2, 3, 0]], np.uint32)
    result = run(nisa.nc_n_gather, [numbered(2, 4), index], Result((2, 4)))
    assert result.tolist() == [[3, 0, 0, 1], [1002, 1002, 1003, 1000]]


def test_the_example_of_the_language_reference() -> None:
    """The example is that of `nl.gather_flattened`, the function of the language for this instruction."""
    data = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.float32)
    index = np.array([[[0, 1], [1, 3]], [[3, 3], [1, 0]]], np.uint32)
    result = run(nisa.nc_n_gather, [data, index], Result((2, 2, 2)))
    assert result.tolist() == [[[1, 2], [2, 4]], [[8, 8], [6, 5]]]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_shape(data: Any) -> None:
    partitions = data.draw(st.sampled_from([1, 2, 31, 128]))
    source = numbered(partitions, *data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    shape = (partitions, *data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    limit = prod(source.shape[1:])
    index = random_indices(limit, np.uint32, *shape, seed=data.draw(st.integers(0, 9)))
    result = run(nisa.nc_n_gather, [source, index], Result((partitions, prod(shape[1:]))))
    for row, elements, got in zip(source.reshape(partitions, -1), index.reshape(partitions, -1), result, strict=True):
        assert got.tolist() == [row[element] for element in elements.tolist()]


def test_more_elements_than_one_instruction_of_the_hardware_gathers() -> None:
    index = random_indices(700, np.uint32, 4, 1500)
    result = run(nisa.nc_n_gather, [numbered(4, 700), index], Result((4, 1500)))
    assert np.array_equal(result, index + 1000 * np.arange(4)[:, np.newaxis])


# -- both: bits, views and memory ------------------------------------------------------------------------------------


def locally(dst: Any, source: Any) -> None:
    """Gather elements 3, 0, 0, ... of each partition in a kernel; the index of partition 0 is the 3."""
    index = tile(16, 1, dtype=nl.uint16)
    nisa.memset(index[0:1], 3)
    nisa.local_gather(dst, source, index)


def by_partition(dst: Any, source: Any) -> None:
    """Gather elements 3, 0, 0, ... of each partition, in a kernel."""
    indices = tile(16, 16, dtype=nl.uint32)
    nisa.memset(indices[:, 0:1], 3)
    nisa.nc_n_gather(dst, source, indices)


EACH = pytest.mark.parametrize("gather", [locally, by_partition])


@EACH
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_it_runs_on_gpsimd_of_every_generation(gather: Any, target: str) -> None:
    result = run(gather, [numbered(16, 4)], Result((16, 16)), target=target)
    assert result.tolist() == [[1000 * p + 3] + [1000 * p] * 15 for p in range(16)]
    index, indices = tile_of(nl.uint16), tile_of(nl.uint32)
    assert engine_of(lambda: nisa.local_gather(tile(16, 16), tile(16, 4), index()), target) == "gpsimd"
    assert engine_of(lambda: nisa.nc_n_gather(tile(16, 1), tile(16, 4), indices()), target) == "gpsimd"


def tile_of(dtype: Any) -> Any:
    return lambda: tile(16, 1, dtype=dtype)


@EACH
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (nl.float32, [0xFF800001, 0x80000000, 0x00000001, 0x7FA00000]),
        (nl.int32, [0x80000000, 0x01000001, 0xFFFFFFFF, 0x7FFFFFFF]),
        (nl.bfloat16, [0xFF81, 0x8000, 0x0001, 0x7FA0]),
        (nl.float16, [0xFC01, 0x8000, 0x0001, 0x7D00]),
        (nl.float8_e4m3, [0xFF, 0x80, 0x01, 0x79]),
        (nl.uint8, [0xFF, 0x80, 0x01, 0x79]),
        (nl.float8_e4m3fn_x4, [0xFF800001, 0x80000000, 0x00000001, 0x7FA00000]),
    ],
)
def test_bits_move_unchanged(gather: Any, dtype: Any, bits: list[int]) -> None:
    """Signalling NaN, negative zero, subnormal numbers, and integers that no float32 holds."""
    width = np.dtype(f"u{dtype.itemsize}")
    values = np.tile(np.array([bits], width), (16, 1))

    def body(dst: Any, source: Any) -> None:
        gather(dst.view(dtype), source.view(dtype))

    result = run(body, [values], Result((16, 16), f"uint{8 * dtype.itemsize}"))
    assert result.tolist() == [[bits[3]] + [bits[0]] * 15] * 16


@EACH
def test_data_and_result_may_be_strided_views(gather: Any) -> None:
    def body(dst: Any, source: Any) -> None:
        gather(dst[:, 1:33:2], source[:, 2:, 1])

    result = run(lambda dst, source: (nisa.memset(dst, -1), body(dst, source)), [numbered(16, 6, 2)], Result((16, 34)))
    assert (result[:, 0::2] == -1).all() and (result[:, 33] == -1).all()
    assert result[:, 1:33:2].tolist() == [[1000 * p + 11] + [1000 * p + 5] * 15 for p in range(16)]


@EACH
def test_the_result_may_overwrite_the_data(gather: Any) -> None:
    def body(dst: Any, source: Any) -> None:
        nisa.tensor_copy(dst, source)
        gather(dst[:, 0:16], dst)

    result = run(body, [numbered(16, 17)], Result((16, 17)))
    assert result.tolist() == [[1000 * p + 3] + [1000 * p] * 15 + [1000 * p + 16] for p in range(16)]


@EACH
def test_only_the_elements_that_are_gathered_must_have_been_written(gather: Any) -> None:
    def body(dst: Any) -> None:
        source = nl.ndarray((16, 5), nl.float32)
        nisa.memset(source[:, 0:1], 7)
        nisa.memset(source[:, 3:4], 8)
        gather(dst, source)

    assert run(body, [], Result((16, 16))).tolist() == [[8] + [7] * 15] * 16


def gather_unwritten(gather: Any) -> Any:
    source = nl.ndarray((16, 5), nl.float32)
    nisa.memset(source[:, 0:3], 7)
    dst = nl.ndarray((16, 16), nl.float32)
    gather(dst, source)
    return store(dst)


@pytest.mark.parametrize(("gather", "name"), [(locally, "src_buffer"), (by_partition, "data")])
def test_gathering_what_was_never_written(gather: Any, name: str) -> None:
    """Element 3 of each partition: an error, or NaN where the options ask for it."""
    with pytest.raises(UNINITIALIZED) as caught:
        execute(lambda: gather_unwritten(gather))
    expected = f"operand '{name}': 16 of the 80 elements of tensor [16, 5] float32 in sbuf were never written"
    assert f"{expected}: the first is [0, 3], the last [15, 3]; {__file__}:" in str(caught.value)
    with nkilib.simulator.using(uninitialized="nan"):
        result = execute(lambda: gather_unwritten(gather))
    assert np.isnan(result[:, 0]).all() and (result[:, 1:] == 7).all()


def test_indices_must_have_been_written() -> None:
    def unwritten() -> None:
        index = nl.ndarray((16, 2), nl.uint16)
        nisa.memset(index[:, 0:1], 0)
        nisa.memset(index[0:4, 1:2], 0)
        nisa.local_gather(tile(16, 21), tile(16, 4), index, num_valid_indices=21)

    message = (
        "nisa.local_gather: operand 'index': 1 of the 32 elements of tensor [16, 2] uint16 in sbuf were never written"
    )
    assert refusal(unwritten, error=UNINITIALIZED) == message
    message = (
        "nisa.nc_n_gather: operand 'indices': 4 of the 4 elements of tensor [2, 2] uint32 in sbuf were never written"
    )
    assert (
        refusal(
            lambda: nisa.nc_n_gather(tile(2, 2), tile(2, 4), nl.ndarray((2, 2), nl.uint32)),
            error=UNINITIALIZED,
        )
        == message
    )


def uint16(*shape: int, value: int = 0) -> Any:
    return tile(*shape, dtype=nl.uint16, value=value)


def uint32(*shape: int, value: int = 0) -> Any:
    return tile(*shape, dtype=nl.uint32, value=value)


def placed(shape: tuple[int, int], dtype: Any, partition: int) -> Any:
    """Make a tile of zeros that starts at a partition of the kernel's choice, in a kernel."""
    made = nl.ndarray(shape, dtype, nl.sbuf, address=(partition, 0))
    nisa.memset(made, 0)
    return made


SAME_PARTITION = (
    "operands 'src_buffer' and 'index' must start at the same partition, because a core of GpSimd takes its indices "
    "from the partitions that it gathers in; got {}"
)


def indices(partitions: int, columns: int, value: int = 0) -> Made:
    """Equal indices of a local gather."""
    return Sbuf(partitions, columns, dtype=nl.uint16, value=value)


@rules(
    legal(nisa.local_gather, dst=Sbuf(32, 16), src_buffer=Sbuf(32, 4), index=indices(32, 1)),
    broken("partitions in groups of 16", dst=Sbuf(24, 24), src_buffer=Sbuf(24, 4), index=indices(24, 1)).says(
        must("src_buffer", "have a multiple of 16 partitions, the number that each core of GpSimd is connected to")
    ),
    broken("as many partitions of indices as of data", index=indices(16, 1)).says(
        same_partitions("src_buffer", "index")
    ),
    broken("as many partitions of results as of data", dst=Sbuf(16, 16)).says(same_partitions("src_buffer", "dst")),
    legal(nisa.local_gather, Sbuf(16, 16), lazily(placed, (16, 4), nl.float32, 64), indices(64, 1)[0:16]),
    broken("indices from the partitions of the data", src_buffer=Sbuf(64, 4)[32:48])
    .says(SAME_PARTITION.format("32 or 96 and 0 or 64"))
    .fixed(index=indices(64, 1)[32:48]),
    broken(
        "indices from the partitions of data that the kernel places", src_buffer=lazily(placed, (16, 4), nl.float32, 32)
    ).says(SAME_PARTITION.format("32 and 0 or 64")),
    legal(nisa.local_gather, dst=Sbuf(16, 16), src_buffer=Sbuf(16, 4), index=indices(16, 1)),
    broken("type of the local indices", index=Sbuf(16, 1, dtype=nl.uint32)).says(one_type("index", "uint16")),
    broken("no cast of what is gathered locally", dst=Sbuf(16, 16, dtype=nl.bfloat16))
    .says(
        "operand 'dst' must have the type of 'src_buffer', because a gather casts nothing; got {dst} and {src_buffer}"
    )
    .fixed(src_buffer=Sbuf(16, 4, dtype=nl.bfloat16)),
    broken("number of elements of an index", dst=Sbuf(16, 48), num_elem_per_idx=3)
    .says("num_elem_per_idx must be one of (1, 2, 4, 8, 16, 32), got 3")
    .fixed(dst=Sbuf(16, 64), num_elem_per_idx=4),
    broken("whole number of elements of an index", dst=Sbuf(16, 32), num_elem_per_idx=2.0)
    .says("num_elem_per_idx must be one of (1, 2, 4, 8, 16, 32), got 2.0")
    .fixed(num_elem_per_idx=2),
    broken("more valid indices than there are", dst=Sbuf(16, 33), index=indices(16, 2), num_valid_indices=33)
    .says("num_valid_indices must be 1 to 32, the indices of 16 partitions of {index}, got 33")
    .fixed(dst=Sbuf(16, 32), num_valid_indices=32),
    broken("no valid index", num_valid_indices=0)
    .says("num_valid_indices must be 1 to 16, the indices of 16 partitions of {index}, got 0")
    .fixed(dst=Sbuf(16, 1), num_valid_indices=1),
    broken("too many indices for a core", dst=Sbuf(16, 4112), index=indices(16, 257))
    .says("each core of GpSimd takes at most 4096 indices, got 4112 of {index}: gather in several calls")
    .fixed(dst=Sbuf(16, 4096), num_valid_indices=4096),
    broken("size of what is gathered locally", dst=Sbuf(16, 32), index=indices(16, 2), num_elem_per_idx=2)
    .says(must("dst", "have 64 elements per partition (32 indices of 2 elements)"))
    .fixed(num_valid_indices=16),
    broken(
        "local index outside",
        error=OUT_OF_RANGE,
        dst=Sbuf(32, 64),
        src_buffer=Sbuf(32, 5),
        index=indices(32, 2, 4),
        num_elem_per_idx=2,
    )
    .says(
        "operand 'index': element 0 of the list of partitions 0 to 15 takes elements 4 to 5 of the 5 per "
        "partition of {src_buffer}"
    )
    .fixed(index=indices(32, 2, 3)),
    broken("PSUM", src_buffer=Psum(16, 4)).says(must("src_buffer", "be in sbuf", COPY_FIRST)),
)
def test_local_gather_rules(rule: Rule) -> None:
    check_rule(rule)


def test_an_index_outside_is_named_by_core_and_place() -> None:
    """Partition 33 is the second one of its core; its column 1 holds index 16 + 1 of the list."""
    index = np.zeros((48, 2), np.uint16)
    index[33, 1] = 4
    with pytest.raises(OUT_OF_RANGE) as caught:
        run(nisa.local_gather, [numbered(48, 4), index], Result((48, 32)))
    assert "element 17 of the list of partitions 32 to 47 takes elements 4 to 4 of the 4" in str(caught.value)


@rules(
    legal(nisa.nc_n_gather, dst=Sbuf(2, 2), data=Sbuf(2, 4), indices=Sbuf(2, 2, dtype=nl.uint32)),
    broken("type of the indices", indices=Sbuf(2, 2, dtype=nl.int32)).says(one_type("indices", "uint32")),
    broken("no cast of what is gathered", dst=Sbuf(2, 2, dtype=nl.int32)).says(
        "operand 'dst' must have the type of 'data', because a gather casts nothing; got {dst} and {data}"
    ),
    legal(nisa.nc_n_gather, dst=Sbuf(2, 2), data=Sbuf(3, 4)[0:2], indices=Sbuf(2, 2, dtype=nl.uint32)),
    broken("partitions of the data", data=Sbuf(3, 4)).says(same_partitions("data", "indices")),
    legal(nisa.nc_n_gather, dst=Sbuf(3, 2)[0:2], data=Sbuf(2, 4), indices=Sbuf(2, 2, dtype=nl.uint32)),
    broken("partitions of the result", dst=Sbuf(3, 2)).says(same_partitions("indices", "dst")),
    legal(nisa.nc_n_gather, dst=Sbuf(2, 2), data=Sbuf(2, 4), indices=Sbuf(2, 2, dtype=nl.uint32)),
    broken("size of the result", dst=Sbuf(2, 4)).says(same_elements("indices", "dst")).fixed(dst=Sbuf(2, 4)[:, 0:2]),
    broken("index outside", error=OUT_OF_RANGE, data=Sbuf(2, 2, 2), indices=Sbuf(2, 2, dtype=nl.uint32, value=4))
    .says("operand 'indices': element 0 of partition 0 is 4, outside the 4 elements per partition of {data}")
    .fixed(indices=Sbuf(2, 2, dtype=nl.uint32, value=3)),
    broken("data in PSUM", data=Psum(2, 4)).says(must("data", "be in sbuf", COPY_FIRST)),
    broken("result in PSUM", dst=Psum(2, 2)).says(must("dst", "be in sbuf")),
)
def test_nc_n_gather_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize(
    ("gather", "name"),
    [
        *((nisa.local_gather, name) for name in ("dst", "src_buffer", "index")),
        *((nisa.nc_n_gather, name) for name in ("dst", "data", "indices")),
    ],
    ids=lambda item: item if isinstance(item, str) else item.__name__,
)
@pytest.mark.parametrize("place", ["psum", "shared_hbm"])
def test_all_tiles_are_in_sbuf(gather: Any, name: str, place: str) -> None:
    index_type = nl.uint16 if gather is nisa.local_gather else nl.uint32

    def kernel() -> None:
        source, index = list(inspect.signature(gather).parameters)[1:3]
        tiles = {
            "dst": tile(16, 16),
            source: tile(16, 4),
            index: tile(16, 1 if source != "data" else 16, dtype=index_type),
        }
        shape, dtype = tiles[name].shape, tiles[name].dtype
        tiles[name] = tile(*shape, dtype=dtype, buffer=nl.psum) if place == "psum" else store(tiles[name])
        gather(**tiles)

    assert refusal(kernel).startswith(f"nisa.{gather.__name__}: operand '{name}' must be in sbuf, got tensor [16, ")


def test_the_number_of_valid_indices_is_an_integer() -> None:
    def kernel(count: Any) -> Any:
        return lambda: nisa.local_gather(tile(16, 3), tile(16, 4), uint16(16, 1), num_valid_indices=count)

    assert refusal(kernel(3.0)).endswith(", got 3.0")
    execute(kernel(np.int64(3)))


def test_an_index_beyond_31_bits_is_outside_and_not_negative() -> None:
    index = np.array([[0, 4294967295]], np.uint32)
    with pytest.raises(OUT_OF_RANGE) as caught:
        run(nisa.nc_n_gather, [numbered(1, 4), index], Result((1, 2)))
    assert "element 1 of partition 0 is 4294967295, outside the 4 elements" in str(caught.value)


def test_a_gathered_tile_in_bfloat16_keeps_its_type() -> None:
    result = run(
        nisa.nc_n_gather, [Tile(numbered(1, 4), nl.bfloat16), np.array([[2]], np.uint32)], Result((1, 1), nl.bfloat16)
    )
    assert result.dtype == "bfloat16" and result == 2
