# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of single instructions and of single transfers, as in ``tools/probe_*.py`` of foxl-ai/kiln.

An instruction is issued again and again, on tiles that nothing waits for but the end of the kernel: each writes the
next of four results. Loads pass through a ring of buffers; one column of each is added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nkilib.nki import nisa, nki, nl

PARTITIONS = 128
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
