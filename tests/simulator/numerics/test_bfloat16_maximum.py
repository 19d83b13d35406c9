# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`row_maxima` against numpy's maximum of the float32 values, over all bit patterns of bfloat16."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from nkilib.nki import nisa, nl
from nkilib.simulator import using
from nkilib.simulator.engines.blocks import BLOCK_ELEMENTS
from nkilib.simulator.numerics.bfloat16_maximum import row_maxima

from ..kernels import Result, Tile, run

BF16 = ml_dtypes.bfloat16


def bits(*patterns: int) -> Any:
    """One row of bfloat16 with these bits."""
    return np.array([patterns], np.uint16).view(BF16)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (bits(0x3F80, 0x4000, 0xC040), 2.0),
        (bits(0xBF80, 0xC000), -1.0),
        (bits(0xFF80, 0xFF7F), -3.3895314e38),
        (bits(0xFF80), -np.inf),
        (bits(0xFF80, 0x7F80), np.inf),
        (bits(0x8000, 0xBF80), -0.0),
        (bits(0x0001, 0x8001), 2.0**-133),
        (bits(0x3F80, 0x7FC0), np.nan),
        (bits(0x3F80, 0xFFC0), np.nan),
        (bits(0xBF80, 0xFF81), np.nan),
        (bits(0x7F80, 0xFFFF), np.nan),
    ],
)
def test_hard_rows(row: Any, expected: float) -> None:
    (result,) = row_maxima(row)
    assert np.array_equal(result, np.float32(expected), equal_nan=True)
    assert np.signbit(result) == np.signbit(np.float32(expected)) or np.isnan(expected)


@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(0, 0xFFFF)))
def test_any_bits(patterns: Any) -> None:
    values = patterns.view(BF16)
    np.testing.assert_array_equal(row_maxima(values), values.astype(np.float64).max(axis=1))


def test_rows_of_several_blocks() -> None:
    values = np.random.default_rng(0).standard_normal((7, BLOCK_ELEMENTS // 2 + 1)).astype(BF16)
    values[3] = -np.abs(values[3])
    np.testing.assert_array_equal(row_maxima(values), values.astype(np.float64).max(axis=1))


@pytest.mark.parametrize("precise_fp", [True, False])
def test_tensor_reduce_takes_it_for_dense_tiles_and_agrees_for_others(precise_fp: bool) -> None:
    values = -np.abs(np.random.default_rng(1).standard_normal((5, 24)).astype(BF16))
    values[2, 7] = 3.0
    exact = values.astype(np.float64)
    with using(precise_fp=precise_fp):
        dense, strided, apart = run(
            lambda dense, strided, apart, data: (
                nisa.tensor_reduce(dense, nl.max, data, 1, negate=True),
                nisa.tensor_reduce(strided, nl.max, data[:, 1::2], 1),
                nisa.tensor_reduce(apart, nl.max, data.reshape((5, 4, 6)), 2),
            ),
            [Tile(values)],
            Result((5, 1)),
            Result((5, 1)),
            Result((5, 4)),
        )
    assert dense[:, 0].tolist() == (-exact.max(axis=1)).tolist()
    assert strided[:, 0].tolist() == exact[:, 1::2].max(axis=1).tolist()
    assert apart.tolist() == exact.reshape(5, 4, 6).max(axis=2).tolist()
