# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row blocks: an instruction works on a few partitions at a time, so that its float32 temporaries stay in cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..numerics.casts import FLOAT32, copy_as_float32, store_float
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import tfloat32

# 512 Ki float32 values are 2 MiB, the size of a server core's second-level cache: the interpreter's own cost of a block
# is small beside the work, and two cores seldom wait for each other's. 256 Ki are level on one core and up to 5% slower
# on two.
BLOCK_ELEMENTS = 512 * 1024
# Smaller contents are computed at once: it takes no longer than remembering how. 256 KiB stay in a core's cache anyway.
SMALLEST_DEFERRED_BYTES = 1 << 18


def is_worth_deferring(tensor: NkiTensor) -> bool:
    """Return whether the elements of ``tensor`` take 256 KiB or more: deferring their computation is worthwhile."""
    return tensor.size * tensor.dtype.itemsize >= SMALLEST_DEFERRED_BYTES


def row_blocks(destination: NkiTensor, width: int, *sources: Any) -> list[slice]:
    """Return slices of the partitions of ``destination``, each of about ``BLOCK_ELEMENTS`` elements.

    A partition counts as ``width`` elements. There is a single slice of all partitions if a source shares the
    destination's storage through a different view: all of the source must then be read before anything is stored.
    """
    rows = destination.shape[0]
    if rows * width > BLOCK_ELEMENTS and _overlaps(destination, sources):
        return [slice(0, rows)]
    return blocks_of_rows(rows, width)


def blocks_of_rows(rows: int, width: int) -> list[slice]:
    """Return slices that divide ``rows`` rows of ``width`` elements into blocks of at most ``BLOCK_ELEMENTS``.

    A block has one row if a row has more elements.
    """
    if rows * width <= BLOCK_ELEMENTS:
        return [slice(0, rows)]
    step = max(1, BLOCK_ELEMENTS // width)
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]


def is_same_view(first: NkiTensor, second: NkiTensor) -> bool:
    """Return whether two tensors have the same elements of one storage, read as the same type."""
    return first.storage is second.storage and first.layout == second.layout and first.dtype == second.dtype


def _overlaps(destination: NkiTensor, sources: tuple[Any, ...]) -> bool:
    for source in sources:  # a plain loop: every instruction comes here, and a generator costs a microsecond
        is_shared = isinstance(source, NkiTensor) and source.storage is destination.storage
        if is_shared and not is_same_view(source, destination):
            return True
    return False


class SourceRows:
    """The rows of a tensor as float32 arrays (rows, elements per partition), which the caller does not write to.

    The rows are read in place if the tensor is dense float32 already, else cast into the scratch buffer ``slot``.

    Attributes:
        memory: the array from which the rows are read, with the rows of the tensor.
    """

    __slots__ = ("_core", "_is_direct", "_slot", "_width", "memory")

    def __init__(self, core: Core, slot: str, tensor: NkiTensor) -> None:
        self._core = core
        self._slot = slot
        self._width = tensor.free_size
        flat = tensor.rows_to_read
        self.memory: npt.NDArray[Any] = tensor.array if flat is None else flat
        self._is_direct = flat is not None and flat.dtype == FLOAT32

    def load(self, rows: slice, landing: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
        """Return the values of some rows; they are valid until the next call.

        Args:
            rows: the slice of rows.
            landing: an array (rows, elements per partition) apart from the tensor's memory, which receives the values
                if they have to be cast. Results computed in place from it then stay in a smaller cache.
        """
        source = self.memory[rows]
        if self._is_direct:
            return source
        block = landing
        if block is None:
            count = rows.stop - rows.start
            block = self._core.scratch(self._slot, count * self._width).reshape(count, self._width)
        copy_as_float32(block if block.shape == source.shape else block.reshape(source.shape), source)
        return block


class ResultRows:
    """The place for the float32 results of some rows of an instruction.

    It is the tensor itself if that is dense float32, else the scratch buffer ``slot``, from which :meth:`store` casts
    the results into the tensor.
    """

    __slots__ = ("_array", "_core", "_dtype", "_flat", "_slot", "_storage", "_width")

    def __init__(self, core: Core, slot: str, tensor: NkiTensor) -> None:
        self._core = core
        self._slot = slot
        self._array = tensor.array
        self._dtype = tensor.dtype
        self._storage = tensor.storage
        self._width = tensor.free_size
        is_float32 = self._array.dtype == FLOAT32 and tensor.dtype != tfloat32
        self._flat = tensor.flat_rows if is_float32 else None

    def open(self, rows: slice) -> npt.NDArray[np.float32]:
        """Return an array (rows, elements per partition) for the results of some rows."""
        if self._flat is not None:
            return self._flat[rows]
        return self._core.scratch(self._slot, (rows.stop - rows.start) * self._width).reshape(-1, self._width)

    def is_apart_from(self, source: NkiTensor) -> bool:
        """Return whether the memory that :meth:`open` returns is not the memory of ``source``."""
        return self._flat is None or source.storage is not self._storage

    def store(self, rows: slice, values: npt.NDArray[np.float32]) -> None:
        """Cast ``values``, computed in the array that :meth:`open` returned for the same rows, into the tensor."""
        if self._flat is None:
            store_float(self._array[rows], values, self._dtype)


def float32_rows(elements: npt.NDArray[Any], width: int) -> npt.NDArray[np.float32]:
    """Return some rows as a float32 array (rows, ``width``), which the caller does not write to.

    No copy is made if the rows are float32 already.
    """
    rows = elements if elements.ndim == 2 else elements.reshape(len(elements), width)
    if rows.dtype == FLOAT32:
        return rows
    values = np.empty(rows.shape, FLOAT32)
    copy_as_float32(values, rows)
    return values


def column(value: Any, rows: slice) -> Any:
    """Return a scalar operand for some rows: a number as float32, a (P, 1) tensor as a float32 column (a copy)."""
    if isinstance(value, NkiTensor):
        array = value.array if len(value.shape) == 2 else value.array.reshape(value.shape[0], 1)
        return array[rows].astype(FLOAT32)
    return np.float32(value)


def rows_of(operand: Any, rows: slice) -> Any:
    """Return some rows of a scalar operand that :func:`column` returned for all rows."""
    return operand[rows] if isinstance(operand, np.ndarray) else operand
