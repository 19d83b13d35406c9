# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Chains of one instruction, and an empty kernel: the time of the launch itself cancels between two lengths.

Every link waits for the previous one. Each kernel returns something of its last link, because a compiler may drop a
result that nothing reads.
"""

from __future__ import annotations

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.tiles import loaded, stored, tile
from nkilib.verify.times.published import PARTITIONS


@nki.jit
def chain_of_loads(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Load the same rows again and again into one tile."""
    tile_sbuf = tile(x.shape, x.dtype)
    for _ in range(links):
        nisa.dma_copy(dst=tile_sbuf, src=x)
    return stored(tile_sbuf)


@nki.jit
def chain_of_exp(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Overwrite a tile with its exp again and again, on Scalar."""
    tile_sbuf = loaded(x)
    for _ in range(links):
        nisa.activation(dst=tile_sbuf, op=nl.exp, data=tile_sbuf)
    return stored(tile_sbuf)


@nki.jit
def chain_of_activation_reduce(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Overwrite a tile with its square and sum it, again and again, on Scalar."""
    tile_sbuf, column_sbuf = loaded(x), tile((x.shape[0], 1))
    for _ in range(links):
        nisa.activation_reduce(dst=tile_sbuf, op=nl.square, data=tile_sbuf, reduce_op=nl.add, reduce_res=column_sbuf)
    return stored(column_sbuf)


@nki.jit
def chain_of_tensor_scalar_reduce(x: nl.NkiTensor, links: int) -> nl.NkiTensor:
    """Overwrite a tile with itself times 1 and take its maximum, again and again, on Vector."""
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
    """Load 128 rows at a time from one queue, without waits between the loads, and add up a number of each load."""
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
    """Return a number for any arrays; the launch takes the time that a launch on them takes besides its work."""
    number_sbuf = tile((1, 1))
    nisa.memset(dst=number_sbuf, value=float(sum(array is not None for array in (first, second, third))))
    return stored(number_sbuf)
