# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views with an index that is read at run time: ``select`` with a tensor, and ``vector_select``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError, UninitializedReadError
from tests.simulator.frame import (
    counted,
    empty,
    fetched,
    hbm_cube,
    in_hbm,
    in_sbuf,
    indices,
    refused,
    run,
    sbuf_cube,
    stored,
    without_place,
)
from tests.simulator.kernels import load
from tests.simulator.refused_views import TensorOf, constraints

# -- select ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_type", [np.int32, np.uint32, np.int16, np.uint8])
def test_a_dynamic_select_takes_the_element_of_the_index(index_type: Any) -> None:
    array = counted(4, 3, 8)
    np.testing.assert_array_equal(fetched(lambda x, i: x.select(0, i), array, [3], index_type), array[3], strict=True)
    np.testing.assert_array_equal(fetched(lambda x, i: x.select(1, i), array, [2], index_type), array[:, 2])
    np.testing.assert_array_equal(fetched(lambda x, i: x.select(-1, i), array, [5], index_type), array[..., 5])


def test_a_dynamic_select_writes_as_well() -> None:
    expected = counted(4, 3)
    expected[:, 1] = [10, 20, 30, 40]
    values = np.array([10, 20, 30, 40], np.float32)
    np.testing.assert_array_equal(stored(lambda x, i: x.select(1, i), counted(4, 3), [1], values), expected)


def test_a_dynamic_select_keeps_as_many_dimensions_as_a_static_one() -> None:
    for dim in (0, 1):
        assert in_hbm(counted(4, 6)).select(dim, indices(1)).shape == in_hbm(counted(4, 6)).select(dim, 1).shape
    assert in_hbm(counted(4)).select(0, indices(1)).shape == in_hbm(counted(4)).select(0, 1).shape == (1,)
    assert in_sbuf(counted(4, 6)).select(1, indices(1)).shape == in_sbuf(counted(4, 6)).select(1, 1).shape == (4, 1)
    assert in_sbuf(counted(4, 3, 6)).select(1, indices(1)).shape == (4, 6)


def test_views_of_a_dynamic_select() -> None:
    array = counted(4, 6, 8)

    def view(x: Any, index: Any) -> Any:
        return x[1:, 1:5].select(0, index).permute((1, 0))[::2].reshape((4, 2, 2))

    expected = array[1:, 1:5][2].transpose(1, 0)[::2].reshape(4, 2, 2)
    np.testing.assert_array_equal(fetched(view, array, [2]), expected)


def test_a_dynamic_select_on_chip_is_read_by_compute_engines() -> None:
    def kernel(source: Any, index_hbm: Any) -> Any:
        tile, index = load(source), load(index_hbm)
        picked = nl.ndarray((4, 8), source.dtype)
        nisa.tensor_copy(picked, tile.select(1, index))
        result = nl.ndarray((4, 8), source.dtype, nl.shared_hbm)
        nisa.dma_copy(result, picked)
        return result

    array = counted(4, 3, 8)
    np.testing.assert_array_equal(run(kernel, array, np.array([[2]], np.int32)), array[:, 2])


def test_the_index_is_read_when_the_view_is_used() -> None:
    def kernel(source: Any) -> Any:
        index = nl.zeros((1, 1), nl.int32)
        view = source.select(0, index)
        result = nl.ndarray((2, 3), source.dtype, nl.shared_hbm)
        nisa.memset(index, 3)
        nisa.dma_copy(result[0], view)
        nisa.memset(index, 1)
        nisa.dma_copy(result[1], view)
        return result

    np.testing.assert_array_equal(run(kernel, counted(4, 3)), counted(4, 3)[[3, 1]])


# -- vector_select ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_type", [np.int32, np.uint32, np.int16, np.uint8])
def test_a_gather_takes_the_row_of_each_index(index_type: Any) -> None:
    array, index = counted(7, 3, 2), [6, 0, 3, 3]
    gathered = fetched(lambda x, i: x.vector_select(0, i), array, index, index_type)
    np.testing.assert_array_equal(gathered, array[index], strict=True)


def test_a_scatter_writes_the_row_of_each_index() -> None:
    expected, index, values = counted(7, 3), [6, 0, 3], -counted(3, 3)
    expected[index] = values
    np.testing.assert_array_equal(stored(lambda x, i: x.vector_select(0, i), counted(7, 3), index, values), expected)


