# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`dma_copy` with addresses that are read at run time: gather, scatter and scalar offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, execute, hbm, launch, normal, refusal, sbuf, tile
from .test_instructions_copy import indices, rows

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
DGE = nisa.dge_mode


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
