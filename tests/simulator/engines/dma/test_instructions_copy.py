# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`dma_copy`: static copies between all memories, casts, gather and scatter, indices out of range, modes, HBM bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import explain_index, nisa, nl

from ...kernels import Body, engine_of, execute, hbm, launch, normal, refusal, sbuf, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, DMA_MEMORIES, must

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
SKIP = nisa.oob_mode.skip
DGE = nisa.dge_mode
ENGINE = nisa.engine


def indices(*values: int, dtype: Any = nl.int32) -> Any:
    """Make an SBUF tensor of shape `(P, 1)` with these values, in a kernel."""
    made = sbuf(len(values), 1, dtype=dtype)
    for partition, value in enumerate(values):
        nisa.dma_copy(made[partition : partition + 1], nl.full((1, 1), value, dtype, nl.private_hbm))
    return made


def rows(count: int, width: int) -> Any:
    """Row r is 10 r, 10 r + 1, ..."""
    return (np.arange(count)[:, None] * 10 + np.arange(width)[None, :]).astype(np.float32)


# -- static copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["hbm-hbm", "hbm-sbuf-hbm", "hbm-sbuf-sbuf-hbm"])
def test_copies_between_hbm_and_sbuf(way: str) -> None:
    values = normal(5, 7)

    def body(source: Any) -> Any:
        current = source
        for memory in way.split("-")[1:]:
            following = hbm(5, 7) if memory == "hbm" else sbuf(5, 7)
            nisa.dma_copy(dst=following, src=current)
            current = following
        return current

    assert launch(body, values).tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(24,), (1, 24), (4, 6), (2, 3, 4), (24, 1), (2, 2, 2, 3)], ids=str)
def test_only_the_number_of_elements_must_match(shape: Any) -> None:
    """Both sides are walked in row-major order, in HBM and, partition by partition, in SBUF."""

    def body(source: Any) -> Any:
        between, result = hbm(*shape), hbm(24)
        nisa.dma_copy(between, source)
        if len(shape) > 1:
            tiles = sbuf(*shape)
            nisa.dma_copy(tiles, between)
            between = tiles
        nisa.dma_copy(result, between)
        return result

    values = rows(3, 8)
    assert launch(body, values).tolist() == values.reshape(-1).tolist()


def test_strided_views_on_both_sides() -> None:
    def body(source: Any) -> Any:
        result = nl.zeros((4, 4), nl.float32, nl.private_hbm)
        nisa.dma_copy(result[1::2, 0:4:2], source.permute((1, 0))[2:4, 0:3:2])
        return result

    values = rows(3, 4)
    expected = np.zeros((4, 4), np.float32)
    expected[1::2, 0:4:2] = values.T[2:4, 0:3:2]
    assert launch(body, values).tolist() == expected.tolist()


def test_a_broadcast_source() -> None:
    def body(source: Any) -> Any:
        result = hbm(3, 4)
        nisa.dma_copy(result, source.broadcast(0, 3))
        return result

    assert launch(body, rows(1, 4)).tolist() == [[0, 1, 2, 3]] * 3


def test_every_other_partition() -> None:
    """DMA, unlike the engines, may start at any partition and step over some."""

    def body(source: Any) -> Any:
        wide, result = tile(8, 2, value=-1), hbm(8, 2)
        nisa.dma_copy(wide[1:8:3], source)
        nisa.dma_copy(result, wide)
        return result

    expected = np.full((8, 2), -1, np.float32)
    expected[1:8:3] = rows(3, 2)
    assert launch(body, rows(3, 2)).tolist() == expected.tolist()


@nkilib.simulator.using(overlapping_copies="ignore")
def test_an_overlapping_source_is_read_before_it_is_written() -> None:
    def body(data: Any) -> Any:
        nisa.dma_copy(data[1:4], data[0:3])
        return data

    values = rows(4, 2)
    assert launch(body, values) is values
    assert values.tolist() == rows(4, 2)[[0, 0, 1, 2]].tolist()


def test_only_what_is_copied_counts_as_written() -> None:
    def body(columns: int) -> Body:
        def kernel() -> None:
            made = sbuf(2, 4)
            nisa.dma_copy(made[:, 0:columns], nl.zeros((2, columns), nl.float32, nl.private_hbm))
            nisa.dma_copy(hbm(2, 4), made)

        return kernel

    message = refusal(body(3), error=UNINITIALIZED)
    assert message == (
        "nisa.dma_copy: operand 'src': 2 of the 8 elements of tensor [2, 4] float32 in sbuf were never written"
    )
    execute(body(4))


# -- casts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (np.array([16777217, -5], np.int32), nl.int32, [16777217, -5]),
        (np.array([16777217, 2**31 - 1], np.int32), nl.float32, [16777216, 2**31]),
        (np.array([16777217, -5], np.int32), nl.uint32, [16777216, 0]),
        (np.array([300, -5], np.int16), nl.int8, [127, -5]),
        (np.array([0.5, 1.5, 2.5, -3.7, 1e12, -np.inf], np.float32), nl.int32, [0, 2, 2, -4, 2**31 - 1, -(2**31)]),
        (np.array([257, 259, 1 + 2**-8], np.float32), nl.bfloat16, [256, 260, 1]),
        (np.array([1.5, -2], ml_dtypes.bfloat16), nl.float32, [1.5, -2]),
        (np.array([2049, 65519], np.float32), nl.float16, [2048, 65504]),
        (np.array([1 + 2**-11, 1 + 3 * 2**-11], np.float32), nl.tfloat32, [1, 1 + 2**-9]),
        (np.array([1.1875, 17], np.float32), nl.float8_e4m3, [1.25, 16]),
        (np.array([1.3, -3], ml_dtypes.bfloat16), nl.float8_e5m2, [1.25, -3]),
        (np.array([1, 255], np.uint8), nl.bfloat16, [1, 255]),
        (np.array([0, 1], np.uint8), nl.bool_, [0, 1]),
    ],
)
def test_casts_go_through_float32(values: Any, dtype: Any, expected: Any) -> None:
    """And equal types are copied as they are."""

    def body(source: Any) -> Any:
        result = hbm(len(expected), dtype=dtype)
        nisa.dma_copy(result, source)
        return result

    assert launch(body, values).tolist() == expected


