# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Products of matrices that never leave the calling thread; blas_threads.py gives the reason.

While a kernel runs, OpenBLAS uses one thread for a product of any size. Outside kernels, and where another library has
no such setting, a product is computed in pieces: OpenBLAS keeps pieces of up to 2**18 multiplications on the calling
thread anyway.

The bits of an element depend on the shapes of the two matrices and on its position: BLAS sums an element in the order
that suits the block that contains it. They are the same on every run and on every core of one machine; another CPU may
have a different order.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from .blas_threads import has_one_thread

Matrix = npt.NDArray[np.floating[Any]]

# Multiplications of a piece: SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD in OpenBLAS.
_ONE_THREAD = 1 << 18
# Rows and columns that BLAS computes in one go are multiples or divisors of it.
_STEP = 8


def transposed_product(left: Matrix, right: Matrix, out: Matrix | None = None) -> Matrix:
    """Return ``left.T @ right`` of matrices (K, M) and (K, N) of the same type.

    ``out``, if given, is an array (M, N) of that type whose rows are dense; it receives the product and shares no
    memory with the operands.
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


def _piece(inner: int, rows: int, columns: int) -> tuple[int, int]:
    """Return the number of rows and of columns of the pieces in which a product is computed, for inner size ``inner``.

    A piece has twice as many columns as rows where the matrix is wide enough, because BLAS copies both.
    """
    most = _ONE_THREAD // inner
    height = _part(rows, isqrt(most // 2))
    width = _part(columns, most // height)
    return _part(rows, most // width), width


def _part(size: int, most: int) -> int:
    """Return the size of the parts into which ``size`` rows or columns are divided.

    The parts are few, have at most ``most`` rows or columns, and are as equal as multiples of ``_STEP`` allow.
    """
    whole = max(1, most // _STEP * _STEP if most > _STEP else most)
    even = -(-size // -(-size // whole))
    return min(size, whole, -(-even // _STEP) * _STEP)


def _stacks(size: int, part: int) -> list[slice]:
    """Return a slice of all whole parts, and a slice of the last ``part`` elements if some are left over.

    The second slice overlaps the first one; the overlap is computed twice.
    """
    rest = size % part
    return [slice(0, size - rest), slice(size - part, size)] if rest else [slice(0, size)]


def _stacked(matrix: Matrix, width: int) -> Matrix:
    """Return a view of a matrix as a stack of matrices of ``width`` columns each."""
    rows, columns = matrix.shape
    return matrix.reshape(rows, columns // width, width).swapaxes(0, 1)
