# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`copy_in_order`: a copy, whatever the order of the source's elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.simulator.numerics.transposing import copy_in_order

BF16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=str)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 300])
def test_a_large_transpose(rows: int, dtype: Any) -> None:
    """More and fewer rows than are copied at a time, into rows that lie apart."""
    source = numbers(rows, 4, 128, dtype=dtype)
    kept = np.zeros((128, 4, 512), dtype)
    copy_in_order(kept[:, :, 5 : 5 + rows], source.transpose(2, 1, 0))
    assert (kept[:, :, 5 : 5 + rows] == source.transpose(2, 1, 0)).all()
    assert not kept[:, :, :5].any()
    assert not kept[:, :, 5 + rows :].any()


def test_a_small_one_and_one_in_order() -> None:
    small, large = numbers(3, 5), numbers(300, 400)
    for source in (small.T, large, large[::-1], np.broadcast_to(large[:1], large.shape)):
        destination = np.zeros(source.shape, np.float32)
        copy_in_order(destination, source)
        assert (destination == source).all()


def test_source_and_destination_may_overlap() -> None:
    """They do where a DMA transposes a matrix in HBM onto itself."""
    matrix = numbers(512, 512)
    expected = matrix.T.copy()
    copy_in_order(matrix, matrix.T)
    assert (matrix == expected).all()
