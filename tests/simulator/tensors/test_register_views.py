# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views whose index is a register: `t[register]`, `nl.ds(register, size)`, `select`, and `ap(scalar_offset=)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError, UninitializedReadError
from nkilib.simulator.tensors.registers import VirtualRegister
from tests.simulator.frame import (
    View,
    counted,
    hbm_cube,
    indices,
    refused,
    run,
    sbuf_cube,
    without_place,
)
from tests.simulator.kernels import load
from tests.simulator.refused_views import TensorOf, constraints

CUBE = "tensor [4, 3, 8] float32 in private_hbm"
TILE = "tensor [4, 3, 8] float32 in sbuf"


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


ON_CHIP, IN_HBM = TensorOf(sbuf_cube), TensorOf(hbm_cube)
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
def test_constraints(broken: Any, message: str, corrected: Any) -> None:
    assert refused(NkiValidationError, broken) == message
    assert corrected().is_indirect()


@pytest.mark.parametrize(("broken", "corrected"), [(9, 8), (0, 1), (-1, 1)])
def test_a_window_must_fit_the_dimension(broken: int, corrected: int) -> None:
    message = refused(OutOfRangeError, lambda: hbm_cube()[:, :, nl.ds(register(), broken)])
    assert message == f"nl.ds(VirtualRegister(0), {broken}) does not fit dimension 2 of {CUBE}"
    assert hbm_cube()[:, :, nl.ds(register(), corrected)].shape == (4, 3, corrected)
