# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row blocks: which rows, when all at once, and in place where possible; operands that share memory with `dst`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.engines.rowwise import BLOCK_ELEMENTS, ResultRows, SourceRows, blocks_of_destination, column

from ..kernels import execute, load, normal, store, tile


class ScratchCore:
    """Stands for a core: the scratch buffers, and which of them were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def scratch(self, slot: str, elements: int) -> Any:
        self.asked.append(slot)
        return np.full(elements, -77, np.float32)


def made(array: Any, dtype: Any = None) -> Any:
    """An SBUF tensor with the values of an array; a real one, from a kernel."""

    def kernel() -> Any:
        tensors.append(tile(*array.shape, dtype=dtype or nl.float32))

    tensors: list[Any] = []
    execute(kernel)
    tensors[0].array[...] = array
    return tensors[0]


def blocks(*arguments: Any) -> list[tuple[int, int]]:
    return [(rows.start, rows.stop) for rows in blocks_of_destination(*arguments)]


# -- blocks_of_destination ---------------------------------------------------------------------------------------------


def test_free_size() -> None:
    assert made(np.zeros((3, 4, 5))).free_size == 20


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (1, [(0, 128)]),
        (BLOCK_ELEMENTS // 128, [(0, 128)]),
        (BLOCK_ELEMENTS // 64, [(0, 64), (64, 128)]),
        (BLOCK_ELEMENTS // 50, [(0, 50), (50, 100), (100, 128)]),
        (BLOCK_ELEMENTS, [(row, row + 1) for row in range(128)]),
        (10 * BLOCK_ELEMENTS, [(row, row + 1) for row in range(128)]),
    ],
)
def test_blocks_cover_every_row_once_in_order(width: int, expected: Any) -> None:
    assert blocks(made(np.zeros((128, 1))), width) == expected


def test_other_tensors_and_numbers_do_not_matter() -> None:
    destination, other = made(np.zeros((4, 2))), made(np.zeros((4, 2)))
    assert blocks(destination, BLOCK_ELEMENTS, other, 3.0, None) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_the_very_same_view_is_worked_on_block_by_block() -> None:
    destination = made(np.zeros((4, 2)))
    assert len(blocks(destination, BLOCK_ELEMENTS, destination)) == 4
    assert len(blocks(destination, BLOCK_ELEMENTS, destination[:, 0:2])) == 4


def test_another_view_of_the_same_storage_is_read_whole_before_anything_is_stored() -> None:
    destination = made(np.zeros((4, 2)))
    assert blocks(destination[:, 0:1], BLOCK_ELEMENTS, 1.0, destination[:, 1:2]) == [(0, 4)]
    assert blocks(destination, BLOCK_ELEMENTS, destination.view(nl.int32)) == [(0, 4)]


# -- SourceRows ------------------------------------------------------------------------------------------------------


def loaded(core: ScratchCore, tensor: Any, rows: slice) -> Any:
    return SourceRows(core, "source", tensor).load(rows)  # type: ignore[arg-type]


def test_dense_float32_is_read_in_place() -> None:
    core, tensor = ScratchCore(), made(np.arange(24).reshape(4, 2, 3))
    values = loaded(core, tensor, slice(1, 3))
    assert values.tolist() == np.arange(24).reshape(4, 6)[1:3].tolist()
    assert np.shares_memory(values, tensor.array) and not core.asked


def test_a_part_of_every_partition_is_read_in_place() -> None:
    core, tensor = ScratchCore(), made(np.arange(24).reshape(4, 6))[:, 2:4]
    values = loaded(core, tensor, slice(1, 3))
    assert values.tolist() == [[8, 9], [14, 15]]
    assert np.shares_memory(values, tensor.array) and not core.asked


@pytest.mark.parametrize(
    "choose",
    [
        lambda tensor: tensor[:, :, ::2],
        lambda tensor: tensor.permute((0, 2, 1)),
        lambda tensor: tensor[:, 0:1, :].broadcast(1, 4),
    ],
    ids=["strided", "permuted", "broadcast"],
)
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16], ids=str)
def test_other_layouts_are_gathered_into_the_scratch_buffer(choose: Any, dtype: Any) -> None:
    core, tensor = ScratchCore(), choose(made(np.arange(24).reshape(4, 2, 3), dtype))
    values = loaded(core, tensor, slice(1, 3))
    assert values.dtype == np.float32
    assert values.tolist() == tensor.array[1:3].astype(np.float32).reshape(2, -1).tolist()
    assert not np.shares_memory(values, tensor.array) and core.asked == ["source"]


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int32, nl.uint8, nl.float8_e4m3])
def test_other_types_are_cast_into_the_scratch_buffer(dtype: Any) -> None:
    core, tensor = ScratchCore(), made(np.arange(12).reshape(4, 3), dtype)
    values = loaded(core, tensor, slice(2, 4))
    assert values.dtype == np.float32
    assert values.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert core.asked == ["source"]


def test_what_has_to_be_cast_can_land_where_the_caller_says() -> None:
    core, tensor, landing = ScratchCore(), made(np.arange(12).reshape(4, 3), nl.bfloat16), np.zeros((2, 3), np.float32)
    values = SourceRows(core, "source", tensor).load(slice(2, 4), landing)  # type: ignore[arg-type]
    assert values is landing and landing.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert not core.asked


def test_what_can_be_read_in_place_does_not_land() -> None:
    core, tensor, landing = ScratchCore(), made(np.arange(12).reshape(4, 3)), np.zeros((2, 3), np.float32)
    values = SourceRows(core, "source", tensor).load(slice(2, 4), landing)  # type: ignore[arg-type]
    assert np.shares_memory(values, tensor.array) and not landing.any()


# -- ResultRows ------------------------------------------------------------------------------------------------------


def stored(core: ScratchCore, tensor: Any, rows: slice, values: Any) -> Any:
    """Store `values` in `rows` of `tensor`, and return the array in which they were computed."""
    result = ResultRows(core, "result", tensor)  # type: ignore[arg-type]
    opened = result.open(rows)
    opened[...] = values
    result.store(rows, opened)
    return opened


def test_results_go_straight_into_dense_float32() -> None:
    core, tensor = ScratchCore(), made(np.zeros((4, 2, 3)))
    opened = stored(core, tensor, slice(1, 3), np.arange(12).reshape(2, 6))
    assert tensor.array.reshape(4, 6).tolist() == [[0] * 6, list(range(6)), list(range(6, 12)), [0] * 6]
    assert np.shares_memory(opened, tensor.array) and not core.asked


def test_results_for_a_part_of_every_partition_go_straight_there() -> None:
    core, tensor = ScratchCore(), made(np.zeros((2, 6)))
    stored(core, tensor[:, 2:4], slice(0, 2), [[1, 2], [3, 4]])
    assert tensor.array.tolist() == [[0, 0, 1, 2, 0, 0], [0, 0, 3, 4, 0, 0]]
    assert not core.asked


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (nl.bfloat16, [[256, 2.5], [-300, 0.5]]),
        (nl.int8, [[127, 2], [-128, 0]]),
        (nl.tfloat32, [[257, 2.5], [-300, 0.5]]),
    ],
)
def test_results_of_other_types_are_cast_when_they_are_stored(dtype: Any, expected: Any) -> None:
    core, tensor = ScratchCore(), made(np.zeros((3, 2)), dtype)
    opened = stored(core, tensor, slice(1, 3), [[257, 2.5], [-300, 0.5]])
    assert opened.tolist() == [[257, 2.5], [-300, 0.5]]
    assert tensor.array.astype(np.float32).tolist() == [[0, 0], *expected]
    assert core.asked == ["result"]


def test_tfloat32_results_are_rounded() -> None:
    """tfloat32 is held in float32, whose memory must not be taken for the result."""
    tensor = made(np.zeros((1, 1)), nl.tfloat32)
    stored(ScratchCore(), tensor, slice(0, 1), 1 + 2**-20)
    assert tensor.array == 1


def test_results_are_scattered_into_strided_views() -> None:
    tensor = made(np.zeros((2, 4)))
    stored(ScratchCore(), tensor[:, 1::2], slice(0, 2), [[1, 2], [3, 4]])
    assert tensor.array.tolist() == [[0, 1, 0, 2], [0, 3, 0, 4]]


def test_whether_results_are_apart_from_a_source() -> None:
    """They share memory only with the tensor's own storage, and only if they go straight there."""
    tensor, other, narrow = made(np.zeros((2, 4))), made(np.zeros((2, 4))), made(np.zeros((2, 4)), nl.bfloat16)

    def is_apart(destination: Any, source: Any) -> bool:
        return ResultRows(ScratchCore(), "result", destination).is_apart_from(source)  # type: ignore[arg-type]

    assert not is_apart(tensor, tensor)
    assert not is_apart(tensor[:, 0:1], tensor[:, 3:4])
    assert is_apart(tensor, other)
    assert is_apart(narrow, narrow)
    assert is_apart(tensor[:, ::2], tensor)


