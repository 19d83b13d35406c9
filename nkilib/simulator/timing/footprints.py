# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The footprints of views: the bytes of a storage that a view occupies, and the properties that costs depend on.

- :class:`Footprint`: these bytes and properties, made by :class:`Views` (returned by :data:`views_of`);
- :class:`Form`, :func:`form_of`: shape, strides, type and region of a view;
- :class:`OccupiedBytes`, :func:`part_of`: the bytes of a storage that a view occupies, called a *part*;
- :class:`Reach`: the range of a view whose address is read at run time.

A *storage* is the memory of one tensor and all its views; a *run* is a stretch of contiguous elements. A kernel makes
the same few views again and again, so equal forms, parts and footprints are one object, from a cache.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..memory.byte_spans import first_meeting, spans_of
from ..terms.dtypes import DType
from ..terms.enums import HBM, ON_CHIP, MemoryRegion
from ..terms.layout import Layout, extent, is_dense
from .dma import Side, side_of

# A kernel that makes more views of a storage than this is very long: the cache is cleared.
_KEPT = 16384


@lru_cache(maxsize=65536)
def _share_a_byte(first: OccupiedBytes, second: OccupiedBytes) -> bool:
    sides = [[spans_of(part.layout, part.width)] for part in (first, second)]
    return first_meeting(*sides) is not None


