# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The plan of a softmax launch over columns of tensors [O, C, I], from shapes and types only.

A *column* is the C elements along the axis at one outer and one inner index. Columns are divided in two ways:

- elements: a *segment* is a range of elements of every column, as long as one instruction can process; a *part* is
  consecutive segments that are loaded together;
- columns: a *window* is the set of columns that are loaded together; a *strip* is up to 128 columns of a window, one
  per partition. An *item* is one segment of the columns of one strip.

The loop makes two passes over a window: for the statistics, and for the results.

Rounding depends on the length of segments, and on whether columns count as short. Both follow from the size of the
axis, the types and ``chunk_size`` only, so a result is bitwise identical whatever the layout and the number of columns
and cores. The rest of the plan depends on all sizes.

:func:`plan_columns` makes the :class:`ColumnPlan` of the :class:`ColumnTensors` of a launch. :func:`is_short` tells
which columns :mod:`.short_plan` divides instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.nki import nl

# The maximum number of columns of a strip, which lie on partitions.
STRIP_COLUMNS = 128
# Elements of a segment, as many as a bank of PSUM holds.
_SEGMENT_16_BIT, _SEGMENT_FLOAT32 = 1024, 512
# The maximum number of elements of a column that a partition holds as a whole.
_SHORT_16_BIT, _SHORT_FLOAT32 = 64, 64
# Bytes per partition: for values that wait between the passes; for small tiles and tiles of single items.
KEPT_BYTES = 56 * 1024
_SMALL_BYTES = 40 * 1024
# Bytes of a run in HBM from which on a transfer reaches the full rate.
_FULL_RUN = 1334
# Bytes of a run up to which a store takes twice as long.
_SMALL_STORE = 512
# Segments per part, for columns that come part by part; parts on chip, for columns that are read twice.
_SEGMENTS_OF_PART = (1, 2, 4, 8)
_PARTS_ON_CHIP = 6
# For columns that are loaded once, part by part: tiles beyond those of one window, for loads and stores in flight; and
# all tiles of an input that only the second pass reads.
_SPARE_PARTS, _LATE_PARTS = 6, 5
# The minimum number of items of a part: the steps of fewer items end before a result is stored.
_LEAST_ITEMS = 3
# Steps between the passes over a group, and until its last result is stored.
_STEPS_BETWEEN = 7
# A transpose by DMA pays off if so many of the last 128 columns are used, or with so many times 128 columns.
_LEAST_FILLED, _WIDE = 96, 4
# Bytes per partition for the statistics of a segment: three numbers, for three windows.
_STATISTICS_BYTES = 36
# Tiles of results that are not written over an input: one is computed, one is stored.
OWN_TILES = 2
# Widths of windows, the largest first, in columns.
_WIDTHS = (4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 128)
# The factor by which transfers take longer if they wait for few tiles, by the number of tiles.
_WAITING = {4: 1.0, 3: 1.05, 2: 1.2}
# The share of the transfers of a window that overlaps with nothing.
_OVERLAPS_NOTHING = 0.7
# Bytes that a core moves while Scalar loads the tables for a log and for the functions after it.
_TABLES_BYTES = 0.94e6


class Block(NamedTuple):
    """Lines [first, end) of a segment (:class:`Segment`) that have an element in each of the first ``partitions``
    partitions, and in no other.
    """

    partitions: int
    first: int
    end: int


