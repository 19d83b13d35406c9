# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""BLAS takes one thread for a product while a kernel runs, and as many as before when it has ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nki
from nkilib.simulator.numerics import blas_threads
from nkilib.simulator.numerics.blas_threads import has_one_thread, one_thread


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
