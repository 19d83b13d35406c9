# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 functions that numpy lacks, against the `math` module."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nkilib.simulator.numerics import special_functions as special

POINTS = np.concatenate([np.linspace(-9, 9, 361), [-1e3, -30.0, -1e-8, -1e-300, 0.0, 1e-300, 1e-8, 30.0, 700.0, 1e3]])


def test_erf() -> None:
    for x, got in zip(POINTS, special.erf(POINTS), strict=True):
        assert got == pytest.approx(math.erf(x), rel=4e-15, abs=0)


def test_erf_is_odd_and_saturates() -> None:
    assert (special.erf(-POINTS) == -special.erf(POINTS)).all()
    assert special.erf(np.array([-np.inf, np.inf])).tolist() == [-1.0, 1.0]
    assert np.isnan(special.erf(np.array([np.nan]))).all()


def test_erf_leaves_its_argument_alone() -> None:
    array = POINTS.copy()
    special.erf(array)
    assert (array == POINTS).all()


def test_softplus() -> None:
    for x, got in zip(POINTS, special.softplus(POINTS), strict=True):
        assert got == pytest.approx(max(x, 0.0) + math.log1p(math.exp(-abs(x))), rel=4e-15, abs=0)


def test_sigmoid() -> None:
    """1 / (1 + exp(-x)) = exp(x) / (1 + exp(x)), each where it does not overflow."""
    for x, got in zip(POINTS, special.sigmoid(POINTS), strict=True):
        expected = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
        # exp(-softplus) multiplies the rounding of the exponent, up to |x|, into the result.
        assert got == pytest.approx(expected, rel=4e-16 * (4 + abs(x)), abs=0)


def test_normal_density() -> None:
    for x, got in zip(POINTS, special.normal_density(POINTS), strict=True):
        assert got == pytest.approx(math.exp(-x * x / 2) / math.sqrt(2 * math.pi), rel=1e-14, abs=0)


def test_erfc() -> None:
    for x, got in zip(POINTS, special.erfc(POINTS), strict=True):
        assert got == pytest.approx(math.erfc(x), rel=1e-13, abs=0)


def test_erfc_at_the_ends() -> None:
    assert special.erfc(np.array([-np.inf, np.inf])).tolist() == [2.0, 0.0]
    assert np.isnan(special.erfc(np.array([np.nan]))).all()


def test_normal_distribution() -> None:
    for x, got in zip(POINTS, special.normal_distribution(POINTS), strict=True):
        assert got == pytest.approx(math.erfc(-x / math.sqrt(2)) / 2, rel=1e-13 * (1 + x * x), abs=0)
