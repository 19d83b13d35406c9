# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.numerics.row_sums`` against float64."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.simulator.numerics.row_sums import row_sums

# Roundings of a partial sum of at most 16 terms, of the partial sums, of a dozen levels of pairs, and of the tail: a
# bound for positive terms, each rounding by half a unit in the last place.
RELATIVE_ERROR = 48 * 2.0**-25


@pytest.mark.parametrize("width", [1, 7, 2047, 2048, 2049, 3071, 3072, 32128, 65535])
@pytest.mark.parametrize("step", [1, 2])
def test_sums_of_long_and_short_rows(width: int, step: int) -> None:
    """Rows that are next to each other, and rows that are apart."""
    values = np.random.default_rng(width).lognormal(0.0, 3.0, (6, width)).astype(np.float32)[::step]
    exact = values.astype(np.float64).sum(axis=1)
    sums = row_sums(values)
    assert sums.dtype == np.float32
    np.testing.assert_allclose(sums, exact, rtol=RELATIVE_ERROR)


def test_every_element_counts() -> None:
    """A one at the ends of pieces, and at both ends of the tail."""
    width = 5000
    for at in (0, 255, 256, 4863, 4864, 4999):
        values = np.zeros((2, width), np.float32)
        values[1, at] = 1.0
        assert row_sums(values).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("at", [3, 4999])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays(at: int, special: float) -> None:
    values = np.ones((1, 5000), np.float32)
    values[0, at] = special
    np.testing.assert_array_equal(row_sums(values), [special])


def test_a_sum_of_equal_terms_does_not_drift() -> None:
    """65,535 terms one after the other would be off by 1e-4."""
    values = np.full((1, 65535), 0.1, np.float32)
    exact = 65535 * float(np.float32(0.1))
    np.testing.assert_allclose(row_sums(values), exact, rtol=3 * 2.0**-24)
