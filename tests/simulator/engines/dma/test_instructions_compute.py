# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`dma_compute`: sums in float32 on the way through the DMA engines, and rows of HBM added to or gathered and added."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, engine_of, execute, hbm_zeros, launch, load, normal, refusal, sbuf, store, tile
from ...made import Hbm, Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, DMA_MEMORIES, must

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
SKIP = nisa.oob_mode.skip


def add(dst: Any, *srcs: Any, **options: Any) -> Any:
    return nisa.dma_compute(dst, list(srcs), nl.add, **options)


# -- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 16])
@pytest.mark.parametrize("destination", ["hbm", "sbuf"])
@pytest.mark.parametrize("source", ["hbm", "sbuf"])
def test_sum_of_tensors(source: str, destination: str, count: int) -> None:
    """Sums of float32 from left to right are bit for bit what float32 numpy gives in that order."""

    def body(*data: Any) -> Any:
        made = hbm_zeros(5, 7) if destination == "hbm" else sbuf(5, 7)
        add(made, *(load(item) if source == "sbuf" else item for item in data))
        return store(made)

    arrays = [normal(5, 7, seed=number, scale=10.0**number) for number in range(count)]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected = expected + array
    assert launch(body, *arrays).tolist() == expected.tolist()


def test_the_order_of_the_sum_shows_in_float32() -> None:
    """2^24 + 1 + 1 loses both ones, 1 + 1 + 2^24 loses none."""

    def body(big: Any, one: Any) -> Any:
        made = hbm_zeros(2, 1)
        add(made[0:1], big, one, one)
        add(made[1:2], one, one, big)
        return store(made)

    big, one = np.full((1, 1), 2.0**24, np.float32), np.ones((1, 1), np.float32)
    assert launch(body, big, one).tolist() == [[2**24], [2**24 + 2]]


@pytest.mark.parametrize("scales", [None, [1.0, 1.0], (1, np.float32(1))], ids=str)
def test_scales_of_one(scales: Any) -> None:
    def body(x: Any, y: Any) -> Any:
        made = hbm_zeros(2, 3)
        nisa.dma_compute(made, (x, y), scales=scales, reduce_op=nl.add)
        return store(made)

    x, y = normal(2, 3), normal(2, 3, seed=1)
    assert launch(body, x, y).tolist() == (x + y).tolist()


@pytest.mark.parametrize(
    ("first", "second", "dtype", "expected"),
    [
        (np.array([[1, 300]], ml_dtypes.bfloat16), np.array([[2**-9, 1]], np.float32), nl.float32, [1 + 2**-9, 301]),
        (np.array([[1, 257]], np.float32), np.array([[2**-9, 0]], np.float32), nl.bfloat16, [1, 256]),
        (np.array([[2**24, 100]], np.int32), np.array([[1, -1]], np.int32), nl.int32, [2**24, 99]),
        (np.array([[100, -100]], np.int8), np.array([[100, -100]], np.int8), nl.int8, [127, -128]),
        (np.array([[0.25, 1]], np.float32), np.array([[0.25, 1.5]], np.float32), nl.int32, [0, 2]),
        (np.array([[200, 1]], np.uint8), np.array([[200, 1]], np.uint8), nl.float32, [400, 2]),
        (np.array([[1, 2]], np.float32), np.array([[2**-11, 0]], np.float32), nl.tfloat32, [1, 2]),
        (np.array([[np.inf, np.nan]], np.float32), np.array([[-np.inf, 1]], np.float32), nl.float32, [np.nan, np.nan]),
    ],
)
def test_types_are_combined_in_float32_and_cast_at_the_end(first: Any, second: Any, dtype: Any, expected: Any) -> None:
    """Integers too: 2^24 + 1 is no float32."""

    def body(x: Any, y: Any) -> Any:
        made = hbm_zeros(1, 2, dtype=dtype)
        add(made, x, y)
        return store(made)

    np.testing.assert_array_equal(launch(body, first, second).astype(np.float64)[0], expected)


def test_low_precision_stored_as_float32() -> None:
    """`NKI_PRECISE_FP=0`: the sum of two bfloat16 keeps what bfloat16 would lose."""

    def body(x: Any, y: Any) -> Any:
        made = hbm_zeros(1, 1, dtype=nl.bfloat16)
        add(made, x, y)
        return store(made)

    values = np.array([[256]], ml_dtypes.bfloat16), np.array([[1]], ml_dtypes.bfloat16)
    assert launch(body, *values).tolist() == [[256]]
    with nkilib.simulator.using(precise_fp=False):
        assert launch(body, *values).tolist() == [[257]]


