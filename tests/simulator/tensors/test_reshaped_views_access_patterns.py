# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NkiTensor.ap``: patterns given outright, with every argument, against numpy's strided views."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.terms.argument_checks import DIVISION
from tests.simulator.frame import counted, empty, fetched, in_hbm, in_sbuf, indices, refused, run, stored, without_place
from tests.simulator.kernels import load
from tests.simulator.refused_views import TensorOf, constraints

HBM = "tensor [6, 4] float32 in private_hbm"
SBUF = "tensor [6, 4] float32 in sbuf"


def strided(array: Any, pattern: Any, offset: int = 0) -> Any:
    """numpy's view of `array`, flat, with the pattern."""
    flat = array.reshape(-1)
    strides = [stride * flat.itemsize for stride, _ in pattern]
    return as_strided(flat[offset:], [count for _, count in pattern], strides)


# -- static patterns -------------------------------------------------------------------------------------------


@given(st.data())
def test_a_pattern_in_hbm_is_numpys_as_strided(data: st.DataObject) -> None:
    array = counted(6, 4)
    pattern: list[list[int]] = []
    room = array.size - 1
    for _ in range(data.draw(st.integers(1, 4))):
        stride = data.draw(st.integers(0, 8))
        count = data.draw(st.integers(1, min(4, room // stride + 1 if stride else 4)))
        pattern.append([stride, count])
        room -= stride * (count - 1)
    offset = data.draw(st.integers(0, room))
    view = in_hbm(array).ap(pattern, offset)
    np.testing.assert_array_equal(view.array, strided(array, pattern, offset), strict=True)
    assert view.get_pattern() == pattern and view.offset == offset


def test_a_pattern_may_go_backwards() -> None:
    np.testing.assert_array_equal(in_hbm(counted(6, 4)).ap([[-4, 6], [1, 2]], 20).array, counted(6, 4)[::-1, :2])


@pytest.mark.parametrize(
    ("pattern", "offset"),
    [
        ([[4, 6], [1, 4]], 0),
        ([[4, 6], [2, 2]], 1),
        ([(4, 3), (1, 2)], 2),
        ([[4, 6], [0, 5], [1, 4]], 0),
        ([[4, 2], [1, 3], [1, 2]], 8),
        ([[4, 1], [-1, 4]], 23),
        ([[99, 1], [1, 4]], 4),
        ([[4, 0], [1, 4]], 0),
    ],
)
def test_a_pattern_on_chip_walks_partition_by_partition(pattern: Any, offset: int) -> None:
    array = counted(6, 4)
    view = in_sbuf(array).ap(pattern, offset)
    np.testing.assert_array_equal(view.array, strided(array, pattern, offset), strict=True)
    assert view.strides[0] == 4


def test_the_pattern_of_a_view_gives_the_view_again() -> None:
    t = in_sbuf(counted(6, 4, 3))
    for view in (t, t[2:4], t.permute((0, 2, 1)), t[:, ::2, 1:]):
        again = view.ap(view.get_pattern())
        assert (again.layout, again.dtype) == (view.layout, view.dtype)
    pattern = t.get_pattern()
    pattern[0][1] = 2
    np.testing.assert_array_equal(t.ap(pattern=pattern).array, counted(6, 4, 3)[:2])


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_a_dense_slice_may_be_walked_as_a_tensor_of_its_own(offset: int) -> None:
    """The first stride is then the slice's own number of elements in a partition; published kernels wrap slices so."""
    array = counted(6, 8)
    part = in_sbuf(array)[1:, 2:6]
    view = part.ap([[4, 3], [2, 2]], offset)
    dense = np.ascontiguousarray(array[1:, 2:6])
    np.testing.assert_array_equal(view.array, strided(dense, [[4, 3], [2, 2]], offset), strict=True)
    assert view.layout == part.ap([[8, 3], [2, 2]], {0: 0, 1: 1, 5: 9}[offset]).layout
    with pytest.raises(NkiValidationError, match="the first stride must be the 8 elements of a partition, got 2"):
        in_sbuf(array)[:, ::4].ap([[2, 6], [1, 2]])


def test_an_outer_pattern_replaces_the_inner_one() -> None:
    t = empty(128, 256, buffer=nl.sbuf)
    outer = t.ap(pattern=[[256, 128], [2, 128]]).ap(pattern=[[256, 128], [1, 64]])
    assert outer.layout == t.ap(pattern=[[256, 128], [1, 64]]).layout


def test_the_offset_is_added_to_the_views_own() -> None:
    array = counted(6, 4)
    part = in_hbm(array)[2:]
    assert part.ap([[4, 2], [1, 2]]).array.tolist() == [[8, 9], [12, 13]]
    assert part.ap([[4, 2], [1, 2]], offset=0).array.tolist() == [[8, 9], [12, 13]]
    assert part.ap([[4, 2], [1, 2]], offset=5).array.tolist() == [[13, 14], [17, 18]]


# -- another type ----------------------------------------------------------------------------------------------


def test_dtype_counts_pattern_and_offset_in_its_own_elements() -> None:
    array = np.random.default_rng(0).integers(0, 2**15, (6, 4), dtype=np.int32)
    halves = array.view(np.uint16)
    for make in (in_hbm, in_sbuf):
        whole = make(array).ap([[8, 6], [1, 8]], dtype=nl.uint16)
        np.testing.assert_array_equal(whole.array, halves, strict=True)
        low = make(array).ap([[8, 6], [2, 4]], 0, dtype="uint16")
        np.testing.assert_array_equal(low.array, halves[:, ::2], strict=True)
        part = make(array)[1:3, 2:].ap([[8, 2], [1, 2]], offset=1, dtype=nl.uint16)
        np.testing.assert_array_equal(part.array, halves[1:3, 5:7], strict=True)
        assert part.dtype == nl.uint16
    wide = in_sbuf(halves).ap([[4, 6], [1, 4]], dtype=nl.int32)
    np.testing.assert_array_equal(wide.array, array, strict=True)


def test_the_reinterpreting_example_of_the_deep_dive() -> None:
    t = empty(128, 256, dtype=nl.int32, buffer=nl.sbuf)
    view = t.ap(pattern=[[512, 128], [1, 512]], offset=0, dtype=nl.bfloat16)
    assert (view.shape, view.dtype, view.array.dtype) == ((128, 512), nl.bfloat16, ml_dtypes.bfloat16)


# -- scalar_offset ---------------------------------------------------------------------------------------------


def test_a_scalar_offset_counts_in_steps_of_the_tensors_own_dimension() -> None:
    array = counted(16, 8)

    def batch(x: Any, index: Any) -> Any:
        return x.ap(pattern=[[8, 4], [1, 5]], offset=0, scalar_offset=index, indirect_dim=0)

    np.testing.assert_array_equal(fetched(batch, array, [12]), array[12:16, :5])

    def column(x: Any, index: Any) -> Any:
        return x.ap([[8, 4], [1, 2]], offset=16, scalar_offset=index, indirect_dim=1)

    np.testing.assert_array_equal(fetched(column, array, [6]), array[2:6, 6:8])

    def of_a_view(x: Any, index: Any) -> Any:
        return x[::4].ap([[1, 3]], scalar_offset=index)

    np.testing.assert_array_equal(fetched(of_a_view, array, [3]), array[12, :3])


def test_a_scalar_offset_writes_as_well() -> None:
    expected = counted(6, 4)
    expected[3:5, :2] = [[-1, -2], [-3, -4]]
    values = np.array([[-1, -2], [-3, -4]], np.float32)
    result = stored(lambda x, i: x.ap([[4, 2], [1, 2]], scalar_offset=i), counted(6, 4), [3], values)
    np.testing.assert_array_equal(result, expected)


def test_a_scalar_offset_on_chip_moves_within_the_partition() -> None:
    def kernel(source: Any, index_hbm: Any) -> Any:
        view = load(source).ap([[8, 3], [1, 3]], scalar_offset=load(index_hbm), indirect_dim=1)
        picked = nl.ndarray((3, 3), source.dtype)
        nisa.tensor_copy(picked, view)
        result = nl.ndarray((3, 3), source.dtype, nl.shared_hbm)
        nisa.dma_copy(result, picked)
        return result

    array = counted(4, 8)
    np.testing.assert_array_equal(run(kernel, array, np.array([[5]], np.int32)), array[:3, 5:8])
    message = refused(OutOfRangeError, lambda: run(kernel, array, np.array([[6]], np.int32)))
    assert without_place(message, "nisa.tensor_copy") == (
        "operand 'src': index 6 moves tensor [3, 3] float32 in sbuf to elements 6 to 8 of partitions of 8"
    )


def test_a_scalar_offset_counts_the_tensors_steps_also_in_another_type() -> None:
    array = np.random.default_rng(0).integers(0, 2**15, (4, 6), dtype=np.int32)

    def halves(x: Any, index: Any) -> Any:
        return x.ap([[12, 4], [1, 4]], scalar_offset=index, indirect_dim=1, dtype=nl.uint16)

    np.testing.assert_array_equal(fetched(halves, array, [3]), array.view(np.uint16)[:, 6:10])
    wide = array.view(np.uint16)

    def words(x: Any, index: Any) -> Any:
        return x.ap([[1, 6]], scalar_offset=index, indirect_dim=0, dtype=nl.int32)

    np.testing.assert_array_equal(fetched(words, wide, [2]), array[2])


def test_a_scalar_offset_must_leave_the_view_inside_the_storage() -> None:
    def view(x: Any, index: Any) -> Any:
        return x.ap([[4, 3], [1, 4]], scalar_offset=index)

    np.testing.assert_array_equal(fetched(view, counted(6, 4), [3]), counted(6, 4)[3:])
    message = refused(OutOfRangeError, lambda: fetched(view, counted(6, 4), [4]))
    assert without_place(message, "nisa.dma_copy") == (
        "operand 'src': index 4 moves tensor 'source' [3, 4] float32 in private_hbm to elements 16 to 27 of a storage "
        "of 24"
    )


# -- vector_offset ---------------------------------------------------------------------------------------------


def test_a_vector_offset_takes_the_stride_of_the_tensor_not_of_the_pattern() -> None:
    array, index = counted(16, 8), [15, 0, 3]

    def rows(x: Any, offset: Any) -> Any:
        return x.ap([[777, 3], [2, 4]], vector_offset=offset, indirect_dim=0)

    np.testing.assert_array_equal(fetched(rows, array, index), array[index, ::2])


def test_a_vector_offset_adds_to_the_static_offset() -> None:
    array, index = counted(16, 8), [14, 0, 3]

    def rows(x: Any, offset: Any) -> Any:
        return x.ap([[8, 3], [1, 2]], 8 + 5, vector_offset=offset)

    np.testing.assert_array_equal(fetched(rows, array, index), array[1:][index, 5:7])
    view = fetched(lambda x, i: x[2::2].ap([[16, 3], [1, 8]], vector_offset=i), array, [6, 0, 1])
    np.testing.assert_array_equal(view, array[2::2][[6, 0, 1]])


def test_a_vector_offset_writes_as_well() -> None:
    expected = counted(6, 4)
    expected[[5, 1], 1] = [-1, -2]
    values = np.array([[-1], [-2]], np.float32)
    result = stored(lambda x, i: x.ap([[4, 2], [1, 1]], 1, vector_offset=i), counted(6, 4), [5, 1], values)
    np.testing.assert_array_equal(result, expected)


def test_a_vector_offset_counts_the_tensors_rows_also_in_another_type() -> None:
    array = np.random.default_rng(0).integers(0, 2**15, (4, 6), dtype=np.int32)

    def halves(x: Any, offset: Any) -> Any:
        return x.ap([[12, 2], [1, 3]], 1, vector_offset=offset, dtype=nl.uint16)

    np.testing.assert_array_equal(fetched(halves, array, [3, 1]), array.view(np.uint16)[[3, 1], 1:4])


def test_a_vector_offset_must_leave_every_row_inside_the_storage() -> None:
    def rows(x: Any, offset: Any) -> Any:
        return x.ap([[4, 2], [1, 4]], 4, vector_offset=offset)

    array = counted(6, 4)
    np.testing.assert_array_equal(fetched(rows, array, [4, 0]), array[[5, 1]])
    message = refused(OutOfRangeError, lambda: fetched(rows, array, [4, 5]))
    assert without_place(message, "nisa.dma_copy") == (
        "operand 'src': index 5 in partition 1 of tensor [2, 1] int32 in sbuf is out of range [0, 5) of tensor "
        "'source' [6, 4] float32 in private_hbm"
    )


def test_an_offset_behind_which_no_row_is_left() -> None:
    def kernel(x: Any, index_hbm: Any, mode: Any) -> Any:
        result = nl.full((2, 4), -1, nl.float32, nl.hbm)
        view = x.ap([[4, 2], [1, 4]], 22, vector_offset=load(index_hbm))
        nisa.dma_copy(result, view, oob_mode=mode)
        return result

    index = np.zeros((2, 1), np.int32)
    message = refused(OutOfRangeError, lambda: run(kernel, counted(6, 4), index, nisa.oob_mode.error))
    assert without_place(message, "nisa.dma_copy") == (
        "operand 'src': index 0 in partition 0 of tensor [2, 1] int32 in sbuf is out of range [0, 0) of tensor 'x' "
        "[6, 4] float32 in private_hbm"
    )
    np.testing.assert_array_equal(run(kernel, counted(6, 4), index, nisa.oob_mode.skip), np.full((2, 4), -1))


# -- what is refused -------------------------------------------------------------------------------------------


def flat() -> NkiTensor:
    return in_hbm(counted(6, 4))


def tile() -> NkiTensor:
    return in_sbuf(counted(6, 4))


def shorts() -> NkiTensor:
    return in_hbm(counted(6, 4, dtype=np.int16))


FLAT = TensorOf(flat)
ON_CHIP = TensorOf(tile)
SHORTS = TensorOf(shorts)


@constraints(
    FLAT.ap([]).says("pattern needs a dimension and counts >= 0, got []").fixed([[1, 1]]),
    FLAT.ap([[1, -1]]).says("pattern needs a dimension and counts >= 0, got [[1, -1]]").fixed([[1, 0]]),
    FLAT.ap([4, 6]).says("pattern must be [[stride, count], ...], got [4, 6]").fixed([[4, 6]]),
    FLAT.ap([[4, 6, 1]]).says("pattern must be [[stride, count], ...], got [[4, 6, 1]]").fixed([[4, 6]]),
    FLAT.ap([[1.5, 2]]).says("pattern must be [[stride, count], ...], got [[1.5, 2]]").fixed([[1, 2]]),
    FLAT.ap([[2 / 2, 2]]).says(f"pattern must be [[stride, count], ...], got [[1.0, 2]]{DIVISION}").fixed([[1, 2]]),
    ON_CHIP.ap([[4, 6]])
    .says(
        "an on-chip pattern starts with the partition dimension and has at least one free dimension, got [[4, 6]]",
        on=SBUF,
    )
    .fixed([[4, 6], [1, 1]]),
    ON_CHIP.ap([[8, 3], [1, 4]])
    .says("the first stride must be the 4 elements of a partition, got 8", on=SBUF)
    .fixed([[4, 3], [1, 4]]),
    ON_CHIP.ap([[1, 2], [1, 4]])
    .says("the first stride must be the 4 elements of a partition, got 1", on=SBUF)
    .fixed([[1, 1], [1, 4]]),
    ON_CHIP.ap([[4, 6], [1, 8]], dtype=nl.bfloat16)
    .says("the first stride must be the 8 elements of a partition, got 4", on=SBUF)
    .fixed([[8, 6], [1, 8]], dtype=nl.bfloat16),
    SHORTS[:, 1:]
    .ap([[2, 5], [1, 1]], dtype=nl.int32)
    .says("tensor [6, 3] int16 in private_hbm starts at byte 2, which is no multiple of the 4 bytes of int32")
    .instead(lambda: shorts()[:, 2:].ap([[2, 5], [1, 1]], dtype=nl.int32)),
    SHORTS.ap([[2, 5]], scalar_offset=indices(0), indirect_dim=1, dtype=nl.int32)
    .says(
        "a step of dimension 1 is 2 bytes, which is no multiple of the 4 bytes of int32",
        on="tensor [6, 4] int16 in private_hbm",
    )
    .fixed([[2, 5]], scalar_offset=indices(0), indirect_dim=0, dtype=nl.int32),
    FLAT.ap([[4, 1]], scalar_offset=indices(0), vector_offset=indices(0))
    .says("give scalar_offset or vector_offset, not both", on=HBM)
    .fixed([[4, 1]], vector_offset=indices(0)),
    FLAT.ap([[1, 1]], vector_offset=indices(0), indirect_dim=1)
    .says("a vector offset needs indirect_dim=0, got 1", on=HBM)
    .fixed([[1, 1]], scalar_offset=indices(0), indirect_dim=1),
    ON_CHIP.ap([[4, 2], [1, 1]], vector_offset=indices(0, 1))
    .says(f"a vector offset needs a tensor in HBM, got {SBUF}")
    .instead(lambda: flat().ap([[4, 2], [1, 1]], vector_offset=indices(0, 1))),
    FLAT.ap([[4, 3], [1, 1]], vector_offset=indices(0, 1))
    .says(
        "the vector offset must have one index for each of the 3 rows of the pattern, got tensor [2, 1] int32 in sbuf",
        on=HBM,
    )
    .fixed([[4, 2], [1, 1]], vector_offset=indices(0, 1)),
    FLAT.ap([[4, 2]], vector_offset=indices(0, 1, dtype=np.float32))
    .says("the vector offset must be an integer tensor in SBUF, got tensor [2, 1] float32 in sbuf", on=HBM)
    .fixed([[4, 2]], vector_offset=indices(0, 1)),
    ON_CHIP.ap([[4, 2], [1, 1]], scalar_offset=indices(0))
    .says(f"the partition dimension of {SBUF} has no dynamic index")
    .fixed([[4, 2], [1, 1]], scalar_offset=indices(0), indirect_dim=1),
    FLAT.ap([[4, 2]], scalar_offset=indices(0, 1))
    .says("the scalar offset must have shape (1, 1), got tensor [2, 1] int32 in sbuf", on=HBM)
    .fixed([[4, 2]], scalar_offset=indices(1)),
    TensorOf(lambda: flat().vector_select(0, indices(0)))
    .ap([[4, 1], [1, 4]])
    .says("tensor [1, 4] float32 in private_hbm is indirect already; a view has one dynamic index")
    .instead(lambda: flat().ap([[4, 1], [1, 4]], vector_offset=indices(0))),
)
def test_constraints(broken: Any, message: str, corrected: Any) -> None:
    assert refused(NkiValidationError, broken) == message
    assert isinstance(corrected(), NkiTensor)


@constraints(
    FLAT.ap([[4, 7], [1, 1]])
    .says("pattern [(4, 7), (1, 1)] at offset 0 touches elements 0 to 24 of a storage of 24", on=HBM)
    .fixed([[4, 6], [1, 1]]),
    FLAT.ap([[-1, 3]], offset=1)
    .says("pattern [(-1, 3)] at offset 1 touches elements -1 to 1 of a storage of 24", on=HBM)
    .fixed([[-1, 3]], offset=2),
    FLAT[5]
    .ap([[1, 4]], offset=1)
    .says(
        "pattern [(1, 4)] at offset 21 touches elements 21 to 24 of a storage of 24",
        on="tensor [4] float32 in private_hbm",
    )
    .fixed([[1, 3]], offset=1),
    SHORTS.ap([[1, 13]], dtype=nl.int32)
    .says(
        "pattern [(1, 13)] at offset 0 touches elements 0 to 12 of a storage of 12",
        on="tensor [6, 4] int16 in private_hbm",
    )
    .fixed([[1, 12]], dtype=nl.int32),
    ON_CHIP.ap([[4, 2], [1, 3]], offset=2)
    .says("the free pattern [(1, 3)] at offset 2 leaves the 4 elements of a partition", on=SBUF)
    .fixed([[4, 2], [1, 2]], offset=2),
    ON_CHIP.ap([[4, 2], [-1, 3]], offset=5)
    .says("the free pattern [(-1, 3)] at offset 5 leaves the 4 elements of a partition", on=SBUF)
    .fixed([[4, 2], [-1, 2]], offset=5),
    FLAT.ap([[1, 1]], scalar_offset=indices(0), indirect_dim=2)
    .says(f"dim must be in [0, 2) of {HBM}, got 2")
    .fixed([[1, 1]], scalar_offset=indices(0), indirect_dim=1),
)
def test_patterns_that_leave_the_tensor(broken: Any, message: str, corrected: Any) -> None:
    assert refused(OutOfRangeError, lambda: broken().array) == message
    assert isinstance(corrected(), NkiTensor)
    assert corrected().is_indirect() or corrected().array.size


@pytest.mark.parametrize(
    "use",
    [
        lambda view: nisa.tensor_copy(tile()[0:2], view),
        lambda view: nisa.memset(view, 0),
        lambda view: nisa.dma_copy(tile()[0:2], view),
        lambda view: view[:, 0:1],
        lambda view: view.reshape((2, 2, 2)),
        lambda view: view.ap([[4, 2], [1, 1]]),
    ],
    ids=["read", "write", "copy", "index", "reshape", "ap"],
)
def test_a_pattern_that_leaves_the_tensor_is_refused_when_it_is_used(use: Any) -> None:
    """Making it is allowed: published kernels make views that a condition stated later keeps from being used."""

    def kernel(offset: int) -> None:
        view = tile().ap([[4, 2], [1, 4]], offset=offset)
        assert view.shape == (2, 4) and view.dtype == nl.float32
        if offset <= 1:
            use(view)

    run(lambda: kernel(2))
    run(lambda: kernel(0))
    message = refused(OutOfRangeError, lambda: run(lambda: kernel(1)))
    assert message.endswith(
        f"NkiTensor.ap on {SBUF}: the free pattern [(1, 4)] at offset 1 leaves the 4 elements of a partition"
    )
