# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reductions over free dimensions: values, axes, shapes and types of results, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nl

from ..kernels import Tile, normal
from ..made import Sbuf
from ..rules import Rule, broken, legal, rules
from .calls import EPSILON, call, check_call, outcome, wide

F32 = np.float32
BLOCK = np.array([[[1, -2, 3], [4, 5, -6]], [[0, 7, 0.5], [2, 2, 2]]], F32)

# Over the last dimension of BLOCK, by hand.
LAST: dict[str, list[list[float]]] = {
    "sum": [[2, 3], [7.5, 6]],
    "max": [[3, 5], [7, 2]],
    "min": [[-2, -6], [0, 2]],
    "prod": [[-6, -120], [0, 8]],
    "mean": [[2 / 3, 1], [2.5, 2]],
    "var": [[38 / 9, 74 / 3], [93 / 6 - 27 / 12, 0]],
    "all": [[1, 1], [0, 1]],
}
LAST["var"][1][0] = (0 + 49 + 0.25) / 3 - 2.5**2
# Over both free dimensions.
ALL: dict[str, list[float]] = {
    "sum": [5, 13.5],
    "max": [5, 7],
    "min": [-6, 0],
    "prod": [720, 0],
    "mean": [5 / 6, 2.25],
    "var": [91 / 6 - 25 / 36, 61.25 / 6 - 2.25**2],
    "all": [1, 0],
}
# A mean is a sum times an inexact 1/n; a variance two of them and a square.
BUDGET = {"mean": 4 * EPSILON, "var": 16 * EPSILON}


def close(name: str, result: Any, expected: Any) -> bool:
    wanted = wide(expected)
    return bool(np.all(np.abs(wide(result) - wanted) <= BUDGET.get(name, 0) * np.maximum(1, np.abs(wanted))))


@pytest.mark.parametrize("name", LAST)
@pytest.mark.parametrize("axis", [2, -1, (2,), [2], [-1]], ids=repr)
def test_the_last_dimension(name: str, axis: Any) -> None:
    result = call(lambda x: getattr(nl, name)(x, axis), BLOCK)
    assert result.shape == ((2, 2, 1) if name == "var" else (2, 2))
    assert close(name, result.reshape(2, 2), LAST[name])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("axis", [(1, 2), [2, 1], (-2, -1), (1, -1)], ids=repr)
def test_all_free_dimensions_leave_one_element_a_partition(name: str, axis: Any) -> None:
    result = call(lambda x: getattr(nl, name)(x, axis=axis), BLOCK)
    assert result.shape == ((2, 1, 1) if name == "var" else (2, 1))
    assert close(name, result.reshape(2), ALL[name])


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean", "var"])
def test_reduced_dimensions_are_kept_at_size_one(name: str) -> None:
    function = getattr(nl, name)
    one, both = (
        call(lambda x: function(x, 2, keepdims=True), BLOCK),
        call(lambda x: function(x, (1, 2), None, True), BLOCK),
    )
    assert one.shape == (2, 2, 1) and close(name, one[:, :, 0], LAST[name])
    assert both.shape == (2, 1, 1) and close(name, both.reshape(2), ALL[name])


def test_the_variance_keeps_its_dimensions_whatever_keepdims_says() -> None:
    for keepdims in (False, True):
        assert call(lambda x: nl.var(x, 1, keepdims=keepdims), BLOCK[:, 0]).shape == (2, 1)  # noqa: B023


@pytest.mark.parametrize("name", LAST)
def test_one_partition_and_all_of_them(name: str) -> None:
    """Against float64; sums of 300 values of both signs, so that budgets are relative to the sum of magnitudes."""
    for partitions in (1, 128):
        x = normal(partitions, 300, seed=4) if name != "prod" else np.exp(normal(partitions, 300, seed=4, scale=0.1))
        result = wide(call(lambda x: getattr(nl, name)(x, 1), x))[:, 0]
        reference = getattr(np, name)(wide(x), axis=1)
        scale = {"sum": np.abs(wide(x)).sum(1), "mean": np.abs(wide(x)).mean(1), "prod": 32 * np.abs(reference)}
        exact = name in ("max", "min", "all")
        assert np.all(np.abs(result - reference) <= (0 if exact else 16 * EPSILON * scale.get(name, np.abs(reference))))


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4])
def test_the_variance_of_values_far_from_zero(offset: float) -> None:
    """The distances from the mean are taken before they are squared: an offset of 1e4 costs the mean's rounding only,
    |offset| * 2^-23 in a distance, squared. The mean of squares minus the square of the mean would lose all digits."""
    x = (normal(4, 1000, seed=5) + offset).astype(F32)
    result, reference = wide(call(lambda x: nl.var(x, 1), x)), np.var(wide(x), axis=1, keepdims=True)
    assert np.all(np.abs(result - reference) <= 64 * EPSILON + (offset * 2.0**-22) ** 2)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_shapes(free: list[int], data: st.DataObject) -> None:
    """Integers that add exactly in any order."""
    first = data.draw(st.integers(1, len(free)))
    axes = tuple(range(first, len(free) + 1))
    keepdims = data.draw(st.booleans())
    x = np.random.default_rng(0).integers(-9, 9, (3, *free)).astype(F32)
    result = call(lambda x: nl.sum(x, axes, keepdims=keepdims), x)
    expected = wide(x).sum(axis=axes, keepdims=keepdims)
    assert result.tolist() == (expected if expected.ndim > 1 else expected[:, None]).tolist()