@dataclass(frozen=True)
class Segment:
    """Elements [start, end) of every column; ``number`` is the index of the segment.

    In a natural tile (:mod:`.layouts`), the elements of a segment are divided over partitions: partition p holds
    elements [p * lines, (p + 1) * lines) of the segment, the last partition possibly fewer. *Line* i consists of the
    element with index i in each partition.
    """

    number: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of elements of the segment in each column."""
        return self.end - self.start

    @property
    def lines(self) -> int:
        """The number of elements in a full partition of a natural tile."""
        return div_ceil(self.size, nl.tile_size.pmax)

    @property
    def full(self) -> int:
        """The number of full partitions, with ``lines`` elements each."""
        return self.size // self.lines

    @property
    def rest(self) -> int:
        """The number of elements in the last partition if it is not full, else 0."""
        return self.size % self.lines

    def partitions(self, line: int) -> int:
        """Return the number of partitions that have an element of line number ``line``."""
        return self.full + (1 if line < self.rest else 0)

    def blocks(self) -> list[Block]:
        """Return the lines as one or two blocks; all lines of a block have elements in equally many partitions."""
        blocks = [Block(self.full + 1, 0, self.rest), Block(self.full, self.rest, self.lines)]
        return [block for block in blocks if block.partitions > 0 and block.first < block.end]


def segments_of(count: int, longest: int) -> list[Segment]:
    """Divide columns of ``count`` elements into segments of ``longest`` elements; the last one may be shorter."""
    starts = range(0, count, longest)
    return [Segment(number, start, min(start + longest, count)) for number, start in enumerate(starts)]


@dataclass(frozen=True)
class Strip:
    """Up to 128 columns of a window that are processed together, one per partition.

    The columns have ``outer`` outer indices from ``first_outer`` on, and ``inner`` inner indices from ``first_inner``
    on; indices count from the start of the window. ``number`` is the index of the strip in the window.
    """

    number: int
    first_outer: int
    outer: int
    first_inner: int
    inner: int

    @property
    def columns(self) -> int:
        """The number of columns of the strip."""
        return self.outer * self.inner


@dataclass(frozen=True)
class Window:
    """The columns of a tensor [O, C, I] that are loaded together.

    The columns have ``outer`` outer indices from ``first_outer`` on, and ``inner`` inner indices from ``first_inner``
    on. ``number`` is the index of the window among the windows of the core. With ``is_strided`` a strip has the columns
    of one inner index, with one outer index per partition.
    """

    number: int
    first_outer: int
    outer: int
    first_inner: int
    inner: int
    is_strided: bool = False

    def strips(self) -> list[Strip]:
        """Return the strips of the window, in the order of processing."""
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
        """Return elements [start, end) of the columns at outer index ``outer`` of the window: a view [end - start,
        inner].
        """
        last = self.first_inner + self.inner
        return tensor_hbm[self.first_outer + outer, start:end, self.first_inner : last]


def windows_of_core(
    outer: int, inner: int, most_outer: int, most_inner: int, cores: int, core: int, is_strided: bool
) -> list[Window]:
    """Return the windows of one core, which are consecutive; the cores' numbers of windows differ by at most 1.

    Args:
        outer, inner: O and I of the tensor.
        most_outer, most_inner: the maximum numbers of outer and inner indices of a window.
        cores: the number of cores.
        core: the number of this core.
        is_strided: whether the layout is strided.
    """
    places = [
        (first_outer, min(most_outer, outer - first_outer), first_inner, min(most_inner, inner - first_inner))
        for first_outer in range(0, outer, most_outer)
        for first_inner in range(0, inner, most_inner)
    ]
    own = places[len(places) * core // cores : len(places) * (core + 1) // cores]
    return [Window(number, *place, is_strided) for number, place in enumerate(own)]


@dataclass(frozen=True)
class Part:
    """Consecutive segments of a window's columns, which are loaded together; ``number`` is the index of the part."""

    number: int
    segments: tuple[Segment, ...]

    def slot(self, segment: Segment) -> int:
        """Return the index of a segment within the part."""
        return segment.number - self.segments[0].number


def parts_of(segments: list[Segment], most: int) -> list[Part]:
    """Divide the segments of a column into parts of at most ``most`` segments."""
    starts = range(0, len(segments), most)
    return [Part(number, tuple(segments[start : start + most])) for number, start in enumerate(starts)]


@dataclass(frozen=True)
class Item:
    """The elements of one segment in the columns of one strip, which an instruction processes together.

    Attributes:
        window: the window that contains the strip.
        part: the part that contains the segment.
        strip, segment: the strip and the segment.
        ends_part: whether the item is the last item of its part in a pass over the window.
    """

    window: Window
    part: Part
    strip: Strip
    segment: Segment
    ends_part: bool


