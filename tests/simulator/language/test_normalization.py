# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``softmax`` and ``rms_norm`` against float64, their axes and types, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from nkilib.nki import nl

from ..kernels import Tile, normal
from ..made import Sbuf
from ..rules import Rule, broken, legal, rules
from .calls import EPSILON, call, check_call, outcome, wide

F32 = np.float32


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
def test_refusals(rule: Rule) -> None:
    check_call(rule)
