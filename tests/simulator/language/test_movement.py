# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.load``, ``nl.store``, ``nl.load_transpose2d``, ``nl.gather_flattened``; copies, views and ``where`` of tiles."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import OutOfRangeError

from ..kernels import Result, Tile, ending, execute, launch, normal, run, store, tile
from ..made import Hbm, Psum, Sbuf, lazily
from ..rules import Rule, broken, check_rule, legal, rules
from .calls import call, check_call, outcome

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError


# -- load and store --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (128, 3), (4, 2, 3)], ids=str)
def test_what_is_loaded_and_stored(shape: Any) -> None:
    def body(data: Any) -> Any:
        made = nl.load(data)
        assert (made.shape, made.dtype, made.buffer) == (shape, nl.float32, nl.sbuf)
        result = nl.ndarray(shape, data.dtype, nl.shared_hbm)
        assert nl.store(result, made) is None
        return result

    values = normal(*shape)
    assert launch(body, values).tolist() == values.tolist()


def test_a_load_casts() -> None:
    """Casts to integers round to nearest even; 257 becomes 256 in bfloat16."""

    def body(data: Any) -> Any:
        return store(nl.load(data, dtype=nl.int32)), store(nl.load(data, nl.bfloat16)), store(nl.load(data, "int8"))

    integers, narrow, bytes_ = launch(body, np.array([[0.5, 1.5, 257, -300]], np.float32))
    assert integers.tolist() == [[0, 2, 257, -300]]
    assert narrow.dtype == ml_dtypes.bfloat16 and narrow.tolist() == [[0.5, 1.5, 256, -300]]
    assert bytes_.tolist() == [[0, 2, 127, -128]]


def test_a_store_casts_to_the_type_of_its_destination() -> None:
    def body(data: Any) -> Any:
        result = nl.ndarray((1, 2), nl.int8, nl.shared_hbm)
        nl.store(dst=result, value=nl.load(data))
        return result

    assert launch(body, np.array([[2.5, 1000]], np.float32)).tolist() == [[2, 127]]


def test_parts_are_loaded_and_stored() -> None:
    """Indexed as the documentation's examples are; a store needs as many elements, not the same shape."""

    def body(data: Any, output: Any) -> Any:
        nl.store(output[1:3, 0:2], nl.load(data[0:4:2, 1:3]))
        nl.store(output[0, 0:4], nl.load(data[0:2, 0:2]))
        return output

    values, output = normal(4, 4), np.zeros((3, 4), np.float32)
    launch(body, values, output)
    expected = np.zeros((3, 4), np.float32)
    expected[1:3, 0:2] = values[0:4:2, 1:3]
    expected[0] = values[0:2, 0:2].reshape(-1)
    assert output.tolist() == expected.tolist()


def test_rows_chosen_at_run_time_are_loaded_and_stored() -> None:
    def body(data: Any, index_hbm: Any, output: Any) -> Any:
        index = nl.load(index_hbm)
        nl.store(output.vector_select(0, index), nl.load(data.vector_select(0, index)))
        return output

    values, output = normal(5, 3), np.zeros((5, 3), np.float32)
    launch(body, values, np.array([[4], [1]], np.int32), output)
    expected = np.zeros((5, 3), np.float32)
    expected[[4, 1]] = values[[4, 1]]
    assert output.tolist() == expected.tolist()


def test_they_are_dma_copies() -> None:
    def body(data: Any, output: Any) -> None:
        nl.store(output, nl.load(data, nl.bfloat16))

    with nkilib.simulator.recording() as record:
        launch(body, normal(2, 3), normal(2, 3))
    assert record.instruction_counts == {"dma_copy": 2}
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (24, 24)