@pytest.mark.parametrize("bits", [np.uint16([0x7FC1, 0xFF81, 1]), np.uint32([0x7FC12345, 0xFF800001, 1])])
def test_equal_types_keep_every_bit(bits: Any) -> None:
    values = bits.view(ml_dtypes.bfloat16 if bits.itemsize == 2 else np.float32)

    def body(source: Any) -> Any:
        between, result = sbuf(1, 3, dtype=source.dtype), hbm(3, dtype=source.dtype)
        nisa.dma_copy(between, source)
        nisa.dma_copy(result, between)
        return result

    assert launch(body, values).tobytes() == values.tobytes()


# -- gather ----------------------------------------------------------------------------------------------------------

GATHERED = [5, 0, 3, 3]


def _gather_views(data: Any, index: Any) -> dict[str, Any]:
    """Three ways to say: row `index[p]` for partition p."""
    count, width = index.shape[0], data.shape[1]
    return {
        "ap": data.ap([[width, count], [1, width]], vector_offset=index, indirect_dim=0),
        "ap with another leading stride": data.ap([[1, count], [1, width]], 0, None, index),
        "vector_select": data.vector_select(0, index),
    }


@pytest.mark.parametrize("view", ["ap", "ap with another leading stride", "vector_select"])
@pytest.mark.parametrize("dtype", [nl.int32, nl.uint32, nl.int16, nl.uint8])
def test_gather(view: str, dtype: Any) -> None:
    def body(data: Any) -> Any:
        gathered, result = sbuf(4, 3), hbm(4, 3)
        nisa.dma_copy(gathered, _gather_views(data, indices(*GATHERED, dtype=dtype))[view])
        nisa.dma_copy(result, gathered)
        return result

    assert launch(body, rows(6, 3)).tolist() == rows(6, 3)[GATHERED].tolist()


def test_gather_straight_into_hbm() -> None:
    def body(data: Any) -> Any:
        result = hbm(4, 3)
        nisa.dma_copy(result, data.vector_select(0, indices(*GATHERED)))
        return result

    assert launch(body, rows(6, 3)).tolist() == rows(6, 3)[GATHERED].tolist()


def test_gather_of_part_of_the_rows() -> None:
    """A pattern with an offset: elements 1, 3, 5 of the chosen rows."""

    def body(data: Any) -> Any:
        result = hbm(4, 3)
        nisa.dma_copy(result, data.ap([[6, 4], [2, 3]], offset=1, vector_offset=indices(*GATHERED)))
        return result

    assert launch(body, rows(6, 6)).tolist() == rows(6, 6)[GATHERED][:, 1::2].tolist()


def test_gather_of_rows_of_several_dimensions() -> None:
    def body(data: Any) -> Any:
        gathered, result = sbuf(2, 6), hbm(2, 2, 3)
        nisa.dma_copy(gathered, data.vector_select(0, indices(3, 1)))
        nisa.dma_copy(result, gathered)
        return result

    values = normal(4, 2, 3)
    assert launch(body, values).tolist() == values[[3, 1]].tolist()


def test_gather_of_one_element_a_row() -> None:
    """The span of rows seen as a column: index row * width + column."""

    def body(data: Any) -> Any:
        result = hbm(3, 1)
        nisa.dma_copy(result, data.reshape((18, 1)).vector_select(0, indices(0 + 4, 6 + 1, 12 + 5)))
        return result

    assert launch(body, rows(3, 6)).tolist() == [[4], [11], [25]]


def test_gather_of_windows_that_overlap() -> None:
    """Three elements from each index on; the last index that stays inside the six elements is 3."""

    def body(*values: int) -> Body:
        def kernel() -> Any:
            data, result = nl.ndarray((6, 1), nl.float32, nl.private_hbm), nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
            counted = sbuf(1, 6)
            nisa.iota(counted, [[1, 6]])
            nisa.dma_copy(data, counted)
            nisa.dma_copy(result, data.ap([[1, 2], [1, 3]], vector_offset=indices(*values)))
            return result

        return kernel

    assert execute(body(1, 3)).tolist() == [[1, 2, 3], [3, 4, 5]]
    assert refusal(body(1, 4), error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': index 4 in partition 1 of tensor [2, 1] int32 in sbuf is out of range [0, 4) of "
        "tensor [6, 1] float32 in private_hbm"
    )


def test_gather_with_rows_that_no_index_leaves_inside() -> None:
    """Five elements from a tensor of four."""

    def body(width: int) -> Body:
        def kernel() -> None:
            data = nl.zeros((2, 2), nl.float32, nl.private_hbm)
            nisa.dma_copy(sbuf(1, width), data.ap([[2, 1], [1, width]], vector_offset=indices(0)))

        return kernel

    assert refusal(body(5), error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': index 0 in partition 0 of tensor [1, 1] int32 in sbuf is out of range [0, 0) of "
        "tensor [2, 2] float32 in private_hbm"
    )
    execute(body(4))


