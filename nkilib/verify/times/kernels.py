# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the timed figures: kernels whose times AWS publishes, chains of one instruction, and an empty kernel.

A *chain* is a kernel that repeats one instruction ``links`` times, and each repetition, a *link*, waits for the
previous one. In the difference of the times of two lengths, the time of the launch itself cancels. Each chain returns
something of its last link, because a compiler may drop a result that nothing reads. The published kernels are
:func:`rmsnorm_quant`, :func:`matmul` and :func:`tiled_matmul`, plain functions without ``nki.jit``. :func:`rows_loaded`
has loads that do not wait for each other.
"""

from __future__ import annotations

from typing import Final

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import loaded, stored, tile

PARTITIONS: Final = 128


def rmsnorm_quant(x: nl.NkiTensor, gamma: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return ``gamma * x / rms(x)`` in float8, scaled by row to float8's range, [S, H], and the scales, [S, 1].

    The kernel follows the published design: squares are summed on Scalar, gamma is broadcast by the Tensor engine 512
    columns at a time, both factors are applied on Vector from PSUM, and then Vector takes the maximum of each row and
    scales. (The design takes the largest magnitude, which costs the same as the maximum.) The tiles are allocated once,
    because the design says that its steps run one after the other.
    """
    rows, hidden = x.shape
    bank = 512
    quantized = nl.ndarray(x.shape, nl.float8_e4m3, nl.shared_hbm)
    scales = nl.ndarray((rows, 1), nl.float32, nl.shared_hbm)
    gamma_row = nl.ndarray((1, hidden), x.dtype)
    nisa.dma_copy(gamma_row, gamma)
    ones = nl.ndarray((1, PARTITIONS), x.dtype)
    nisa.memset(ones, 1.0)
    tile_sbuf, normed = (nl.ndarray((PARTITIONS, hidden), x.dtype) for _ in range(2))
    result = nl.ndarray((PARTITIONS, hidden), nl.float8_e4m3)
    inverse_rms, largest, scale, inverse = (nl.ndarray((PARTITIONS, 1), nl.float32) for _ in range(4))
    cores, core = nl.num_programs(), nl.program_id()
    of_core = rows // cores
    for start in range(core * of_core, (core + 1) * of_core, PARTITIONS):
        block = slice(start, start + PARTITIONS)
        nisa.dma_copy(tile_sbuf, x[block, :])
        nisa.activation_reduce(normed, nl.square, tile_sbuf, nl.add, inverse_rms)
        nisa.activation(inverse_rms, nl.rsqrt, inverse_rms, scale=1.0 / hidden)
        for left in range(0, hidden, bank):
            columns = slice(left, left + bank)
            broadcast = nl.ndarray((PARTITIONS, bank), nl.float32, nl.psum)
            nisa.nc_matmul(broadcast, ones, gamma_row[:, columns])
            nisa.scalar_tensor_tensor(
                normed[:, columns], tile_sbuf[:, columns], nl.multiply, inverse_rms, nl.multiply, broadcast
            )
        nisa.tensor_scalar_reduce(tile_sbuf, normed, nl.multiply, 1.0, nl.maximum, largest)
        nisa.activation(scale, nl.copy, largest, scale=1.0 / 240.0)
        nisa.tensor_scalar(scale, scale, nl.maximum, 1e-6)
        nisa.reciprocal(inverse, scale)
        nisa.tensor_scalar(result, normed, nl.multiply, inverse)
        nisa.dma_copy(quantized[block, :], result)
        nisa.dma_copy(scales[block, :], scale)
    return quantized, scales


