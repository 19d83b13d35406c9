"""Products of matrices that never leave the calling thread.

A BLAS library spreads a large product over threads of its own, and makes the other core's product wait for them: where
the two cores of a kernel multiply at the same time, that is up to a hundred times slower than both on their own
thread. OpenBLAS, which numpy brings along, keeps products of up to 2**18 multiplications on the calling thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Multiplications of a piece: SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD in OpenBLAS.
_ONE_THREAD = 1 << 18
# At least as many columns as BLAS computes in one go.
_COLUMNS = 16


def transposed_product(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """``left.T @ right`` of matrices (K, M) and (K, N) of the same type, in pieces that stay on this thread."""
    inner, rows = left.shape
    columns = right.shape[1]
    if inner * rows * columns <= _ONE_THREAD:
        return left.T @ right
    height = min(rows, max(1, _ONE_THREAD // (inner * _COLUMNS)))
    width = min(columns, max(1, _ONE_THREAD // (inner * height)))
    product = np.empty((rows, columns), np.result_type(left, right))
    whole = columns - columns % width
    for top in range(0, rows, height):
        piece, result = left[:, top : top + height].T, product[top : top + height]
        np.matmul(piece, _stacked(right[:, :whole], width), out=_stacked(result[:, :whole], width))
        np.matmul(piece, right[:, whole:], out=result[:, whole:])
    return product


def _stacked(matrix: npt.NDArray[np.floating], width: int) -> npt.NDArray[np.floating]:
    """A view of a matrix as a stack of matrices of ``width`` columns each."""
    rows, columns = matrix.shape
    return matrix.reshape(rows, columns // width, width).swapaxes(0, 1)
