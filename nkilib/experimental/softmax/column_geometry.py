# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How columns are divided: along the axis into segments, across it into windows and turns.

A column is what lies along the axis at one place of the other axes. Its sums are those of its segments, added up in
their order; which elements a segment has depends on the size of the axis and on the types alone. Therefore neither the
columns beside it, nor the cores, nor the layout in which a loop takes it change a bit of its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.tiling import div_ceil
from nkilib.nki import nl

# Columns that lie on partitions at a time.
TURN = 128


class Block(NamedTuple):
    """Partitions from the first one on, and their lines from ``first`` to ``end``."""

    partitions: int
    first: int
    end: int


@dataclass(frozen=True)
class Segment:
    """Elements ``start`` to ``end`` of every column, ``number`` of them in turn.

    With the axis on partitions each partition has ``lines`` neighbours of them, as they follow each other in HBM:
    partition p has elements p * lines to (p + 1) * lines, the last partition fewer.
    """

    number: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Elements."""
        return self.end - self.start

    @property
    def lines(self) -> int:
        """Elements of a partition."""
        return div_ceil(self.size, nl.tile_size.pmax)

    @property
    def full(self) -> int:
        """Partitions that have all lines."""
        return self.size // self.lines

    @property
    def rest(self) -> int:
        """Lines of the partition after those."""
        return self.size % self.lines

    def partitions(self, line: int) -> int:
        """Partitions that have a line."""
        return self.full + (1 if line < self.rest else 0)

    def blocks(self) -> list[Block]:
        """Those in which every partition has every line."""
        found = [Block(self.full + 1, 0, self.rest), Block(self.full, self.rest, self.lines)]
        return [block for block in found if block.partitions > 0 and block.first < block.end]


def segments_of(count: int, longest: int) -> list[Segment]:
    """The segments of columns of ``count`` elements."""
    starts = range(0, count, longest)
    return [Segment(number, start, min(start + longest, count)) for number, start in enumerate(starts)]


@dataclass(frozen=True)
class Turn:
    """Columns that are worked on at a time, counted within their window: ``outer`` times ``inner`` of them."""

    number: int
    first_outer: int
    outer: int
    first_inner: int
    inner: int

    @property
    def columns(self) -> int:
        """How many."""
        return self.outer * self.inner


@dataclass(frozen=True)
class Window:
    """Columns of a tensor [O, C, I] that are loaded together: ``outer`` from ``first_outer``, ``inner`` likewise.

    With ``is_strided`` the outer places lie on partitions, and a turn is one of the inner places.
    """

    number: int
    first_outer: int
    outer: int
    first_inner: int
    inner: int
    is_strided: bool = False

    def turns(self) -> list[Turn]:
        """The window in turns of at most 128 columns."""
        if self.is_strided:
            return [Turn(inner, 0, self.outer, inner, 1) for inner in range(self.inner)]
        group = max(1, TURN // self.inner)
        places = [
            (first_outer, min(group, self.outer - first_outer), first_inner, min(TURN, self.inner - first_inner))
            for first_outer in range(0, self.outer, group)
            for first_inner in range(0, self.inner, TURN)
        ]
        return [Turn(number, *place) for number, place in enumerate(places)]

    def of(self, tensor_hbm: nl.NkiTensor, outer: int, start: int, end: int) -> nl.NkiTensor:
        """Elements ``start`` to ``end`` of the columns at one outer place: a view [end - start, inner]."""
        last = self.first_inner + self.inner
        return tensor_hbm[self.first_outer + outer, start:end, self.first_inner : last]


def windows_of_core(
    outer: int, inner: int, most_outer: int, most_inner: int, cores: int, core: int, is_strided: bool
) -> list[Window]:
    """The windows of a core: neighbours, and as many as the other core has, or one more."""
    places = [
        (first_outer, min(most_outer, outer - first_outer), first_inner, min(most_inner, inner - first_inner))
        for first_outer in range(0, outer, most_outer)
        for first_inner in range(0, inner, most_inner)
    ]
    own = places[len(places) * core // cores : len(places) * (core + 1) // cores]
    return [Window(number, *place, is_strided) for number, place in enumerate(own)]


@dataclass(frozen=True)
class Part:
    """Segments that are loaded together."""

    number: int
    segments: tuple[Segment, ...]

    def slot(self, segment: Segment) -> int:
        """The place of a segment in the tile of the part."""
        return segment.number - self.segments[0].number


def parts_of(segments: list[Segment], most: int) -> list[Part]:
    """At most ``most`` segments a part."""
    starts = range(0, len(segments), most)
    return [Part(number, tuple(segments[start : start + most])) for number, start in enumerate(starts)]


@dataclass(frozen=True)
class Item:
    """A segment of the columns of a turn: what one instruction takes.

    Attributes:
        window, part, turn, segment: which.
        ends_part: no other item of its window and pass needs the part.
    """

    window: Window
    part: Part
    turn: Turn
    segment: Segment
    ends_part: bool