@dataclass(frozen=True, eq=False, slots=True)
class OccupiedBytes:
    """The bytes of a storage that a view occupies. :func:`part_of` returns one object for equal arguments.

    Attributes:
        layout: the layout of the elements in the storage.
        width: the bytes of an element.
        first: the offset of the first byte in the storage.
        last: the offset of the last byte in the storage.
        length: the bytes of a run.
        step: the bytes from the start of one run to the start of the next; 0 if there is one run.
        count: the number of runs; 0 if they are not at equal distances.
        level: the bit length of ``last - first``, which groups parts of similar size.
        column: the bytes from a multiple of ``step`` to the start of the next run; 0 if a run crosses such a multiple,
            or if ``step`` is 0.
        column_end: ``column + length``; but ``max(1, step)`` if a run crosses a multiple, or if ``step`` is 0.
    """

    layout: Layout
    width: int
    first: int
    last: int
    length: int
    step: int
    count: int
    level: int = field(init=False)
    column: int = field(init=False)
    column_end: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", (self.last - self.first).bit_length())
        column = self.first % self.step if self.step else 0
        is_between = 0 < column + self.length <= self.step
        object.__setattr__(self, "column", column if is_between else 0)
        object.__setattr__(self, "column_end", column + self.length if is_between else max(1, self.step))

    @property
    def nbytes(self) -> int:
        """The number of bytes that the elements occupy, each counted once."""
        if self.count:
            return self.length * self.count
        sizes = zip(self.layout.shape, self.layout.strides, strict=True)
        return self.width * prod(size for size, stride in sizes if stride)

    def meets(self, other: OccupiedBytes) -> bool:
        """Return whether this part and ``other``, a part of the same storage, share a byte."""
        if self.last < other.first or other.last < self.first:
            return False
        if self is other or (self.count == 1 and other.count == 1):
            return True
        if not self.count or not other.count or (self.step != other.step and self.count > 1 and other.count > 1):
            return _share_a_byte(self, other)
        step = self.step if self.count > 1 else other.step
        # Run i of self meets run k of other if (i - k) * step lies strictly between these two.
        above, below = other.first - self.first - self.length, other.first - self.first + other.length
        runs_apart = max(above // step + 1, 1 - other.count)
        return runs_apart < self.count and runs_apart * step < below

    def covers(self, other: OccupiedBytes) -> bool:
        """Return True only if this part certainly contains all of ``other``; False if it may not."""
        if self is other:
            return True
        if other.first < self.first or other.last > self.last or not self.count:
            return False
        if self.count == 1:
            return True
        is_alike = other.count == 1 or (other.count > 1 and other.step == self.step)
        return is_alike and (other.first - self.first) % self.step + other.length <= self.length


class Reach(NamedTuple):
    """The range of a view's address if an index, which is read at run time, determines it.

    Attributes:
        kind: ``"scalar"``: one index for the view; ``"vector"``: one for each row; ``"tensor"``: one for each element.
        stride: the number of elements by which the address moves if the index grows by 1.
        limit: the exclusive upper limit of the index.
    """

    kind: str
    stride: int
    limit: int


def _reached(layout: Layout, reach: Reach, elements: int) -> Layout:
    """Return the layout of all elements that a view may have if its address is read at run time.

    For a vector of indices these are the rows that it may choose, else all elements of the storage.
    """
    free = Layout(layout.shape[1:], layout.strides[1:], layout.offset)
    if reach.kind == "vector" and reach.stride > 0:
        rows = min(reach.limit, (elements - 1 - extent(free)[1]) // reach.stride + 1)
        return Layout((max(0, rows), *free.shape), (reach.stride, *free.strides), layout.offset)
    return Layout((elements,), (1,), 0)


@lru_cache(maxsize=65536)
def _part(layout: Layout, width: int) -> OccupiedBytes | None:
    if 0 in layout.shape:
        return None
    low, high = extent(layout)
    first, last = low * width, high * width + width - 1
    length, step, count = width, 0, 1
    for size, stride in sorted(zip(layout.shape, layout.strides, strict=True), key=lambda item: abs(item[1])):
        distance = abs(stride) * width
        if size == 1 or distance == 0:
            continue
        if count == 1 and distance <= length:
            length += distance * (size - 1)
        elif count == 1:
            step, count = distance, size
        elif distance == step * count:
            count *= size
        else:
            return OccupiedBytes(layout, width, first, last, 0, 0, 0)
    return OccupiedBytes(layout, width, first, last, length, step, count)


def part_of(layout: Layout, width: int, reach: Reach | None, elements: int) -> OccupiedBytes | None:
    """Return the part of its storage that a view occupies; None if the view has no elements.

    If the address of the view is read at run time, the part has all elements that the view may have.

    Args:
        layout: the layout of the view.
        width: the bytes of an element.
        reach: the range of the address if it is read at run time, else None.
        elements: the number of elements of the storage.
    """
    if reach is not None and reach.kind != "tensor":
        layout = _reached(layout, reach, elements)
    return _part(layout, width)


class Form:
    """Shape, strides, type and region of a view: the properties that the cost of an instruction can depend on.

    :func:`form_of` returns one object for equal arguments.

    Attributes:
        free_size: the number of elements of a partition, or in HBM of one index of dimension 0.
        nbytes: the bytes of its elements, on the device.
    """

    __slots__ = ("buffer", "dtype", "free_size", "is_in_hbm", "nbytes", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, buffer: MemoryRegion) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.buffer = buffer
        self.free_size = prod(shape[1:])
        self.nbytes = prod(shape) * dtype.itemsize
        self.is_in_hbm = buffer in HBM

    @property
    def is_on_chip(self) -> bool:
        return self.buffer in ON_CHIP

    def is_contiguous(self) -> bool:
        """Return whether the elements are contiguous, on chip within each partition; see :meth:`View.is_contiguous`."""
        first = 1 if self.is_on_chip else 0
        return is_dense(self.shape[first:], self.strides[first:])

    def has_runs(self) -> bool:
        """Return whether the elements are contiguous along the innermost free dimension whose size is not 1."""
        free = zip(reversed(self.shape[1:]), reversed(self.strides[1:]), strict=True)
        return next((stride == 1 for size, stride in free if size > 1), True)


@lru_cache(maxsize=65536)
def form_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, buffer: MemoryRegion) -> Form:
    """Return the :class:`Form` with these properties, one object for equal arguments."""
    return Form(shape, strides, dtype, buffer)


class Footprint:
    """The form of a view and the bytes of its storage that it occupies.

    Attributes:
        form: the shape, strides, type and region of the view.
        part: the bytes that the view occupies; None if it has no elements.
    """

    __slots__ = ("_offset", "_pitch", "_side", "form", "part")

    def __init__(self, form: Form, part: OccupiedBytes | None, offset: int, pitch: int) -> None:
        self.form = form
        self.part = part
        self._offset = offset
        self._pitch = pitch
        self._side: Side | None = None

    @property
    def side(self) -> Side:
        """The properties of the view on which the time of a DMA transfer from or to it depends."""
        if self._side is None:
            form, first, step = self.form, 0, 0
            if form.is_on_chip:
                first, step = self._offset // self._pitch, form.strides[0] // self._pitch
            self._side = side_of(form.shape, form.strides, form.dtype.itemsize, form.buffer, first, step)
        return self._side


class Views:
    """The footprints of the views of storages that have the same shape, type and region.

    Args:
        shape: the shape of the storages.
        dtype: the type of the storages.
        held_as: the numpy type of the elements in the simulator's memory.
        region: the memory region of the storages.
    """

    __slots__ = ("_dtype", "_held_as", "_known", "_shape", "region")

    def __init__(self, shape: tuple[int, ...], dtype: DType, held_as: np.dtype[Any], region: MemoryRegion) -> None:
        self._shape = shape
        self._dtype = dtype
        self._held_as = held_as
        self.region = region
        self._known: dict[Hashable, Footprint] = {}

    @property
    def partitions(self) -> int:
        return self._shape[0]

    @property
    def bytes_each(self) -> int:
        """The bytes that one of the storages takes in each partition."""
        return prod(self._shape[1:]) * self._dtype.itemsize

    @property
    def elements_each(self) -> int:
        """The number of elements that one of the storages has in each partition."""
        return prod(self._shape[1:])

    def moved_to(self, region: MemoryRegion) -> Views:
        """Return the :class:`Views` for storages of the same shape and type in the memory region ``region``."""
        return views_of(self._shape, self._dtype, self._held_as, region)

    def footprint(self, layout: Layout, dtype: DType, reach: Reach | None) -> Footprint:
        """Return the footprint of a view of one of the storages.

        Args:
            layout: the layout of the view.
            dtype: the type of the view.
            reach: the range of the address if it is read at run time, else None.
        """
        key: Hashable = layout if reach is None and dtype is self._dtype else (layout, dtype, reach)
        footprint = self._known.get(key)
        if footprint is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            footprint = self._known[key] = self._made(layout, dtype, reach)
        return footprint

    def _made(self, layout: Layout, dtype: DType, reach: Reach | None) -> Footprint:
        width = (self._held_as if dtype == self._dtype else dtype.numpy).itemsize
        form = form_of(layout.shape, layout.strides, dtype, self.region)
        part = part_of(layout, width, reach, prod(self._shape) * self._held_as.itemsize // width)
        pitch = max(1, prod(self._shape[1:]) * self._held_as.itemsize // width)
        return Footprint(form, part, layout.offset, pitch)


views_of = lru_cache(maxsize=256)(Views)
