# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.tensors.indexed_views``: ``t[...]``, against numpy's indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError
from nkilib.simulator.terms.argument_checks import DIVISION
from tests.simulator.frame import counted, in_hbm, in_sbuf, indices, refused, run

SHAPE = (5, 4, 6)
HBM = "tensor [5, 4, 6] float32 in private_hbm"


@st.composite
def bounds(draw: st.DrawFn, size: int) -> slice:
    """A slice that lies inside a dimension, with omitted and negative bounds among the others."""
    start = draw(st.integers(0, size))
    stop = draw(st.integers(0, size))
    step = draw(st.sampled_from([None, 1, 2, 3]))
    given_start = draw(st.sampled_from([start, start - size])) if start < size else start
    given_stop = draw(st.sampled_from([stop, stop - size])) if stop < size else stop
    return slice(draw(st.sampled_from([None, given_start])), draw(st.sampled_from([None, given_stop])), step)


@st.composite
def keys(draw: st.DrawFn) -> tuple[Any, ...]:
    """An index expression for a tensor of shape SHAPE."""
    items = [draw(st.integers(-size, size - 1) | bounds(size)) for size in SHAPE]
    length = draw(st.integers(0, len(SHAPE)))
    ellipsis_at = draw(st.sampled_from([None, *range(length + 1)]))
    if ellipsis_at is None:
        return tuple(items[:length])
    return (*items[:ellipsis_at], ..., *items[len(items) - (length - ellipsis_at) :])


def as_slices(key: tuple[Any, ...], least: int, keeps_first: bool) -> tuple[Any, ...]:
    """`key` with integers made slices of size 1 where NKI keeps the dimension: numpy has no such rule."""
    ellipsis_at = key.index(...) if ... in key else len(key)
    rest = key[ellipsis_at + 1 :]
    full = [*key[:ellipsis_at], *[slice(None)] * (len(SHAPE) - ellipsis_at - len(rest)), *rest]
    dropped = [dim for dim, item in enumerate(full) if isinstance(item, int) and not (dim == 0 and keeps_first)]
    kept_again = dropped[::-1][: max(0, least - (len(SHAPE) - len(dropped)))]
    for dim, item in enumerate(full):
        if isinstance(item, int) and (dim not in dropped or dim in kept_again):
            full[dim] = slice(item % SHAPE[dim], item % SHAPE[dim] + 1)
    return tuple(full)


@given(keys())
def test_in_hbm_an_index_is_numpys_and_keeps_one_dimension(key: tuple[Any, ...]) -> None:
    array = counted(*SHAPE)
    np.testing.assert_array_equal(in_hbm(array)[key].array, array[as_slices(key, 1, False)], strict=True)


@given(keys())
def test_on_chip_an_index_keeps_partitions_and_two_dimensions(key: tuple[Any, ...]) -> None:
    array = counted(*SHAPE)
    np.testing.assert_array_equal(in_sbuf(array)[key].array, array[as_slices(key, 2, True)], strict=True)


@pytest.mark.parametrize(
    ("make", "key", "shape"),
    [
        (in_sbuf, (0, 0, 3), (1, 1)),
        (in_sbuf, (slice(None), 0), (5, 6)),
        (in_sbuf, (slice(None), 0, 3), (5, 1)),
        (in_sbuf, (0, ..., slice(None)), (1, 4, 6)),
        (in_sbuf, (slice(None), slice(None), slice(None, None, 2)), (5, 4, 3)),
        (in_sbuf, ..., (5, 4, 6)),
        (in_sbuf, 2, (1, 4, 6)),
        (in_sbuf, (), (5, 4, 6)),
        (in_hbm, (0, slice(None), slice(None)), (4, 6)),
        (in_hbm, (1, 2, 3), (1,)),
        (in_hbm, (..., 0), (5, 4)),
        (in_hbm, np.int64(2), (4, 6)),
        (in_hbm, (slice(2, 2),), (0, 4, 6)),
        (in_hbm, (slice(4, 2),), (0, 4, 6)),
        (in_hbm, (nl.ds(1, 3), nl.ds(4, 0)), (3, 0, 6)),
    ],
)
def test_shapes_of_the_language_guide(make: Any, key: Any, shape: tuple[int, ...]) -> None:
    assert make(counted(*SHAPE))[key].shape == shape


def test_ds_is_a_slice_by_its_size() -> None:
    array = counted(*SHAPE)
    np.testing.assert_array_equal(in_hbm(array)[nl.ds(1, 3), :, nl.ds(2, 4)].array, array[1:4, :, 2:6])
    np.testing.assert_array_equal(in_hbm(array)[nl.ds(1, 3)].array, array[1:4])


