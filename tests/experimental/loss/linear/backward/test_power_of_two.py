# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The power of two that float16 gradients carry: which one it is, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.experimental.loss.linear.backward.power_of_two import PowerOfTwo
from nkilib.nki import nisa, nki, nl


@nki.jit
def powers_of(first, second):
    """Factor and inverse for two tiles [128, columns] in HBM."""
    columns_sbuf = []
    for values_hbm in (first, second):
        values_sbuf = nl.ndarray(values_hbm.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=values_sbuf, src=values_hbm)
        columns_sbuf.append(values_sbuf)
    power = PowerOfTwo.of_largest(columns_sbuf)
    results = []
    for column_sbuf in (power.factor_sbuf, power.inverse_sbuf):
        result_hbm = nl.ndarray(column_sbuf.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result_hbm, src=column_sbuf)
        results.append(result_hbm)
    return tuple(results)


@pytest.mark.parametrize(
    ("first", "second", "exponent"),
    [
        (1.0, 0.0, 0),
        (-1.5, 0.0, 0),
        (1.0, -1.0, 1),
        (1.999, 0.0, 0),
        (2.0**-30, 2.0**-40, -30),
        (3.0 * 2.0**13, 1.0, 14),
        (0.0, 0.0, -100),
        (2.0**-120, 0.0, -100),
        (1e30, 0.0, 99),
    ],
)
def test_the_largest_coefficient_becomes_2_to_the_12_to_13(first: float, second: float, exponent: int) -> None:
    """The power comes from the sum of both tiles' largest magnitudes on any partitions, taken as at least 2^-100."""
    tiles = [np.zeros((128, 3), np.float32) for _ in range(2)]
    for tile, row, value in zip(tiles, (77, 77), (first, second), strict=True):
        tile[row, 1] = value
        tile[5, 2] = value / 4
    factor, inverse = powers_of(*tiles)
    np.testing.assert_array_equal(factor, np.full((128, 1), 2.0 ** (12 - exponent), np.float32))
    np.testing.assert_array_equal(inverse, np.full((128, 1), 2.0 ** (exponent - 12), np.float32))
