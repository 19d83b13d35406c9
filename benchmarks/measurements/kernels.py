# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of our own that do the work of measured ones whose source is written for an NKI that no longer runs.

Each follows the published description instruction by instruction: the same tiles, the same order, the same types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nkilib.nki import nisa, nki, nl

PARTITIONS = 128
MOVING = 512


def _scores(q: Any, k: Any, rows: slice) -> Any:
    """float32 ``q[:, rows].T @ k``: [128, S], 512 columns at a time through PSUM."""
    positions = k.shape[1]
    scores = nl.ndarray((PARTITIONS, positions), nl.float32)
    for left in range(0, positions, MOVING):
        product = nl.ndarray((PARTITIONS, MOVING), nl.float32, nl.psum)
        nisa.nc_matmul(product, q[:, rows], k[:, left : left + MOVING])
        nisa.tensor_copy(scores[:, left : left + MOVING], product)
    return scores


def _exponentials(scores: Any) -> tuple[Any, Any]:
    """``exp(scores - max)`` and the reciprocal of its sum, with maxima and sums of 512 columns at a time."""
    chunks = scores.shape[1] // MOVING
    maxima, sums = (nl.ndarray((PARTITIONS, chunks), nl.float32) for _ in range(2))
    lowest, total, inverse = (nl.ndarray((PARTITIONS, 1), nl.float32) for _ in range(3))
    result = nl.ndarray(scores.shape, nl.float32)
    for chunk in range(chunks):
        columns = slice(chunk * MOVING, (chunk + 1) * MOVING)
        nisa.tensor_reduce(maxima[:, chunk : chunk + 1], nl.maximum, scores[:, columns], axis=1)
    nisa.tensor_reduce(lowest, nl.maximum, maxima, axis=1, negate=True)
    for chunk in range(chunks):
        columns = slice(chunk * MOVING, (chunk + 1) * MOVING)
        nisa.activation(result[:, columns], nl.exp, scores[:, columns], bias=lowest)
        nisa.tensor_reduce(sums[:, chunk : chunk + 1], nl.add, result[:, columns], axis=1)
    nisa.tensor_reduce(total, nl.add, sums, axis=1)
    nisa.reciprocal(inverse, total)
    return result, inverse


def _transposed(tile: Any) -> Any:
    """float32 [128, S // 128, 128]: each block of 128 columns transposed by the Tensor engine."""
    blocks = tile.shape[1] // PARTITIONS
    result = nl.ndarray((PARTITIONS, blocks, PARTITIONS), nl.float32)
    for block in range(blocks):
        turned = nl.ndarray((PARTITIONS, PARTITIONS), tile.dtype, nl.psum)
        nisa.nc_transpose(turned, tile[:, block * PARTITIONS : (block + 1) * PARTITIONS])
        nisa.tensor_copy(result[:, block, :], turned)
    return result


def _weighted_values(weights: Any, values: Any) -> Any:
    """float32 ``weights @ values`` in PSUM: [128, 128], from both operands' blocks."""
    sums = nl.ndarray((PARTITIONS, PARTITIONS), nl.float32, nl.psum)
    for block in range(weights.shape[1]):
        nisa.nc_matmul(sums, weights[:, block, :], values[:, block, :])
    return sums