@pytest.mark.parametrize(
    ("broken", "message", "corrected"),
    [
        (5, f"index 5 is out of range for dimension 0 of {HBM}", 4),
        (-6, f"index -6 is out of range for dimension 0 of {HBM}", -5),
        ((0, 0, 6), f"index 6 is out of range for dimension 2 of {HBM}", (0, 0, 5)),
        (slice(0, 6), f"slice [0:6] leaves dimension 0 of {HBM}", slice(0, 5)),
        (slice(6, None), f"slice [6:] leaves dimension 0 of {HBM}", slice(5, None)),
        (slice(-6, None), f"slice [-6:] leaves dimension 0 of {HBM}", slice(-5, None)),
        (slice(None, -6, 2), f"slice [:-6:2] leaves dimension 0 of {HBM}", slice(None, -5, 2)),
        (nl.ds(3, 3), f"nl.ds(3, 3) leaves dimension 0 of {HBM}", nl.ds(2, 3)),
        (nl.ds(-1, 3), f"nl.ds(-1, 3) leaves dimension 0 of {HBM}", nl.ds(0, 3)),
        (nl.ds(3, -1), f"nl.ds(3, -1) leaves dimension 0 of {HBM}", nl.ds(3, 0)),
    ],
)
def test_an_index_that_leaves_the_tensor_is_an_error(broken: Any, message: str, corrected: Any) -> None:
    tensor = in_hbm(counted(*SHAPE))
    assert refused(OutOfRangeError, lambda: tensor[broken]) == message
    assert isinstance(OutOfRangeError(message), IndexError)
    assert tensor[corrected].ndim >= 1


@pytest.mark.parametrize(
    ("broken", "dim", "corrected"),
    [
        ((0, 1.0), 1, (0, 1)),
        ((None,), 0, (...,)),
        (("a",), 0, (0,)),
        ((True,), 0, (1,)),
        (([0, 1],), 0, (slice(0, 2),)),
        ((slice(0, 2.0),), 0, (slice(0, 2),)),
        ((slice(None), slice(None, None, 0.5)), 1, (slice(None), slice(None, None, 1))),
        ((nl.ds(0.5, 2),), 0, (nl.ds(0, 2),)),
        ((nl.ds(0, None),), 0, (nl.ds(0, 2),)),
    ],
)
def test_an_index_of_another_kind_is_refused(broken: Any, dim: int, corrected: Any) -> None:
    tensor = in_hbm(counted(*SHAPE))
    expected = f"{HBM} can be indexed with integers, slices, ... and nl.ds, got {broken[dim]!r} for dimension {dim}"
    expected += DIVISION if ".0" in expected else ""
    assert refused(NkiValidationError, lambda: tensor[broken]) == expected
    assert tensor[corrected].ndim >= 1


def test_an_index_tensor_is_for_select() -> None:
    expected = (
        f"{HBM} can be indexed with integers, slices, ... and nl.ds, got tensor [1, 1] int32 in sbuf for dimension 1; "
        "use select(1, tensor)"
    )
    tensor, index = in_hbm(counted(*SHAPE)), indices(2)
    assert refused(NkiValidationError, lambda: tensor[:, index]) == expected
    assert tensor.select(1, index).shape == (5, 6)


@pytest.mark.parametrize("key", [(0, 0, 0, 0), (..., 0, ...), (0, 0, 0, ..., 0)], ids=repr)
def test_too_many_indices_are_refused(key: Any) -> None:
    expected = f"{HBM} has 3 dimensions, got the index {key!r}"
    assert refused(NkiValidationError, lambda: in_hbm(counted(*SHAPE))[key]) == expected


@pytest.mark.parametrize("step", [0, -1])
def test_a_slice_goes_forward(step: int) -> None:
    tensor = in_hbm(counted(*SHAPE))
    expected = f"a slice needs a step >= 1, got {step} for dimension 1 of {HBM}"
    assert refused(NkiValidationError, lambda: tensor[:, ::step]) == expected
    assert tensor[:, ::1].shape == SHAPE


def test_the_dimension_of_a_vector_offset_cannot_be_indexed_and_the_others_can() -> None:
    array = counted(*SHAPE)
    view = in_hbm(array).vector_select(0, indices(3, 1))
    for key in (0, slice(0, 1), slice(None, None, 2), (nl.ds(0, 1), ...)):
        expected = "tensor [2, 4, 6] float32 in private_hbm: dimension 0 is indirect and cannot be indexed"
        assert refused(NkiValidationError, lambda key=key: view[key]) == expected  # type: ignore[misc]
    assert view[:, 1:3, 0].shape == view[0:2, 1:3, 0].shape == (2, 2)


@pytest.mark.parametrize("key", [(slice(None), slice(2, 7)), (slice(3, 5), slice(None)), (slice(0, 4), slice(7, 8))])
def test_slices_of_all_dimensions_stay_inside(key: Any) -> None:
    assert "leaves dimension" in refused(OutOfRangeError, lambda: in_hbm(counted(4, 6))[key])


def test_the_dimension_that_stays_is_the_last_one() -> None:
    assert in_sbuf(counted(4, 6, 8))[:, 2, 3].strides == (48, 1)
    assert in_hbm(counted(4, 6, 8))[1, 2, 3].strides == (1,)


def test_a_tensor_can_be_iterated_over() -> None:
    tensor: Any = in_hbm(counted(2, 3))
    rows = [row.array.tolist() for row in tensor]
    assert rows == [[0, 1, 2], [3, 4, 5]]


def test_an_error_about_an_empty_slice_says_that_it_is_empty_and_why() -> None:
    def kernel(x: Any, first: int) -> None:
        nisa.dma_copy(nl.ndarray((2, 3), nl.float32), x[first - 2 : first])

    run(kernel, np.zeros((4, 3), np.float32), 2)
    message = refused(NkiValidationError, lambda: run(kernel, np.zeros((4, 3), np.float32), 0))
    assert "tensor 'x' [0, 3] float32 in private_hbm (empty: a slice is where start >= stop, and a negative" in message