def test_gathers_from_views_and_views_of_gathers() -> None:
    array, index = counted(7, 6, 4), [4, 0, 1]

    def view(x: Any, i: Any) -> Any:
        return x[2:, ::2].vector_select(0, i)[:, 1:].permute((0, 2, 1))

    expected = array[2:, ::2][index][:, 1:].transpose(0, 2, 1)
    np.testing.assert_array_equal(fetched(view, array, index), expected)
    rows = fetched(lambda x, i: x.reshape((42, 4)).vector_select(0, i).reshape((3, 2, 2)), array, [41, 6, 6])
    np.testing.assert_array_equal(rows, array.reshape(42, 4)[[41, 6, 6]].reshape(3, 2, 2))
    one = fetched(lambda x, i: x.vector_select(0, i).broadcast(1, 3), array[:, :1, 0].copy(), index)
    np.testing.assert_array_equal(one, np.broadcast_to(array[index, :1, 0], (3, 3)))


def test_a_gather_of_single_elements_from_a_flat_tensor() -> None:
    array = counted(5, 4)
    flat = fetched(lambda x, i: x.reshape((20, 1)).vector_select(0, i), array, [19, 0, 7])
    np.testing.assert_array_equal(flat, [[19], [0], [7]])


def test_a_gather_keeps_bits() -> None:
    array = np.array([[1.5, np.nan], [-0.0, np.inf]], ml_dtypes.bfloat16)
    gathered = fetched(lambda x, i: x.vector_select(0, i), array, [1, 0])
    np.testing.assert_array_equal(gathered.view(np.uint16), array[[1, 0]].view(np.uint16))


# -- what is refused -------------------------------------------------------------------------------------------

CUBE = "tensor [4, 3, 8] float32 in private_hbm"
TILE = "tensor [4, 3, 8] float32 in sbuf"


IN_HBM = TensorOf(hbm_cube)
ON_CHIP = TensorOf(sbuf_cube)


@constraints(
    IN_HBM.vector_select(1, indices(0)).says("dim must be 0, got 1").fixed(0, indices(0)),
    ON_CHIP.vector_select(0, indices(0))
    .says(f"a vector offset needs a tensor in HBM, got {TILE}")
    .instead(lambda: hbm_cube().vector_select(0, indices(0))),
    IN_HBM.vector_select(0, in_hbm(np.zeros((2, 1), np.int32)))
    .says("the vector offset must be an integer tensor in SBUF, got tensor [2, 1] int32 in private_hbm", on=CUBE)
    .fixed(0, indices(0, 0)),
    IN_HBM.vector_select(0, indices(0, 0, dtype=np.float32))
    .says("the vector offset must be an integer tensor in SBUF, got tensor [2, 1] float32 in sbuf", on=CUBE)
    .fixed(0, indices(0, 0, dtype=np.int16)),
    IN_HBM.vector_select(0, in_sbuf(np.zeros((2, 2), np.int32)))
    .says("the vector offset must have shape (P, 1), got tensor [2, 2] int32 in sbuf", on=CUBE)
    .fixed(0, in_sbuf(np.zeros((2, 2), np.int32))[:, 1:]),
    IN_HBM.vector_select(0, np.zeros((1, 1), np.int32))
    .says("the vector offset must be an SBUF tensor of shape (P, 1), got array([[0]], dtype=int32)", on=CUBE)
    .fixed(0, indices(0)),
    IN_HBM.vector_select(0, None)
    .says("the vector offset must be an SBUF tensor of shape (P, 1), got None", on=CUBE)
    .fixed(0, indices(0)),
    IN_HBM.vector_select(0, in_sbuf(np.zeros((2, 2), np.int32)).select(1, indices(0)))
    .says("the vector offset must not be an indirect view itself, got tensor [2, 1] int32 in sbuf", on=CUBE)
    .fixed(0, in_sbuf(np.zeros((2, 2), np.int32)).select(1, 0)),
    TensorOf(lambda: hbm_cube().vector_select(0, indices(0)))
    .vector_select(0, indices(0))
    .says("tensor [1, 3, 8] float32 in private_hbm is indirect already; a view has one dynamic index")
    .instead(lambda: hbm_cube().vector_select(0, indices(0)).select(1, 0)),
    TensorOf(lambda: hbm_cube().select(0, indices(0)))
    .select(0, indices(0))
    .says("tensor [3, 8] float32 in private_hbm is indirect already; a view has one dynamic index")
    .fixed(0, 0),
    ON_CHIP.select(0, indices(0)).says(f"the partition dimension of {TILE} has no dynamic index").fixed(1, indices(0)),
    IN_HBM.select(0, indices(0, 1))
    .says("the scalar offset must have shape (1, 1), got tensor [2, 1] int32 in sbuf", on=CUBE)
    .fixed(0, indices(0, 1)[1]),
    IN_HBM.select(0, indices(0, dtype=np.float32))
    .says("the scalar offset must be an integer tensor in SBUF, got tensor [1, 1] float32 in sbuf", on=CUBE)
    .fixed(0, indices(0, dtype=np.uint8)),
)
def test_constraints(broken: Any, message: str, corrected: Any) -> None:
    assert refused(NkiValidationError, broken) == message
    assert corrected().is_indirect()