def test_gather_from_a_broadcast_tensor() -> None:
    """Every index leads to the same row; the number of rows is still the limit."""

    def body(*values: int) -> Body:
        def kernel() -> None:
            data = nl.ones((1, 2), nl.float32, nl.private_hbm).broadcast(0, 3)
            nisa.dma_copy(sbuf(len(values), 2), data.vector_select(0, indices(*values)))

        return kernel

    execute(body(0, 2))
    assert refusal(body(0, 3), error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': index 3 in partition 1 of tensor [2, 1] int32 in sbuf is out of range [0, 3) of "
        "tensor [3, 2] float32 in private_hbm"
    )


def test_gather_with_a_cast() -> None:
    def body(data: Any) -> Any:
        result = hbm(2, 2, dtype=nl.int8)
        nisa.dma_copy(result, data.vector_select(0, indices(20, 1)))
        return result

    assert launch(body, rows(21, 2)).tolist() == [[127, 127], [10, 11]]


def test_gather_takes_the_index_of_the_moment() -> None:
    """The view is made before the index is written; the copy reads the index when it runs."""

    def body(data: Any) -> Any:
        index, result = sbuf(2, 1, dtype=nl.int32), hbm(2, 2)
        view = data.vector_select(0, index)
        nisa.iota(index, [[1, 1]], 1, 2)
        nisa.dma_copy(result[:, 0:1], view[:, 0:1])
        nisa.iota(index, [[1, 1]], 0, 1)
        nisa.dma_copy(result[:, 1:2], view[:, 1:2])
        return result

    assert launch(body, rows(4, 2)).tolist() == [[10, 1], [30, 11]]


# -- scatter ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["ap", "ap with another leading stride", "vector_select"])
@pytest.mark.parametrize("source", ["sbuf", "hbm"])
def test_scatter(view: str, source: str) -> None:
    """Rows that no index names keep what they held."""

    def body(output: Any, data: Any) -> Any:
        index = indices(4, 0, 2)
        argument = data
        if source == "sbuf":
            argument = sbuf(3, 3)
            nisa.dma_copy(argument, data)
        nisa.dma_copy(_gather_views(output, index)[view], argument)
        return output

    output = np.full((5, 3), -1, np.float32)
    launch(body, output, rows(3, 3))
    expected = np.full((5, 3), -1, np.float32)
    expected[[4, 0, 2]] = rows(3, 3)
    assert output.tolist() == expected.tolist()


def test_scatter_of_part_of_the_rows_with_a_cast() -> None:
    def body(output: Any, data: Any) -> Any:
        nisa.dma_copy(output.ap([[6, 2], [2, 3]], offset=1, vector_offset=indices(3, 1)), data)
        return output

    output = np.zeros((4, 6), np.int8)
    launch(body, output, np.array([[1.5, 200, 3], [-4, -5, -600]], np.float32))
    expected = np.zeros((4, 6), np.int8)
    expected[[3, 1], 1::2] = [[2, 127, 3], [-4, -5, -128]]
    assert output.tolist() == expected.tolist()


def test_scatter_marks_the_rows_that_it_writes() -> None:
    def body(*rows_written: int) -> Body:
        def kernel() -> None:
            made = hbm(3, 2)
            nisa.dma_copy(made.vector_select(0, indices(*rows_written)), tile(len(rows_written), 2))
            nisa.dma_copy(hbm(3, 2), made)

        return kernel

    message = refusal(body(2, 0), error=UNINITIALIZED)
    assert message == (
        "nisa.dma_copy: operand 'src': 2 of the 6 elements of tensor [3, 2] float32 in private_hbm were never written"
    )
    execute(body(2, 0, 1))


def test_gather_and_scatter_in_one_copy() -> None:
    def body(output: Any, data: Any) -> Any:
        nisa.dma_copy(output.vector_select(0, indices(0, 2)), data.vector_select(0, indices(3, 1)))
        return output

    output = np.zeros((3, 2), np.float32)
    launch(body, output, rows(4, 2))
    assert output.tolist() == [[30, 31], [0, 0], [10, 11]]


# -- scalar offsets --------------------------------------------------------------------------------------------------


def test_select_with_an_index_read_at_run_time() -> None:
    """The documentation's `A.select(0, batch_idx)`: batch 2 of three."""

    def body(data: Any) -> Any:
        index, result = tile(1, 1, dtype=nl.int32, value=2), hbm(4, 5)
        nisa.dma_copy(src=data.select(0, index), dst=result)
        return result

    values = normal(3, 4, 5)
    assert launch(body, values).tolist() == values[2].tolist()


def test_an_inner_dimension_selected_at_run_time() -> None:
    def body(data: Any) -> Any:
        result = hbm(3, 5)
        nisa.dma_copy(result, data.select(1, tile(1, 1, dtype=nl.uint32, value=3)))
        return result

    values = normal(3, 4, 5)
    assert launch(body, values).tolist() == values[:, 3].tolist()


def test_a_pattern_with_a_scalar_offset_steps_by_the_tensor_not_by_the_pattern() -> None:
    """The documentation's example: rows from 3 on, the first two columns; the index counts rows of the tensor."""

    def body(data: Any) -> Any:
        index, result = tile(1, 1, dtype=nl.int32, value=3), hbm(2, 2)
        nisa.dma_copy(result, data.ap([[4, 2], [1, 2]], offset=0, scalar_offset=index, indirect_dim=0))
        return result

    assert launch(body, rows(6, 4)).tolist() == [[30, 31], [40, 41]]


def test_a_pattern_with_a_scalar_offset_in_another_dimension() -> None:
    def body(data: Any) -> Any:
        index, result = tile(1, 1, dtype=nl.int32, value=1), hbm(6, 2)
        nisa.dma_copy(result, data.ap([[4, 6], [1, 2]], offset=1, scalar_offset=index, indirect_dim=1))
        return result

    assert launch(body, rows(6, 4)).tolist() == rows(6, 4)[:, 2:4].tolist()


