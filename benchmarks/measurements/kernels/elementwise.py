"""Sums of two vectors in tiles of three forms, and a transpose: kernels that the DMA queues bound."""

from __future__ import annotations

from typing import Any

from nkilib.nki import nisa, nki, nl

PARTITIONS = 128


@nki.jit
def add_in_columns(a: Any, b: Any, rows: int) -> Any:
    """``a + b`` of [M, 1] vectors, ``rows`` elements a step, one in each partition."""
    result = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    for start in range(0, a.shape[0], rows):
        some = slice(start, start + rows)
        left, right, total = (nl.ndarray((rows, 1), a.dtype) for _ in range(3))
        nisa.dma_copy(left, a[some, :])
        nisa.dma_copy(right, b[some, :])
        nisa.tensor_scalar(total, left, nl.add, right)
        nisa.dma_copy(result[some, :], total)
    return result


@nki.jit
def add_in_blocks(a: Any, b: Any, columns: int) -> Any:
    """``a + b`` of vectors seen as [128, M], ``columns`` columns a step."""
    result = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    for start in range(0, a.shape[1], columns):
        some = slice(start, start + columns)
        left, right, total = (nl.ndarray((PARTITIONS, columns), a.dtype) for _ in range(3))
        nisa.dma_copy(left, a[:, some])
        nisa.dma_copy(right, b[:, some])
        nisa.tensor_tensor(total, left, right, nl.add)
        nisa.dma_copy(result[:, some], total)
    return result


@nki.jit
def transpose(a: Any) -> Any:
    """``a.T`` of [M, N], 128 x 128 elements a step through the Tensor engine."""
    rows, columns = a.shape
    result = nl.ndarray((columns, rows), a.dtype, nl.shared_hbm)
    for top in range(0, rows, PARTITIONS):
        for left in range(0, columns, PARTITIONS):
            some, those = slice(top, top + PARTITIONS), slice(left, left + PARTITIONS)
            tile, turned = (nl.ndarray((PARTITIONS, PARTITIONS), a.dtype) for _ in range(2))
            nisa.dma_copy(tile, a[some, those])
            transposed = nl.ndarray((PARTITIONS, PARTITIONS), a.dtype, nl.psum)
            nisa.nc_transpose(transposed, tile)
            nisa.tensor_copy(turned, transposed)
            nisa.dma_copy(result[those, some], turned)
    return result