def test_an_indirect_view_shows_no_array() -> None:
    message = "tensor [1, 3, 8] float32 in private_hbm is an indirect view: only an instruction can read it"
    assert refused(NkiValidationError, lambda: hbm_cube().vector_select(0, indices(0)).array) == message


@pytest.mark.parametrize(("broken", "corrected"), [(4, 3), (-1, 0)])
def test_a_selected_index_must_lie_in_its_dimension(broken: int, corrected: int) -> None:
    def view(x: Any, index: Any) -> Any:
        return x.select(0, index)

    message = refused(OutOfRangeError, lambda: fetched(view, counted(4, 3), [broken]))
    assert without_place(message, "nisa.dma_copy") == (
        f"operand 'src': index {broken} in partition 0 of tensor [1, 1] int32 in sbuf is out of range [0, 4) of "
        f"tensor 'source' [4, 3] float32 in private_hbm"
    )
    np.testing.assert_array_equal(fetched(view, counted(4, 3), [corrected]), counted(4, 3)[corrected])


@pytest.mark.parametrize(("broken", "corrected"), [(4, 3), (-1, 0)])
def test_a_gathered_index_must_lie_in_its_dimension(broken: int, corrected: int) -> None:
    def view(x: Any, index: Any) -> Any:
        return x[1:5].vector_select(0, index)

    array = counted(9, 3)
    message = refused(OutOfRangeError, lambda: fetched(view, array, [0, broken, 1]))
    assert without_place(message, "nisa.dma_copy") == (
        f"operand 'src': index {broken} in partition 1 of tensor [3, 1] int32 in sbuf is out of range [0, 4) of "
        f"tensor 'source' [4, 3] float32 in private_hbm"
    )
    np.testing.assert_array_equal(fetched(view, array, [0, corrected, 1]), array[1:5][[0, corrected, 1]])


@pytest.mark.parametrize("mode", ["error", "nan"])
def test_an_index_that_was_never_written_is_always_an_error(mode: str) -> None:
    def broken(source: Any) -> Any:
        result = nl.ndarray((2, 3), source.dtype, nl.shared_hbm)
        nisa.dma_copy(result, source.vector_select(0, nl.ndarray((2, 1), nl.int32)))
        return result

    message = refused(UninitializedReadError, lambda: run(broken, counted(9, 3), uninitialized=mode))
    expected = "index tensor [2, 1] int32 in sbuf is read before it was written"
    assert without_place(message, "nisa.dma_copy") == expected


def test_only_dma_reads_through_a_vector_offset() -> None:
    def broken(source: Any) -> None:
        view = source.vector_select(0, nl.zeros((2, 1), nl.int32))
        nisa.tensor_copy(nl.ndarray((2, 3), nl.float32), view)

    message = refused(NkiValidationError, lambda: run(broken, counted(9, 3)))
    expected = (
        "operand 'src' must be in psum or sbuf, got tensor 'source' [2, 3] float32 in private_hbm"
        "; load it to sbuf first, with nisa.dma_copy"
    )
    assert without_place(message, "nisa.tensor_copy") == expected


def test_an_index_may_have_more_dimensions_of_size_1() -> None:
    """A published kernel makes one with ``ap``: a column of a tile of indices, in three dimensions."""
    array = counted(9, 3)

    def gather(source: Any) -> Any:
        index, result = nl.ndarray((2, 4), nl.int32), nl.ndarray((4, 3), source.dtype, nl.shared_hbm)
        nisa.iota(index, [[1, 4]], channel_multiplier=4)
        column = index.ap([[4, 2], [1, 1], [1, 1]], offset=1)
        nisa.dma_copy(result[0:2], source.vector_select(0, column))
        nisa.dma_copy(result[2:3], source.select(0, column[0:1]))
        nisa.dma_copy(result[3:4], source.ap([[3, 1], [1, 3]], scalar_offset=column[0:1], indirect_dim=0))
        return result

    np.testing.assert_array_equal(run(gather, array), array[[1, 5, 1, 1]])
    wide = in_sbuf(np.zeros((2, 2, 2), np.int32))
    assert refused(NkiValidationError, lambda: hbm_cube().vector_select(0, wide)).endswith(
        "the vector offset must have shape (P, 1), got tensor [2, 2, 2] int32 in sbuf"
    )


def test_an_empty_gather_reads_nothing() -> None:
    assert empty(4, 3).vector_select(0, indices(1)).slice(1, 2, 2).shape == (1, 0)