@pytest.mark.parametrize("dge_mode", DGE, ids=lambda mode: mode.name)
def test_a_scalar_offset_goes_with_every_dge_mode(dge_mode: Any) -> None:
    def body(output: Any, data: Any) -> Any:
        index = tile(1, 1, dtype=nl.int32, value=1)
        nisa.dma_copy(output.select(0, index), data, dge_mode=dge_mode)
        return output

    output = np.zeros((3, 2), np.float32)
    launch(body, output, np.array([[5, 6]], np.float32))
    assert output.tolist() == [[0, 0], [5, 6], [0, 0]]


def test_a_scalar_offset_in_sbuf() -> None:
    """Element 2 of the free dimension of every partition, read and written."""

    def body(data: Any) -> Any:
        kept, index, result = sbuf(3, 4), tile(1, 1, dtype=nl.int32, value=2), hbm(3, 4)
        nisa.dma_copy(kept, data)
        nisa.dma_copy(kept.select(1, tile(1, 1, dtype=nl.int32)), kept.select(1, index))
        nisa.dma_copy(result, kept)
        return result

    expected = rows(3, 4)
    expected[:, 0] = expected[:, 2]
    assert launch(body, rows(3, 4)).tolist() == expected.tolist()


# -- indices out of range --------------------------------------------------------------------------------------------


def gathering(*values: int, **options: Any) -> Body:
    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(sbuf(len(values), 2), data.vector_select(0, indices(*values)), **options)

    return kernel


def scattering(*values: int, **options: Any) -> Body:
    def kernel() -> None:
        nisa.dma_copy(hbm(4, 2).vector_select(0, indices(*values)), tile(len(values), 2), **options)

    return kernel


def selecting(value: int, **options: Any) -> Body:
    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(hbm(1, 2), data.select(0, indices(value)), **options)

    return kernel


def gathering_with_offset(*values: int) -> Body:
    """Two rows at a time from row 1 on: the last index that stays inside the four rows is 2."""

    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        view = data.ap([[2, len(values)], [1, 2]], offset=2, vector_offset=indices(*values))
        nisa.dma_copy(sbuf(len(values), 2), view)

    return kernel


def far_pattern(value: int) -> Body:
    """A pattern of two rows whose scalar offset moves it."""

    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(sbuf(2, 2), data.ap([[2, 2], [1, 2]], scalar_offset=indices(value)))

    return kernel


# Of an operand: the index, its partition, how many indices there are, and for how many rows.
OUTSIDE = (
    "operand {!r}: index {} in partition {} of tensor [{}, 1] int32 in sbuf is out of range [0, {}) of tensor [4, 2] "
    "float32 in private_hbm"
)


@rules(
    legal_kernel("nisa.dma_copy", gathering, 0, 3, 1),
    broken("gather", 0, 4, 1, error=OUT_OF_RANGE).says(OUTSIDE.format("src", 4, 1, 3, 4)),
    broken("negative index", 0, 1, -1, error=OUT_OF_RANGE).says(OUTSIDE.format("src", -1, 2, 3, 4)).fixed(0, 1, 0),
    legal_kernel("nisa.dma_copy", scattering, 3, 2),
    broken("scatter", 3, 9, error=OUT_OF_RANGE).says(OUTSIDE.format("dst", 9, 1, 2, 4)),
    broken("oob_mode=error", 3, 9, error=OUT_OF_RANGE, oob_mode=nisa.oob_mode.error)
    .says(OUTSIDE.format("dst", 9, 1, 2, 4))
    .fixed(oob_mode=SKIP),
    legal_kernel("nisa.dma_copy", gathering_with_offset, 0, 2),
    broken("offset of the pattern", 0, 3, error=OUT_OF_RANGE).says(OUTSIDE.format("src", 3, 1, 2, 3)),
    legal_kernel("nisa.dma_copy", selecting, value=3),
    broken("scalar offset", error=OUT_OF_RANGE, value=4).says(OUTSIDE.format("src", 4, 0, 1, 4)),
    legal_kernel("nisa.dma_copy", far_pattern, value=2),
    broken("scalar offset that moves the end of the pattern out", error=OUT_OF_RANGE, value=3).says(
        "operand 'src': index 3 moves tensor [2, 2] float32 in private_hbm to elements 6 to 9 of a storage of 8"
    ),
)
def test_out_of_range(rule: Rule) -> None:
    check_rule(rule)


def test_a_pattern_may_end_with_the_last_element_and_not_after_it() -> None:
    def body(value: int) -> Body:
        def kernel() -> None:
            data = nl.zeros((8, 1), nl.float32, nl.private_hbm)
            nisa.dma_copy(sbuf(1, 2), data.ap([[1, 2]], scalar_offset=indices(value)))

        return kernel

    execute(body(6))
    assert refusal(body(7), error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': index 7 moves tensor [2] float32 in private_hbm to elements 7 to 8 of a storage "
        "of 8"
    )


def test_an_out_of_range_error_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        execute(gathering(4))


def test_nothing_is_written_when_an_index_is_out_of_range() -> None:
    def body(output: Any, data: Any) -> Any:
        nisa.dma_copy(output.vector_select(0, indices(0, 3)), data)

    output = np.full((3, 2), -1, np.float32)
    with pytest.raises(OUT_OF_RANGE):
        launch(body, output, rows(2, 2))
    assert (output == -1).all()


def test_an_explained_index_says_which_row_is_wrong() -> None:
    def kernel() -> None:
        index, target = indices(1, 9), indices(7, 8)
        explain_index(index, "target", target, first_row=100, row_step=2, limit=5)
        nisa.dma_copy(sbuf(2, 2), nl.zeros((4, 2), nl.float32, nl.private_hbm).vector_select(0, index))

    assert refusal(kernel, error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': row 102 has target 8, outside [0, 5): index 9 in partition 1 of "
        "tensor [2, 1] int32 in sbuf is out of range [0, 4) of tensor [4, 2] float32 in private_hbm"
    )


