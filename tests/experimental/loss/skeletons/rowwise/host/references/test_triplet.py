# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Triplet margin: what the bounds set aside for numbers that float32 or a logarithm loses, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.core.host.function_domains import LIMIT_OF_LOG
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.triplet_margin.host.reference import TripletReference

COLUMNS = 5
EPS = 2.0**-60


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_small_magnitudes_count_as_the_least_that_has_a_logarithm(p: float) -> None:
    """Each distance errs by D^(1/p) times u eps, that least magnitude and the root of a power flushed to zero."""
    random = np.random.default_rng(0)
    rows = {name: random.standard_normal((3, COLUMNS)) for name in ("anchor", "positive", "negative")}
    result = TripletReference(1.0, p, EPS, False).value(rows)
    of_element = UNIT * EPS + 1.0 / LIMIT_OF_LOG + SMALLEST_NORMAL ** (1.0 / p)
    np.testing.assert_allclose(result.beside, 2.0 * COLUMNS ** (1.0 / p) * of_element, rtol=1e-12)


def test_squares_that_are_flushed_to_zero_are_set_aside() -> None:
    rows = {name: np.ones((3, COLUMNS)) for name in ("anchor", "positive", "negative")}
    result = TripletReference(1.0, 2.0, EPS, False).value(rows)
    of_element = UNIT * EPS + SMALLEST_NORMAL**0.5
    np.testing.assert_allclose(result.beside, 2.0 * COLUMNS**0.5 * of_element, rtol=1e-12)