def test_only_the_number_of_elements_must_match() -> None:
    """All tensors are walked in row-major order."""

    def body(x: Any, y: Any) -> Any:
        made = sbuf(2, 2, 3)
        add(made, x, y.reshape((3, 4)))
        return store(made)

    x, y = normal(12), normal(4, 3)
    assert launch(body, x, y).tolist() == (x + y.reshape(-1)).reshape(2, 2, 3).tolist()


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_strided_views(rows: int, columns: int, row_step: int, column_step: int) -> None:
    """Every so many rows and columns of wider tensors, of which nothing else is touched."""

    def body(output: Any, x: Any, y: Any) -> Any:
        add(output[::row_step, ::column_step], x[::row_step, ::column_step], y)
        return output

    x = normal(rows * row_step, columns * column_step)
    y, output = normal(rows, columns, seed=1), np.full(x.shape, -1, np.float32)
    expected = output.copy()
    expected[::row_step, ::column_step] = x[::row_step, ::column_step] + y
    launch(body, output, x, y)
    assert output.tolist() == expected.tolist()


@nkilib.simulator.using(overlapping_copies="ignore")
def test_accumulating_into_a_source() -> None:
    """`dst` may be one of the sources: each element is read before it is written, overlap or not."""

    def body(data: Any) -> Any:
        add(data[0:2], data[0:2], data[1:3])
        return data

    values = normal(3, 4)
    before = values.copy()
    launch(body, values)
    assert values.tolist() == [*(before[0:2] + before[1:3]).tolist(), before[2].tolist()]


def test_what_was_added_up_counts_as_written() -> None:
    """And nothing else."""

    def body(rows: int) -> Body:
        def kernel() -> None:
            made = sbuf(4, 2)
            add(made[0:rows], hbm_zeros(rows, 2), hbm_zeros(rows, 2))
            nisa.dma_copy(hbm_zeros(4, 2), made)

        return kernel

    assert refusal(body(3), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 8 elements of tensor [4, 2] float32 in sbuf were never written"
    )
    execute(body(4))


def test_tiles_that_the_kernel_places_on_each_other_may_be_filled_alternately() -> None:
    """A tile that a sum overwrites as a whole is not needed any more; a tile that the sum is added to is."""

    def kernel(is_update: bool) -> Body:
        def body() -> None:
            data = hbm_zeros(4, 2)
            first, second = (nl.ndarray((4, 2), nl.float32, address=(0, 4096)) for _ in range(2))
            add(first, data, data)
            for made in (second, first):
                add(made, made if is_update and made is first else data, data)

        return body

    execute(kernel(is_update=False))
    with pytest.raises(nkilib.simulator.CapacityError):
        execute(kernel(is_update=True))


def test_a_tile_that_rows_are_gathered_into_was_needed_until_then() -> None:
    def kernel(makes_another: bool) -> Body:
        def body() -> None:
            made = nl.ndarray((2, 2), nl.float32, address=(0, 4096))
            nisa.memset(made, 0)
            if makes_another:
                nisa.memset(nl.ndarray((2, 2), nl.float32, address=(0, 4096)), 0)
            gather_add(made, hbm_zeros(3, 2), tile(2, 1, dtype=nl.int32, value=5), oob_mode=SKIP)

        return body

    execute(kernel(makes_another=False))
    with pytest.raises(nkilib.simulator.CapacityError):
        execute(kernel(makes_another=True))


def test_an_unwritten_source_is_named_by_its_number() -> None:
    def kernel() -> None:
        nisa.dma_compute(hbm_zeros(2, 2), [hbm_zeros(2, 2), sbuf(2, 2)], nl.add)

    assert refusal(kernel, error=UNINITIALIZED) == (
        "nisa.dma_compute: operand 'srcs[1]': 4 of the 4 elements of tensor [2, 2] float32 in sbuf were never written"
    )


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_generation_adds(target: str) -> None:
    def body(first: Any, second: Any) -> Any:
        made = hbm_zeros(2, 2)
        add(made, first, load(second))
        return store(made)

    first, second = np.array([[1, 2], [3, 4]], np.float32), np.array([[10, 20], [30, 40]], np.float32)
    assert launch(body, first, second, target=target).tolist() == [[11, 22], [33, 44]]