def test_skip_leaves_untouched_what_a_gather_would_have_written() -> None:
    def body(data: Any) -> Any:
        gathered, result = tile(4, 2, value=-1), hbm(4, 2)
        nisa.dma_copy(gathered, data.vector_select(0, indices(1, 99, -1, 0)), oob_mode=SKIP)
        nisa.dma_copy(result, gathered)
        return result

    assert launch(body, rows(3, 2)).tolist() == [[10, 11], [-1, -1], [-1, -1], [0, 1]]


def test_a_mode_may_be_given_by_its_value() -> None:
    """Published kernels do so: 1 is to skip, and software descriptors; 2 is hardware, which casts nothing."""

    def gather(data: Any) -> Any:
        gathered, result = tile(2, 2, value=-1), hbm(2, 2)
        nisa.dma_copy(gathered, data.vector_select(0, indices(1, 99)), oob_mode=1, dge_mode=1)
        nisa.dma_copy(result, gathered, dge_mode=3)
        return result

    assert launch(gather, rows(3, 2)).tolist() == [[10, 11], [-1, -1]]
    cast = refusal(lambda: nisa.dma_copy(hbm(1, 2, dtype=nl.bfloat16), tile(1, 2), dge_mode=2))
    assert cast.startswith("nisa.dma_copy: dge_mode=hwdge moves bytes and casts nothing")


