# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`dma_transpose`: the three orders, gather and transpose in one, and what its two kinds of descriptors demand."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ... import kernels
from ...kernels import Body, engine_of, execute, launch, load, normal, refusal, store, tile
from ...made import Hbm, Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, DMA_MEMORIES, must

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
SKIP = nisa.oob_mode.skip
BF16 = nl.bfloat16
DGE = nisa.dge_mode
ORDERS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}

# What is transposed here is bfloat16 unless it says otherwise.
sbuf = partial(kernels.sbuf, dtype=nl.bfloat16)
hbm = partial(kernels.hbm_zeros, dtype=nl.bfloat16)


def transposed_shape(shape: Any) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in ORDERS[len(shape)])


def narrow(*shape: int, seed: int = 0) -> Any:
    """Values of a type of 2 bytes."""
    return normal(*shape, seed=seed).astype(ml_dtypes.bfloat16)


# -- without a gather ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["left out", "named"])
@pytest.mark.parametrize("place", ["hbm", "sbuf"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 3), (128, 128), (3, 4, 5), (1, 7, 2), (2, 3, 4, 5), (8, 1, 1, 16)], ids=str
)
def test_the_order_follows_from_the_number_of_dimensions(shape: Any, place: str, axes: str) -> None:
    """[1, 0], [2, 1, 0] and [3, 1, 2, 0]; the middle dimensions of four stay where they are."""
    order = ORDERS[len(shape)]

    def body(data: Any) -> Any:
        source = load(data) if place == "sbuf" else data
        made = sbuf(*transposed_shape(shape), dtype=data.dtype)
        nisa.dma_transpose(made, source, **({"axes": order} if axes == "named" else {}))
        return store(made)

    values = normal(*shape)
    assert launch(body, values).tolist() == values.transpose(order).tolist()


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_shapes(shape: list[int]) -> None:
    def body(data: Any) -> Any:
        made = sbuf(*transposed_shape(shape), dtype=data.dtype)
        nisa.dma_transpose(made, data)
        return store(made)

    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    assert launch(body, values).tolist() == values.transpose(ORDERS[len(shape)]).tolist()


@pytest.mark.parametrize(
    "numpy_type", [np.int8, np.uint16, np.float16, np.int32, np.float32], ids=lambda kind: kind.__name__
)
def test_types_of_every_width(numpy_type: Any) -> None:
    def body(data: Any) -> Any:
        made = sbuf(3, 2, dtype=data.dtype)
        nisa.dma_transpose(made, data)
        return store(made)

    values = np.array([[1, 2, 3], [4, 5, 6]], numpy_type)
    result = launch(body, values)
    assert result.dtype == values.dtype and result.tolist() == [[1, 4], [2, 5], [3, 6]]


def test_bits_are_moved_as_they_are() -> None:
    """Signaling NaN and denormals of both 2-byte and 4-byte types."""
    for bits in (np.array([[0x7F81, 1], [0xFF80, 0x8000]], np.uint16), np.array([[0x7F800001, 1], [7, 9]], np.uint32)):
        values = bits.view(ml_dtypes.bfloat16 if bits.itemsize == 2 else np.float32)

        def body(data: Any) -> Any:
            made = sbuf(2, 2, dtype=data.dtype)
            nisa.dma_transpose(made, data)
            return store(made)

        assert launch(body, values).tobytes() == np.ascontiguousarray(bits.T).tobytes()


def test_strided_views_on_both_sides() -> None:
    """Every other column of the source lands in three columns of a wider tile; the others keep what they held."""

    def body(data: Any) -> Any:
        made = tile(4, 8, dtype=nl.float32, value=-1)
        nisa.dma_transpose(made[1:3, 2:5], data[:, 0:4:2])
        return store(made)

    values = normal(3, 5)
    expected = np.full((4, 8), -1, np.float32)
    expected[1:3, 2:5] = values[:, 0:4:2].T
    assert launch(body, values).tolist() == expected.tolist()


