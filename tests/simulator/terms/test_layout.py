# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.terms.layout``: strided arithmetic, against numpy on the same strides."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from nkilib.simulator.terms.layout import Layout, dense, extent, is_dense, reshape_strides, row_major_strides

SIZES = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@st.composite
def strided_shapes(draw: st.DrawFn, sizes: st.SearchStrategy[tuple[int, ...]] = SIZES) -> tuple[Any, Any]:
    """A shape and strides, of which many dimensions are dense relative to the next one, so that they can be merged."""
    shape = draw(sizes)
    strides: list[int] = []
    step = draw(st.integers(0, 3))
    for size in reversed(shape):
        strides.append(step if draw(st.integers(0, 3)) else draw(st.integers(-9, 9)))
        step = strides[-1] * size
    return shape, tuple(reversed(strides))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """A shape, its strides, and another shape of as many elements."""
    shape, strides = draw(strided_shapes())
    factors = [prime for size in shape for prime in {2: [2], 3: [3], 4: [2, 2]}.get(size, [])]
    factors = draw(st.permutations(factors)) if draw(st.booleans()) else factors
    groups = draw(st.lists(st.booleans(), min_size=len(factors), max_size=len(factors)))
    new_shape: list[int] = []
    for factor, starts_anew in zip(factors, groups, strict=True):
        if starts_anew or not new_shape:
            new_shape.append(factor)
        else:
            new_shape[-1] *= factor
    for position in draw(st.lists(st.integers(0, 4), max_size=2)):
        new_shape.insert(position, 1)
    return shape, strides, tuple(new_shape)


def elements(shape: Any, strides: Any) -> Any:
    """A numpy array with that layout whose elements are their positions, counted from the first element."""
    reach = sum(abs(stride) * (size - 1) for stride, size in zip(strides, shape, strict=True))
    storage = np.arange(-reach, reach + 1, dtype=np.int64)
    width = storage.itemsize
    return as_strided(storage[reach:], shape, [stride * width for stride in strides])


@given(reshapes())
def test_reshape_strides_is_numpys_reshape_and_none_where_numpy_copies(case: tuple[Any, Any, Any]) -> None:
    shape, strides, new_shape = case
    array = elements(shape, strides)
    reshaped = array.reshape(new_shape)
    result = reshape_strides(shape, strides, new_shape)
    assert (result is None) == (not np.may_share_memory(array, reshaped))
    if result is not None:
        np.testing.assert_array_equal(elements(new_shape, result), reshaped)


def test_reshape_strides_by_hand() -> None:
    assert reshape_strides((4, 6), (6, 1), (2, 12)) == (12, 1)
    assert reshape_strides((4, 6), (12, 1), (2, 2, 3, 2)) == (24, 12, 2, 1)
    assert reshape_strides((4, 6), (12, 1), (24,)) is None
    assert reshape_strides((4, 6), (1, 4), (6, 4)) is None
    assert reshape_strides((2, 3), (0, 0), (6,)) == (0,)
    assert reshape_strides((4, 6), (6, 1), (5, 5)) is None


def test_an_empty_shape_can_take_any_empty_shape() -> None:
    assert reshape_strides((0, 7), (100, 3), (2, 0, 5)) == row_major_strides((2, 0, 5))


@given(strided_shapes(), st.integers(0, 100))
def test_extent_bounds_what_the_layout_touches(case: tuple[Any, Any], offset: int) -> None:
    shape, strides = case
    touched = [
        offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    ]
    assert extent(Layout(shape, strides, offset)) == (min(touched), max(touched))


def test_extent_of_no_elements_is_empty() -> None:
    assert extent(Layout((3, 0), (5, 1), 40)) == (0, -1)


@given(strided_shapes())
def test_is_dense_is_numpys_c_contiguous(case: tuple[Any, Any]) -> None:
    shape, strides = case
    assert is_dense(shape, strides) == elements(shape, strides).flags.c_contiguous


@given(SIZES)
def test_a_dense_layout_has_numpys_strides(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, np.uint8)
    assert dense(shape) == Layout(shape, array.strides, 0)
    assert extent(dense(shape)) == (0, prod(shape) - 1)
    assert is_dense(shape, row_major_strides(shape))