def test_the_type_is_that_of_the_tile_unless_given() -> None:
    """And float32 in between: 300 bfloat16 ones add up to 300, which bfloat16 addition would not reach."""
    ones = np.ones((1, 300), ml_dtypes.bfloat16)
    for name, value in (("sum", 300), ("mean", 1), ("prod", 1), ("max", 1), ("min", 1), ("all", 1), ("var", 0)):
        function = getattr(nl, name)
        got = outcome(lambda x: function(x, 1), ones)  # noqa: B023
        assert (got.dtype, got.values.astype(F32).tolist()) == (nl.bfloat16, [[value]])
        got = outcome(lambda x: function(x, 1, nl.float32), ones)  # noqa: B023
        assert (got.dtype, got.values.tolist()) == (nl.float32, [[pytest.approx(value)]])
    tile_of_halves = normal(3, 200, seed=19).astype(ml_dtypes.bfloat16)
    spread = call(lambda x: nl.var(x, 1, nl.float32), tile_of_halves)
    assert np.all(np.abs(wide(spread)[:, 0] - np.var(wide(tile_of_halves), axis=1)) <= 64 * EPSILON)
    whole = outcome(lambda x: nl.mean(x, 1), np.array([[1, 2, 5, 3]], np.int32))
    assert (whole.dtype, whole.values.tolist()) == (nl.int32, [[3]])


def test_the_mean_of_narrow_values_is_taken_in_float32() -> None:
    """301 is no bfloat16."""
    ones = np.ones((1, 301), ml_dtypes.bfloat16)
    mean = call(lambda x: nl.mean(x, 1, nl.float32), ones)
    assert abs(float(mean[0, 0]) - 1) <= 2 * EPSILON


def test_nan_and_infinities() -> None:
    x = np.array([[1, math.nan, 2], [1, math.inf, 2], [1, -math.inf, math.inf]], F32)
    result = call(lambda x: nl.sum(x, 1), x)[:, 0]
    assert math.isnan(result[0]) and result[1] == math.inf and math.isnan(result[2])
    assert math.isnan(call(lambda x: nl.max(x, 1), x)[0, 0])
    assert call(lambda x: nl.min(x, 1), x)[2, 0] == -math.inf
    assert call(lambda x: nl.all(x, 1), x).tolist() == [[1], [1], [1]]


def test_a_tile_in_psum_and_a_strided_view() -> None:
    assert call(lambda x: nl.sum(x, 2), Tile(BLOCK, buffer=nl.psum)).tolist() == LAST["sum"]
    assert call(lambda x: nl.sum(x[:, :, ::2], 2), BLOCK).tolist() == [[4, -2], [0.5, 4]]


def test_windows_of_a_pattern() -> None:
    """Average pooling in the documentation's tutorial: the windows are the last two dimensions of a 5-d view."""

    def pool(x: Any) -> Any:
        return nl.sum(x.ap([[16, 2], [8, 2], [2, 2], [4, 2], [1, 2]]), axis=[3, 4])

    x = np.arange(32, dtype=F32).reshape(2, 4, 4)
    assert call(pool, x).tolist() == x.reshape(2, 2, 2, 2, 2).sum(axis=(2, 4)).tolist()


@pytest.mark.parametrize(
    ("name", "instructions"),
    [
        ("sum", {"tensor_reduce": 1}),
        ("max", {"tensor_reduce": 1}),
        ("all", {"tensor_reduce": 1}),
        ("mean", {"tensor_reduce": 1, "tensor_scalar": 1}),
        ("var", {"tensor_reduce": 2, "tensor_scalar": 3, "activation": 1}),
    ],
)
def test_instructions(name: str, instructions: dict[str, int]) -> None:
    assert outcome(lambda x: getattr(nl, name)(x, 1), BLOCK[:, 0]).instructions == instructions


AXIS = "axis must be the last free dimension 2 of tensor [2, 3, 4] float32 in sbuf, or several up to it, and not the "
AXIS += "partition dimension 0; got "


@rules(
    legal(nl.sum, x=Sbuf(2, 3, 4), axis=2),
    *(
        broken(f"axis {axis!r}", axis=axis).says(f"{AXIS}{axis!r}")
        for axis in (0, 1, (0, 1, 2), (2, 2), (0, 2), 3, -4, (), None, "x")
    ),
    *(
        entry
        for name in LAST
        for entry in (
            legal(getattr(nl, name), x=Sbuf(2, 3, 4), axis=(1, 2)),
            broken(f"axis of {name}", axis=1).says(f"{AXIS}1"),
        )
    ),
    legal(nl.max, x=Sbuf(2, 3), axis=1),
    broken("a tile", x=3).says("x must be a tile, got 3"),
)
def test_refusals(rule: Rule) -> None:
    check_call(rule)