def test_four_dimensions_of_an_access_pattern() -> None:
    """Three blocks of 4 x 2 of a matrix [2, 12], each of them transposed: the form that attention kernels use."""

    def body(data: Any) -> Any:
        made = sbuf(4, 6, dtype=data.dtype)
        nisa.dma_transpose(
            dst=made.ap([[6, 4], [1, 1], [2, 3], [1, 2]]), src=data.ap([[12, 2], [1, 1], [4, 3], [1, 4]])
        )
        return store(made)

    values = normal(2, 12)
    expected = values.reshape(2, 3, 4).transpose(2, 1, 0).reshape(4, 6)
    assert launch(body, values).tolist() == expected.tolist()


@nkilib.simulator.using(overlapping_copies="ignore")
def test_a_square_tile_in_place() -> None:
    def body(data: Any) -> Any:
        made = load(data)
        nisa.dma_transpose(made, made)
        return store(made)

    values = normal(6, 6)
    assert launch(body, values).tolist() == values.T.tolist()


def test_a_source_with_an_index_read_at_run_time() -> None:
    def body(data: Any) -> Any:
        made = sbuf(4, 3, dtype=data.dtype)
        nisa.dma_transpose(made, data.select(0, tile(1, 1, dtype=nl.int32, value=1)))
        return store(made)

    values = normal(2, 3, 4)
    assert launch(body, values).tolist() == values[1].T.tolist()


def test_skip_drops_a_whole_transpose_with_an_index_out_of_range() -> None:
    def body(data: Any) -> Any:
        made = tile(2, 3, value=7)
        nisa.dma_transpose(made, data.select(0, tile(1, 1, dtype=nl.int32, value=2)), oob_mode=SKIP)
        return store(made)

    assert launch(body, normal(2, 3, 2)).tolist() == [[7] * 3] * 2


def test_skip_leaves_the_columns_of_rows_behind_the_end() -> None:
    """Three rows from row 2 of four on."""

    def body(data: Any) -> Any:
        made = tile(2, 3, value=7)
        rows = data.ap([[2, 3], [1, 2]], scalar_offset=tile(1, 1, dtype=nl.int32, value=2))
        nisa.dma_transpose(made, rows, oob_mode=SKIP)
        return store(made)

    values = normal(4, 2)
    assert launch(body, values).tolist() == [[*values[2:, column].tolist(), 7] for column in range(2)]


def test_what_was_transposed_counts_as_written() -> None:
    """And nothing else: the last column of the tile was not."""

    def body(columns: int) -> Body:
        def kernel() -> None:
            made = sbuf(2, 4)
            nisa.dma_transpose(made[:, 0:columns], hbm(columns, 2))
            nisa.dma_copy(hbm(2, 4), made)

        return kernel

    assert refusal(body(3), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 8 elements of tensor [2, 4] bfloat16 in sbuf were never written"
    )
    execute(body(4))


def test_an_unwritten_source() -> None:
    def kernel() -> None:
        nisa.dma_transpose(sbuf(3, 2), nl.ndarray((2, 3), nl.bfloat16, nl.private_hbm))

    assert refusal(kernel, error=UNINITIALIZED) == (
        "nisa.dma_transpose: operand 'src': 6 of the 6 elements of tensor [2, 3] bfloat16 in private_hbm were never "
        "written"
    )


def transposed(**options: Any) -> Body:
    """Transpose two rows of three elements."""

    def body(data: Any) -> Any:
        made = sbuf(3, 2)
        nisa.dma_transpose(made, data, **options)
        return store(made)

    return body