@pytest.mark.parametrize(
    "source",
    [lambda data, last: data.vector_select(0, indices(1, last)), lambda data, last: data.select(0, indices(last))],
    ids=["a row", "all"],
)
def test_what_skip_leaves_in_a_placed_tile_was_needed_until_then(source: Any) -> None:
    """Another tile in the same place would have destroyed it; a copy that leaves nothing needs nothing."""

    def body(data: Any, last: int) -> None:
        src = source(data, last)
        first, second = (nl.ndarray((src.size // 2, 2), nl.float32, address=(0, 8192)) for _ in range(2))
        nisa.memset(first, 1)
        nisa.memset(second, 2)
        nisa.dma_copy(first, src, oob_mode=SKIP)

    launch(lambda data: body(data, 2), rows(3, 2))
    with pytest.raises(nkilib.simulator.CapacityError):
        launch(lambda data: body(data, 99), rows(3, 2))


def test_skip_leaves_untouched_what_a_scatter_would_have_missed() -> None:
    def body(output: Any, data: Any) -> Any:
        nisa.dma_copy(output.vector_select(0, indices(3, 1, -5)), data, oob_mode=SKIP)

    output = np.full((3, 2), -1, np.float32)
    launch(body, output, rows(3, 2))
    assert output.tolist() == [[-1, -1], [10, 11], [-1, -1]]


def test_skip_drops_a_whole_copy_with_a_scalar_offset() -> None:
    def body(output: Any, data: Any) -> Any:
        for value in (1, 3):
            nisa.dma_copy(output.select(0, indices(value)), data, oob_mode=SKIP)

    output = np.full((3, 2), -1, np.float32)
    launch(body, output, np.array([[5, 6]], np.float32))
    assert output.tolist() == [[-1, -1], [5, 6], [-1, -1]]


@pytest.mark.parametrize(
    ("index", "offset", "moved"),
    [
        (2, 0, {0: 2, 1: 3, 2: 4}),
        (4, 0, {0: 4}),
        (5, 0, {}),
        (-1, 0, {1: 0, 2: 1}),
        (-3, 0, {}),
        (3, 1, {0: 4}),
        (-1, 1, {0: 0, 1: 1, 2: 2}),
        (2**31 - 1, 0, {}),
    ],
)
@pytest.mark.parametrize("side", ["dst", "src"])
def test_skip_moves_the_rows_that_a_scalar_offset_leaves_inside(
    side: str, index: int, offset: int, moved: dict[int, int]
) -> None:
    """Three rows from row `offset + index` of five on: public kernels let a block hang over the end of its tensor."""

    def body(five: Any, three: Any) -> None:
        at = tile(1, 1, dtype=nl.int32, value=index)
        view = five.ap([[2, 3], [1, 2]], offset=2 * offset, scalar_offset=at, indirect_dim=0)
        ends = (view, three) if side == "dst" else (three, view)
        nisa.dma_copy(*ends, oob_mode=SKIP)

    five, three = rows(5, 2), -rows(3, 2) - 1
    expected_five, expected_three = five.copy(), three.copy()
    for row_of_three, row_of_five in moved.items():
        if side == "dst":
            expected_five[row_of_five] = three[row_of_three]
        else:
            expected_three[row_of_three] = five[row_of_five]
    launch(body, five, three)
    assert five.tolist() == expected_five.tolist() and three.tolist() == expected_three.tolist()


@pytest.mark.parametrize(("index", "moved"), [(2, {2: 0, 3: 1}), (4, {4: 0, 5: 1}), (5, {5: 0}), (6, {}), (-3, {})])
def test_skip_goes_by_the_end_of_the_tensor_and_not_of_the_dimension(index: int, moved: dict[int, int]) -> None:
    """Public kernels count the slots of a cache [blocks, slots, ...] over all blocks; without skip it is refused."""

    def body(mode: Any) -> Any:
        def kernel(cache: Any, data: Any) -> None:
            at = tile(1, 1, dtype=nl.int32, value=index)
            view = cache.ap([[2, 2], [1, 2]], scalar_offset=at, indirect_dim=1)
            nisa.dma_copy(view, data, oob_mode=mode)

        return kernel

    cache = np.full((3, 2, 2), -1, np.float32)
    launch(body(SKIP), cache, rows(2, 2))
    slots = cache.reshape(6, 2)
    expected = np.full((6, 2), -1, np.float32)
    for slot, row in moved.items():
        expected[slot] = rows(2, 2)[row]
    assert slots.tolist() == expected.tolist()
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=rf"index {index} .* is out of range \[0, 2\)"):
        launch(body(nisa.oob_mode.error), cache, rows(2, 2))


@pytest.mark.parametrize(("offset", "is_moved"), [(0, True), (1, False), (2, False)])
def test_skip_drops_all_that_hangs_over_the_end_where_the_index_does_not_count_rows(
    offset: int, is_moved: bool
) -> None:
    """Four elements from `offset + 2` of six on: rows of the view are no steps of the index, which may pass its end."""

    def body(output: Any, data: Any) -> None:
        at = tile(1, 1, dtype=nl.int32, value=2)
        view = output.ap([[2, 2], [1, 2]], offset=offset, scalar_offset=at, indirect_dim=1)
        nisa.dma_copy(view, data, oob_mode=SKIP)

    output = np.full((3, 2), -1, np.float32)
    launch(body, output, rows(2, 2))
    assert output[0].tolist() == [-1, -1]
    assert output[1:].tolist() == (rows(2, 2) if is_moved else np.full((2, 2), -1)).tolist()


def test_skip_drops_a_row_of_which_one_element_is_outside() -> None:
    """Rows 2, 3 and 4 of five, all of them one element further on; without that, row 4 would be inside."""

    def body(offset: int) -> Any:
        def kernel(output: Any, data: Any) -> None:
            at = tile(1, 1, dtype=nl.int32, value=2)
            view = output.ap([[2, 3], [1, 2]], offset=offset, scalar_offset=at, indirect_dim=0)
            nisa.dma_copy(view, data, oob_mode=SKIP)

        return kernel

    for offset, moved in ((0, 3), (1, 2)):
        output = np.full((5, 2), -1, np.float32)
        launch(body(offset), output, rows(3, 2))
        expected = np.full(10, -1, np.float32)
        expected[4 + offset : 4 + offset + 2 * moved] = rows(moved, 2).reshape(-1)
        assert output.reshape(-1).tolist() == expected.tolist()


def test_skip_needs_equally_many_rows_where_some_are_left_out() -> None:
    def body(value: int) -> Body:
        def kernel() -> None:
            data = nl.zeros((5, 2), nl.float32, nl.private_hbm)
            view = data.ap([[2, 3], [1, 2]], scalar_offset=tile(1, 1, dtype=nl.int32, value=value))
            nisa.dma_copy(sbuf(1, 6), view, oob_mode=SKIP)

        return kernel

    assert refusal(body(3)) == (
        "nisa.dma_copy: where rows are chosen or skipped 'dst' and 'src' must have equally many of them, got 1 of "
        "tensor [1, 6] float32 in sbuf and 3 of tensor [2, 2] float32 in private_hbm"
    )
    execute(body(2))


def test_rows_that_skip_drops_do_not_count_as_written() -> None:
    def body(*values: int) -> Body:
        def kernel() -> None:
            gathered = sbuf(2, 2)
            data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
            nisa.dma_copy(gathered, data.vector_select(0, indices(*values)), oob_mode=SKIP)
            nisa.dma_copy(hbm(2, 2), gathered)

        return kernel

    assert refusal(body(0, 4), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 4 elements of tensor [2, 2] float32 in sbuf were never written"
    )
    execute(body(0, 3))


def test_a_gather_of_rows_that_were_never_written() -> None:
    def body(row: int) -> Body:
        def kernel() -> None:
            data = hbm(4, 2)
            nisa.dma_copy(data[0:2], nl.zeros((2, 2), nl.float32, nl.private_hbm))
            nisa.dma_copy(sbuf(2, 2), data.vector_select(0, indices(0, row)))

        return kernel

    assert refusal(body(2), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 4 elements gathered from tensor [4, 2] float32 in private_hbm were "
        "never written"
    )
    execute(body(1))


def test_a_row_selected_at_run_time_that_was_never_written() -> None:
    def body(row: int) -> Body:
        def kernel() -> None:
            data = hbm(4, 2)
            nisa.dma_copy(data[0:2], nl.zeros((2, 2), nl.float32, nl.private_hbm))
            nisa.dma_copy(sbuf(1, 2), data.select(0, indices(row)))

        return kernel

    assert refusal(body(2), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 2 elements of tensor [2] float32 in private_hbm were never written"
    )
    execute(body(1))


def test_rows_that_were_never_written_read_as_nan_or_4_unless_that_is_an_error() -> None:
    def body() -> Any:
        results = []
        for dtype in (nl.float32, nl.int32):
            data, result = hbm(4, 2, dtype=dtype), hbm(2, 2, dtype=dtype)
            nisa.dma_copy(data[0:2], nl.ones((2, 2), dtype, nl.private_hbm))
            nisa.dma_copy(result, data.vector_select(0, indices(1, 3)))
            results.append(result)
        return results

    with nkilib.simulator.using(uninitialized="nan"):
        floats, integers = launch(body)
    assert floats[0].tolist() == [1, 1] and np.isnan(floats[1]).all()
    assert integers.tolist() == [[1, 1], [4, 4]]


def test_an_index_that_was_never_written_is_always_an_error() -> None:
    """A sentinel is no address, whatever the option says."""

    def kernel() -> None:
        data = nl.zeros((8, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(sbuf(2, 2), data.vector_select(0, sbuf(2, 1, dtype=nl.int32)))

    message = "nisa.dma_copy: index tensor [2, 1] int32 in sbuf is read before it was written"
    for option in ("nan", "error"):
        with nkilib.simulator.using(uninitialized=option):
            assert refusal(kernel, error=UNINITIALIZED) == message


# -- modes -----------------------------------------------------------------------------------------------------------


def copying(**options: Any) -> Body:
    return lambda: nisa.dma_copy(sbuf(2, 2), nl.zeros((2, 2), nl.float32, nl.private_hbm), **options)


def pattern_of_two_rows(partitions: int, columns: int) -> Body:
    """A gather of two rows with an offset of another shape, which only `dma_transpose` knows what to do with."""

    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        offset = tile(partitions, columns, dtype=nl.int32)
        nisa.dma_copy(sbuf(2, 2), data.ap([[2, 2], [1, 2]], vector_offset=offset))

    return kernel


def loading(**options: Any) -> Body:
    """Bring two rows into a tile under these options, and out of it under none."""

    def body(data: Any) -> Any:
        made, result = sbuf(2, 3), hbm(2, 3)
        nisa.dma_copy(made, data, **options)
        nisa.dma_copy(result, made)
        return result

    return body


@pytest.mark.parametrize("dge_mode", DGE, ids=lambda mode: mode.name)
def test_a_static_copy_goes_with_every_dge_mode(dge_mode: Any) -> None:
    for target in ("trn2", "trn3"):
        result = launch(loading(dge_mode=dge_mode), rows(2, 3), target=target)
        assert result.tolist() == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize("dge_mode", [mode for mode in DGE if mode is not DGE.hwdge], ids=lambda mode: mode.name)
def test_every_other_dge_mode_casts(dge_mode: Any) -> None:
    def body(data: Any) -> Any:
        result = hbm(1, 2, dtype=nl.int32)
        nisa.dma_copy(result, data, dge_mode=dge_mode)
        return result

    assert launch(body, np.array([[1.0, -7.0]], np.float32)).tolist() == [[1, -7]]


@pytest.mark.parametrize("priority", [0, 1, 2, 3, None])
def test_priorities_on_trn3(priority: Any) -> None:
    result = launch(loading(priority=priority), rows(2, 3), target="trn3")
    assert result.tolist() == [[0, 1, 2], [10, 11, 12]]


ONE_INDEX_A_ROW = (
    "operand 'src': the vector offset must have shape (2, 1), one index for each row of tensor [2, 2] float32 in "
    "private_hbm, got tensor {} int32 in sbuf"
)

UNEQUAL_SIZES = "operands 'dst' and 'src' must have equally many elements, got {dst} and {src}"


@rules(
    legal(nisa.dma_copy, dst=Hbm(2, 2), src=Sbuf(2, 2)),
    broken("PSUM source", src=Psum(2, 2)).says(must("src", f"be in {DMA_MEMORIES}", COPY_FIRST)),
    legal(nisa.dma_copy, dst=Hbm(2, 2, buffer=nl.shared_hbm), src=Sbuf(2, 2)),
    broken("PSUM destination", dst=Psum(2, 2, value=None)).says(must("dst", f"be in {DMA_MEMORIES}")),
    broken("number of elements", dst=Hbm(2, 3)).says(UNEQUAL_SIZES).fixed(dst=Hbm(4)),
    broken("a vector for all partitions", dst=Sbuf(128, 5), src=Hbm(5))
    .says(f"{UNEQUAL_SIZES}; to copy this row to all 128 partitions, pass src=src.expand_dim(0).broadcast(0, 128)")
    .fixed(src=Hbm(5).expand_dim(0).broadcast(0, 128)),
    broken("a row for all partitions", dst=Sbuf(100, 5), src=Hbm(1, 5))
    .says(f"{UNEQUAL_SIZES}; to copy this row to all 100 partitions, pass src=src.broadcast(0, 100)")
    .fixed(src=Hbm(1, 5).broadcast(0, 100)),
    broken("a row for all partitions that is on chip", dst=Sbuf(100, 5), src=Sbuf(1, 5)).says(UNEQUAL_SIZES),
    broken("rows of a gather", dst=Hbm(4, 1), src=Hbm(4, 2).vector_select(0, lazily(indices, 0, 1)))
    .says(
        "where rows are chosen or skipped 'dst' and 'src' must have equally many of them, got 4 of {dst} and 2 "
        "of tensor [4, 2] float32 in private_hbm"
    )
    .fixed(dst=Hbm(2, 2)),
    broken("hwdge with a cast", dst=Sbuf(2, 2, dtype=nl.bfloat16), dge_mode=DGE.hwdge)
    .says("dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {dst} and {src}")
    .fixed(dge_mode=DGE.swdge),
    broken("hwdge between types of one size", dst=Hbm(2, 2, dtype=nl.int32), dge_mode=DGE.hwdge)
    .says("dge_mode=hwdge moves bytes and casts nothing: 'dst' and 'src' must have one type, got {dst} and {src}")
    .fixed(src=Sbuf(2, 2).view(nl.int32)),
    legal_kernel("nisa.dma_copy", gathering, 0, 1),
    broken("gather on trn1", on="trn1").says("a vector offset needs trn2 or newer"),
    legal_kernel("nisa.dma_copy", gathering, 0, 1, dge_mode=DGE.swdge),
    broken("gather with hwdge", dge_mode=DGE.hwdge).says("a vector offset needs dge_mode unknown or swdge, got hwdge"),
    legal_kernel("nisa.dma_copy", scattering, 0, 1, dge_mode=DGE.unknown),
    broken("scatter without DGE", dge_mode=DGE.none).says("a vector offset needs dge_mode unknown or swdge, got none"),
    legal_kernel("nisa.dma_copy", copying, on="trn1", dge_mode=DGE.swdge),
    broken("hwdge on trn1", dge_mode=DGE.hwdge).says("dge_mode=hwdge needs trn2 or newer"),
    legal_kernel("nisa.dma_copy", copying),
    broken("engine without hwdge", engine=ENGINE.scalar)
    .says("engine=scalar is valid with dge_mode=hwdge only")
    .fixed(dge_mode=DGE.hwdge),
    legal_kernel("nisa.dma_copy", copying, engine=ENGINE.sync, dge_mode=DGE.hwdge),
    broken("engine with swdge", dge_mode=DGE.swdge).says("engine=sync is valid with dge_mode=hwdge only"),
    broken("engine", engine=ENGINE.gpsimd)
    .says("engine must be one of nki.isa.engine.sync, nki.isa.engine.scalar, got nki.isa.engine.gpsimd")
    .fixed(engine=ENGINE.unknown),
    legal_kernel("nisa.dma_copy", copying, on="trn3", priority=0),
    broken("priority before trn3", on="trn2").says("priority is 0 to 3 and needs trn3, got 0 on trn2"),
    broken("priority", priority=4).says("priority is 0 to 3 and needs trn3, got 4 on trn3").fixed(priority=3),
    broken("priority that is no integer", priority=1.0)
    .says("priority is 0 to 3 and needs trn3, got 1.0 on trn3")
    .fixed(priority=1),
    broken("priority that is a truth value", priority=True).says("priority is 0 to 3 and needs trn3, got True on trn3"),
    legal_kernel("nisa.dma_copy", copying, oob_mode=SKIP),
    broken("oob_mode", oob_mode="skip").says("oob_mode must be a member of nki.isa.oob_mode, got 'skip'"),
    legal_kernel("nisa.dma_copy", copying, dge_mode=DGE.hwdge),
    broken("dge_mode", dge_mode=4).says("dge_mode must be a member of nki.isa.dge_mode, got 4"),
    legal_kernel("nisa.dma_copy", pattern_of_two_rows, partitions=2, columns=1),
    broken("more indices than rows", partitions=3).says(ONE_INDEX_A_ROW.format("[3, 1]")),
    broken("several columns of indices", partitions=1, columns=2).says(ONE_INDEX_A_ROW.format("[1, 2]")),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def test_a_read_only_input_is_not_written() -> None:
    """Nor is it with a gather from it, which is allowed."""
    fixed = rows(3, 2)
    fixed.flags.writeable = False

    def scatter(data: Any) -> None:
        nisa.dma_copy(data.vector_select(0, indices(0)), tile(1, 2))

    def gather(data: Any) -> Any:
        result = hbm(1, 2)
        nisa.dma_copy(result, data.vector_select(0, indices(2)))
        return result

    with pytest.raises(nisa.NkiValidationError) as caught:
        launch(scatter, fixed)
    assert str(caught.value).endswith(
        "nisa.dma_copy: operand 'dst': tensor 'data' [1, 2] float32 in private_hbm is a read-only input and "
        "cannot be written: pass a writable array, or a torch tensor that does not require grad (.detach())"
    )
    assert launch(gather, fixed).tolist() == [[20, 21]]


# -- what is recorded ------------------------------------------------------------------------------------------------


def test_a_copy_runs_on_the_dma_engine() -> None:
    assert engine_of(lambda: nisa.dma_copy(sbuf(2, 2), tile(2, 2))) == "dma"


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        ("load", 4 * 6, 0),
        ("load with a cast", 4 * 6, 0),
        ("store", 0, 4 * 6),
        ("store with a cast", 0, 2 * 6),
        ("hbm to hbm", 4 * 6, 2 * 6),
        ("sbuf to sbuf", 0, 0),
        ("gather", 4 * 2 * 3, 0),
        ("scatter", 0, 4 * 2 * 3),
        ("gather with one row skipped", 4 * 3, 0),
        ("scatter with all rows skipped", 0, 0),
        ("select", 4 * 3, 0),
        ("select skipped", 0, 0),
    ],
)
def test_hbm_bytes(name: str, read: int, written: int) -> None:
    """Each side counts in its own type; what is skipped does not cross."""

    def body(data: Any) -> None:
        kept, narrow, made = tile(2, 3), sbuf(2, 3, dtype=nl.bfloat16), hbm(4, 3)
        two, none, mixed = (sbuf(2, 1, dtype=nl.int32) for _ in range(3))
        nisa.iota(two, [[1, 1]], 0, 1)
        nisa.iota(none, [[1, 1]], 9, 1)
        nisa.iota(mixed, [[1, 1]], 0, 9)
        copies = {
            "load": (kept, data),
            "load with a cast": (narrow, data),
            "store": (made[0:2], kept),
            "store with a cast": (hbm(2, 3, dtype=nl.float16), kept),
            "hbm to hbm": (hbm(2, 3, dtype=nl.bfloat16), data),
            "sbuf to sbuf": (sbuf(2, 3), kept),
            "gather": (kept, data.vector_select(0, two)),
            "scatter": (made.vector_select(0, two), kept),
            "gather with one row skipped": (kept, data.vector_select(0, mixed)),
            "scatter with all rows skipped": (made.vector_select(0, none), kept),
            "select": (kept[0:1], data.select(0, two[0:1])),
            "select skipped": (kept[0:1], data.select(0, none[0:1])),
        }
        dst, src = copies[name]
        nisa.dma_copy(dst, src, oob_mode=SKIP if "skipped" in name else nisa.oob_mode.error)

    with nkilib.simulator.recording() as record:
        launch(body, rows(2, 3))
    assert (record.hbm_read_bytes, record.hbm_written_bytes) == (read, written)
    assert record.instruction_counts["dma_copy"] == 1