class Sizes(NamedTuple):
    """The sizes O, C and I of a tensor."""

    outer: int
    length: int
    inner: int


class Layout(Enum):
    """The way in which columns are loaded and laid out over partitions."""

    TENSOR_TRANSPOSED = "transposed by Tensor"
    DMA_TRANSPOSED = "transposed by DMA"
    STRIDED = "one outer index per partition"


def _buffers_of(buffers: int, parts: int, passes: tuple[int, ...]) -> int:
    return min(buffers, _LATE_PARTS) if parts > 1 and 1 not in passes else buffers


@dataclass(frozen=True)
class ColumnPlan:
    """The plan of one core: its windows, and the division of columns into parts and segments.

    Attributes:
        layout: the layout of the columns on chip.
        longest: the maximum number of elements of a segment.
        segments, parts: the segments and the parts of every column.
        windows: the windows of the core.
        buffers: the number of tiles of an input, each for a part of a window (but see :meth:`buffers_of`).
        is_read_twice: whether columns are too long to stay on chip, so that each pass loads them.
    """

    layout: Layout
    longest: int
    segments: list[Segment]
    parts: list[Part]
    windows: list[Window]
    buffers: int
    is_read_twice: bool

    @property
    def has_parts(self) -> bool:
        """Whether a column is loaded in several parts."""
        return len(self.parts) > 1

    def buffers_of(self, passes: tuple[int, ...]) -> int:
        """Return the number of tiles of an input that the passes numbered ``passes`` (1, 2) read.

        It may be less than :attr:`buffers` if only the second pass reads the input, and columns have several parts.
        """
        return _buffers_of(self.buffers, len(self.parts), passes)


@dataclass(frozen=True)
class ColumnTensors:
    """The tensors of a launch, and how the passes of its loop use them.

    Attributes:
        shape: the sizes O, C and I.
        read: the types of the inputs.
        written: the type of the result.
        passes: for each input, the numbers, 1 and 2, of the passes that read it.
        can_transpose: whether the DMA engines may transpose the inputs.
        keeps_windows: whether the second pass over a window starts only after the first pass over all its columns.
        keeping: the layouts in which values of the first pass are kept on chip for the second pass.
        slowness_of_parts: the factor, at least 1, by which a launch takes longer if columns are loaded in several
            parts, because exponentials are then computed twice.
    """

    shape: Sizes
    read: tuple[nl.DType, ...]
    written: nl.DType
    passes: tuple[tuple[int, ...], ...]
    can_transpose: bool
    keeps_windows: bool
    keeping: tuple[Layout, ...]
    slowness_of_parts: float = 1.0

    @property
    def buffers(self) -> tuple[int, ...]:
        """The numbers of tiles of an input that :func:`plan_columns` tries, in order, if a tile holds whole columns."""
        return (10, 6, 4, 3) if self.keeps_windows else (3, 4, 6, 10, 2)

    @property
    def overwrites(self) -> bool:
        """Whether the result has the type of the first input, so that the result can overwrite this input's tiles."""
        return self.read[0] == self.written

    def element_bytes(self, layout: Layout, buffers: int, parts: int) -> int:
        """Return the bytes per partition that the tiles of all tensors take for each element of a part.

        Args:
            layout: the layout of the columns.
            buffers: the number of tiles of an input.
            parts: the number of parts of a column.
        """
        needs_own = layout is Layout.DMA_TRANSPOSED or not self.overwrites
        own = OWN_TILES * dtype_bytes(self.written) if needs_own else 0
        return own + sum(
            _buffers_of(buffers, parts, passes) * dtype_bytes(dtype)
            for dtype, passes in zip(self.read, self.passes, strict=True)
        )

    @property
    def moved_bytes(self) -> int:
        """The bytes that are read from and written to HBM for one element, of all tensors together."""
        return sum(dtype_bytes(dtype) for dtype in (*self.read, self.written))


