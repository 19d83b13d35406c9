# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels that are slow for one reason each, and one that is as fast as DMA allows."""

from __future__ import annotations

from typing import Any

from nkilib.nki import nisa, nl

WIDE = 8192


def tile(columns: int = WIDE) -> Any:
    return nl.ndarray((128, columns), nl.float32)


def sound(x: Any) -> Any:
    """New tiles in each step, 32 KiB a row: DMA is the limit."""
    return _blocks(x, 0, 1)


def _blocks(x: Any, core: Any, cores: int) -> Any:
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for first in range(core * 128, x.shape[0], cores * 128):
        loaded, scaled = tile(), tile()
        nisa.dma_copy(loaded, x[first : first + 128])
        nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)
        nisa.dma_copy(result[first : first + 128], scaled)
    return result


def many_triggers(x: Any) -> None:
    """Transfers of 16 partitions each, which a queue does not trigger as fast as they are moved."""
    for first in range(0, x.shape[0], 128):
        loaded, scaled = tile(2048), tile(2048)
        for row in range(0, 128, 16):
            nisa.dma_copy(loaded[row : row + 16], x[first + row : first + row + 16, 0:2048])
        nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)


def short_rows(x: Any) -> None:
    """Every second block of 64 columns: rows of 256 bytes."""
    for first in range(0, x.shape[0], 128):
        blocks = x[first : first + 128].reshape((128, WIDE // 64, 64))
        loaded = nl.ndarray((128, WIDE // 128, 64), nl.float32)
        nisa.dma_copy(loaded, blocks[:, 0 : WIDE // 64 : 2, :])


def one_after_the_other(x: Any) -> None:
    """Each step loads what the step before has stored."""
    for _ in range(8):
        loaded = tile(512)
        nisa.dma_copy(loaded, x[0:128, 0:512])
        nisa.dma_copy(x[0:128, 0:512], loaded)


def one_buffer(x: Any) -> Any:
    """A kernel like ``sound``, with one tile for all loads."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    loaded = nl.ndarray((128, WIDE), nl.float32, name="only")
    for first in range(0, x.shape[0], 128):
        scaled = tile()
        nisa.dma_copy(loaded, x[first : first + 128])
        nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)
        nisa.dma_copy(result[first : first + 128], scaled)
    return result


def second_of_two(x: Any) -> Any:
    """A kernel like ``one_buffer``, with another tile of the same line, for which nothing waits."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    once, loaded = [nl.ndarray((128, WIDE), nl.float32, name=name) for name in ("once", "again")]
    nisa.dma_copy(once, x[0:128])
    for first in range(0, x.shape[0], 128):
        scaled = tile()
        nisa.dma_copy(loaded, x[first : first + 128])
        nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)
        nisa.dma_copy(result[first : first + 128], scaled)
    return result


def tiles_of_a_function(x: Any) -> Any:
    """A kernel like ``one_buffer``; the line that makes the tile makes nine others, of another size, in each step."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    loaded = tile()
    for first in range(0, x.shape[0], 128):
        scaled = nl.ndarray((128, WIDE), nl.float32)
        nisa.dma_copy(loaded, x[first : first + 128])
        for _ in range(9):
            nisa.memset(tile(1), 0.0)
        nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)
        nisa.dma_copy(result[first : first + 128], scaled)
    return result


def in_turns(_: Any) -> None:
    """Scalar and Vector work on one tile, one after the other."""
    values = tile()
    for _ in range(8):
        nisa.activation(values, nl.exp, values)
        nisa.tensor_scalar(values, values, nl.multiply, 2.0)


def all_on_vector(_: Any) -> None:
    """Sums that GpSimd could do a part of."""
    values = tile()
    for _ in range(8):
        nisa.tensor_tensor(tile(), values, values, nl.add)


def tiny(_: Any) -> None:
    """Instructions on four columns each."""
    values = tile()
    for first in range(0, 1024, 4):
        nisa.tensor_scalar(values[:, first : first + 4], values[:, first : first + 4], nl.multiply, 2.0)


def chain(_: Any) -> None:
    """Each instruction needs the result of the one before."""
    values = tile(256)
    for _ in range(64):
        nisa.tensor_scalar(values, values, nl.multiply, 2.0)


def two_functions(_: Any) -> None:
    """Alternate between two activation functions."""
    values = tile()
    for _ in range(8):
        nisa.activation(tile(2048), nl.exp, values[:, 0:2048])
        nisa.activation(tile(2048), nl.tanh, values[:, 2048:4096])


def functions_between_barriers(x: Any) -> None:
    """Alternate between two activation functions, four times before each barrier."""
    values = tile()
    for _ in range(4):
        for _ in range(4):
            nisa.activation(tile(1024), nl.exp, values[:, 0:1024])
            nisa.activation(tile(1024), nl.tanh, values[:, 2048:3072])
        nisa.core_barrier(x, cores=[0, 1])


def groups(x: Any) -> Any:
    """Centre and square four groups of columns of a block of rows; Scalar and Vector wait for each other."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for first in range(0, x.shape[0], 128):
        loaded, squares = tile(2048), tile(2048)
        total, mean = nl.ndarray((128, 4), nl.float32), nl.ndarray((128, 4), nl.float32)
        nisa.dma_copy(loaded, x[first : first + 128, 0:2048])
        for group in range(4):
            columns, one = slice(512 * group, 512 * (group + 1)), slice(group, group + 1)
            nisa.tensor_reduce(mean[:, one], nl.add, loaded[:, columns], axis=1)
            nisa.tensor_scalar(mean[:, one], mean[:, one], nl.multiply, -1 / 512)
            nisa.activation_reduce(
                squares[:, columns],
                nl.square,
                loaded[:, columns],
                bias=mean[:, one],
                reduce_op=nl.add,
                reduce_res=total[:, one],
            )
        nisa.activation(total, nl.rsqrt, total)
        nisa.tensor_scalar(squares, squares, nl.multiply, total[:, 0:1])
        nisa.dma_copy(result[first : first + 128, 0:2048], squares)
    return result


def barriers(x: Any) -> None:
    """The cores meet in every step."""
    for _ in range(4):
        loaded = tile(2048)
        nisa.dma_copy(loaded, x[0:128, 0:2048])
        nisa.core_barrier(x, cores=[0, 1])


def undivided(x: Any) -> Any:
    """Do the same as ``sound``, whatever the number of the core."""
    return sound(x)


def divided(x: Any) -> Any:
    """Do the same as ``sound``, each core on every second block of rows."""
    return _blocks(x, nl.program_id(0), nl.num_programs(0))


def summed_by_halves(x: Any) -> Any:
    """Each core sums a half of the columns, and both store the sum of both."""
    result = nl.ndarray((128, 1), x.dtype, nl.shared_hbm)
    loaded, mine, theirs = tile(WIDE // 2), tile(1), tile(1)
    core = nl.program_id(0)
    nisa.dma_copy(loaded, x[0:128, core * (WIDE // 2) : (core + 1) * (WIDE // 2)])
    nisa.tensor_reduce(mine, nl.add, loaded, axis=1)
    nisa.sendrecv(mine, theirs, 1 - core, 1 - core, pipe_id=0)
    nisa.tensor_tensor(mine, mine, theirs, nl.add)
    nisa.dma_copy(result, mine)
    return result


def scattered(x: Any) -> Any:
    """Each core stores to rows of its own, which an index chooses."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    loaded, rows = tile(), nl.ndarray((128, 1), nl.int32)
    nisa.dma_copy(loaded, x[0:128])
    nisa.iota(rows, [[1, 1]], offset=nl.program_id(0), channel_multiplier=2)
    nisa.dma_copy(result.ap([[WIDE, 128], [1, WIDE]], vector_offset=rows), loaded)
    return result


def looped(x: Any) -> Any:
    """A loop of the device that both cores run whole, and of which most iterations are alike."""
    result = nl.ndarray((128, 512), x.dtype, nl.shared_hbm)
    loaded = tile(512)

    def body(_: Any) -> None:
        nisa.dma_copy(loaded, x[0:128, 0:512])
        nisa.dma_copy(result, loaded)

    nl.fori_loop(0, 100, body)
    return result


def reloading(x: Any) -> Any:
    """Each step loads the same factors into a new tile."""
    result, factor = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), x[0:128, 0:2048]
    for first in range(0, x.shape[0], 128):
        factors, loaded, scaled = tile(2048), tile(2048), tile(2048)
        nisa.dma_copy(factors, factor)
        nisa.dma_copy(loaded, x[first : first + 128, 2048:4096])
        nisa.tensor_tensor(scaled, loaded, factors, nl.multiply)
        nisa.dma_copy(result[first : first + 128, 0:2048], scaled)
    return result


def squares(x: Any) -> Any:
    """The sums of squares of rows, in two passes."""
    result = nl.ndarray((x.shape[0], 1), x.dtype, nl.shared_hbm)
    for first in range(0, x.shape[0], 128):
        loaded, squared, total = tile(), tile(), tile(1)
        nisa.dma_copy(loaded, x[first : first + 128])
        nisa.tensor_tensor(squared, loaded, loaded, nl.multiply)
        nisa.tensor_reduce(total, nl.add, squared, axis=1)
        nisa.dma_copy(result[first : first + 128], total)
    return result
