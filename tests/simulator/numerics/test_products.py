# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`transposed_product`: the product of any two matrices, in pieces that BLAS keeps on the calling thread.

BLAS takes one thread for a product while a kernel runs, and as many as before when it has ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nki
from nkilib.simulator.numerics import products as blas_threads
from nkilib.simulator.numerics.products import has_one_thread, one_thread, transposed_product

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


class FakeThreads:
    """An OpenBLAS that remembers how many threads it was told to take."""

    def __init__(self) -> None:
        self.count = 8
        self.told: list[int] = []

    def get(self) -> int:
        return self.count

    def set(self, count: int) -> None:
        self.count = count
        self.told.append(count)


@pytest.fixture
def openblas(monkeypatch: Any) -> FakeThreads:
    threads = FakeThreads()
    monkeypatch.setattr(blas_threads, "_openblas", lambda: threads)
    return threads


def test_the_first_one_sets_one_thread_and_the_last_one_gives_them_back(openblas: FakeThreads) -> None:
    with one_thread():
        with one_thread():
            assert (openblas.get(), has_one_thread()) == (1, True)
        assert (openblas.get(), has_one_thread()) == (1, True)
    assert (openblas.told, has_one_thread()) == ([1, 8], False)


def test_an_error_gives_them_back(openblas: FakeThreads) -> None:
    with pytest.raises(ValueError, match="of the kernel"), one_thread():
        raise ValueError("of the kernel")
    assert openblas.get() == 8


def test_another_library_is_left_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(blas_threads, "_openblas", lambda: None)
    with one_thread():
        assert not has_one_thread()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_launch_takes_one_thread(cores: int, openblas: FakeThreads) -> None:
    seen: list[Any] = []

    @nki.jit
    def kernel(x: Any) -> Any:
        seen.append(has_one_thread())
        return x

    kernel[cores](np.zeros(1, np.float32))
    assert seen == [True] * cores
    assert openblas.get() == 8


def test_numpy_has_an_openblas_whose_threads_can_be_set() -> None:
    """This holds for numpy's own builds; another BLAS shows nothing."""
    threads = blas_threads._openblas()
    if threads is None:
        pytest.skip("numpy computes with another library")
    before = threads.get()
    with one_thread():
        assert threads.get() == 1
        left, right = np.ones((300, 200), np.float32), np.ones((300, 400), np.float32)
        assert (left.T @ right == 300).all()
    assert threads.get() == before
