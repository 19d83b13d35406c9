"""How a launch over columns is cut up: arithmetic only, from shapes and types.

What decides the bits of a column, the length of a segment and which loop takes it, depends on the size of the axis and
the types alone; the rest on all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.softmax.column_geometry import TURN, Part, Segment, Window, parts_of, segments_of, windows_of_core
from nkilib.nki import nl

# Elements of a segment: a bank of PSUM has so many.
_SEGMENT_16_BIT, _SEGMENT_FLOAT32 = 1024, 512
# Bytes of a partition: what waits between the passes; the small tiles and those of single items.
KEPT_BYTES = 40 * 1024
_SMALL_BYTES = 40 * 1024
# Bytes of a run in HBM from which on a transfer has the full rate.
_FULL_RUN = 1334
# Segments of a part of columns that do not fit on chip.
_SEGMENTS_OF_PART = 4
# Widths of windows, the largest first, in columns.
_WIDTHS = (4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 128)

# How much longer transfers take that wait for few tiles.
_WAITING = {4: 1.0, 3: 1.05, 2: 1.2}

# Of the transfers of a window, how much overlaps with nothing.
_OVERLAPS_NOTHING = 0.7
# Bytes that a core moves while Scalar loads the tables for a log and for what follows.
_TABLES_BYTES = 0.94e6


class Layout(Enum):
    """In which way items come on chip."""

    TURNED = "turned by Tensor"
    TRANSPOSED = "transposed by DMA"
    STRIDED = "an outer place a partition"


@dataclass(frozen=True)
class ColumnPlan:
    """How a launch is cut up.

    Attributes:
        layout: of the items.
        longest: elements of a segment.
        segments, parts: of every column.
        windows: of the core.
        buffers: tiles of each input.
    """

    layout: Layout
    longest: int
    segments: list[Segment]
    parts: list[Part]
    windows: list[Window]
    buffers: int

    @property
    def is_read_twice(self) -> bool:
        """Whether columns are too long to stay on chip."""
        return len(self.parts) > 1


@dataclass(frozen=True)
class ColumnTensors:
    """What a launch moves.

    Attributes:
        shape: O, C and I.
        read, written: types of what is read, and of the result.
        can_transpose: whether the DMA engines may turn what is read.
        keeps_windows: whether the second pass over a window starts after the first one has ended.
    """

    shape: tuple[int, int, int]
    read: tuple[nl.DType, ...]
    written: nl.DType
    can_transpose: bool
    keeps_windows: bool

    @property
    def buffers(self) -> tuple[int, ...]:
        """How many tiles of a window there may be."""
        return (4, 3) if self.keeps_windows else (4, 3, 2)

    @property
    def overwrites(self) -> bool:
        """Whether the result has the type of the first input, whose tiles it takes."""
        return self.read[0] == self.written

    def element_bytes(self, layout: Layout, buffers: int) -> int:
        """Bytes of a partition for each element of a window that it has."""
        needs_own = layout is Layout.TRANSPOSED or not self.overwrites
        own = 2 * dtype_bytes(self.written) if needs_own else 0
        return buffers * sum(dtype_bytes(dtype) for dtype in self.read) + own

    @property
    def moved_bytes(self) -> int:
        """Bytes of an element over HBM."""
        return sum(dtype_bytes(dtype) for dtype in (*self.read, self.written))


def longest_segment(tensors: ColumnTensors, chunk_size: int | None) -> int:
    """Elements of a segment, which depends on types alone."""
    is_wide = nl.float32 in (*tensors.read, tensors.written)
    longest = _SEGMENT_FLOAT32 if is_wide else _SEGMENT_16_BIT
    return longest if chunk_size is None else min(longest, chunk_size)


@dataclass(frozen=True)
class _Choice:
    layout: Layout
    outer: int
    inner: int
    buffers: int
    segments_of_part: int


def plan_columns(tensors: ColumnTensors, chunk_size: int | None, cores: int, core: int) -> ColumnPlan:
    """The plan for a core, by what the transfers of each choice are modelled to take."""
    outer, count, inner = tensors.shape
    longest = longest_segment(tensors, chunk_size)
    segments = segments_of(count, longest)
    choices = _choices(tensors, segments)
    choice = min(choices, key=lambda choice: _cost(tensors, segments, choice))
    windows = windows_of_core(
        outer, inner, choice.outer, choice.inner, cores, core, choice.layout is Layout.STRIDED
    )
    parts = parts_of(segments, choice.segments_of_part)
    return ColumnPlan(choice.layout, longest, segments, parts, windows, choice.buffers)


def _choices(tensors: ColumnTensors, segments: list[Segment]) -> list[_Choice]:
    """All that fit; the last ones always do."""
    outer, count, inner = tensors.shape
    fitting = nl.tile_size.sbuf_fmax_bytes - _SMALL_BYTES - KEPT_BYTES
    found = []
    for buffers in tensors.buffers:
        if count * inner * tensors.element_bytes(Layout.STRIDED, buffers) <= fitting:
            found.append(_Choice(Layout.STRIDED, min(outer, nl.tile_size.pmax), inner, buffers, len(segments)))
    for width in _WIDTHS:
        shape = _window_shape(outer, inner, width)
        for layout in _turned_layouts(tensors):
            for buffers in tensors.buffers:
                lines = sum(segment.lines for segment in segments)
                held = lines * shape[0] * shape[1] * tensors.element_bytes(layout, buffers)
                if held <= fitting:
                    found.append(_Choice(layout, *shape, buffers, len(segments)))
        if len(segments) > _SEGMENTS_OF_PART:
            lines = _SEGMENTS_OF_PART * segments[0].lines
            held = lines * shape[0] * shape[1] * tensors.element_bytes(Layout.TURNED, 4)
            if held <= fitting:
                found.append(_Choice(Layout.TURNED, *shape, 4, _SEGMENTS_OF_PART))
    return found


def _window_shape(outer: int, inner: int, width: int) -> tuple[int, int]:
    """Outer and inner places of a window of about so many columns: equal windows, of whole turns."""
    if inner < TURN:
        group = TURN // inner
        return min(outer, max(1, width // TURN) * group), inner
    windows = div_ceil(inner, width)
    if windows == 1:
        return min(outer, width // inner), inner
    return 1, min(inner, div_ceil(div_ceil(inner, windows), TURN) * TURN)


def _turned_layouts(tensors: ColumnTensors) -> list[Layout]:
    _, count, inner = tensors.shape
    is_16_bit = all(dtype != nl.float32 for dtype in tensors.read)
    if tensors.can_transpose and is_16_bit and inner >= TURN and inner % TURN in (0, *range(96, TURN)):
        return [Layout.TRANSPOSED]
    return [Layout.TURNED]


def _cost(tensors: ColumnTensors, segments: list[Segment], choice: _Choice) -> float:
    """Bytes that a core moves, weighed by the rate of their runs, and what nothing overlaps with."""
    outer, count, inner = tensors.shape
    width = dtype_bytes(tensors.written)
    run = choice.inner * width
    if choice.layout is Layout.STRIDED:
        run = count * inner * width
    elif choice.inner == inner:
        run *= segments[0].lines
    reads = 2 if choice.segments_of_part < len(segments) else 1
    moved = tensors.moved_bytes + (reads - 1) * (tensors.moved_bytes - width)
    of_window = count * choice.outer * choice.inner * moved
    partitions = choice.outer if choice.layout is Layout.STRIDED else min(count, TURN)
    slowness = max(1.0, _FULL_RUN / run) * max(1.0, TURN / partitions)
    windows = div_ceil(div_ceil(outer, choice.outer) * div_ceil(inner, choice.inner), 2)
    tables = 0.0
    if tensors.keeps_windows and nl.float32 not in tensors.read:  # bound by Scalar
        tables = windows * _TABLES_BYTES
    return slowness * of_window * (windows * _WAITING[choice.buffers] + _OVERLAPS_NOTHING) + tables
