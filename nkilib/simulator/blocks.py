"""Row blocks: an instruction works on a few partitions at a time, so that its float32 temporaries stay in cache."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .casts import store_float
from .dtypes import tfloat32
from .tensor import NkiTensor

if TYPE_CHECKING:
    from .core import Core

# 64 Ki float32 values are 256 KiB: a source and a result block fit the 1 MiB second-level cache of a server core.
BLOCK_ELEMENTS = 64 * 1024


def free_size(tensor: NkiTensor) -> int:
    """Elements per partition."""
    return prod(tensor.shape[1:])


def row_blocks(destination: NkiTensor, width: int, *sources: Any) -> Iterator[slice]:
    """Slices of partitions, each of about ``BLOCK_ELEMENTS`` elements if a partition has ``width``.

    One slice of all partitions where a source shares the destination's storage other than as the very same view: all
    of it must be read before anything is stored.
    """
    rows = destination.shape[0]
    step = rows if _overlaps(destination, sources) else max(1, BLOCK_ELEMENTS // max(1, width))
    for start in range(0, rows, max(1, step)):
        yield slice(start, min(rows, start + step))


def _overlaps(destination: NkiTensor, sources: tuple[Any, ...]) -> bool:
    return any(
        isinstance(source, NkiTensor)
        and source.storage is destination.storage
        and (source.layout != destination.layout or source.dtype != destination.dtype)
        for source in sources
    )


def load_float(core: Core, slot: str, tensor: NkiTensor, rows: slice) -> npt.NDArray[np.float32]:
    """Rows of ``tensor`` as a float32 array (rows, elements per partition), which the caller does not write to.

    Read in place where the tensor is dense float32 already, else cast into the scratch buffer ``slot``.
    """
    source = tensor.array[rows]
    count, width = rows.stop - rows.start, free_size(tensor)
    if source.dtype == np.float32 and tensor.is_contiguous():
        return source.reshape(count, width)
    block = core.scratch(slot, count * width)
    np.copyto(block.reshape(source.shape), source, casting="unsafe")
    return block.reshape(count, width)


class ResultRows:
    """Where an instruction puts the float32 results of some rows: the tensor itself if it is dense float32, else a
    scratch buffer, from which :meth:`store` casts them into the tensor."""

    __slots__ = ("_destination", "_dtype", "values")

    def __init__(self, core: Core, slot: str, tensor: NkiTensor, rows: slice) -> None:
        target = tensor.array[rows]
        count, width = rows.stop - rows.start, free_size(tensor)
        self._dtype = tensor.dtype
        if target.dtype == np.float32 and tensor.dtype != tfloat32 and tensor.is_contiguous():
            self.values = target.reshape(count, width)
            self._destination: npt.NDArray[Any] | None = None
        else:
            self.values = core.scratch(slot, count * width).reshape(count, width)
            self._destination = target

    def store(self) -> None:
        """Cast the values into the tensor."""
        if self._destination is not None:
            store_float(self._destination, self.values, self._dtype)


def column(value: Any, rows: slice) -> Any:
    """A scalar operand for some rows: a float32 number as it is, a (P, 1) tensor as a float32 column (a copy)."""
    if isinstance(value, NkiTensor):
        return value.array.reshape(value.shape[0], 1)[rows].astype(np.float32)
    return np.float32(value)
