# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Helpers inside the kernels of these tests, and kernels of one instruction, for bodies of NKI code.

The helpers for bodies are `tile`, `sbuf`, `hbm` and `hbm_zeros`, which make tensors, and `load` and `store`,
which move them. Numpy arrays become tiles, the instruction runs, its results come back as arrays. Helpers
that need no kernel are in `frame`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.engines.rowwise import BLOCK_ELEMENTS

# Columns with which a float32 tile of 128 partitions is worked on in three blocks of rows, the last one smaller.
WIDE = 5 * BLOCK_ELEMENTS // 256

Array = npt.NDArray[Any]
Body = Callable[..., Any]


class Tile(NamedTuple):
    """An array to be loaded into a tile, where its type or place is not the plain one.

    Attributes:
        array: the values; cast to `dtype` by the DMA that loads them.
        dtype: type of the tile; None for the array's own.
        buffer: `nl.sbuf` or `nl.psum`.
    """

    array: Array
    dtype: Any = None
    buffer: Any = nl.sbuf


class Result(NamedTuple):
    """A tile that an instruction writes.

    Attributes:
        shape: its shape, partitions first.
        dtype: its type.
        buffer: `nl.sbuf` or `nl.psum`.
    """

    shape: Sequence[int]
    dtype: Any = nl.float32
    buffer: Any = nl.sbuf


def tile(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf, value: Any = 0) -> Any:
    """Make a new tile filled with `value`, in a kernel."""
    made = nl.ndarray(shape, dtype, buffer)
    nisa.memset(made, value)
    return made


def hbm(*shape: int, dtype: Any = nl.float32) -> Any:
    """Make a new HBM tensor, unwritten, in a kernel."""
    return nl.ndarray(shape, dtype, nl.private_hbm)


def hbm_zeros(*shape: int, dtype: Any = nl.float32) -> Any:
    """Make an HBM tensor of zeros, in a kernel."""
    return nl.zeros(shape, dtype, nl.private_hbm)


def sbuf(*shape: int, dtype: Any = nl.float32) -> Any:
    """Make a new SBUF tile, unwritten, in a kernel."""
    return nl.ndarray(shape, dtype, nl.sbuf)


def load(inputs: Any, shape: Sequence[int] | None = None, dtype: Any = None, buffer: Any = nl.sbuf) -> Any:
    """Make a tile with the values of an HBM tensor in a kernel, through SBUF if it is to be in PSUM."""
    made = nl.ndarray(shape or inputs.shape, dtype or inputs.dtype, nl.sbuf)
    nisa.dma_copy(made, inputs)
    if buffer is nl.sbuf:
        return made
    moved = nl.ndarray(made.shape, made.dtype, buffer)
    nisa.tensor_copy(moved, made)
    return moved


def store(result: Any) -> Any:
    """Make an HBM tensor with the values of a tile in a kernel, through SBUF if the tile is in PSUM."""
    if result.buffer is nl.psum:
        moved = nl.ndarray(result.shape, result.dtype, nl.sbuf)
        nisa.tensor_copy(moved, result)
        result = moved
    stored = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
    nisa.dma_copy(stored, result)
    return stored


def run(body: Body, inputs: Sequence[Array | Tile], *outputs: Result, target: str = "trn2") -> Any:
    """Return what `body(*results, *tiles)` leaves in its results: one array for one output, else a list of them."""
    tiles = [item if isinstance(item, Tile) else Tile(item) for item in inputs]

    def kernel(arrays: list[Any]) -> Any:
        loaded = [load(array, None, tile.dtype, tile.buffer) for array, tile in zip(arrays, tiles, strict=True)]
        results = [nl.ndarray(shape, dtype, buffer) for shape, dtype, buffer in outputs]
        body(*results, *loaded)
        return [store(result) for result in results]

    with nkilib.simulator.using(target=target):
        arrays = nki.jit(kernel)([tile.array for tile in tiles])
    return arrays[0] if len(outputs) == 1 else arrays


def ending(body: Body) -> Body:
    """`body` as a kernel without a result: its tile cannot leave the core."""

    def kernel(*data: Any) -> None:
        body(*data)

    return kernel


def launch(body: Body, *arrays: Any, target: str = "trn2", cores: int | None = None) -> Any:
    """Return the results of the kernel `body(*hbm tensors)`, without a grid or on `cores`."""
    kernel = nki.jit(body)
    with nkilib.simulator.using(target=target):
        return (kernel if cores is None else kernel[cores])(*arrays)


def execute(body: Body, target: str = "trn2", cores: int = 1) -> Any:
    """Run `body()` as a kernel on `cores` cores and return its result."""
    return launch(body, target=target, cores=cores)


def refusal(body: Body, target: str = "trn2", cores: int = 1, error: type[Exception] = nisa.NkiValidationError) -> str:
    """The message with which `body()` is refused, without the place `file:line: `, which must be inside `body`."""
    with pytest.raises(error) as caught:
        execute(body, target, cores)
    assert type(caught.value) is error
    place, _, message = str(caught.value).partition(": ")
    assert place in _places(body.__code__)
    return without_where(message)


def without_where(message: str) -> str:
    """A message about unwritten elements without which these are and who wrote beside them, a matter of one test."""
    return re.sub(r"( were never written| read before it was written): .*", r"\1", message)


def _places(code: CodeType) -> set[str]:
    """The lines of a function, and of functions inside it, as errors name them."""
    places = {f"{code.co_filename}:{line}" for _, _, line in code.co_lines() if line is not None}
    return places.union(*(_places(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def engine_of(body: Body, target: str = "trn2") -> str:
    """The engine of the only instruction in `body` besides the memsets that make its tiles."""
    with nkilib.simulator.recording() as record:
        execute(body, target)
    engines = record.instructions_per_engine
    engines["vector"] -= record.instruction_counts["memset"]
    (engine,) = +engines
    return engine


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """Reproducible float32 values from a normal distribution."""
    values: npt.NDArray[np.float32] = (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
    return values


def column(*values: float) -> Array:
    """An operand of one float32 a partition."""
    return np.array([[value] for value in values], np.float32)


def numbered(partitions: int, columns: int) -> Array:
    """1, 2, 3, ... row by row: every element differs, and none is 0."""
    return np.arange(1, partitions * columns + 1, dtype=np.float32).reshape(partitions, columns)