# -- load_transpose2d ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (3, 128), (200, 2)], ids=str)
def test_a_transposed_load(shape: Any) -> None:
    def body(data: Any) -> Any:
        return store(nl.load_transpose2d(data))

    values = normal(*shape)
    assert launch(body, values).tolist() == values.T.tolist()


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.int32, nl.float8_e4m3], ids=str)
def test_a_transposed_load_casts(dtype: Any) -> None:
    def body(data: Any) -> Any:
        return store(nl.load_transpose2d(data, dtype=dtype))

    values = np.array([[1.0, 2.5, 240], [-4, 0, 3]], np.float32)
    expected = np.rint(values) if dtype == nl.int32 else values.astype(dtype.numpy).astype(np.float32)
    assert launch(body, values).astype(np.float32).tolist() == expected.T.tolist()


def test_a_transposed_load_is_a_dma_transpose() -> None:
    with nkilib.simulator.recording() as record:
        launch(ending(lambda data: nl.load_transpose2d(data)), normal(2, 3))
        assert record.instruction_counts == {"dma_transpose": 1}
        launch(ending(lambda data: nl.load_transpose2d(data, nl.float32)), normal(2, 3))
        assert record.instruction_counts == {"dma_transpose": 2}
        launch(ending(lambda data: nl.load_transpose2d(data, nl.bfloat16)), normal(2, 3))
    assert record.instruction_counts == {"dma_transpose": 3, "tensor_copy": 1}


# -- gather_flattened ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4, 128])
@pytest.mark.parametrize("kind", [np.uint32, np.int32, np.uint16, np.int8], ids=lambda kind: kind.__name__)
def test_a_gather_within_each_partition(partitions: int, kind: Any) -> None:
    def body(data: Any, indices: Any) -> Any:
        return store(nl.gather_flattened(nl.load(data), nl.load(indices)))

    values = normal(partitions, 50)
    indices = np.random.default_rng(0).integers(0, 50, (partitions, 30)).astype(kind)
    expected = np.take_along_axis(values, indices.astype(np.int64), axis=1)
    assert launch(body, values, indices).tolist() == expected.tolist()


def test_the_free_dimensions_of_data_are_flattened_and_those_of_indices_kept() -> None:
    def body(data: Any, indices: Any) -> Any:
        return store(nl.gather_flattened(data=nl.load(data), indices=nl.load(indices), axis=0))

    values = normal(3, 4, 5)
    indices = np.random.default_rng(0).integers(0, 20, (3, 2, 7)).astype(np.uint32)
    expected = np.take_along_axis(values.reshape(3, 20), indices.reshape(3, 14).astype(np.int64), axis=1)
    assert launch(body, values, indices).tolist() == expected.reshape(3, 2, 7).tolist()


def test_a_gather_casts_at_the_end() -> None:
    def body(data: Any, indices: Any) -> Any:
        return store(nl.gather_flattened(nl.load(data), nl.load(indices), dtype=nl.int8))

    values, indices = np.array([[1.5, 300, -2]], np.float32), np.array([[1, 0, 2, 1]], np.uint32)
    assert launch(body, values, indices).tolist() == [[127, 2, -2, 127]]


def test_a_gather_from_psum() -> None:
    """GpSimd does not reach it: the tile is brought to SBUF first."""

    def body(indices: Any) -> Any:
        return store(nl.gather_flattened(tile(1, 3, buffer=nl.psum, value=5), nl.load(indices)))

    assert launch(body, np.array([[2, 0]], np.uint32)).tolist() == [[5, 5]]


@pytest.mark.parametrize("kind", [np.int32, np.int16])
def test_a_negative_index_is_out_of_range(kind: Any) -> None:
    """It is not cut to 0 on its way to uint32."""

    def body(data: Any, indices: Any) -> Any:
        return store(nl.gather_flattened(nl.load(data), nl.load(indices)))

    with pytest.raises(OUT_OF_RANGE):
        launch(body, normal(1, 3), np.array([[0, -1]], kind))


def test_another_axis_is_not_implemented() -> None:
    with pytest.raises(NotImplementedError, match=r"nl\.gather_flattened: axis=1 is not implemented"):
        execute(lambda: nl.gather_flattened(tile(1, 2), tile(1, 2, dtype=nl.uint32), axis=1))


