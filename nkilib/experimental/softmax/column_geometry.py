# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of columns: along the axis into segments, across it into windows and strips.

A column consists of the elements along the axis at one index of the other axes. Its sum is the sum of the sums of its
segments, in their order. The division into segments depends on the size of the axis and on the types only. Therefore
the result of a column is bitwise identical whatever the columns beside it, the cores, and the layout in which a loop
processes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.tiling import div_ceil
from nkilib.nki import nl

# The maximum number of columns of a strip, which lie on partitions.
STRIP_COLUMNS = 128


class Block(NamedTuple):
    """Some lines (see :class:`Segment`) of a segment: ``first`` to ``end``, exclusive, in the first ``partitions``
    partitions.
    """

    partitions: int
    first: int
    end: int


@dataclass(frozen=True)
class Segment:
    """The elements ``start`` to ``end``, exclusive, of every column; ``number`` is the index of the segment.

    If the axis lies on partitions, each partition holds ``lines`` consecutive elements, in their order in HBM:
    partition p holds elements p * lines to (p + 1) * lines, the last partition fewer. Line i consists of element i of
    every partition.
    """

    number: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.end - self.start

    @property
    def lines(self) -> int:
        """The number of elements per partition."""
        return div_ceil(self.size, nl.tile_size.pmax)

    @property
    def full(self) -> int:
        """The number of partitions that hold ``lines`` elements."""
        return self.size // self.lines

    @property
    def rest(self) -> int:
        """The number of elements in the partition after the full ones; 0 if there is no such partition."""
        return self.size % self.lines

    def partitions(self, line: int) -> int:
        """Return the number of partitions that have an element of a line."""
        return self.full + (1 if line < self.rest else 0)

    def blocks(self) -> list[Block]:
        """Divide the lines into one or two blocks, in each of which every partition has an element of every line."""
        blocks = [Block(self.full + 1, 0, self.rest), Block(self.full, self.rest, self.lines)]
        return [block for block in blocks if block.partitions > 0 and block.first < block.end]


def segments_of(count: int, longest: int) -> list[Segment]:
    """Divide columns of ``count`` elements into segments."""
    starts = range(0, count, longest)
    return [Segment(number, start, min(start + longest, count)) for number, start in enumerate(starts)]


@dataclass(frozen=True)
class Strip:
    """Columns of a window that are processed at a time, at most 128, one per partition: those at ``outer`` outer times
    ``inner`` inner indices, with indices counted within the window.
    """

    number: int
    first_outer: int
    outer: int
    first_inner: int
    inner: int

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.outer * self.inner


@dataclass(frozen=True)
class Window:
    """Columns of a tensor [O, C, I] that are loaded together: those at ``outer`` outer indices from ``first_outer`` on
    and ``inner`` inner indices from ``first_inner`` on.

    With ``is_strided`` the outer indices lie on partitions, and a strip consists of the columns at one inner index.
    """

    number: int
    first_outer: int
    outer: int
    first_inner: int
    inner: int
    is_strided: bool = False

    def strips(self) -> list[Strip]:
        """Divide the window into strips of at most 128 columns."""
        if self.is_strided:
            return [Strip(inner, 0, self.outer, inner, 1) for inner in range(self.inner)]
        group = max(1, STRIP_COLUMNS // self.inner)
        places = [
            (
                first_outer,
                min(group, self.outer - first_outer),
                first_inner,
                min(STRIP_COLUMNS, self.inner - first_inner),
            )
            for first_outer in range(0, self.outer, group)
            for first_inner in range(0, self.inner, STRIP_COLUMNS)
        ]
        return [Strip(number, *place) for number, place in enumerate(places)]

    def of(self, tensor_hbm: nl.NkiTensor, outer: int, start: int, end: int) -> nl.NkiTensor:
        """Return elements ``start`` to ``end`` of the columns at one outer index, as a view [end - start, inner]."""
        last = self.first_inner + self.inner
        return tensor_hbm[self.first_outer + outer, start:end, self.first_inner : last]


def windows_of_core(
    outer: int, inner: int, most_outer: int, most_inner: int, cores: int, core: int, is_strided: bool
) -> list[Window]:
    """Return the windows of a core, which are consecutive; the shares of the cores differ by at most one window."""
    places = [
        (first_outer, min(most_outer, outer - first_outer), first_inner, min(most_inner, inner - first_inner))
        for first_outer in range(0, outer, most_outer)
        for first_inner in range(0, inner, most_inner)
    ]
    own = places[len(places) * core // cores : len(places) * (core + 1) // cores]
    return [Window(number, *place, is_strided) for number, place in enumerate(own)]


@dataclass(frozen=True)
class Part:
    """Consecutive segments of the columns of a window, which are loaded together."""

    number: int
    segments: tuple[Segment, ...]

    def slot(self, segment: Segment) -> int:
        """Return the index of a segment among the segments of the part."""
        return segment.number - self.segments[0].number


def parts_of(segments: list[Segment], most: int) -> list[Part]:
    """Divide the segments of a column into parts of at most ``most`` segments."""
    starts = range(0, len(segments), most)
    return [Part(number, tuple(segments[start : start + most])) for number, start in enumerate(starts)]


@dataclass(frozen=True)
class Item:
    """The elements of one segment in the columns of one strip, which one instruction processes.

    Attributes:
        window, part, strip, segment: the window, part, strip and segment of the item.
        ends_part: whether the item is the last one of its window, in each pass, that needs the part.
    """

    window: Window
    part: Part
    strip: Strip
    segment: Segment
    ends_part: bool