# -- column ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), True + 1])
def test_a_number_is_a_float32(value: Any) -> None:
    assert column(value, slice(0, 4)) == np.float32(2) and column(value, slice(0, 4)).dtype == np.float32


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.int16])
def test_a_vector_is_a_copy_of_its_rows(dtype: Any) -> None:
    tensor = made(np.array([[1], [2], [3], [4]]), dtype)
    values = column(tensor, slice(1, 3))
    tensor.array[...] = 0
    assert values.tolist() == [[2], [3]] and values.dtype == np.float32


def test_a_vector_may_have_any_shape_of_one_element_a_partition() -> None:
    assert column(made(np.array([[[5]], [[6]]])), slice(0, 2)).tolist() == [[5], [6]]


def test_a_number_is_rounded_to_float32() -> None:
    assert column(16777217, slice(0, 1)) == 16777216


# Instructions read their operands before they write: operands that share memory with `dst` in every way.
#
# Each instruction runs twice: with some of its operands in the storage of `dst`, where they overlap at random,
# and on copies that do not overlap. Both leave the same values in `dst`.

PARTITIONS, COLUMNS, WIDTH = 4, 24, 6
COMMAND = nisa.reduce_cmd


def backwards(width: int) -> Any:
    """Make the indices of a gather that turns each partition round, in a kernel."""
    made = nl.ndarray((PARTITIONS, width), nl.uint32)
    nisa.iota(made, [[-1, width]], offset=width - 1)
    return made