# -- scatter and gather ----------------------------------------------------------------------------------------------


def scatter_add(output: Any, index: Any, data: Any, swapped: bool = False, **options: Any) -> None:
    """Add row p of `data` to row `index[p]` of `output`, in a kernel."""
    rows = output.vector_select(0, index)
    srcs = [data, output.vector_select(0, index)]
    nisa.dma_compute(rows, srcs[::-1] if swapped else srcs, nl.add, **options)


def gather_add(made: Any, data: Any, index: Any, swapped: bool = False, **options: Any) -> None:
    """Add row `index[p]` of `data` to row p of `made`, in a kernel."""
    srcs = [data.vector_select(0, index), made]
    nisa.dma_compute(made, srcs[::-1] if swapped else srcs, nl.add, **options)


def test_scatter_adds_to_rows_in_hbm() -> None:
    """Rows that no index names keep what they held."""
    for swapped in (False, True):

        def body(output: Any, data: Any, index: Any, swapped: bool = swapped) -> None:
            scatter_add(output, load(index), load(data), swapped)

        output, data = normal(6, 3), normal(3, 3, seed=1)
        expected = output.copy()
        expected[[4, 0, 3]] += data
        launch(body, output, data, np.array([[4], [0], [3]], np.int32))
        assert output.tolist() == expected.tolist()


def test_gather_adds_rows_of_hbm_to_a_tile() -> None:
    """A row may be added to several partitions."""
    for swapped in (False, True):

        def body(tile_values: Any, data: Any, index: Any, swapped: bool = swapped) -> Any:
            made = load(tile_values)
            gather_add(made, data, load(index), swapped)
            return store(made)

        values, data = normal(4, 3), normal(6, 3, seed=1)
        index = np.array([[5], [0], [5], [2]], np.uint32)
        assert launch(body, values, data, index).tolist() == (values + data[index[:, 0]]).tolist()


def test_gather_with_an_access_pattern_adds_up_the_rows_of_a_token() -> None:
    """The migration guide's loop: `dma_copy` the first of K rows, `dma_compute` the others, part of each row."""

    def body(data: Any, index_hbm: Any) -> Any:
        index, made = load(index_hbm), sbuf(3, 2)
        for k in range(2):
            rows = data.ap([[5, 3], [1, 2]], offset=1, vector_offset=index[:, k : k + 1], indirect_dim=0)
            if k == 0:
                nisa.dma_copy(dst=made, src=rows)
            else:
                nisa.dma_compute(dst=made, srcs=[rows, made], reduce_op=nl.add, unique_indices=True)
        return store(made)

    data, index = normal(7, 5), np.array([[0, 6], [3, 3], [1, 2]], np.uint32)
    expected = data[index[:, 0], 1:3] + data[index[:, 1], 1:3]
    assert launch(body, data, index).tolist() == expected.tolist()


def test_scatter_casts_once_per_update() -> None:
    """Float32 sum of bfloat16 rows, rounded to bfloat16 at the store: 256 + 1.5 gives 258, not 256."""

    def body(output: Any, data: Any) -> None:
        scatter_add(output, tile(1, 1, dtype=nl.int32, value=1), load(data))

    output = np.full((2, 1), 256, ml_dtypes.bfloat16)
    launch(body, output, np.full((1, 1), 1.5, np.float32))
    assert output.tolist() == [[256], [258]]


def test_skip_leaves_rows_that_do_not_exist() -> None:
    """A scatter drops what it would have added, a gather leaves its tile as it is."""

    def scatter(output: Any, data: Any, index: Any) -> None:
        scatter_add(output, load(index), load(data), oob_mode=SKIP)

    def gather(data: Any, values: Any, index: Any) -> Any:
        made = load(values)
        gather_add(made, data, load(index), oob_mode=SKIP)
        return store(made)

    index = np.array([[3], [1], [-1]], np.int32)
    output, data = normal(3, 2), normal(3, 2, seed=1)
    added = data.copy()
    added[1] += output[1]
    assert launch(gather, output, data, index).tolist() == added.tolist()
    expected = output.copy()
    expected[1] += data[1]
    launch(scatter, output, data, index)
    assert output.tolist() == expected.tolist()