# -- rules -----------------------------------------------------------------------------------------------------------


@rules(
    legal(nl.load, src=Hbm(1, 2)),
    broken("load from SBUF", src=Sbuf(2, 2))
    .says("src must be a tensor in HBM, got {src}; to copy a tile, use nl.copy")
    .fixed(src=Hbm(2, 2)),
    broken("load of an array", src=np.zeros((1, 2))).says(
        "src must be a tensor in HBM, got a numpy ndarray [1, 2] float64: pass it to the kernel as an argument "
        "and load it, or use nl.shared_constant"
    ),
    broken("load of one dimension", src=Hbm(4))
    .says("src must have a dimension of partitions and at least one more, got {src}; reshape it")
    .fixed(src=Hbm(4).reshape((1, 4))),
    broken("load of 129 partitions", src=Hbm(129, 2))
    .says(
        "nl.ndarray: tensor [129, 2] float32 in sbuf: the partition dimension must be at most 128 "
        "(nl.tile_size.pmax), got 129"
    )
    .fixed(src=Hbm(129, 2)[1:]),
    legal(nl.store, dst=Hbm(2, 2), value=Sbuf(2, 2)),
    broken("store to SBUF", dst=Sbuf(2, 2)).says("dst must be a tensor in HBM, got {value}"),
    broken("store from PSUM", value=Psum(2, 2))
    .says("value must be a tile in sbuf, got {value}; bring it there with nl.copy or nl.load")
    .fixed(value=lazily(nl.copy, Psum(2, 2))),
    broken("store from HBM", value=Hbm(2, 2))
    .says("value must be a tile in sbuf, got {value}; bring it there with nl.copy or nl.load")
    .fixed(value=lazily(nl.load, Hbm(2, 2))),
    broken("store of another number of elements", dst=Hbm(2, 3))
    .says("nisa.dma_copy: operands 'dst' and 'src' must have equally many elements, got {dst} and {value}")
    .fixed(dst=Hbm(4)),
    legal(nl.load_transpose2d, src=Hbm(2, 3, 4).reshape((6, 4))),
    broken("transposed load of three dimensions", src=Hbm(2, 3, 4)).says("src must have two dimensions, got {src}"),
    broken("transposed load from SBUF", src=Sbuf(2, 3))
    .says("src must be a tensor in HBM, got {src}; to copy a tile, use nl.copy")
    .fixed(src=Hbm(2, 3)),
    legal(nl.gather_flattened, data=Sbuf(2, 3), indices=Sbuf(2, 1, dtype=nl.int16)),
    broken("gather by floats", indices=Sbuf(2, 1)).says("indices must be integers, got {indices}"),
    broken("gather from HBM", data=Hbm(2, 3), indices=Sbuf(2, 1, dtype=nl.uint32))
    .says("data must be a tile in sbuf or psum, got {data}: load it first, with nl.load")
    .fixed(data=lazily(nl.load, Hbm(2, 3))),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule._replace(corrected=ending(rule.corrected)))


def test_a_result_of_store_is_nothing() -> None:
    """The API says so; forms such as `return nl.store(result)` in some examples lack the destination."""
    with pytest.raises(TypeError):
        execute(lambda: nl.store(tile(2, 2)))


def test_outside_of_a_kernel() -> None:
    with pytest.raises(nisa.NkiValidationError, match="inside a kernel only"):
        nl.shared_identity_matrix(4)


F32, I32 = np.float32, np.int32
X = np.array([[1.5, -2, 300], [4, 5, 6]], F32)

# -- copy --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_a_copy_is_in_sbuf(buffer: Any) -> None:
    got = outcome(nl.copy, Tile(X, buffer=buffer))
    assert (got.buffer, got.dtype, got.instructions) == (nl.sbuf, nl.float32, {"tensor_copy": 1})
    assert got.values.tolist() == X.tolist()