# (dst, data, other tile, column, other column, predicate, reduce_res); the columns are float32.
Instruction = Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
INSTRUCTIONS: dict[str, Instruction] = {
    "tensor_copy": lambda dst, a, b, v, w, p, r: nisa.tensor_copy(dst, a),
    "reciprocal": lambda dst, a, b, v, w, p, r: nisa.reciprocal(dst, a),
    "tensor_tensor": lambda dst, a, b, v, w, p, r: nisa.tensor_tensor(dst, a, b, nl.subtract),
    "tensor_scalar": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar(dst, a, nl.subtract, v, True, nl.multiply, w),
    "scalar_tensor_tensor": lambda dst, a, b, v, w, p, r: nisa.scalar_tensor_tensor(
        dst, a, nl.multiply, v, nl.subtract, b
    ),
    "tensor_scalar_reduce": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar_reduce(
        dst, a, nl.multiply, v, nl.add, r, reduce_cmd=COMMAND.load_reduce, reduce_init=w
    ),
    "select_reduce": lambda dst, a, b, v, w, p, r: nisa.select_reduce(dst, p, a, v, r, COMMAND.reset_reduce),
    "exponential": lambda dst, a, b, v, w, p, r: nisa.exponential(dst, a, v, r, COMMAND.load_reduce, w),
    "activation": lambda dst, a, b, v, w, p, r: nisa.activation(
        dst, nl.square, a, w, v, nl.add, r, COMMAND.reset_reduce
    ),
    "activation without scale": lambda dst, a, b, v, w, p, r: nisa.activation(dst, nl.abs, a, bias=w),
    "activation without bias": lambda dst, a, b, v, w, p, r: nisa.activation(dst, nl.copy, a, scale=v),
    "gelu": lambda dst, a, b, v, w, p, r: nisa.activation(dst, nl.gelu, a, bias=w),
    "activate2": lambda dst, a, b, v, w, p, r: nisa.activate2(
        dst, nl.prelu, a, v, w, nl.multiply, nl.subtract, v, True, True, nl.abs_max, r, COMMAND.reset_reduce
    ),
    "bn_stats": lambda dst, a, b, v, w, p, r: nisa.bn_stats(dst, a),
    "bn_aggr": lambda dst, a, b, v, w, p, r: nisa.bn_aggr(dst[:, 0:2], a),
    "nc_stream_shuffle": lambda dst, a, b, v, w, p, r: nisa.nc_stream_shuffle(
        dst.view(nl.int16)[:, 0:WIDTH], a.view(nl.int16)[:, 0:WIDTH], [3, 0, 255, *[1] * 29]
    ),
    "nc_n_gather": lambda dst, a, b, v, w, p, r: nisa.nc_n_gather(
        dst.view(nl.int16)[:, 0:WIDTH], a.view(nl.int16)[:, 0:WIDTH], backwards(WIDTH)
    ),
    "tensor_reduce": lambda dst, a, b, v, w, p, r: nisa.tensor_reduce(
        dst[:, 0:2], nl.add, a.reshape((PARTITIONS, 2, 3)), 2
    ),
    "tensor_tensor_scan": lambda dst, a, b, v, w, p, r: nisa.tensor_tensor_scan(dst, a, b, v, nl.multiply, nl.add),
    "tensor_scalar_cumulative": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar_cumulative(
        dst, a, nl.multiply, nl.add, v, w, COMMAND.load_reduce
    ),
    "tensor_partition_reduce": lambda dst, a, b, v, w, p, r: nisa.tensor_partition_reduce(dst[0:1], nl.add, a),
    "tensor_copy_predicated": lambda dst, a, b, v, w, p, r: nisa.tensor_copy_predicated(
        dst.view(nl.bfloat16)[:, 0:WIDTH], a.view(nl.bfloat16)[:, 0:WIDTH], p.view(nl.uint8)
    ),
    "affine_select": lambda dst, a, b, v, w, p, r: nisa.affine_select(dst, [[1, WIDTH]], -1, a, 7.0, nl.less_equal),
    "range_select": lambda dst, a, b, v, w, p, r: nisa.range_select(
        dst, a, nl.greater_equal, nl.greater, v, w, reduce_res=r
    ),
    "bits": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar(
        dst.view(nl.int16)[:, 0:WIDTH],
        a.view(nl.int16)[:, 0:WIDTH],
        nl.bitwise_xor,
        0x1234,
        op1=nl.left_shift,
        operand1=1,
    ),
}


