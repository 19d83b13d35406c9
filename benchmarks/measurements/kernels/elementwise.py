# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of two vectors in tiles of three forms, a transpose, and SiLU in one instruction or in four."""

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


@nki.jit
def silu(x: Any, columns: int) -> Any:
    """``x * sigmoid(x)`` of [128, M], ``columns`` columns a step, by the Scalar engine's function."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for start in range(0, x.shape[1], columns):
        some = slice(start, start + columns)
        tile = nl.load(x[:, some])
        actual = nl.ndarray(tile.shape, x.dtype)
        nisa.activation(actual, nl.silu, tile)
        nl.store(result[:, some], actual)
    return result


@nki.jit
def silu_by_parts(x: Any, columns: int, part: int) -> Any:
    """The same as ``x / (1 + exp(-x))``: exponential, sum, reciprocal and product, ``part`` columns at a time."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for start in range(0, x.shape[1], columns):
        some = slice(start, start + columns)
        tile = nl.load(x[:, some])
        actual = nl.ndarray(tile.shape, x.dtype)
        for left in range(0, columns, part):
            those = slice(left, left + part)
            exponential, total, inverse = (nl.ndarray((PARTITIONS, part), nl.float32) for _ in range(3))
            nisa.activation(exponential, nl.exp, tile[:, those], scale=-1.0)
            nisa.tensor_scalar(total, exponential, nl.add, 1.0)
            nisa.reciprocal(inverse, total)
            nisa.tensor_tensor(actual[:, those], tile[:, those], inverse, nl.multiply)
        nl.store(result[:, some], actual)
    return result