def matmul(lhs_t: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """Return ``lhs_t.T @ rhs`` of matrices [K, M] and [K, N], in blocks of 1024 x 1024 x 1024 that stay in SBUF."""
    (depth, rows), columns = lhs_t.shape, rhs.shape[1]
    tile_m, tile_n, block = 128, 512, 1024
    result = nl.ndarray((rows, columns), lhs_t.dtype, nl.shared_hbm)
    for n in range(0, columns, block):
        for m in range(0, rows, block):
            sums = nl.ndarray((tile_m, block // tile_m, block), nl.float32)
            for k in range(0, depth, block):
                left, right = (nl.ndarray((PARTITIONS, block // PARTITIONS, block), rhs.dtype) for _ in range(2))
                for part in range(block // PARTITIONS):
                    part_rows = slice(k + part * PARTITIONS, k + (part + 1) * PARTITIONS)
                    nisa.dma_copy(left[:, part, :], lhs_t[part_rows, m : m + block])
                    nisa.dma_copy(right[:, part, :], rhs[part_rows, n : n + block])
                for m_tile in range(block // tile_m):
                    for n_tile in range(block // tile_n):
                        out = slice(n_tile * tile_n, (n_tile + 1) * tile_n)
                        product = nl.ndarray((tile_m, tile_n), nl.float32, nl.psum)
                        for part in range(block // PARTITIONS):
                            stationary = left[:, part, m_tile * tile_m : (m_tile + 1) * tile_m]
                            nisa.nc_matmul(product, stationary, right[:, part, out])
                        if k:
                            nisa.tensor_tensor(sums[:, m_tile, out], sums[:, m_tile, out], product, nl.add)
                        else:
                            nisa.tensor_copy(sums[:, m_tile, out], product)
            for m_tile in range(block // tile_m):
                part_rows = slice(m + m_tile * tile_m, m + (m_tile + 1) * tile_m)
                nisa.dma_copy(result[part_rows, n : n + block], sums[:, m_tile, :])
    return result


def tiled_matmul(lhs_t: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """Return ``lhs_t.T @ rhs`` of matrices [K, M] and [K, N], without blocks: each product of two tiles loads both
    tiles.
    """
    (depth, rows), columns = lhs_t.shape, rhs.shape[1]
    tile_m, tile_n = 128, 512
    result = nl.ndarray((rows, columns), lhs_t.dtype, nl.shared_hbm)
    for m in range(0, rows, tile_m):
        for n in range(0, columns, tile_n):
            product = nl.ndarray((tile_m, tile_n), nl.float32, nl.psum)
            for k in range(0, depth, PARTITIONS):
                stationary = nl.ndarray((PARTITIONS, tile_m), lhs_t.dtype)
                moving = nl.ndarray((PARTITIONS, tile_n), rhs.dtype)
                nisa.dma_copy(stationary, lhs_t[k : k + PARTITIONS, m : m + tile_m])
                nisa.dma_copy(moving, rhs[k : k + PARTITIONS, n : n + tile_n])
                nisa.nc_matmul(product, stationary, moving)
            rounded = nl.ndarray((tile_m, tile_n), lhs_t.dtype)
            nisa.tensor_copy(rounded, product)
            nisa.dma_copy(result[m : m + tile_m, n : n + tile_n], rounded)
    return result


@nki.jit
def chain_of_loads(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Load the same rows ``links`` times into one tile."""
    tile_sbuf = tile(x.shape, x.dtype)
    for _ in range(links):
        nisa.dma_copy(dst=tile_sbuf, src=x)
    return stored(tile_sbuf)


@nki.jit
def chain_of_exp(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Replace a tile ``links`` times by its exp, on Scalar."""
    tile_sbuf = loaded(x)
    for _ in range(links):
        nisa.activation(dst=tile_sbuf, op=nl.exp, data=tile_sbuf)
    return stored(tile_sbuf)


@nki.jit
def chain_of_activation_reduce(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Replace a tile ``links`` times by its square, and compute the sum each time, on Scalar."""
    tile_sbuf, column_sbuf = loaded(x), tile((x.shape[0], 1))
    for _ in range(links):
        nisa.activation_reduce(dst=tile_sbuf, op=nl.square, data=tile_sbuf, reduce_op=nl.add, reduce_res=column_sbuf)
    return stored(column_sbuf)


@nki.jit
def chain_of_tensor_scalar_reduce(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Multiply a tile ``links`` times by 1, and compute its maximum each time, on Vector."""
    tile_sbuf, column_sbuf = loaded(x), tile((x.shape[0], 1))
    for _ in range(links):
        nisa.tensor_scalar_reduce(
            dst=tile_sbuf,
            data=tile_sbuf,
            op0=nl.multiply,
            operand0=1.0,
            reduce_op=nl.maximum,
            reduce_res=column_sbuf,
        )
    return stored(column_sbuf)


@nki.jit
def rows_loaded(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Load 128 rows ``links`` times, each time other rows, from one queue, without waits between the loads.

    The result is the sum of the first columns of the loads, float32 [128, 1].
    """
    columns = x.shape[1]
    tile_sbuf = nl.ndarray((PARTITIONS, links, columns), dtype=x.dtype, buffer=nl.sbuf)
    total_sbuf = tile((PARTITIONS, 1))
    nisa.memset(dst=total_sbuf, value=0.0)
    for link in range(links):
        nisa.dma_copy(dst=tile_sbuf[:, link, :], src=x[link * PARTITIONS : (link + 1) * PARTITIONS, :])
        nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=tile_sbuf[:, link, 0:1], op=nl.add)
    return stored(total_sbuf)


@nki.jit
def nothing(first: nl.NkiTensor, second: nl.NkiTensor | None = None, third: nl.NkiTensor | None = None) -> nl.NkiTensor:
    """Return one number, whatever the arrays are.

    The launch takes the time that any launch on these arrays needs before and after its work.
    """
    number_sbuf = tile((1, 1))
    nisa.memset(dst=number_sbuf, value=float(sum(array is not None for array in (first, second, third))))
    return stored(number_sbuf)