def separate(view: Any) -> Any:
    """Make a tile of its own with the bits of `view`, in a kernel."""
    made = nl.ndarray(view.shape, view.dtype, nl.sbuf)
    nisa.tensor_copy(made, view)
    return made


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.parametrize("seed", range(20))
def test_operands_that_overlap_dst(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    types = [nl.float32, nl.bfloat16]
    dst_type, data_type, other_type = (types[number] for number in rng.integers(0, 2, 3))
    starts = [int(start) for start in rng.integers(0, COLUMNS // 2 - WIDTH, 6)]
    is_in_dst = [True, *(bool(choice) for choice in rng.random(5) < 0.6)]

    def kernel(values: Any, is_apart: bool) -> Any:
        storage = load(values)
        whole = {nl.float32: storage, nl.bfloat16: storage.view(nl.bfloat16), nl.int8: storage.view(nl.int8)}

        def part(dtype: Any, number: int, width: int) -> Any:
            view = whole[dtype][:, starts[number] : starts[number] + width]
            return view if is_in_dst[number] and not is_apart else separate(view)

        dst = part(dst_type, 0, WIDTH)
        inputs = [part(data_type, 1, WIDTH), part(other_type, 2, WIDTH)]
        columns = [part(nl.float32, number, 1) for number in (3, 4)]
        reduced = nl.zeros((PARTITIONS, 1), nl.float32, nl.sbuf)
        INSTRUCTIONS[name](dst, *inputs, *columns, part(nl.int8, 5, WIDTH), reduced)
        return store(dst), store(reduced)

    array = normal(PARTITIONS, COLUMNS, seed=seed)
    with nkilib.simulator.using(target="trn3"):
        overlapping = nki.jit(kernel)(array.copy(), False)
        apart = nki.jit(kernel)(array.copy(), True)
    for got, expected in zip(overlapping, apart, strict=True):
        assert np.array_equal(got.astype(np.float32), expected.astype(np.float32), equal_nan=True)
