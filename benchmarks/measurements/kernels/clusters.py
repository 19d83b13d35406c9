# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The nearest of many centroids for each point: matrix products with a running arg-max behind them."""

from __future__ import annotations

from typing import Any

from nkilib.nki import nisa, nki, nl

PARTITIONS = 128
MOVING = 512
# Below every similarity.
LOWEST = -3.0e38


@nki.jit
def nearest_centroids(points_t: Any, centroids_t: Any, squares: Any) -> Any:
    """``argmin |x - c|^2`` as ``argmax 2 x c - |c|^2``, 128 points and 512 centroids at a time, shared out by points.

    Args:
        points_t: [D, N], the points transposed, of bfloat16.
        centroids_t: [D, K], of bfloat16; they stay in SBUF.
        squares: [1, K], the centroids' squared norms, of float32.

    Returns:
        [N, 1] of int32.
    """
    (depth, points), centroids = points_t.shape, centroids_t.shape[1]
    result = nl.ndarray((points, 1), nl.int32, nl.shared_hbm)
    parts = depth // PARTITIONS
    resident = nl.ndarray((PARTITIONS, parts, centroids), centroids_t.dtype)
    for part in range(parts):
        nisa.dma_copy(resident[:, part, :], centroids_t[part * PARTITIONS : (part + 1) * PARTITIONS, :])
    norms = nl.load(squares)
    of_core = points // nl.num_programs()
    first = nl.program_id() * of_core
    for start in range(first, first + of_core, PARTITIONS):
        tile = nl.ndarray((PARTITIONS, parts, PARTITIONS), points_t.dtype)
        for part in range(parts):
            rows = slice(part * PARTITIONS, (part + 1) * PARTITIONS)
            nisa.dma_copy(tile[:, part, :], points_t[rows, start : start + PARTITIONS])
        best = nl.full((PARTITIONS, 1), LOWEST, nl.float32)
        index = nl.zeros((PARTITIONS, 1), nl.int32)
        for left in range(0, centroids, MOVING):
            columns = slice(left, left + MOVING)
            similarity = _similarity(tile, resident[:, :, columns], norms[:, columns])
            value, place = _largest(similarity, left)
            is_better = nl.greater(value, best)
            index = nl.where(is_better, place, index)
            best = nl.maximum(value, best)
        nl.store(result[start : start + PARTITIONS, :], index)
    return result


def _similarity(points: Any, centroids: Any, squares: Any) -> Any:
    """float32 [128, 512]: ``2 x c - |c|^2``, the products in PSUM and the rest on Vector."""
    products = nl.ndarray((PARTITIONS, MOVING), nl.float32, nl.psum)
    for part in range(points.shape[1]):
        nisa.nc_matmul(products, points[:, part, :], centroids[:, part, :])
    result = nl.ndarray((PARTITIONS, MOVING), nl.float32)
    spread = nl.broadcast_to(squares, (PARTITIONS, MOVING))
    nisa.scalar_tensor_tensor(result, products, nl.multiply, 2.0, nl.subtract, spread)
    return result


def _largest(similarity: Any, offset: int) -> tuple[Any, Any]:
    """The largest of each row and its column, counted from ``offset``: [128, 1] of float32 and of int32."""
    largest = nl.ndarray((PARTITIONS, 8), nl.float32)
    columns = nl.ndarray((PARTITIONS, 8), nl.uint32)
    place = nl.ndarray((PARTITIONS, 1), nl.int32)
    nisa.max8(largest, similarity)
    nisa.nc_find_index8(columns, similarity, largest)
    nisa.tensor_scalar(place, columns[:, 0:1], nl.add, offset)
    return largest[:, 0:1], place
