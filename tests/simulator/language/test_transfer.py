# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nl.load`, `nl.store`, `nl.load_transpose2d` and `nl.gather_flattened`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ..kernels import ending, execute, launch, normal, store, tile
from ..made import Hbm, Psum, Sbuf, lazily
from ..rules import Rule, broken, check_rule, legal, rules

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