def is_short(count: int, dtypes: tuple[nl.DType, ...], chunk_size: int | None) -> bool:
    """Return whether columns of ``count`` elements are short, so that :mod:`.short` processes them untransposed.

    The result depends only on the size of the axis, the types and ``chunk_size``, because the choice of the loop
    affects the rounding of results. For large tensors, the modelled times of both loops are equal at the limit.

    Args:
        count: C, the number of elements of a column.
        dtypes: the types of all tensors.
        chunk_size: the kernel's argument; None for no request.
    """
    longest = _SHORT_FLOAT32 if nl.float32 in dtypes else _SHORT_16_BIT
    return 2 <= count <= longest and (chunk_size is None or chunk_size >= count)


def longest_segment(tensors: ColumnTensors, chunk_size: int | None) -> int:
    """Return the maximum number of elements of a segment.

    The maximum depends on types and ``chunk_size`` only, because the length of segments affects the rounding of
    results.
    """
    is_wide = nl.float32 in (*tensors.read, tensors.written)
    longest = _SEGMENT_FLOAT32 if is_wide else _SEGMENT_16_BIT
    return longest if chunk_size is None else min(longest, chunk_size)


@dataclass(frozen=True)
class _Choice:
    """A candidate for the plan.

    Attributes:
        layout: the layout of the columns on chip.
        outer, inner: the maximum numbers of outer and of inner indices of a window.
        buffers: the number of tiles of an input.
        segments_of_part: the maximum number of segments of a part.
        is_read_twice: whether each pass loads the columns.
    """

    layout: Layout
    outer: int
    inner: int
    buffers: int
    segments_of_part: int
    is_read_twice: bool = False


