# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`transposed_product`: the product of any two matrices, in pieces that BLAS keeps on the calling thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.simulator.numerics.products import transposed_product

# OpenBLAS gives a product of more multiplications to several threads.
ONE_THREAD = 2**18


def integers(*shape: int, seed: int = 0) -> Any:
    """Small integers: their products and sums are exact in float32, in any order."""
    return np.random.default_rng(seed).integers(-8, 8, shape)


@pytest.mark.parametrize(
    "shape",
    [(128, 128, 512), (128, 128, 500), (128, 100, 129), (512, 128, 512), (512, 127, 515), (1, 1, 1), (3, 128, 2048)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_product_is_that_of_the_whole_matrices(shape: tuple[int, int, int], dtype: Any) -> None:
    """`(K, M, N)`, with and without rows and columns that are left over."""
    inner, rows, columns = shape
    left, right = integers(inner, rows), integers(inner, columns, seed=1)
    product = transposed_product(left.astype(dtype), right.astype(dtype))
    assert product.dtype == dtype
    assert product.tolist() == (left.T @ right).tolist()


def test_matrices_of_any_strides() -> None:
    left, right = integers(128, 3, 128)[:, 1], integers(512, 128, seed=1).T
    product = transposed_product(left.astype(np.float32), right.astype(np.float32))
    assert product.tolist() == (left.T @ right).tolist()


def test_the_product_is_put_where_the_caller_wants_it() -> None:
    """Also where its rows lie apart, as those of a tile in a larger one."""
    left, right = integers(128, 100).astype(np.float32), integers(128, 500, seed=1).astype(np.float32)
    kept = np.full((100, 512), 7.0, np.float32)
    product = transposed_product(left, right, kept[:, 4:504])
    assert np.shares_memory(product, kept)
    assert kept[:, 4:504].tolist() == (left.T @ right).tolist()
    assert (kept[:, :4] == 7.0).all()
    assert (kept[:, 504:] == 7.0).all()


@pytest.mark.parametrize("shape", [(128, 128, 512), (128, 77, 509), (512, 128, 512), (2**17, 2, 3)], ids=str)
def test_every_piece_is_small_enough_for_one_thread(shape: tuple[int, int, int], monkeypatch: Any) -> None:
    """Two cores that multiply at the same time would wait for each other's threads."""
    inner, rows, columns = shape
    pieces = []

    def matmul(left: Any, right: Any, out: Any) -> None:
        pieces.append((left.shape[-1] * out.shape[-2] * out.shape[-1], out.size))

    monkeypatch.setattr(np, "matmul", matmul)
    transposed_product(np.ones((inner, rows), np.float32), np.ones((inner, columns), np.float32))
    assert max(multiplications for multiplications, _ in pieces) <= ONE_THREAD
    assert sum(results for _, results in pieces) >= rows * columns