@nki.jit
def fused_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention whose scores never leave the core: q, k, v [128, S]; returns [S, 128] of their type."""
    positions = q.shape[1]
    result = nl.ndarray((positions, PARTITIONS), q.dtype, nl.shared_hbm)
    q_tile, k_tile, v_tile = nl.load(q), nl.load(k), nl.load(v)
    values = _transposed(v_tile)
    for start in range(0, positions, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        exponentials, inverse = _exponentials(_scores(q_tile, k_tile, rows))
        sums = _weighted_values(_transposed(exponentials), values)
        attended = nl.ndarray((PARTITIONS, PARTITIONS), nl.float32)
        nisa.tensor_scalar(attended, sums, nl.multiply, inverse)
        nl.store(result[rows, :], attended)
    return result


@nki.jit
def unfused_attention(q: Any, k: Any, v: Any) -> Any:
    """The same in three passes, between which float32 scores and weights go through HBM."""
    positions = q.shape[1]
    result = nl.ndarray((positions, PARTITIONS), q.dtype, nl.shared_hbm)
    through = nl.ndarray((positions, positions), nl.float32, nl.shared_hbm)
    q_tile, k_tile, v_tile = nl.load(q), nl.load(k), nl.load(v)
    for start in range(0, positions, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        nl.store(through[rows, :], _scores(q_tile, k_tile, rows))
    for start in range(0, positions, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        exponentials, inverse = _exponentials(nl.load(through[rows, :]))
        weights = nl.ndarray(exponentials.shape, nl.float32)
        for left in range(0, positions, MOVING):
            columns = slice(left, left + MOVING)
            nisa.tensor_scalar(weights[:, columns], exponentials[:, columns], nl.multiply, inverse)
        nl.store(through[rows, :], weights)
    values = _transposed(v_tile)
    for start in range(0, positions, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        sums = _weighted_values(_transposed(nl.load(through[rows, :])), values)
        attended = nl.ndarray((PARTITIONS, PARTITIONS), nl.float32)
        nisa.tensor_copy(attended, sums)
        nl.store(result[rows, :], attended)
    return result


# Below every similarity of a point and a centroid.
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


# Single instructions and single transfers, as in ``tools/probe_*.py`` of foxl-ai/kiln. An instruction is issued again
# and again, on tiles that nothing waits for but the end of the kernel: each writes the next of four results. Loads pass
# through a ring of buffers; one column of each is added up.

RING = 4
# Columns of the results in SBUF, and of a bank of PSUM in float32.
WIDE, _BANK = 2112, 512


class Tiles(NamedTuple):
    """The operands of the instruction of a probe.

    Attributes:
        wide: [128, 2112] float32 in SBUF.
        bank: [128, 512] float32 in PSUM.
        column: [128, 1] float32.
        stationary: [128, 512] of the type of the products.
        moving: [128, 512] of the type of the products.
        result: [128, 2112] in SBUF, of the type of the results.
        sums: [128, 1] float32.
        product: [128, 512] float32 in PSUM.
    """

    wide: Any
    bank: Any
    column: Any
    stationary: Any
    moving: Any
    result: Any
    sums: Any
    product: Any


# Issues one instruction; the number is that of the repeat.
Issue = Callable[[Tiles, int], object]


def repeated(issue: Issue, products: Any, results: Any) -> Any:
    """Make a kernel ``(x, times)`` that issues an instruction ``times`` times.

    Args:
        issue: a function that issues the instruction.
        products: type of the operands of matrix products.
        results: type of the results in SBUF.
    """

    @nki.jit
    def kernel(x: Any, times: int) -> Any:
        wide = nl.ndarray((PARTITIONS, WIDE), nl.float32)
        nisa.dma_copy(wide, x)
        inputs = (
            wide,
            nl.ndarray((PARTITIONS, _BANK), nl.float32, nl.psum),
            nl.ndarray((PARTITIONS, 1), nl.float32),
            nl.ndarray((PARTITIONS, _BANK), products),
            nl.ndarray((PARTITIONS, _BANK), products),
        )
        ring = [
            Tiles(
                *inputs,
                nl.ndarray((PARTITIONS, WIDE), results),
                nl.ndarray((PARTITIONS, 1), nl.float32),
                nl.ndarray((PARTITIONS, _BANK), nl.float32, nl.psum),
            )
            for _ in range(RING)
        ]
        for number in range(times):
            issue(ring[number % RING], number)

    return kernel


@nki.jit
def loads(weights: Any, index: Any, chunk: int, partitions: int, runs: int, reads_address: bool) -> Any:
    """Load [E, 128, F] bytes, and add up the first byte of each partition of each chunk: [128, 1] float32.

    They come in chunks of [128, ``chunk``], each in transfers of so many partitions.

    Args:
        weights: in HBM.
        index: [1, E] int32 in HBM, the number of each of the E parts.
        chunk: bytes of a partition.
        partitions: the number of partitions of a transfer.
        runs: contiguous pieces that the bytes of a partition come in.
        reads_address: whether the address is read at run time, from the index.
    """
    parts, _, columns = weights.shape
    buffers = [nl.ndarray((PARTITIONS, runs, chunk // runs), weights.dtype) for _ in range(RING)]
    numbers = nl.ndarray((1, parts), nl.int32)
    nisa.dma_copy(numbers, index)
    total = nl.ndarray((PARTITIONS, 1), nl.float32)
    nisa.memset(total, 0.0)
    apart = columns // runs
    chunks = [(part, first) for part in range(parts) for first in range(0, apart, chunk // runs)]
    for number, (part, first) in enumerate(chunks):
        buffer = buffers[number % RING]
        for row in range(0, PARTITIONS, partitions):
            pattern = [[columns, partitions], [apart, runs], [1, chunk // runs]]
            begin = row * columns + first
            if reads_address:
                source = weights.ap(pattern, offset=begin, scalar_offset=numbers[:, part : part + 1], indirect_dim=0)
            else:
                source = weights.ap(pattern, offset=part * PARTITIONS * columns + begin)
            nisa.dma_copy(buffer[row : row + partitions], source)
        first_bytes = nl.ndarray((PARTITIONS, 1), nl.float32)
        nisa.tensor_copy(first_bytes, buffer[:, 0, 0:1], engine=nisa.vector_engine)
        nisa.tensor_tensor(total, total, first_bytes, nl.add, engine=nisa.vector_engine)
    result = nl.ndarray((PARTITIONS, 1), nl.float32, nl.shared_hbm)
    nisa.dma_copy(result, total)
    return result


@nki.jit
def product_with_gelu(lhs_t: Any, rhs: Any, bias: Any) -> Any:
    """``gelu(lhs_t.T @ rhs + bias)``: [K, M], [K, N] and [1, N] give [M, N]; every product loads both of its tiles."""
    (depth, rows), columns = lhs_t.shape, rhs.shape[1]
    result = nl.ndarray((rows, columns), lhs_t.dtype, nl.shared_hbm)
    for top in range(0, rows, PARTITIONS):
        for left in range(0, columns, MOVING):
            some, those = slice(top, top + PARTITIONS), slice(left, left + MOVING)
            sums = nl.ndarray((PARTITIONS, MOVING), nl.float32, nl.psum)
            for start in range(0, depth, PARTITIONS):
                part = slice(start, start + PARTITIONS)
                nisa.nc_matmul(sums, nl.load(lhs_t[part, some]), nl.load(rhs[part, those]))
            copied = nl.copy(sums, dtype=lhs_t.dtype)
            biased = nl.add(copied, nl.broadcast_to(nl.load(bias[:, those]), (PARTITIONS, MOVING)))
            nl.store(result[some, those], nl.gelu(biased))
    return result


@nki.jit
def convolution(x: Any, weights: Any, bias: Any) -> Any:
    """A valid 2-D convolution, one row of the image and 128 channels out at a time.

    The weights stay in SBUF, transposed once. Each row of the image is loaded again for each row of the filter; each of
    the filter's columns is a matrix product with the same row, shifted.

    Args:
        x: [C in, H, W], of float32 or float16.
        weights: [C out, C in, F, F], of x's type.
        bias: [C out, 1], of x's type.

    Returns:
        [C out, H - F + 1, W - F + 1], of x's type.
    """
    channels, height, width = x.shape
    filters, side = weights.shape[0], weights.shape[2]
    result = nl.ndarray((filters, height - side + 1, width - side + 1), x.dtype, nl.shared_hbm)
    turned = _turned_weights(weights)
    row = nl.ndarray((PARTITIONS, width), x.dtype)
    for out in range(0, filters, PARTITIONS):
        for top in range(height - side + 1):
            sums = nl.ndarray((PARTITIONS, width - side + 1), nl.float32, nl.psum)
            for part in range(0, channels, PARTITIONS):
                for down in range(side):
                    nisa.dma_copy(row, x[part : part + PARTITIONS, top + down, :])
                    for right in range(side):
                        shifted = row[:, right : right + width - side + 1]
                        nisa.nc_matmul(sums, turned[out, part][:, down, right, :], shifted)
            copied = nl.copy(sums, dtype=x.dtype)
            some = slice(out, out + PARTITIONS)
            summand = nl.copy(nl.load(bias[some, :]), dtype=nl.float32)
            nisa.tensor_scalar(copied, copied, nl.add, summand)
            nisa.dma_copy(result[some, top, :], copied)
    return result


def _turned_weights(weights: Any) -> dict[tuple[int, int], Any]:
    """The weights as stationary operands, [128 in, F, F, 128 out], by the first channels out and in."""
    filters, channels, side, _ = weights.shape
    results = {}
    for out in range(0, filters, PARTITIONS):
        for part in range(0, channels, PARTITIONS):
            block = nl.ndarray((PARTITIONS, PARTITIONS, side, side), weights.dtype)
            nisa.dma_copy(block, weights[out : out + PARTITIONS, part : part + PARTITIONS, :, :])
            turned = nl.ndarray((PARTITIONS, side, side, PARTITIONS), weights.dtype)
            for down in range(side):
                for right in range(side):
                    transposed = nl.ndarray((PARTITIONS, PARTITIONS), weights.dtype, nl.psum)
                    nisa.nc_transpose(transposed, block[:, :, down, right])
                    nisa.tensor_copy(turned[:, down, right, :], transposed)
            results[out, part] = turned
    return results