def _window_shape(outer: int, inner: int, width: int) -> tuple[int, int]:
    """Return the numbers of outer and of inner indices of a window of about ``width`` columns, in whole strips."""
    if inner < STRIP_COLUMNS:
        group = STRIP_COLUMNS // inner
        return min(outer, max(1, width // STRIP_COLUMNS) * group), inner
    windows = div_ceil(inner, width)
    if windows == 1:
        return min(outer, width // inner), inner
    return 1, min(inner, div_ceil(div_ceil(inner, windows), STRIP_COLUMNS) * STRIP_COLUMNS)


def _transposed_layout(tensors: ColumnTensors) -> Layout:
    inner = tensors.shape[2]
    is_16_bit = all(dtype != nl.float32 for dtype in tensors.read)
    # The DMA engines transpose full blocks of 128 columns.
    is_even = inner >= STRIP_COLUMNS and (
        inner % STRIP_COLUMNS == 0 or inner % STRIP_COLUMNS >= _LEAST_FILLED or inner >= _WIDE * STRIP_COLUMNS
    )
    return Layout.DMA_TRANSPOSED if tensors.can_transpose and is_16_bit and is_even else Layout.TENSOR_TRANSPOSED


def _choices(tensors: ColumnTensors, segments: int) -> list[_Choice]:
    """Return all candidates: whole columns in a tile, columns in several parts, and columns that are read twice."""
    outer, _, inner = tensors.shape
    lanes = min(outer, nl.tile_size.pmax)
    choices = [_Choice(Layout.STRIDED, lanes, inner, buffers, segments) for buffers in tensors.buffers]
    for width in _WIDTHS:
        places = _window_shape(outer, inner, width)
        layout = _transposed_layout(tensors)
        choices += [_Choice(layout, *places, buffers, segments) for buffers in tensors.buffers]
        for of_part in _SEGMENTS_OF_PART:
            if segments > of_part:
                parts = div_ceil(segments, of_part)
                choices.append(_Choice(layout, *places, parts + _SPARE_PARTS, of_part))
                choices.append(_Choice(layout, *places, _PARTS_ON_CHIP, of_part, is_read_twice=True))
    return choices


def _fits(tensors: ColumnTensors, segments: list[Segment], choice: _Choice) -> bool:
    fitting = usable_sbuf_bytes() - _SMALL_BYTES
    columns = choice.outer * choice.inner
    if choice.layout is Layout.STRIDED:
        part = tensors.shape[1] * choice.inner
        strips, has_parts = choice.inner, False
    else:
        lines = sum(segment.lines for segment in segments[: choice.segments_of_part])
        part = lines * columns
        strips, has_parts = div_ceil(columns, STRIP_COLUMNS), choice.segments_of_part < len(segments)
        if has_parts and strips * choice.segments_of_part < _LEAST_ITEMS:
            return False
    items = strips * len(segments)
    waiting = (items if tensors.keeps_windows else len(segments)) + _STEPS_BETWEEN
    if not has_parts and choice.buffers < 1 + div_ceil(waiting, items):
        return False
    statistics = _STATISTICS_BYTES * strips * len(segments)
    kept = KEPT_BYTES if choice.layout in tensors.keeping and not has_parts else 0
    parts = div_ceil(len(segments), choice.segments_of_part)
    return part * tensors.element_bytes(choice.layout, choice.buffers, parts) + statistics + kept <= fitting


def _cost(tensors: ColumnTensors, segments: list[Segment], choice: _Choice) -> float:
    """Return the modelled cost of a candidate: a core's time, as the bytes that it could move in this time.

    The cost includes slow transfers (short runs, few partitions), waiting, and transfers that overlap with nothing.
    """
    outer, count, inner = tensors.shape
    width = dtype_bytes(tensors.written)
    run = choice.inner * width
    if choice.layout is Layout.STRIDED:
        run = count * inner * width
    elif choice.inner == inner:
        run *= segments[0].lines
    again = sum(dtype_bytes(dtype) for dtype, passes in zip(tensors.read, tensors.passes, strict=True) if 1 in passes)
    moved = tensors.moved_bytes + (again if choice.is_read_twice else 0)
    of_window = count * choice.outer * choice.inner * moved
    partitions = choice.outer if choice.layout is Layout.STRIDED else min(count, STRIP_COLUMNS)
    slowness = max(1.0, _FULL_RUN / run) * max(1.0, STRIP_COLUMNS / partitions)
    if run <= _SMALL_STORE:
        slowness *= 2.0
    if choice.layout is Layout.DMA_TRANSPOSED:  # only the results move in runs
        slowness = 1.0 + (slowness - 1.0) * width / moved
    if choice.segments_of_part < len(segments):
        slowness = max(slowness, tensors.slowness_of_parts)
    windows = div_ceil(div_ceil(outer, choice.outer) * div_ceil(inner, choice.inner), 2)
    tables = 0.0
    if tensors.keeps_windows and nl.float32 not in tensors.read:  # bound by Scalar
        tables = windows * _TABLES_BYTES
    # Where a window's passes overlap, a fourth tile takes loads from the time of stores.
    waiting = 1.0 if choice.buffers == 3 and not tensors.keeps_windows else _WAITING.get(choice.buffers, 1.0)
    return slowness * of_window * (windows * waiting + _OVERLAPS_NOTHING) + tables


def plan_columns(tensors: ColumnTensors, chunk_size: int | None, cores: int, core: int) -> ColumnPlan:
    """Return the plan for one core, with the shortest modelled time of transfers among all candidates that fit in SBUF.

    Args:
        tensors: the tensors of the launch.
        chunk_size: the kernel's argument, the maximum number of elements of a segment; None for no request.
        cores: the number of cores.
        core: the number of this core.
    """
    outer, count, inner = tensors.shape
    longest = longest_segment(tensors, chunk_size)
    segments = segments_of(count, longest)
    fitting = [choice for choice in _choices(tensors, len(segments)) if _fits(tensors, segments, choice)]
    require(
        bool(fitting),
        f"softmax over columns: a window of [O, C, I] = {tuple(tensors.shape)} must fit in SBUF, and none does; "
        f"split the axis before the launch, or make it the last one",
    )
    choice = min(fitting, key=lambda choice: _cost(tensors, segments, choice))
    is_strided = choice.layout is Layout.STRIDED
    windows = windows_of_core(outer, inner, choice.outer, choice.inner, cores, core, is_strided)
    parts = parts_of(segments, choice.segments_of_part)
    return ColumnPlan(choice.layout, longest, segments, parts, windows, choice.buffers, choice.is_read_twice)