def test_rows_out_of_range_may_repeat_under_skip() -> None:
    def body(output: Any) -> None:
        scatter_add(output, tile(3, 1, dtype=nl.int32, value=9), tile(3, 2, value=1), oob_mode=SKIP)

    output = np.zeros((4, 2), np.float32)
    launch(body, output)
    assert (output == 0).all()


def test_nothing_is_written_when_an_index_is_out_of_range() -> None:
    def body(output: Any, index: Any) -> None:
        scatter_add(output, load(index), tile(2, 2, value=1))

    output = np.zeros((3, 2), np.float32)
    with pytest.raises(OUT_OF_RANGE) as caught:
        launch(body, output, np.array([[0], [3]], np.int32))
    assert str(caught.value).endswith(
        "nisa.dma_compute: operand 'dst': index 3 in partition 1 of tensor [2, 1] int32 in sbuf is out of range [0, 3) "
        "of tensor 'output' [3, 2] float32 in private_hbm"
    )
    assert (output == 0).all()


def test_rows_that_were_never_written_cannot_be_added_to() -> None:
    def kernel() -> None:
        rows = nl.ndarray((4, 2), nl.float32, nl.private_hbm).vector_select(0, tile(1, 1, dtype=nl.int32))
        nisa.dma_compute(rows, [rows, tile(1, 2)], nl.add)

    assert refusal(kernel, error=UNINITIALIZED) == (
        "nisa.dma_compute: operand 'srcs[0]': 2 of the 2 elements gathered from tensor [4, 2] float32 in private_hbm "
        "were never written"
    )


# -- rules -----------------------------------------------------------------------------------------------------------


def summing(count: int = 2, **options: Any) -> Body:
    arguments = {"reduce_op": nl.add} | options
    return lambda: nisa.dma_compute(hbm_zeros(2, 2), [hbm_zeros(2, 2) for _ in range(count)], **arguments)


def updating(make_operands: Any, **options: Any) -> Body:
    """`make_operands(data, index)` gives `dst` and `srcs`; `data` has rows in HBM, `index` names two of them."""

    def kernel() -> None:
        index = tile(2, 1, dtype=nl.int32)
        nisa.iota(index, [[1, 1]], 0, 1)
        dst, srcs = make_operands(hbm_zeros(4, 2), index)
        nisa.dma_compute(dst, srcs, nl.add, **options)

    return kernel


def _scatter(data: Any, index: Any) -> Any:
    return data.vector_select(0, index), [tile(2, 2), data.vector_select(0, index)]


def _gather(data: Any, index: Any) -> Any:
    made = tile(2, 2)
    return made, [data.vector_select(0, index), made]


def _scatter_from_hbm(data: Any, index: Any) -> Any:
    return data.vector_select(0, index), [hbm_zeros(2, 2), data.vector_select(0, index)]


def _scatter_by_another_index(data: Any, index: Any) -> Any:
    return data.vector_select(0, index), [tile(2, 2), data.vector_select(0, tile(2, 1, dtype=nl.int32))]


def _scatter_without_itself(data: Any, index: Any) -> Any:
    return data.vector_select(0, index), [tile(2, 2), tile(2, 2)]


def _scatter_of_itself(data: Any, index: Any) -> Any:
    return data.vector_select(0, index), [data.vector_select(0, index), data.vector_select(0, index)]


def _scatter_beside_its_own_rows(data: Any, index: Any) -> Any:
    return data[0:2].vector_select(0, index), [tile(2, 2), data[0:2]]


def _gather_into_hbm(data: Any, index: Any) -> Any:
    made = hbm_zeros(2, 2)
    return made, [data.vector_select(0, index), made]


def _gather_into_another(data: Any, index: Any) -> Any:
    return sbuf(2, 2), [data.vector_select(0, index), tile(2, 2)]


def _gather_of_three(data: Any, index: Any) -> Any:
    made = tile(2, 2)
    return made, [data.vector_select(0, index), made, made]


def _scatter_with_one_row_twice(data: Any, index: Any) -> Any:
    nisa.memset(index, 3)
    return _scatter(data, index)


