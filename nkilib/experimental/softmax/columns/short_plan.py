# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The plan of a softmax launch over short columns of tensors [O, C, I], from shapes and types only.

A column has C elements. A *unit* is the columns that one partition holds: those at consecutive inner indices of one
outer index or, if I is small, at all inner indices of several outer indices. A *band* (:class:`Band`) is a set of
columns that are divided into equal units. A *window* (:class:`ShortWindow`) is the units that are loaded together, one
per partition. A *piece* (:class:`ShortPiece`) is the same columns of each unit of a window, processed together.

The rounding of a column depends on the order of its sum, which depends on C only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.nki import nl

# Elements per partition that an instruction processes: fixed costs matter with fewer, and windows are small with more.
_PIECE_16_BIT, _PIECE_FLOAT32 = 3072, 2048
# Windows on chip: one is loaded, one computed, one stored; more if they are small.
LEAST_BUFFERS, _MOST_BUFFERS = 3, 8
# Bytes per partition that are reserved for alignment.
_SPARE_BYTES = 4096
# Bytes of a run in HBM from which on a transfer reaches the full rate, and up to which a store takes twice as long.
_FULL_RUN, _SMALL_STORE = 1334, 512
# Bytes per partition that are moved while the engines compute an element; a launch that moves fewer is bound by the
# engines.
_COMPUTED_BYTES = 7.5
# Windows whose transfers overlap with nothing: half of the first one, and half of the last one.
_OVERLAPS_NOTHING = 1.0
# The minimum number of windows of a core, if outer indices share a partition: loads then overlap with stores.
_LEAST_WINDOWS = 4


@dataclass(frozen=True)
class Band:
    """Columns of [O, C, I] that are divided into equal units of ``outer_each`` outer times ``width`` inner indices.

    Attributes:
        first_outer: the band's first outer index.
        outer: the band's number of outer indices.
        outer_each: the number of outer indices of a unit; 1 if ``blocks`` is over 1.
        first_inner: the band's first inner index; the band has ``blocks * width`` inner indices.
        blocks: the number of units side by side along the inner indices.
        width: the number of inner indices of a unit.
    """

    first_outer: int
    outer: int
    outer_each: int
    first_inner: int
    blocks: int
    width: int

    @property
    def units(self) -> int:
        """The number of units of the band."""
        return self.outer // self.outer_each * self.blocks


