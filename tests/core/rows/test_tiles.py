# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.tiles``: arithmetic on small tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.core.rows.tiles import (
    FLOAT32_HIGHEST,
    FLOAT32_LOWEST,
    cast,
    constant,
    difference,
    float32_like,
    log_of_constant,
    product,
    scaled,
    selected,
    sum_in_place,
    with_nan_of_infinite,
)
from nkilib.nki import nisa, nki, nl

from .walk import BF16, UNIT, Array

X = np.array([[1.5, -2.25, 0.0, 7.0], [3.0, -0.5, 100.0, -1e18], [1e-3, 4.0, -6.0, 0.125]], np.float32)
Y = np.array([[2.0, 3.0, -1.0, 0.5], [0.25, -8.0, 3.0, 1e18], [5.0, -5.0, 0.0, 1.0]], np.float32)


def applied(function: Callable[..., Any], *arrays: Array) -> Array:
    """Return the result of a function of tiles, and check that it leaves its arguments as they were."""

    def kernel(arrays_hbm: list[Any]) -> Any:
        tiles = [nl.ndarray(array_hbm.shape, dtype=array_hbm.dtype, buffer=nl.sbuf) for array_hbm in arrays_hbm]
        for tile_sbuf, array_hbm in zip(tiles, arrays_hbm, strict=True):
            nisa.dma_copy(dst=tile_sbuf, src=array_hbm)
        returned = [function(*tiles), *tiles]
        stored = [nl.ndarray(result.shape, dtype=result.dtype, buffer=nl.shared_hbm) for result in returned]
        for tile_sbuf, array_hbm in zip(returned, stored, strict=True):
            nisa.dma_copy(dst=array_hbm, src=tile_sbuf)
        return stored

    result, *after = nki.jit(kernel)([array.copy() for array in arrays])
    for array, kept in zip(arrays, after, strict=True):
        np.testing.assert_array_equal(kept, array)
    actual: Array = result
    return actual


def test_products_differences_and_multiples() -> None:
    np.testing.assert_array_equal(applied(product, X, Y), X * Y)
    np.testing.assert_array_equal(applied(difference, X, Y), X - Y)
    np.testing.assert_array_equal(applied(lambda x: scaled(x, -1.5), X), X * np.float32(-1.5))
    np.testing.assert_array_equal(applied(lambda x, y: scaled(x, y[:, 0:1]), X, Y), X * Y[:, :1])


def test_what_is_made_is_float32_whatever_is_given() -> None:
    rounded = X.astype(BF16)
    for function in (lambda x: scaled(x, 3.0), lambda x: constant(x, -2.5), lambda x: product(x, x)):
        assert applied(function, rounded).dtype == np.float32
    np.testing.assert_array_equal(applied(lambda x: scaled(x, 3.0), rounded), rounded.astype(np.float32) * 3.0)
    np.testing.assert_array_equal(applied(lambda x: constant(x, -2.5), rounded), np.full(X.shape, -2.5))


def test_a_tile_like_another_one_is_not_written() -> None:
    seen = []

    def kernel() -> None:
        made_sbuf = float32_like(nl.ndarray((3, 4), dtype=nl.bfloat16, buffer=nl.sbuf))
        seen.append((made_sbuf.shape, made_sbuf.dtype, made_sbuf.buffer))

    nki.jit(kernel)()
    assert seen == [((3, 4), nl.float32, nl.sbuf)]


def test_what_is_not_selected_is_0_whatever_it_was() -> None:
    values = np.array([[1.0, np.nan, np.inf, -np.inf], [np.nan, -2.0, np.inf, 0.0]], np.float32)
    is_wanted = np.array([[1, 0, 0, 0], [1, 1, 7, 0]], np.uint32)
    expected = np.array([[1.0, 0.0, 0.0, 0.0], [np.nan, -2.0, np.inf, 0.0]], np.float32)
    np.testing.assert_array_equal(applied(selected, values, is_wanted), expected)


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16], ids=str)
def test_nan_where_a_suspect_is_not_finite(dtype: Any) -> None:
    suspects = np.array([[0.0, np.inf, -np.inf, np.nan], [1e38, -3.0, 5.0, np.inf]], np.float32)
    values = np.array([[1.0, 2.0, 3.0, 4.0], [-5.0, 6.5, np.inf, np.inf]], np.float32)
    expected = np.array([[1.0, np.nan, np.nan, np.nan], [-5.0, 6.5, np.inf, np.nan]], np.float32)
    result = applied(lambda x, y: with_nan_of_infinite(x, y, dtype), values, suspects)
    assert result.dtype == (np.float32 if dtype == nl.float32 else BF16)
    np.testing.assert_array_equal(result.astype(np.float32), expected)


def test_a_cast_copies_only_what_has_another_type() -> None:
    seen = []

    def kernel() -> None:
        tile_sbuf = nl.full((2, 3), 1.0 + 2.0**-12, dtype=nl.float32, buffer=nl.sbuf)
        seen.extend([cast(tile_sbuf, nl.float32) is tile_sbuf, cast(tile_sbuf, nl.bfloat16) is tile_sbuf])

    nki.jit(kernel)()
    assert seen == [True, False]
    np.testing.assert_array_equal(applied(lambda x: cast(x, nl.bfloat16), X), X.astype(BF16))


def test_sums_of_rows() -> None:
    def summed(x_sbuf: Any) -> Any:
        total_sbuf = nl.ndarray((X.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        sum_in_place(x_sbuf, total_sbuf)
        return total_sbuf

    exact = X.astype(np.float64).sum(axis=1, keepdims=True)
    assert (np.abs(applied(summed, X) - exact) <= 4 * UNIT * np.abs(X).sum(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("value", [1.0, 1.0 / 4096.0, 37.5])
def test_the_log_of_a_constant(value: float) -> None:
    result = applied(lambda x: log_of_constant(value, 3), X)
    assert result.shape == (3, 1)
    np.testing.assert_allclose(result, np.log(value), rtol=2 * UNIT, atol=0.0)


def test_the_ends_of_float32() -> None:
    assert np.float32(FLOAT32_HIGHEST) == FLOAT32_HIGHEST == np.finfo(np.float32).max
    assert np.float32(FLOAT32_LOWEST) == FLOAT32_LOWEST == np.finfo(np.float32).min
