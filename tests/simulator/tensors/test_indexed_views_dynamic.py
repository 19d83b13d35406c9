# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views with an index that is read at run time, from a tensor or a register: ``select``, ``vector_select``, ``ds``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError, UninitializedReadError
from nkilib.simulator.tensors.device_integers import VirtualRegister
from tests.simulator.frame import (
    View,
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
def test_constraints_of_tensor_indices(broken: Any, message: str, corrected: Any) -> None:
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


def register(value: int | None = 0) -> VirtualRegister:
    return VirtualRegister(value)


def read(make_view: View, array: Any, value: int) -> Any:
    """Return what a DMA reads through `make_view(array, register)`, where the register holds `value`."""

    def kernel(source: Any) -> Any:
        view = make_view(source, nisa.register_alloc(value))
        result = nl.ndarray(view.shape, view.dtype, nl.shared_hbm)
        nisa.dma_copy(result, view)
        return result

    return run(kernel, array)


def read_on_chip(make_view: View, array: Any, value: int) -> Any:
    """Return what the Vector engine reads through `make_view(tile, register)`, where the register holds `value`."""

    def kernel(source: Any) -> Any:
        view = make_view(load(source), nisa.register_alloc(value))
        picked = nl.ndarray(view.shape, view.dtype)
        nisa.tensor_copy(picked, view)
        result = nl.ndarray(view.shape, view.dtype, nl.shared_hbm)
        nisa.dma_copy(result, picked)
        return result

    return run(kernel, array)


# -- what is read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda x, r: x[r], np.s_[2]),
        (lambda x, r: x[:, r], np.s_[:, 2]),
        (lambda x, r: x[..., r], np.s_[..., 2]),
        (lambda x, r: x[1:, r, ::3], np.s_[1:, 2, ::3]),
        (lambda x, r: x.select(0, r), np.s_[2]),
        (lambda x, r: x.select(-1, r), np.s_[..., 2]),
        (lambda x, r: x[:, :, nl.ds(r, 3)], np.s_[:, :, 2:5]),
        (lambda x, r: x[nl.ds(r, 2), 1], np.s_[2:4, 1]),
        (lambda x, r: x[:, :, ::2][:, 0, nl.ds(r, 2)], np.s_[:, 0, 4:8:2]),
    ],
)
def test_a_register_stands_for_the_integer_that_it_holds(view: View, expected: Any) -> None:
    array = counted(4, 3, 8)
    np.testing.assert_array_equal(read(view, array, 2), array[expected], strict=True)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda x, r: x[:, r], np.s_[:, 2]),
        (lambda x, r: x[:, 0, r], np.s_[:, 0, 2:3]),
        (lambda x, r: x[:, 1, nl.ds(r, 4)], np.s_[:, 1, 2:6]),
        (lambda x, r: x.select(1, r), np.s_[:, 2]),
        (lambda x, r: x.ap([[24, 4], [1, 5]], scalar_offset=r, indirect_dim=1), np.s_[:, 2, :5]),
    ],
)
def test_on_chip_a_register_moves_within_the_partitions(view: View, expected: Any) -> None:
    array = counted(4, 3, 8)
    np.testing.assert_array_equal(read_on_chip(view, array, 2), array[expected])


def test_an_access_pattern_takes_a_register_as_scalar_offset() -> None:
    array = counted(16, 8)
    rows = read(lambda x, r: x.ap([[8, 4], [1, 5]], scalar_offset=r, indirect_dim=0), array, 12)
    np.testing.assert_array_equal(rows, array[12:, :5])
    columns = read(lambda x, r: x.ap([[8, 4], [1, 2]], offset=16, scalar_offset=r, indirect_dim=1), array, 6)
    np.testing.assert_array_equal(columns, array[2:6, 6:8])


def test_a_register_writes_as_well() -> None:
    def kernel(target: Any, source: Any) -> Any:
        at = nisa.register_alloc(1)
        nisa.dma_copy(target[:, nl.ds(at, 2)], source)
        nisa.dma_copy(target[at], target[3])
        return target

    expected, values = counted(4, 6), -counted(4, 2)
    expected[:, 1:3] = values
    expected[1] = expected[3]
    np.testing.assert_array_equal(run(kernel, counted(4, 6), values), expected)


def test_views_of_a_window_that_a_register_starts() -> None:
    array = counted(4, 6, 8)
    moved = read(lambda x, r: x[1:, nl.ds(r, 2)].permute((2, 0, 1))[::2].reshape_dim(0, (2, 2)), array, 3)
    np.testing.assert_array_equal(moved, array[1:, 3:5].transpose(2, 0, 1)[::2].reshape(2, 2, 3, 2))


def test_the_register_is_read_when_the_view_is_used() -> None:
    """The device does it so: an instruction takes the value that the register holds when it is issued."""

    def kernel(source: Any) -> Any:
        at = nisa.register_alloc(3)
        row = source[at]
        result = nl.ndarray((2, 3), source.dtype, nl.shared_hbm)
        nisa.dma_copy(result[0], row)
        nisa.register_move(at, 1)
        nisa.dma_copy(result[1], row)
        return result

    np.testing.assert_array_equal(run(kernel, counted(4, 3)), counted(4, 3)[[3, 1]])


def test_the_example_of_fori_loop() -> None:
    def kernel(data: Any, bound: Any) -> Any:
        output = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        nisa.dma_copy(output, nl.zeros(data.shape, data.dtype))
        ub_reg = nisa.register_alloc()
        nisa.register_load(ub_reg, load(bound))
        temp = nl.ndarray((1, 1), data.dtype)

        def body(i: Any) -> None:
            nisa.dma_copy(temp, data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
            nisa.dma_copy(output.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), temp)

        nl.fori_loop(0, ub_reg, body)
        return output

    result = run(kernel, 1 + counted(1, 8), np.array([[5]], np.int32))
    np.testing.assert_array_equal(result, [[1, 2, 3, 4, 5, 0, 0, 0]])