def test_a_copy_has_memory_of_its_own() -> None:
    def body(dst: Any, data: Any) -> None:
        copied = nl.copy(data)
        nisa.memset(data, 0)
        nisa.tensor_copy(dst, copied)

    assert run(body, [X], Result((2, 3))).tolist() == X.tolist()


def test_a_copy_casts() -> None:
    assert call(lambda x: nl.copy(x, dtype=nl.int8), X).tolist() == [[2, -2, 127], [4, 5, 6]]


def test_copies_of_integers_are_exact() -> None:
    x = np.array([[2**30 + 1, -7]], I32)
    assert call(nl.copy, x).tolist() == x.tolist()


# -- expand_dims -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "shape"), [(1, (2, 1, 3)), (2, (2, 3, 1)), (-1, (2, 3, 1)), (-2, (2, 1, 3))])
def test_a_new_dimension(axis: int, shape: tuple[int, ...]) -> None:
    got = outcome(lambda x: nl.expand_dims(x, axis), X)
    assert got.values.tolist() == X.reshape(shape).tolist() and got.instructions == {}


def test_a_new_dimension_is_a_view() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.memset(nl.expand_dims(data[:, ::2], 1), 7)
        nisa.tensor_copy(dst, data)

    assert run(body, [X], Result((2, 3))).tolist() == [[7, -2, 7], [7, 5, 7]]


# -- broadcast_to ------------------------------------------------------------------------------------------------------

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, np.int32, np.uint32, np.int16, np.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_one_partition_for_all(dtype: Any, target: str) -> None:
    """Bit by bit, extremes of the type included; 600 columns take two matmuls."""
    row = np.linspace(-3, 3, 600).astype(F32)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        values = np.linspace(limits.min, limits.max, 600).astype(np.int64).clip(limits.min, limits.max)
        row = values.astype(dtype)
        row[:3] = limits.min, limits.max, limits.max - 1
    else:
        row = row.astype(dtype)
    got = outcome(lambda x: nl.broadcast_to(x, (128, 600)), row[None], target=target)
    assert got.dtype == np.dtype(dtype).name and got.buffer == nl.sbuf
    assert got.values.shape == (128, 600) and (got.values == row).all()
    assert got.engines["tensor"] == (3 if np.dtype(dtype) in (np.int32, np.uint32) else 2)


def test_one_partition_with_nan_and_infinities() -> None:
    row = np.array([[math.nan, math.inf, -math.inf, 3e38, 1e-38]], F32)
    assert np.array_equal(call(lambda x: nl.broadcast_to(x, (4, 5)), row), np.repeat(row, 4, 0), equal_nan=True)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=3), st.booleans())
def test_broadcasting(free: list[tuple[int, bool]], over_partitions: bool) -> None:
    shape = (5, *(size for size, _ in free))
    source = (1 if over_partitions else 5, *(1 if is_one else size for size, is_one in free))
    x = normal(*source)
    assert call(lambda x: nl.broadcast_to(x, shape), x).tolist() == np.broadcast_to(x, shape).tolist()


def test_a_row_that_is_a_view() -> None:
    """The view is of another partition, with a stride, with several dimensions, or in PSUM."""
    x = normal(64, 8)
    for row, expected in (
        (lambda x: x[0:1], x[0]),
        (lambda x: x[32:33], x[32]),
        (lambda x: x[0:1, ::2], x[0, ::2]),
        (lambda x: x[32:33, 1:7:3], x[32, 1:7:3]),
    ):
        for buffer in (nl.sbuf, nl.psum):
            tile_in = Tile(x, buffer=buffer)
            result = call(lambda x: nl.broadcast_to(row(x), (128, row(x).shape[1])), tile_in)  # noqa: B023
            assert (result == expected).all()
    result = call(lambda x: nl.broadcast_to(x.reshape((64, 2, 4, 1))[0:1, :, 1:3], (3, 2, 2, 5)), x)
    assert (result == x[0].reshape(2, 4, 1)[:, 1:3]).all() and result.shape == (3, 2, 2, 5)
    integers = np.arange(-3, 5, dtype=I32).reshape(1, 8) * 2**28
    assert (call(lambda x: nl.broadcast_to(x[:, ::2], (3, 4)), integers) == integers[:, ::2]).all()