TWO_ROWS = np.array([[1, 2, 3], [4, 5, 6]], ml_dtypes.bfloat16)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_generation_transposes(target: str) -> None:
    assert launch(transposed(), TWO_ROWS, target=target).tolist() == [[1, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize(
    "shape", [(16, 128), (16, 3), (1, 16, 5), (2, 8, 128), (4, 4, 1), (8, 2, 2), (16, 1, 7), (4, 3, 4, 8)], ids=str
)
def test_hardware_descriptors(shape: Any) -> None:
    """Two dimensions: 16 rows. More: a power of two up to 16 that makes 16s with the last dimension but one."""

    def body(data: Any) -> Any:
        made = sbuf(*transposed_shape(shape))
        nisa.dma_transpose(made, data, dge_mode=DGE.hwdge)
        return store(made)

    values = narrow(*shape)
    assert launch(body, values).tolist() == values.transpose(ORDERS[len(shape)]).tolist()


@pytest.mark.parametrize("mode", [DGE.none, 3])
def test_descriptors_made_before_the_kernel_runs(mode: Any) -> None:
    """Published kernels ask for such descriptors, also by the number: any number of rows, any type."""

    def body(data: Any) -> Any:
        made = sbuf(3, 1, 1, 5, dtype=nl.float32)
        nisa.dma_transpose(made, data, dge_mode=mode)
        return store(made)

    values = np.random.default_rng(0).standard_normal((5, 1, 1, 3)).astype(np.float32)
    assert launch(body, values).tolist() == values.transpose(3, 1, 2, 0).tolist()


@pytest.mark.parametrize("priority", [0, 3])
def test_priorities_on_trn3(priority: int) -> None:
    result = launch(transposed(priority=priority), TWO_ROWS, target="trn3")
    assert result.tolist() == [[1, 4], [2, 5], [3, 6]]


# -- gather and transpose --------------------------------------------------------------------------------------------


def gather(data: Any, index: Any, rows: int) -> Any:
    """Make the view of `rows` rows of `data` that `index` names, column by column, in a kernel."""
    strides = [1]
    for size in reversed(data.shape[1:]):
        strides.insert(0, strides[0] * size)
    pattern = [[strides[0], rows], *([stride, size] for stride, size in zip(strides[1:], data.shape[1:], strict=True))]
    return data.ap(pattern, vector_offset=index, indirect_dim=0)


def gathered(values: Any, index: Any, rows: int, **options: Any) -> Any:
    """Return what a gather of `rows` rows and its transpose leave in a tile of -1."""

    def body(data: Any, index_hbm: Any) -> Any:
        made = tile(*transposed_shape((rows, *data.shape[1:])), dtype=data.dtype, value=-1)
        nisa.dma_transpose(dst=made, src=gather(data, load(index_hbm), rows), **options)
        return store(made)

    return launch(body, values, index)


def random_index(partitions: int, columns: int, limit: int) -> Any:
    return np.random.default_rng(1).integers(0, limit, (partitions, columns)).astype(np.uint32)


@pytest.mark.parametrize(
    ("partitions", "columns", "rows"),
    [(16, 1, 16), (64, 1, 48), (128, 1, 128), (128, 1, 16), (128, 2, 256), (128, 3, 272)],
)
@pytest.mark.parametrize("dge_mode", [DGE.unknown, DGE.swdge], ids=lambda mode: mode.name)
def test_gather_and_transpose(partitions: int, columns: int, rows: int, dge_mode: Any) -> None:
    """The documented `flat_indices = indices.T.flatten()[:src.shape[0]]`, `dst = src[flat_indices, :].T`."""
    values, index = narrow(40, 24), random_index(partitions, columns, 40)
    result = gathered(values, index, rows, axes=(1, 0), dge_mode=dge_mode)
    assert result.tolist() == values[index.T.flatten()[:rows]].T.tolist()


@pytest.mark.parametrize("shape", [(30, 3, 5), (30, 1, 6, 8), (30, 6, 1, 8)], ids=str)
def test_gather_of_rows_of_several_dimensions(shape: Any) -> None:
    values, index = narrow(*shape), random_index(32, 1, 30)
    expected = values[index[:, 0]].transpose(ORDERS[len(shape)])
    assert gathered(values, index, 32, axes=ORDERS[len(shape)]).tolist() == expected.tolist()


def test_skip_leaves_the_columns_of_rows_that_do_not_exist() -> None:
    values = narrow(20, 5)
    index = np.arange(16, dtype=np.uint32)[:, None]
    index[[2, 9], 0] = [20, 2**31]
    expected = values[index[:, 0] % 2**31 % 20].T.astype(np.float32)
    expected[:, [2, 9]] = -1
    assert gathered(values, index, 16, oob_mode=SKIP).tolist() == expected.tolist()


def test_skip_in_four_dimensions() -> None:
    values = narrow(20, 2, 1, 3)
    index = np.full((16, 1), 7, np.uint32)
    index[5] = 99
    expected = np.repeat(values[7].astype(np.float32).transpose(2, 0, 1)[..., None], 16, axis=-1)
    expected[..., 5] = -1
    assert gathered(values, index, 16, oob_mode=SKIP).tolist() == expected.tolist()


def test_columns_that_skip_drops_do_not_count_as_written() -> None:
    def body(value: int) -> Body:
        def kernel() -> None:
            made = sbuf(3, 16)
            index = tile(16, 1, dtype=nl.uint32, value=value)
            nisa.dma_transpose(made, gather(hbm(4, 3), index, 16), oob_mode=SKIP)
            nisa.dma_copy(hbm(3, 16), made)

        return kernel

    assert refusal(body(4), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 48 of the 48 elements of tensor [3, 16] bfloat16 in sbuf were never written"
    )
    execute(body(3))


def test_an_index_out_of_range_in_a_later_column() -> None:
    """The message names partition and column of the index, and nothing is written."""
    index = np.zeros((128, 2), np.uint32)
    index[3, 1] = 40
    with pytest.raises(OUT_OF_RANGE) as caught:
        gathered(narrow(40, 4), index, 256)
    assert str(caught.value).endswith(
        "nisa.dma_transpose: operand 'src': index 40 in partition 3, column 1, of tensor [128, 2] uint32 in sbuf is "
        "out of range [0, 40) of tensor 'data' [40, 4] bfloat16 in private_hbm"
    )


def test_indices_behind_the_rows_of_the_source_are_not_looked_at() -> None:
    index = np.full((32, 1), 2**32 - 1, np.uint32)
    index[:16, 0] = np.arange(16)
    values = narrow(16, 4)
    assert gathered(values, index, 16).tolist() == values.T.tolist()


# -- rules -----------------------------------------------------------------------------------------------------------


def direct(shape: Any, dtype: Any = nl.bfloat16, **options: Any) -> Body:
    return lambda: nisa.dma_transpose(sbuf(*transposed_shape(shape), dtype=dtype), hbm(*shape, dtype=dtype), **options)


def indirect(
    shape: Any = (16, 8),
    index_shape: Any = (16, 1),
    dtype: Any = nl.bfloat16,
    index_dtype: Any = nl.uint32,
    **options: Any,
) -> Body:
    def kernel() -> None:
        index = tile(*index_shape, dtype=index_dtype)
        source = gather(hbm(*shape, dtype=dtype), index, shape[0])
        nisa.dma_transpose(sbuf(*transposed_shape(shape), dtype=dtype), source, **options)

    return kernel


BY_16 = (
    "dge_mode=hwdge needs src.shape[0] in (1, 2, 4, 8, 16) and src.shape[0] * src.shape[-2] divisible by 16, got "
    "tensor {} bfloat16 in private_hbm"
)
MIDDLE = (
    "a vector offset needs src.shape[1] or src.shape[2] to be 1 in four dimensions, got tensor {} bfloat16 in "
    "private_hbm"
)
OFFSETS = (
    "the vector offset of a transpose must have 16 to 128 partitions, a multiple of 16, and 128 if it has several "
    "columns, got tensor {} uint32 in sbuf"
)


@rules(
    legal(nisa.dma_transpose, dst=Sbuf(3, 2, dtype=BF16), src=Hbm(2, 3, dtype=BF16)),
    broken("dst in HBM", dst=Hbm(3, 2, dtype=BF16)).says(must("dst", "be in sbuf")),
    broken("src in PSUM", dst=Sbuf(3, 2), src=Psum(2, 3))
    .says(must("src", f"be in {DMA_MEMORIES}", COPY_FIRST))
    .fixed(src=Sbuf(2, 3)),
    broken("types", dst=Sbuf(3, 2, dtype=nl.float16)).says("'dst' and 'src' must have one type, got {dst} and {src}"),
    broken("shape", dst=Sbuf(2, 3, dtype=BF16)).says(
        "operand 'dst' must have the shape [3, 2], which is that of 'src' in the order (1, 0), got {dst} and {src}"
    ),
    broken("rank", dst=Sbuf(4, 3, 2, dtype=BF16), src=Hbm(2, 1, 3, 4, dtype=BF16))
    .says(
        "operand 'dst' must have the shape [4, 1, 3, 2], which is that of 'src' in the order (3, 1, 2, 0), got "
        "{dst} and {src}"
    )
    .fixed(dst=Sbuf(4, 1, 3, 2, dtype=BF16)),
    broken("one dimension", dst=Sbuf(6, 1, dtype=BF16), src=Hbm(6, dtype=BF16))
    .says(must("src", "have 2, 3 or 4 dimensions"))
    .fixed(dst=Sbuf(1, 6, dtype=BF16), src=Hbm(6, 1, dtype=BF16)),
    legal_kernel("nisa.dma_transpose", direct, shape=(2, 3), axes=[1, 0]),
    broken("axes of two dimensions", axes=(0, 1)).says("axes must be (1, 0) for a source of 2 dimensions, got (0, 1)"),
    broken("axes of four dimensions", shape=(2, 3, 4, 5), axes=(3, 2, 1, 0))
    .says("axes must be (3, 1, 2, 0) for a source of 4 dimensions, got (3, 2, 1, 0)")
    .fixed(axes=(3, 1, 2, 0)),
    legal_kernel("nisa.dma_transpose", direct, shape=(16, 3), dge_mode=DGE.hwdge),
    broken("software descriptors without a gather", dge_mode=DGE.swdge).says(
        "a transpose without a vector offset needs dge_mode unknown, hwdge or none, got swdge"
    ),
    broken("dge_mode", dge_mode=9).says("dge_mode must be a member of nki.isa.dge_mode, got 9"),
    broken("hwdge on trn1", on="trn1").says("dge_mode=hwdge needs trn2 or newer"),
    legal_kernel("nisa.dma_transpose", direct, shape=(8, 3)),
    broken("hwdge: rows of two dimensions", dge_mode=DGE.hwdge).says(
        "dge_mode=hwdge needs src.shape[0] == 16 in two dimensions, got tensor [8, 3] bfloat16 in private_hbm"
    ),
    legal_kernel("nisa.dma_transpose", direct, shape=(2, 3)),
    broken("hwdge: rows of three dimensions", shape=(3, 16, 2), dge_mode=DGE.hwdge)
    .says(BY_16.format("[3, 16, 2]"))
    .fixed(shape=(4, 16, 2)),
    broken("hwdge: product of four dimensions", shape=(4, 16, 3, 2), dge_mode=DGE.hwdge)
    .says(BY_16.format("[4, 16, 3, 2]"))
    .fixed(shape=(4, 3, 16, 2)),
    broken("hwdge: type", shape=(16, 3), dtype=nl.float32, dge_mode=DGE.hwdge)
    .says("dge_mode=hwdge needs a type of 2 bytes, got tensor [16, 3] float32 in private_hbm")
    .fixed(dtype=nl.float16),
    broken("skip without an index", oob_mode=SKIP)
    .says("oob_mode=skip is valid with an indirect 'src' only, got tensor [2, 3] bfloat16 in private_hbm")
    .fixed(oob_mode=nisa.oob_mode.error),
    broken("oob_mode", oob_mode="error").says("oob_mode must be a member of nki.isa.oob_mode, got 'error'"),
    broken("priority", priority=0).says("priority is 0 to 3 and needs trn3, got 0 on trn2").fixed(on="trn3"),
    legal_kernel("nisa.dma_transpose", indirect),
    broken("gather on trn1", on="trn1").says("a vector offset needs trn2 or newer").fixed(on="trn3"),
    broken("gather with hardware descriptors", dge_mode=DGE.hwdge)
    .says("a vector offset needs dge_mode unknown or swdge, got hwdge")
    .fixed(dge_mode=DGE.swdge),
    broken("gather: type", dtype=nl.float32)
    .says("a vector offset needs a type of 2 bytes, got tensor [16, 8] float32 in private_hbm")
    .fixed(dtype=nl.float16),
    broken("gather: middle dimensions, whatever the last one is", shape=(16, 2, 2, 1))
    .says(MIDDLE.format("[16, 2, 2, 1]"))
    .fixed(shape=(16, 1, 4, 1)),
    broken("gather: middle dimensions", shape=(16, 2, 2, 3))
    .says(MIDDLE.format("[16, 2, 2, 3]"))
    .fixed(shape=(16, 4, 1, 3)),
    broken("gather: number of rows", shape=(20, 8), index_shape=(32, 1))
    .says("a vector offset needs src.shape[0] divisible by 16, got tensor [20, 8] bfloat16 in private_hbm")
    .fixed(shape=(32, 8)),
    broken("gather: type of the index", index_dtype=nl.int32)
    .says("the vector offset of a transpose must be uint32, got tensor [16, 1] int32 in sbuf")
    .fixed(index_dtype=nl.uint32),
    broken("gather: partitions of the index", shape=(16, 8), index_shape=(24, 1))
    .says(OFFSETS.format("[24, 1]"))
    .fixed(index_shape=(32, 1)),
    broken("gather: columns of the index", shape=(128, 8), index_shape=(64, 2))
    .says(OFFSETS.format("[64, 2]"))
    .fixed(index_shape=(128, 2)),
    Rule(
        "gather: fewer indices than rows",
        lambda: hbm(32, 8).ap([[8, 32], [1, 8]], vector_offset=tile(16, 1, dtype=nl.uint32)),
        "NkiTensor.ap on tensor [32, 8] bfloat16 in private_hbm: the vector offset must have one index for each of the "
        "32 rows of the pattern, got tensor [16, 1] uint32 in sbuf",
        indirect((32, 8), (48, 1)),
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


# -- what is recorded ------------------------------------------------------------------------------------------------


def test_it_runs_on_the_dma_engine() -> None:
    assert engine_of(lambda: nisa.dma_transpose(sbuf(3, 2, dtype=nl.float32), tile(2, 3))) == "dma"


@pytest.mark.parametrize(
    ("name", "read"),
    [("direct", 2 * 48), ("in sbuf", 0), ("gather", 2 * 16 * 3), ("gather with rows skipped", 2 * 15 * 3)],
)
def test_hbm_bytes(name: str, read: int) -> None:
    """Nothing is written to HBM; rows that are skipped are not read."""

    def body(data: Any, index_hbm: Any) -> None:
        made, index = sbuf(3, 16), load(index_hbm)
        source = {"direct": data, "in sbuf": load(data)}.get(name)
        if source is None:
            nisa.dma_transpose(made, gather(data, index, 16), oob_mode=SKIP)
        else:
            nisa.dma_transpose(made, source)

    index = np.zeros((16, 1), np.uint32)
    index[4] = 99 if "skipped" in name else 0
    with nkilib.simulator.recording() as record:
        launch(body, narrow(16, 3), index)
    loads = 4 * 16 + 2 * 48
    assert (record.hbm_read_bytes - loads, record.hbm_written_bytes) == (read, 0)