def test_the_variable_of_a_loop_indexes_a_tensor() -> None:
    def kernel(data: Any) -> Any:
        output = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        nl.fori_loop(0, nisa.register_alloc(4), lambda i: nisa.dma_copy(output[i], data.select(0, i)) and None)
        return output

    np.testing.assert_array_equal(run(kernel, counted(4, 3)), counted(4, 3))


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "limit", "last"),
    [
        (lambda x, r: x[r], 4, 3),
        (lambda x, r: x.select(1, r), 3, 2),
        (lambda x, r: x[:, :, nl.ds(r, 3)], 6, 5),
        (lambda x, r: x.ap([[24, 1], [1, 1]], scalar_offset=r, indirect_dim=1), 3, 2),
    ],
)
def test_a_register_must_lie_in_its_dimension(view: View, limit: int, last: int) -> None:
    array = counted(4, 3, 8)
    for value in (limit, -1):
        message = refused(OutOfRangeError, lambda value=value: read(view, array, value))  # type: ignore[misc]
        assert without_place(message, "nisa.dma_copy") == (
            f"operand 'src': index {value} of VirtualRegister({value}) is out of range [0, {limit}) of tensor 'source' "
            f"[4, 3, 8] float32 in private_hbm"
        )
    assert read(view, array, last).size > 0


def test_a_register_that_was_never_set_is_no_index() -> None:
    def kernel(source: Any) -> Any:
        result = nl.ndarray((3, 8), source.dtype, nl.shared_hbm)
        nisa.dma_copy(result, source[nisa.register_alloc()])
        return result

    message = refused(UninitializedReadError, lambda: run(kernel, counted(4, 3, 8)))
    assert without_place(message, "nisa.dma_copy") == (
        "the index of tensor 'source' [4, 3, 8] float32 in private_hbm: the register was never set; give "
        "nisa.register_alloc a value, or nisa.register_load one first"
    )


NO_INDEX = f"the partition dimension of {TILE} has no dynamic index"
INDICES = (
    f"{CUBE} can be indexed with integers, slices, ... and nl.ds, got {{}} for dimension 0; use nl.ds(register, size)"
)


ONE_OFFSET = (
    "compute one offset of two scalars, such as i * 24 + j, and index a flat view with it: "
    "x.reshape((n, 1))[nl.ds(offset, 1)]"
)


def test_the_flat_view_that_the_error_about_two_registers_names() -> None:
    def kernel(x: Any) -> Any:
        result = nl.ndarray((4, 1), x.dtype, nl.shared_hbm)

        def row(i: Any) -> None:
            def element(j: Any) -> None:
                nisa.dma_copy(result[nl.ds(i * 2 + j, 1)], x.reshape((12, 1))[nl.ds(i * 4 + j, 1)])

            nl.fori_loop(0, 2, element)

        nl.fori_loop(0, 2, row)
        return result

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(run(kernel, x).reshape(2, 2), x[:2, :2])


@constraints(
    ON_CHIP.index(register()).says(NO_INDEX).fixed(np.s_[:, register()]),
    ON_CHIP.index((nl.ds(register(), 2), 0)).says(NO_INDEX).fixed((nl.ds(0, 2), register())),
    ON_CHIP.select(0, register()).says(NO_INDEX).fixed(1, register()),
    ON_CHIP.ap([[24, 4], [1, 1]], scalar_offset=register())
    .says(NO_INDEX)
    .fixed([[24, 4], [1, 1]], scalar_offset=register(), indirect_dim=1),
    IN_HBM.index((register(), 0, register()))
    .says(f"only one register may index {CUBE}; {ONE_OFFSET}")
    .fixed((register(), 0, 0)),
    IN_HBM[register()]
    .index(register())
    .says("tensor [3, 8] float32 in private_hbm is indirect already; a view has one dynamic index")
    .fixed(0),
    TensorOf(lambda: hbm_cube().vector_select(0, indices(0)))
    .select(1, register())
    .says("tensor [1, 3, 8] float32 in private_hbm is indirect already; a view has one dynamic index")
    .fixed(1, 0),
    IN_HBM.index(np.s_[0 : register(3)])
    .refused_with(INDICES.format("slice(0, VirtualRegister(3), None)"))
    .fixed(nl.ds(register(3), 1)),
    IN_HBM.index(nl.ds(register(), register(3)))
    .refused_with(INDICES.format("DynamicSlice(start=VirtualRegister(0), size=VirtualRegister(3))"))
    .fixed(nl.ds(register(), 3)),
    IN_HBM.ap([[24, 1]], vector_offset=register())
    .says("the vector offset must be an SBUF tensor of shape (P, 1) or (P, N), got VirtualRegister(0)", on=CUBE)
    .fixed([[24, 1]], scalar_offset=register()),
)
def test_constraints_of_register_indices(broken: Any, message: str, corrected: Any) -> None:
    assert refused(NkiValidationError, broken) == message
    assert corrected().is_indirect()


@pytest.mark.parametrize(("broken", "corrected"), [(9, 8), (0, 1), (-1, 1)])
def test_a_window_must_fit_the_dimension(broken: int, corrected: int) -> None:
    message = refused(OutOfRangeError, lambda: hbm_cube()[:, :, nl.ds(register(), broken)])
    assert message == f"nl.ds(VirtualRegister(0), {broken}) does not fit dimension 2 of {CUBE}"
    assert hbm_cube()[:, :, nl.ds(register(), corrected)].shape == (4, 3, corrected)
