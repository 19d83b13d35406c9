# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The parts of a storage that tensors occupy: whether two of them share a byte, and whether one contains another.

Most parts are combs: equally long runs of contiguous bytes at equal distances, such as some columns of some rows.
Whether two combs share a byte is decided by arithmetic; other parts are compared range by range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ..memory.byte_spans import first_meeting, spans_of
from ..terms.layout import Layout, extent


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The elements of a storage that a tensor occupies. Equal parts are one object: see :func:`part_of`.

    Attributes:
        layout: the layout of the elements.
        width: the bytes of an element.
        first, last: the first byte and the last one.
        length: the bytes of a run of contiguous elements.
        step: the bytes from the start of one run to the start of the next; 0 if there is one run.
        count: the number of runs; 0 if they are not at equal distances.
        level: the bit length of ``last - first``, by which parts of similar extents are grouped.
        column, column_end: the bytes that every run occupies, counted from the last multiple of ``step``; the whole
            range from 0 to ``step`` (1 if it is 0) if there is one run or a run crosses a multiple.
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
        """The number of its bytes, each counted once."""
        if self.count:
            return self.length * self.count
        sizes = zip(self.layout.shape, self.layout.strides, strict=True)
        return self.width * prod(size for size, stride in sizes if stride)

    def meets(self, other: Part) -> bool:
        """Tell whether the two parts share a byte."""
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

    def covers(self, other: Part) -> bool:
        """Tell whether this part is known to contain all of ``other``. False may also mean that it is not known."""
        if self is other:
            return True
        if other.first < self.first or other.last > self.last or not self.count:
            return False
        if self.count == 1:
            return True
        is_alike = other.count == 1 or (other.count > 1 and other.step == self.step)
        return is_alike and (other.first - self.first) % self.step + other.length <= self.length


class Reach(NamedTuple):
    """The elements that a tensor may have if its address is read at run time.

    The fields are those of :class:`~nkilib.simulator.tensors.indirect.Indirect`.
    """

    kind: str
    stride: int
    limit: int


def part_of(layout: Layout, width: int, reach: Reach | None, elements: int) -> Part | None:
    """Return the part of its storage that a tensor occupies; None if it has no elements.

    If the address of the tensor is read at run time, the part has all elements that it may occupy.

    Args:
        layout: the layout of the tensor.
        width: the bytes of an element.
        reach: the range of the address, if it is read at run time.
        elements: the number of elements of the storage.
    """
    if reach is not None and reach.kind != "tensor":
        layout = _reached(layout, reach, elements)
    return _part(layout, width)


def _reached(layout: Layout, reach: Reach, elements: int) -> Layout:
    """Return a layout with every element that a view may have if its address is read at run time.

    These are the rows that a vector of indices may choose, or all elements of the storage.
    """
    free = Layout(layout.shape[1:], layout.strides[1:], layout.offset)
    if reach.kind == "vector" and reach.stride > 0:
        rows = min(reach.limit, (elements - 1 - extent(free)[1]) // reach.stride + 1)
        return Layout((max(0, rows), *free.shape), (reach.stride, *free.strides), layout.offset)
    return Layout((elements,), (1,), 0)


@lru_cache(maxsize=65536)
def _part(layout: Layout, width: int) -> Part | None:
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
            return Part(layout, width, first, last, 0, 0, 0)
    return Part(layout, width, first, last, length, step, count)


@lru_cache(maxsize=65536)
def _share_a_byte(first: Part, second: Part) -> bool:
    sides = [[spans_of(part.layout, part.width)] for part in (first, second)]
    return first_meeting(*sides) is not None
