# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A matrix product with an epilogue, and a convolution as matrix products."""

from __future__ import annotations

from typing import Any

from nkilib.nki import nisa, nki, nl

PARTITIONS = 128
MOVING = 512


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
