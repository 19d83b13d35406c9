# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Products of matrices (:func:`transposed_product`) that never leave the calling thread.

A BLAS library spreads a large product over its own threads, and a product of the other core must wait for these
threads. If the two cores of a kernel multiply at the same time, this is up to a hundred times slower than a product of
each core on its own thread. While a kernel runs, OpenBLAS, which numpy ships with, uses one thread for a product of any
size (:func:`one_thread`). Outside kernels, and with a BLAS library that has no such setting, a product is computed in
pieces: OpenBLAS computes pieces of up to 2**18 multiplications on the calling thread.

BLAS chooses the order of the additions by blocks. The bits of an element therefore depend on the shapes of the two
matrices and on the position of the element. They are the same in every run and on every core of one machine; another
CPU may use a different order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import isqrt
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.floating[Any]]

# Multiplications of a piece: SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD in OpenBLAS.
_ONE_THREAD = 1 << 18
# Rows and columns that BLAS computes in one go are multiples or divisors of it.
_STEP = 8

# Names of the functions of OpenBLAS about its threads: numpy's own and that of a distribution each use one spelling.
_SPELLINGS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class _Threads(NamedTuple):
    """The functions of OpenBLAS that get and set the number of its threads."""

    get: Any
    set: Any


@cache
def _openblas() -> _Threads | None:
    # None where numpy uses another library.
    try:  # found through numpy's module that links to it, whatever file it is in
        library = ctypes.CDLL(str(import_module("numpy.linalg._umath_linalg").__file__))
    except (ImportError, OSError):
        return None
    for spelling in _SPELLINGS:
        names = spelling.format("get_num_threads"), spelling.format("set_num_threads")
        if all(hasattr(library, name) for name in names):
            return _Threads(*(getattr(library, name) for name in names))
    return None


@dataclass
class _Users:
    """The callers inside :func:`one_thread`, and the number of OpenBLAS threads before the first of them."""

    count: int = 0
    threads_before: int = 1
    lock: Lock = field(default_factory=Lock)


_USERS = _Users()


@contextmanager
def one_thread() -> Iterator[None]:
    """Make all products in this process run on the thread that calls for them, while any caller is in the ``with``
    block.

    This uses functions of OpenBLAS that numpy does not offer. Nothing changes if numpy uses another library;
    :func:`has_one_thread` tells whether the setting has an effect.
    """
    threads = _openblas()
    if threads is None:
        yield
        return
    with _USERS.lock:
        _USERS.count += 1
        if _USERS.count == 1:
            _USERS.threads_before = threads.get()
            threads.set(1)
    try:
        yield
    finally:
        with _USERS.lock:
            _USERS.count -= 1
            if _USERS.count == 0:
                threads.set(_USERS.threads_before)


def has_one_thread() -> bool:
    """Return whether products of any size now run on the calling thread, because a caller is inside
    :func:`one_thread`.
    """
    return _USERS.count > 0


def _part(size: int, most: int) -> int:
    """Return the size of the parts into which ``size`` rows or columns are divided, at most ``most``.

    There are as few parts as possible, and they are as equal as multiples of ``_STEP`` allow.
    """
    whole = max(1, most // _STEP * _STEP if most > _STEP else most)
    even = -(-size // -(-size // whole))
    return min(size, whole, -(-even // _STEP) * _STEP)


def _piece(inner: int, rows: int, columns: int) -> tuple[int, int]:
    """Return the height and the width of the pieces in which a product of shape (rows, columns) is computed.

    Each element of the product is a sum over ``inner`` elements. A piece is twice as wide as high if the product is
    wide enough, because BLAS copies both operands.
    """
    most = _ONE_THREAD // inner
    height = _part(rows, isqrt(most // 2))
    width = _part(columns, most // height)
    return _part(rows, most // width), width


def _stacks(size: int, part: int) -> list[slice]:
    """Divide ``size`` rows or columns into parts of length ``part``: return a slice of all whole parts, then one of the
    rest.

    The second slice also has length ``part``, so that it overlaps the first one, and is missing if there is no rest.
    The product is computed twice where the slices overlap.
    """
    rest = size % part
    return [slice(0, size - rest), slice(size - part, size)] if rest else [slice(0, size)]


def _stacked(matrix: Matrix, width: int) -> Matrix:
    """Return a matrix as a stack of matrices of ``width`` adjacent columns, without a copy."""
    rows, columns = matrix.shape
    return matrix.reshape(rows, columns // width, width).swapaxes(0, 1)


def transposed_product(left: Matrix, right: Matrix, out: Matrix | None = None) -> Matrix:
    """Return ``left.T @ right``.

    Args:
        left: (K, M).
        right: (K, N), of the type of ``left``.
        out: an array (M, N) of the same type with dense rows, which receives the product and shares no memory with the
            operands; None: a new array.
    """
    inner, rows = left.shape
    columns = right.shape[1]
    product = np.empty((rows, columns), left.dtype) if out is None else out
    if has_one_thread() or inner * rows * columns <= _ONE_THREAD:
        return np.matmul(left.T, right, out=product)
    height, width = _piece(inner, rows, columns)
    for high in _stacks(rows, height):
        tops = _stacked(left[:, high], height).swapaxes(1, 2)
        for wide in _stacks(columns, width):
            results = _stacked(product[high, wide], width)
            count, *_ = results.shape
            np.matmul(
                tops[:, None],
                _stacked(right[:, wide], width)[None],
                out=results.reshape(count, -1, height, width).swapaxes(0, 1),
            )
    return product
