# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reductions over free dimensions, ``softmax``, ``rms_norm``: values, axes, shapes, types, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
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


def softmax(x: Any, axis: Any) -> npt.NDArray[np.float64]:
    powers = np.exp(wide(x) - wide(x).max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("partitions", [1, 128])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_softmax(partitions: int, scale: float, target: str) -> None:
    """The exponent's rounding is |x - max| * 2^-24, and a sum of 500 terms, a reciprocal and two products follow."""
    x = normal(partitions, 500, seed=6, scale=scale)
    result, reference = wide(call(nl.softmax, x, target=target)), softmax(x, -1)
    assert np.all(np.abs(result - reference) <= reference * EPSILON * (8 * scale + 16) + 2.0**-126)


@pytest.mark.parametrize("axis", [2, -1, (1, 2), [-1], (-1, -2)], ids=repr)
def test_axes_of_softmax(axis: Any) -> None:
    x = normal(3, 4, 5, seed=7)
    result = call(lambda x: nl.softmax(x, axis), x)
    reference = softmax(x, tuple(axis) if isinstance(axis, tuple | list) else axis)
    assert result.shape == x.shape and np.all(np.abs(wide(result) - reference) <= 32 * EPSILON * reference)


def test_softmax_of_large_and_of_masked_values() -> None:
    """The maximum is subtracted first; -inf gives 0, and a row of them NaN, as in PyTorch."""
    x = np.array([[1e4, 1e4, -math.inf], [-math.inf] * 3], F32)
    result = call(lambda x: nl.softmax(x, axis=1), x)
    assert result[0].tolist() == [0.5, 0.5, 0] and np.isnan(result[1]).all()


def test_softmax_example_of_the_documentation() -> None:
    result = call(lambda x: nl.softmax(x, axis=1), np.ones((128, 512), F32))
    assert (result == 1 / 512).all()


def test_softmax_over_several_but_not_all_free_dimensions() -> None:
    x = normal(3, 2, 4, 5, seed=15)
    result, reference = call(lambda x: nl.softmax(x, (2, 3)), x), softmax(x, (2, 3))
    assert np.all(np.abs(wide(result) - reference) <= 32 * EPSILON * reference)


def test_types_of_softmax() -> None:
    x = normal(2, 40, seed=8).astype(ml_dtypes.bfloat16)
    half, full = outcome(nl.softmax, x), outcome(lambda x: nl.softmax(x, dtype=nl.float32), x)
    assert (half.dtype, full.dtype) == (nl.bfloat16, nl.float32)
    assert half.values.tolist() == full.values.astype(ml_dtypes.bfloat16).tolist()
    assert np.all(np.abs(wide(full.values) - softmax(x, 1)) <= 32 * EPSILON * softmax(x, 1))


def test_softmax_in_five_instructions() -> None:
    """There is one row a partition, so the activation sums what it writes."""
    got = outcome(nl.softmax, Tile(np.ones((2, 3), F32), buffer=nl.psum))
    assert got.instructions == {"tensor_reduce": 1, "activation_reduce": 1, "reciprocal": 1, "tensor_scalar": 1}
    assert got.engines == {"vector": 3, "scalar": 1} and got.buffer == nl.sbuf


def rms_norm(x: Any, w: Any, axis: Any, n: int, epsilon: float = 1e-6) -> npt.NDArray[np.float64]:
    return wide(x) / np.sqrt((wide(x) ** 2).sum(axis=axis, keepdims=True) / n + epsilon) * wide(w)


@pytest.mark.parametrize("weight", [(4, 60), (1, 60), (4, 1)], ids=repr)
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_rms_norm(weight: tuple[int, int], target: str) -> None:
    """A weight of one partition is that of all of them."""
    x, w = normal(4, 60, seed=9, scale=3), normal(*weight, seed=10)
    result = call(lambda x, w: nl.rms_norm(x, w, axis=1, n=60), x, w, target=target)
    reference = rms_norm(x, w, 1, 60)
    assert np.all(np.abs(wide(result) - reference) <= 32 * EPSILON * np.abs(reference))


def test_rms_norm_over_one_and_over_two_dimensions() -> None:
    x, w = normal(3, 4, 5, seed=11), normal(3, 4, 5, seed=12)
    for axis, n in ((2, 5), (-1, 5), ((1, 2), 20)):
        reference = rms_norm(x, w, axis, n)
        result = call(lambda x, w: nl.rms_norm(x, w, axis, n), x, w)  # noqa: B023
        assert np.all(np.abs(wide(result) - reference) <= 32 * EPSILON * np.abs(reference))


def test_rms_norm_divides_by_n_and_adds_epsilon() -> None:
    """3 / sqrt(2 * 9 / 8 + 0.75) = sqrt(3): n is not the number of columns."""
    x, w = np.full((2, 2), 3.0, F32), np.full((2, 2), 2.0, F32)
    result = call(lambda x, w: nl.rms_norm(x, w, 1, 8, epsilon=0.75), x, w)
    assert np.all(np.abs(wide(result) - 2 * math.sqrt(3)) <= 16 * EPSILON)
    assert call(lambda x, w: nl.rms_norm(x, w, 1, 2), np.zeros((2, 2), F32), w).tolist() == [[0, 0], [0, 0]]


def test_rms_norm_example_of_the_documentation() -> None:
    x, w = np.full((128, 512), 2.0, F32), np.ones((128, 512), F32)
    result = call(lambda x, w: nl.rms_norm(x, w, axis=1, n=512), x, w)
    assert np.all(np.abs(wide(result) - 2 / math.sqrt(4 + 1e-6)) <= 8 * EPSILON)


def test_types_of_rms_norm() -> None:
    """The tiles in between are float32 unless compute_dtype says otherwise; then their rounding shows."""
    x, w = normal(4, 64, seed=13).astype(ml_dtypes.bfloat16), normal(4, 64, seed=14).astype(ml_dtypes.bfloat16)
    reference = rms_norm(x, w, 1, 64)
    result = outcome(lambda x, w: nl.rms_norm(x, w, 1, 64), x, w)
    assert result.dtype == nl.bfloat16
    assert np.all(np.abs(wide(result.values) - reference) <= 1.01 * 2.0**-8 * np.abs(reference))
    wide_result = outcome(lambda x, w: nl.rms_norm(x, w, 1, 64, dtype=nl.float32), x, w)
    assert wide_result.dtype == nl.float32
    assert np.all(np.abs(wide(wide_result.values) - reference) <= 32 * EPSILON * np.abs(reference))
    narrow = outcome(lambda x, w: nl.rms_norm(x, w, 1, 64, dtype=nl.float32, compute_dtype=nl.bfloat16), x, w)
    error = np.abs(wide(narrow.values) - reference)
    assert np.all(error <= 2.0**-6 * np.abs(reference)) and error.max() > 2.0**-12


@rules(
    legal(nl.softmax, x=Sbuf(2, 3), axis=1),
    broken("the partition dimension of softmax", axis=0).says(
        "axis must be the last free dimension 1 of {x}, or several up to it, and not the partition dimension 0; got 0"
    ),
    legal(nl.rms_norm, x=Sbuf(2, 3), w=Sbuf(2, 3), axis=1, n=3),
    broken("the partition dimension of rms_norm", axis=0, n=2).says(
        "axis must be the last free dimension 1 of {x}, or several up to it, and not the partition dimension 0; got 0"
    ),
    broken("n counts", n=0).says("n, the number of values of the mean, must be a positive number, got 0"),
    broken("weights are a tile", w=1.0).says("w must be a tile, got 1.0"),
)
def test_refusals_of_softmax_and_rms_norm(rule: Rule) -> None:
    check_call(rule)