def test_a_row_goes_to_the_tensor_engine_from_partition_0() -> None:
    """There the ones are, too, that it is multiplied by: a row of another partition is copied first."""
    x = normal(64, 8)
    matmul = {"memset": 1, "nc_matmul": 1}
    first = outcome(lambda x: nl.broadcast_to(x[0:1], (128, 8)), x)
    assert first.instructions == matmul | {"tensor_copy": 1}
    other = outcome(lambda x: nl.broadcast_to(x[32:33], (128, 8)), x)
    assert other.instructions == matmul | {"tensor_copy": 2}


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2], ids=lambda dtype: dtype.__name__)
def test_without_rounding_to_low_precision(dtype: Any) -> None:
    """Narrow floats are held in float32 with NKI_PRECISE_FP=0 and keep what their type would round away."""
    with nkilib.simulator.using(precise_fp=False):
        result = call(lambda x: nl.broadcast_to(nl.add(x, 2.0**-12), (4, 2)), np.array([[1, 2]], dtype))
    assert result.astype(F32).tolist() == [[1 + 2.0**-12, 2 + 2.0**-12]] * 4


def test_free_dimensions_take_one_copy() -> None:
    got = outcome(lambda x: nl.broadcast_to(x, [2, 4, 3]), Tile(X[:, None], buffer=nl.psum))
    assert got.instructions == {"tensor_copy": 1} and (got.values == X[:, None]).all()


def test_a_tile_that_has_the_shape_is_returned_itself() -> None:
    def body(dst: Any, data: Any) -> None:
        assert nl.broadcast_to(data, (2, 3)) is data
        assert nl.broadcast_to(data, (2, 3), dtype=nl.float32) is data
        cast = nl.broadcast_to(data, (2, 3), dtype=nl.bfloat16)
        assert cast.dtype == nl.bfloat16
        nisa.tensor_copy(dst, cast)

    assert run(body, [X], Result((2, 3))).tolist() == X.tolist()


def test_a_broadcast_casts() -> None:
    got = outcome(lambda x: nl.broadcast_to(x, (3, 3), dtype=nl.int8), X[:1])
    assert (got.dtype, got.values.tolist()) == (nl.int8, [[2, -2, 127]] * 3)


# -- where -------------------------------------------------------------------------------------------------------------

CONDITION = np.array([[1, 0, 1], [0, 1, 0]])
Y = np.array([[10, 20, 30], [40, 50, 60]], F32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.uint8, np.int32, np.int8], ids=str)
def test_where(dtype: Any) -> None:
    result = call(nl.where, CONDITION.astype(dtype), X, Y)
    assert result.tolist() == [[1.5, 20, 300], [40, 5, 60]]


def test_what_is_not_chosen_does_not_matter() -> None:
    """NaN and infinities of the other side do not spread; a condition of NaN is not 0."""
    x, y = np.full((2, 3), math.nan, F32), np.full((2, 3), math.inf, F32)
    result = call(nl.where, CONDITION.astype(F32), x, Y)
    assert np.isnan(result[CONDITION == 1]).all() and (result[CONDITION == 0] == Y[CONDITION == 0]).all()
    assert (call(nl.where, np.full((2, 3), math.nan, F32), X, y) == X).all()


def test_a_condition_of_unsigned_integers_is_taken_as_it_is() -> None:
    copies = {"tensor_copy": 1, "tensor_copy_predicated": 1}
    for condition, more in ((CONDITION.astype(np.uint8), {}), (CONDITION.astype(F32), {"tensor_scalar": 1})):
        assert outcome(nl.where, condition, X, Y).instructions == copies | more


