# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""softmax(q^T k) v^T in 128 x 512 tiles, with all scores in HBM or with none: what kernel fusion saves."""

from __future__ import annotations

from typing import Any

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
