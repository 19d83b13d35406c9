# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels whose pages are tested: two cores that synchronise, device loops, an unused tile, names that are HTML."""

from __future__ import annotations

from typing import Any

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Profile, per_rank, profile, ranks, spec
from tests.simulator.ranked import all_of, integers, ncc

FP32 = nl.float32
HOSTILE = "</script><img src=x onerror=alert(1)>"


@nki.jit
def halves(x: Any) -> Any:
    """exp of x, half of the rows on each core; the tile of the sums is written twice, and never read."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="result")
    for first in range(128 * nl.program_id(0), x.shape[0], 128 * nl.num_programs(0)):
        tile = nl.ndarray((128, x.shape[1]), x.dtype, name="tile")
        sums = nl.ndarray((128, 1), FP32, name="sums")
        nisa.dma_copy(tile, x[first : first + 128])
        nisa.activation_reduce(tile, nl.exp, tile, reduce_op=nl.add, reduce_res=sums)
        nisa.tensor_copy(sums, tile[:, :1])
        nisa.dma_copy(result[first : first + 128], tile)
    nisa.core_barrier(result, (0, 1))
    return result


def of_halves(rows: int = 1024) -> Profile:
    return profile(halves[2], spec((rows, 256), FP32))


@nki.jit
def looping(x: Any) -> Any:
    """Twice x, in a loop of the device."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)

    def body(i: Any) -> None:
        tile = nl.ndarray((128, x.shape[1]), x.dtype, name="tile")
        nisa.dma_copy(tile, x[nl.ds(i * 128, 128)])
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(result[nl.ds(i * 128, 128)], tile)

    nl.fori_loop(0, x.shape[0] // 128, body)
    return result


def of_looping(iterations: int = 64) -> Profile:
    return profile(looping, spec((128 * iterations, 64), FP32))


@nki.jit
def hostile(x: Any) -> Any:
    """A copy of x. Its texts are </script> and <!-- --> and ]]>."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=HOSTILE)
    tile = nl.ndarray(x.shape, x.dtype, name=HOSTILE)
    nisa.dma_copy(tile, x, name=HOSTILE)  # </script><b>text</b>
    nisa.dma_copy(result, tile)
    return result


def of_hostile() -> Profile:
    return profile(hostile, spec((128, 64), FP32))


def total(x: Any, group: Any) -> Any:
    """The sum of x over the ranks."""
    tile, result = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    summed = nl.ndarray(x.shape, x.dtype)
    ncc.all_reduce([tile], [summed], group, nl.add)
    nisa.dma_copy(result, summed)
    return result


def of_ranks() -> Profile:
    return profile(ranks(4)(nki.jit(total)), per_rank(integers(0, 4, 128, 64)), all_of(4))