def test_numbers_and_broadcasting() -> None:
    condition = CONDITION.astype(F32)
    assert call(lambda c, x: nl.where(c, x, -1), condition, X).tolist() == [[1.5, -1, 300], [-1, 5, -1]]
    assert call(lambda c, y: nl.where(c, 0.5, y), condition, Y).tolist() == [[0.5, 20, 0.5], [40, 0.5, 60]]
    assert call(lambda c: nl.where(c, 1, 0.25), condition).tolist() == [[1, 0.25, 1], [0.25, 1, 0.25]]
    assert call(nl.where, condition, X[:, :1], Y[:1]).tolist() == [[1.5, 20, 1.5], [10, 4, 30]]
    assert call(nl.where, condition[:, :1], X, Y).tolist() == [X[0].tolist(), Y[1].tolist()]


def test_types_of_where() -> None:
    """The condition's type plays no part; integers stay exact."""
    condition, x = CONDITION.astype(np.uint8), np.full((2, 3), 2**30 + 1, I32)
    got = outcome(lambda c, x: nl.where(c, x, 5), condition, x)
    assert (got.dtype, got.values[0].tolist()) == (nl.int32, [2**30 + 1, 5, 2**30 + 1])
    assert outcome(lambda c, x: nl.where(c, x, 0.5), condition, x).dtype == nl.float32
    assert outcome(nl.where, condition, X.astype(ml_dtypes.bfloat16), Y).dtype == nl.float32
    assert outcome(lambda c, x, y: nl.where(c, x, y, dtype=nl.int16), condition, X, Y).values.tolist() == [
        [2, 20, 300],
        [40, 5, 60],
    ]


def test_examples_of_the_documentation() -> None:
    ten, zero, five = (np.full((128, 512), value, F32) for value in (10, 0, 5))
    assert (call(nl.where, np.ones((128, 512), F32), ten, zero) == 10).all()
    assert (call(nl.where, zero, ten, five) == 5).all()


def test_operands_of_where_in_psum() -> None:
    tiles = [Tile(array, buffer=nl.psum) for array in (CONDITION.astype(np.uint8), X, Y)]
    assert call(nl.where, *tiles).tolist() == [[1.5, 20, 300], [40, 5, 60]]


@rules(
    legal(nl.expand_dims, x=Sbuf(2, 3), axis=1),
    broken("the partition dimension stays first", axis=0).says(
        "NkiTensor.expand_dim: dimension 0 of {x} counts partitions and must stay as it is"
    ),
    broken("a tile to expand", x=3).says("x must be a tile, got 3"),
    broken("a position in the shape", error=OutOfRangeError, axis=3)
    .says("NkiTensor.expand_dim: dim must be in [0, 2] of {x}, got 3")
    .fixed(axis=2),
    legal(nl.broadcast_to, x=Sbuf(1, 3), shape=(128, 3)),
    broken("a size that is not 1", x=Sbuf(2, 3), shape=(4, 3))
    .says("shape must have the 2 dimensions of {x}, each of the same size or where that is 1, got [4, 3]")
    .fixed(x=Sbuf(1, 3)),
    broken("the rank", x=Sbuf(2, 3), shape=(2, 2, 3))
    .says("shape must have the 2 dimensions of {x}, each of the same size or where that is 1, got [2, 2, 3]")
    .fixed(x=Sbuf(2, 1, 3)),
    broken("partitions that exist", shape=(129, 3)).says(
        "nl.ndarray: tensor [129, 3] float32 in sbuf: the partition dimension must be at most 128 "
        "(nl.tile_size.pmax), got 129"
    ),
    legal(nl.where, condition=Sbuf(2, 3), x=Sbuf(2, 3), y=Sbuf(2, 3)),
    broken("a condition", condition=1.0).says("condition must be a tile, got 1.0"),
    broken("shapes that broadcast", x=Sbuf(2, 4), y=0.0)
    .says("tiles must have equal numbers of dimensions, each of the same size or of size 1, got {condition} and {x}")
    .fixed(x=Sbuf(2, 1)),
)
def test_refusals(rule: Rule) -> None:
    check_call(rule)