@dataclass(frozen=True)
class ShortPiece:
    """The part of each unit of a window that instructions process together; indices count from the start of the unit.

    Attributes:
        window: the number of the window.
        first: the first outer index.
        outer_each: the number of outer indices.
        start: the first inner index.
        width: the number of inner indices.
        ends: whether the piece is the last one of its window.
    """

    window: int
    first: int
    outer_each: int
    start: int
    width: int
    ends: bool

    def of(self, window_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of the piece in the tile of its window, [partitions, outer_each, C, width]."""
        return window_sbuf[:, self.first : self.first + self.outer_each, :, self.start : self.start + self.width]


@dataclass(frozen=True)
class ShortWindow:
    """Consecutive units of a band that are loaded together, one per partition.

    Attributes:
        number: the index of the window among the windows of its core.
        band: the band of the units.
        first, end: the range [first, end) of units of the band.
    """

    number: int
    band: Band
    first: int
    end: int

    def shape(self, length: int) -> tuple[int, ...]:
        """Return the shape of the window on chip, (partitions, outer_each, C, width), for C = ``length``."""
        return self.end - self.first, self.band.outer_each, length, self.band.width

    def runs(self, tensor_hbm: nl.NkiTensor) -> Iterator[tuple[int, nl.NkiTensor]]:
        """Yield the transfers that together load or store the window.

        Args:
            tensor_hbm: the tensor, [O, C, I].

        Yields:
            For each transfer the first partition that it fills, and its view of the tensor, [partitions, outer_each, C,
            width].
        """
        band = self.band
        if band.blocks == 1:
            first = band.first_outer + self.first * band.outer_each
            places = (self.end - self.first) * band.outer_each
            part_hbm = tensor_hbm[first : first + places, :, band.first_inner : band.first_inner + band.width]
            yield 0, part_hbm.reshape_dim(0, (self.end - self.first, band.outer_each))
            return
        unit = self.first
        while unit < self.end:
            outer, block = divmod(unit, band.blocks)
            count = min(self.end - unit, band.blocks - block)
            start = band.first_inner + block * band.width
            part_hbm = tensor_hbm[band.first_outer + outer, :, start : start + count * band.width]
            yield unit - self.first, part_hbm.reshape_dim(1, (count, band.width)).permute([1, 0, 2]).expand_dim(1)
            unit += count

    def pieces(self, columns: int) -> list[ShortPiece]:
        """Return the pieces of the window, each of at most ``columns`` columns per partition."""
        band = self.band
        outer_each = min(band.outer_each, max(1, columns // band.width))
        width = div_ceil(band.width, div_ceil(band.width, columns))
        places = [
            (first, min(outer_each, band.outer_each - first), start, min(width, band.width - start))
            for first in range(0, band.outer_each, outer_each)
            for start in range(0, band.width, width)
        ]
        return [ShortPiece(self.number, *place, place is places[-1]) for place in places]


@dataclass(frozen=True)
class ShortPlan:
    """The plan of one core: its windows, and the size of their pieces.

    Attributes:
        length: C, the number of elements of a column.
        columns: the maximum number of columns per partition of a piece.
        windows: the windows of the core.
        buffers: the number of windows of each tensor that are on chip at the same time.
    """

    length: int
    columns: int
    windows: list[ShortWindow]
    buffers: int

    @property
    def piece(self) -> int:
        """The maximum number of elements per partition of a piece."""
        return self.columns * self.length

    @property
    def window(self) -> int:
        """The maximum number of elements per partition of a window."""
        return max((window.band.outer_each * self.length * window.band.width for window in self.windows), default=0)


def plan_short(
    shape: tuple[int, ...],
    dtypes: tuple[nl.DType, ...],
    window_bytes: int,
    piece_bytes: int,
    chunk_size: int | None,
    cores: int,
    core: int,
) -> ShortPlan:
    """Return the plan of one core.

    Args:
        shape: the sizes O, C and I.
        dtypes: the types of the inputs and, last, of the result.
        window_bytes: the sum, over all tensors with tiles of windows, of the bytes of one element.
        piece_bytes: the bytes of all scratch tiles per element of a piece.
        chunk_size: the maximum number of elements per partition of a piece, at least C; None for no request.
        cores: the number of cores of the launch.
        core: the index of this core.
    """
    outer, length, inner = shape
    piece = _PIECE_FLOAT32 if nl.float32 in dtypes else _PIECE_16_BIT
    columns = (piece if chunk_size is None else min(piece, chunk_size)) // length
    fitting = usable_sbuf_bytes() - _SPARE_BYTES - columns * length * piece_bytes
    most = fitting // (LEAST_BUFFERS * window_bytes * length)
    require(  # only reduced plan limits are too small
        most > 0,
        f"softmax over short columns: {LEAST_BUFFERS} windows of a column of {length} elements must fit in a partition "
        f"of SBUF beside a piece, which leaves {fitting} bytes; raise sbuf_bytes of PlanLimits",
    )
    bands = _bands(outer, inner, most, cores, dtypes)
    cuts = [(band, *cut) for band in bands for cut in _cuts(band.units, cores, core)]
    windows = [ShortWindow(number, *cut) for number, cut in enumerate(cuts)]
    plan = ShortPlan(length, columns, windows, LEAST_BUFFERS)
    buffers = fitting // max(1, plan.window * window_bytes)
    return ShortPlan(length, columns, windows, min(_MOST_BUFFERS, buffers))


def _bands(outer: int, inner: int, most: int, cores: int, dtypes: tuple[nl.DType, ...]) -> list[Band]:
    """Return bands that together have all columns, with units of at most ``most`` columns."""
    lanes = nl.tile_size.pmax * cores
    if inner <= most and outer >= nl.tile_size.pmax:
        outer_each = max(1, min(most // inner, outer // (lanes * _LEAST_WINDOWS)))
        whole = outer // outer_each * outer_each
        bands = [Band(0, whole, outer_each, 0, 1, inner), Band(whole, outer - whole, 1, 0, 1, inner)]
        return [band for band in bands if band.units]
    least = div_ceil(inner, most)
    of_result = dtype_bytes(dtypes[-1])
    computing = _COMPUTED_BYTES / sum(dtype_bytes(dtype) for dtype in dtypes)

    def cost(blocks: int) -> float:
        width = div_ceil(inner, blocks)
        full, rest = divmod(inner, width)
        moving = _slowness(width * of_result)
        windows = div_ceil(div_ceil(outer * full, nl.tile_size.pmax), cores)
        time = width * (windows * max(moving, computing) + _OVERLAPS_NOTHING * moving)
        return time + (div_ceil(outer, lanes) * rest * _slowness(rest * of_result) if rest else 0.0)

    width = div_ceil(inner, min(range(least, min(inner, 4 * least + lanes) + 1), key=cost))
    full, rest = divmod(inner, width)
    bands = [Band(0, outer, 1, 0, full, width)]
    if rest:
        bands.append(Band(0, outer, 1, full * width, 1, rest))
    return bands


def _slowness(run: int) -> float:
    """Return the factor by which transfers take longer if their runs in HBM have ``run`` bytes."""
    return max(1.0, _FULL_RUN / run) * (2.0 if run <= _SMALL_STORE else 1.0)


def _cuts(units: int, cores: int, core: int) -> Iterator[tuple[int, int]]:
    """Yield the range [first, end) of units of each window of core number ``core``; windows have about equal sizes."""
    windows = div_ceil(div_ceil(units, nl.tile_size.pmax), cores) * cores
    of_core = windows // cores
    for number in range(core * of_core, (core + 1) * of_core):
        first, end = units * number // windows, units * (number + 1) // windows
        if end > first:
            yield first, end
