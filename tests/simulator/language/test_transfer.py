"""`nl.load`, `nl.store`, `nl.load_transpose2d` and `nl.gather_flattened`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ..kernels import Rule, check_rule, ending, execute, hbm_zeros, launch, normal, rules, store, tile

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
    """To nearest even in integers; to bfloat16, 257 is 256."""

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
    Rule(
        "load from SBUF",
        lambda: nl.load(tile(2, 2)),
        "nl.load: src must be a tensor in HBM, got tensor [2, 2] float32 in sbuf; to copy a tile, use nl.copy",
        lambda: nl.load(hbm_zeros(2, 2)),
    ),
    Rule(
        "load of an array",
        lambda: nl.load(np.zeros((1, 2))),
        "nl.load: src must be a tensor in HBM, got a numpy ndarray [1, 2] float64: pass it to the kernel as an "
        "argument and load it, or use nl.shared_constant",
        lambda: nl.load(hbm_zeros(1, 2)),
    ),
    Rule(
        "load of one dimension",
        lambda: nl.load(hbm_zeros(4)),
        "nl.load: src must have a dimension of partitions and at least one more, got tensor [4] float32 in "
        "private_hbm; reshape it",
        lambda: nl.load(hbm_zeros(4).reshape((1, 4))),
    ),
    Rule(
        "load of 129 partitions",
        lambda: nl.load(hbm_zeros(129, 2)),
        "nl.load: nl.ndarray: tensor [129, 2] float32 in sbuf: the partition dimension must be at most 128 "
        "(nl.tile_size.pmax), got 129",
        lambda: nl.load(hbm_zeros(129, 2)[1:]),
    ),
    Rule(
        "store to SBUF",
        lambda: nl.store(tile(2, 2), tile(2, 2)),
        "nl.store: dst must be a tensor in HBM, got tensor [2, 2] float32 in sbuf",
        lambda: nl.store(hbm_zeros(2, 2), tile(2, 2)),
    ),
    Rule(
        "store from PSUM",
        lambda: nl.store(hbm_zeros(2, 2), tile(2, 2, buffer=nl.psum)),
        "nl.store: value must be a tile in sbuf, got tensor [2, 2] float32 in psum; bring it there with nl.copy or "
        "nl.load",
        lambda: nl.store(hbm_zeros(2, 2), nl.copy(tile(2, 2, buffer=nl.psum))),
    ),
    Rule(
        "store from HBM",
        lambda: nl.store(hbm_zeros(2, 2), hbm_zeros(2, 2)),
        "nl.store: value must be a tile in sbuf, got tensor [2, 2] float32 in private_hbm; bring it there with nl.copy "
        "or nl.load",
        lambda: nl.store(hbm_zeros(2, 2), nl.load(hbm_zeros(2, 2))),
    ),
    Rule(
        "store of another number of elements",
        lambda: nl.store(hbm_zeros(2, 3), tile(2, 2)),
        "nl.store: nisa.dma_copy: operands 'dst' and 'src' must have equally many elements, got tensor [2, 3] float32 "
        "in private_hbm and tensor [2, 2] float32 in sbuf",
        lambda: nl.store(hbm_zeros(4), tile(2, 2)),
    ),
    Rule(
        "transposed load of three dimensions",
        lambda: nl.load_transpose2d(hbm_zeros(2, 3, 4)),
        "nl.load_transpose2d: src must have two dimensions, got tensor [2, 3, 4] float32 in private_hbm",
        lambda: nl.load_transpose2d(hbm_zeros(2, 3, 4).reshape((6, 4))),
    ),
    Rule(
        "transposed load from SBUF",
        lambda: nl.load_transpose2d(tile(2, 3)),
        "nl.load_transpose2d: src must be a tensor in HBM, got tensor [2, 3] float32 in sbuf; to copy a tile, use "
        "nl.copy",
        lambda: nl.load_transpose2d(hbm_zeros(2, 3)),
    ),
    Rule(
        "gather by floats",
        lambda: nl.gather_flattened(tile(2, 3), tile(2, 1)),
        "nl.gather_flattened: indices must be integers, got tensor [2, 1] float32 in sbuf",
        lambda: nl.gather_flattened(tile(2, 3), tile(2, 1, dtype=nl.int16)),
    ),
    Rule(
        "gather from HBM",
        lambda: nl.gather_flattened(hbm_zeros(2, 3), tile(2, 1, dtype=nl.uint32)),
        "nl.gather_flattened: data must be a tile in sbuf or psum, got tensor [2, 3] float32 in private_hbm: load it "
        "first, with nl.load",
        lambda: nl.gather_flattened(nl.load(hbm_zeros(2, 3)), tile(2, 1, dtype=nl.uint32)),
    ),
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