ROWS = "tensor [2, 2] float32 in private_hbm"
TILE = "tensor [2, 2] float32 in sbuf"
NO_LIST = (
    "srcs must be a list of 2 to 16 tensors, got {srcs}; to add a tensor to 'dst' give both, srcs=[dst, src], and to "
    "copy it use nisa.dma_copy"
)
DYNAMIC = (
    "the address must be known at compile time, unless it has a vector offset; got a dynamic index in tensor [2] "
    "float32 in private_hbm, nisa.dma_copy it first"
)


def updates(dst: str, *srcs: str) -> str:
    return (
        "with a vector offset srcs must be 'dst' itself and one other tensor: a tile in sbuf to be added to rows in "
        f"HBM, or rows in HBM to be added to a 'dst' in sbuf; got dst {dst} and srcs [{', '.join(srcs)}]"
    )


@rules(
    legal(nisa.dma_compute, dst=Hbm(2, 2), srcs=[Sbuf(2, 2), Sbuf(2, 2)], reduce_op=nl.add),
    broken("PSUM destination", dst=Psum(2, 2, value=None))
    .says(must("dst", f"be in {DMA_MEMORIES}"))
    .instead(lambda: add(sbuf(2, 2), tile(2, 2), tile(2, 2))),
    broken("PSUM source", srcs=[Sbuf(2, 2), Psum(2, 2)]).says(must("srcs[1]", f"be in {DMA_MEMORIES}", COPY_FIRST)),
    broken("a source that is no tensor", srcs=[Sbuf(2, 2), 1.0])
    .says("operand 'srcs[1]' must be a tensor, got 1.0")
    .fixed(srcs=[Sbuf(2, 2), Sbuf(2, 2, value=1)]),
    broken("number of elements", srcs=[Sbuf(2, 2), Sbuf(2, 3)])
    .says("operands 'dst' and 'srcs[1]' must have equally many elements, got {dst} and {srcs[1]}")
    .fixed(dst=Hbm(6), srcs=[Sbuf(3, 2), Sbuf(2, 3)]),
    broken("one source", srcs=[Sbuf(2, 2)]).says(NO_LIST),
    broken("no list", srcs=Sbuf(2, 2)).says(NO_LIST).fixed(srcs=(Sbuf(2, 2), Sbuf(2, 2))),
    legal(nisa.dma_compute, dst=Hbm(1, 2), srcs=[Sbuf(1, 2), Hbm(4, 2).select(0, 0)], reduce_op=nl.add),
    broken("a scalar offset of a source", srcs=[Sbuf(1, 2), Hbm(4, 2).select(0, Sbuf(1, 1, dtype=nl.int32))]).says(
        "operand 'srcs[1]': " + DYNAMIC
    ),
    broken("a scalar offset of dst", dst=Hbm(4, 2).select(0, Sbuf(1, 1, dtype=nl.int32)), srcs=[Sbuf(1, 2), Hbm(1, 2)])
    .says("operand 'dst': " + DYNAMIC)
    .fixed(dst=Hbm(4, 2).select(0, 3)),
    legal_kernel("nisa.dma_compute", summing),
    broken("reduce_op", reduce_op=nl.maximum).says("reduce_op must be nl.add, the only one supported, got nl.maximum"),
    legal_kernel("nisa.dma_compute", summing, scales=[1.0, 1.0]),
    broken("scales", scales=[1.0, 0.5]).says("scales must all be 1.0, the only value supported, got [1.0, 0.5]"),
    legal_kernel("nisa.dma_compute", summing, scales=None),
    broken("number of scales", scales=[1.0])
    .says("scales must be None or a list of 2 numbers, one a source, got [1.0]")
    .fixed(count=3, scales=[1.0, 1.0, 1.0]),
    broken("one scale for all", scales=1.0).says("scales must be None or a list of 2 numbers, one a source, got 1.0"),
    legal_kernel("nisa.dma_compute", summing, oob_mode=SKIP),
    broken("oob_mode", oob_mode=2).says("oob_mode must be a member of nki.isa.oob_mode, got 2"),
    legal_kernel("nisa.dma_compute", updating, make_operands=_scatter),
    broken("scatter on trn1", on="trn1").says("a vector offset needs trn2 or newer").fixed(on="trn3"),
    broken("unique_indices", unique_indices=False)
    .says("a vector offset needs unique_indices=True, others are not supported, got False")
    .fixed(unique_indices=True),
    broken("indices that are not unique", make_operands=_scatter_with_one_row_twice).says(
        "operand 'dst': unique_indices=True, but index 3 of tensor [2, 1] int32 in sbuf comes more than once; "
        "add the rows up first"
    ),
    broken("scatter from HBM", make_operands=_scatter_from_hbm).says(updates(ROWS, ROWS, ROWS)),
    broken("scatter by two indices", make_operands=_scatter_by_another_index).says(updates(ROWS, TILE, ROWS)),
    broken("scatter of two tiles", make_operands=_scatter_without_itself).says(updates(ROWS, TILE, TILE)),
    broken("scatter of the rows themselves", make_operands=_scatter_of_itself).says(updates(ROWS, ROWS, ROWS)),
    broken("scatter with its rows as they stand", make_operands=_scatter_beside_its_own_rows).says(
        updates(ROWS, TILE, ROWS)
    ),
    legal_kernel("nisa.dma_compute", updating, make_operands=_gather),
    broken("gather into HBM", make_operands=_gather_into_hbm).says(updates(ROWS, ROWS, ROWS)),
    broken("gather without dst", make_operands=_gather_into_another).says(updates(TILE, ROWS, TILE)),
    broken("gather of three", make_operands=_gather_of_three).says(updates(TILE, ROWS, TILE, TILE)),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize(
    "other",
    [lambda made: made[:, 2:4], lambda made: made[:, 0:2].view(nl.int32)],
    ids=["other columns", "another type"],
)
def test_a_view_of_other_elements_of_the_tensor_is_not_dst_itself(other: Any) -> None:
    """Gathered rows are added to columns 0 and 1 of a tile, but not to other columns or to a view of their bits."""

    def kernel(source: Any) -> Body:
        def body() -> None:
            made = tile(2, 4)
            rows = hbm_zeros(3, 2).vector_select(0, tile(2, 1, dtype=nl.int32))
            nisa.dma_compute(made[:, 0:2], [rows, source(made)], nl.add)

        return body

    assert refusal(kernel(other)).startswith(
        "nisa.dma_compute: with a vector offset srcs must be 'dst' itself and one "
    )
    execute(kernel(lambda made: made[:, 0:2]))


def test_at_most_16_sources() -> None:
    assert "srcs must be a list of 2 to 16 tensors" in refusal(summing(17))
    execute(summing(16))


def test_unique_indices_is_about_vector_offsets_only() -> None:
    def body(first: Any, second: Any) -> Any:
        made = hbm_zeros(1, 2)
        add(made, first, second, unique_indices=False)
        return store(made)

    assert launch(body, np.array([[1, 2]], np.float32), np.array([[10, 20]], np.float32)).tolist() == [[11, 22]]


# -- what is recorded ------------------------------------------------------------------------------------------------


def test_it_runs_on_the_dma_engine() -> None:
    assert engine_of(lambda: add(sbuf(2, 2), tile(2, 2), tile(2, 2))) == "dma"


@pytest.mark.parametrize(
    ("body", "read", "written"),
    [
        (lambda rows, narrow, index: add(sbuf(2, 3), rows[0:2], narrow), 4 * 6 + 2 * 6, 0),
        (lambda rows, narrow, index: add(narrow, rows[0:2], tile(2, 3)), 4 * 6, 2 * 6),
        (lambda rows, narrow, index: scatter_add(rows, index, tile(2, 3)), 4 * 6, 4 * 6),
        (lambda rows, narrow, index: gather_add(tile(2, 3), rows, index), 4 * 6, 0),
        (lambda rows, narrow, index: scatter_add(rows[0:1], index, tile(2, 3), oob_mode=SKIP), 4 * 3, 4 * 3),
    ],
    ids=["sum into SBUF", "sum into HBM", "scatter", "gather", "scatter with one row skipped"],
)
def test_hbm_bytes(body: Body, read: int, written: int) -> None:
    """An update reads the rows that it writes."""

    def kernel(rows: Any, narrow: Any) -> None:
        index = sbuf(2, 1, dtype=nl.int32)
        nisa.iota(index, [[1, 1]], 0, 1)
        body(rows, narrow, index)

    with nkilib.simulator.recording() as record:
        launch(kernel, normal(4, 3), normal(2, 3).astype(ml_dtypes.bfloat16))
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (read, written)
