# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loads of columns of tensors [O, C, I], views of them to compute with, and stores of results, in three layouts.

:mod:`.plan` divides columns: a *window* is the set of columns that are loaded together; a *strip* is up to 128 columns
of a window, one per partition; a *segment* is a range of elements of every column; a *part* is consecutive segments
that are loaded together; an *item* is one segment of the columns of one strip. The loop makes two passes over a window.

A :class:`Source` loads parts ahead of the computation (:class:`LoadRing`), and gives views of items, [columns, elements
of the segment]. The three layouts are:

- :class:`TensorTransposedSource`: parts are loaded into *natural* tiles (:func:`natural_shape`), with the elements of a
  column on different partitions, and the Tensor engine transposes every item into PSUM;
- :class:`DmaTransposedSource`: the DMA engines transpose 16-bit columns on their way into SBUF;
- :class:`StridedSource`, for few inner indices: a partition holds all columns of one outer index, and nothing is
  transposed.

A destination (:class:`Results`) stores a part when all its results are computed. In both transposed layouts
(:class:`TransposedResults`) the Tensor engine transposes results back into a natural tile. In the strided layout
(:class:`StridedResults`) nothing is transposed. Results that do not overwrite an input have :class:`OwnTiles`.
:func:`source_of` and :func:`results_of` choose by the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nkilib.core.hardware import div_ceil
from nkilib.experimental.softmax.columns.plan import OWN_TILES, STRIP_COLUMNS, ColumnPlan, Item, Layout, Part, Window
from nkilib.nki import nisa, nl

# Tiles of results that wait to be transposed back.
_PIECES = 3


class LoadKey(NamedTuple):
    """The identity of a load: the numbers of its window and part, and its :attr:`Load.visit`."""

    window: int
    part: int
    visit: int


@dataclass(frozen=True)
class Load:
    """The load of a part of a window.

    Attributes:
        window, part: the window and the part.
        visit: the number of the pass that reads the loaded data, 1 or 2; 0 if one load serves both passes.
    """

    window: Window
    part: Part
    visit: int

    @property
    def key(self) -> LoadKey:
        """The :class:`LoadKey` of this load."""
        return LoadKey(self.window.number, self.part.number, self.visit)


def loads_of(windows: list[Window], parts: list[Part], passes: tuple[int, ...], is_read_twice: bool) -> list[Load]:
    """Return the loads of a tensor in the order in which the loop needs the data.

    If columns are read twice, each pass has its own loads, and the loads of the first pass over a window alternate with
    those of the second pass over the previous window.

    Args:
        windows: the windows of the core.
        parts: the parts of every column.
        passes: the numbers of the passes that read the tensor: 1, 2 or both.
        is_read_twice: whether each pass loads the columns again, because they do not fit on chip.
    """
    if not is_read_twice:
        return [Load(window, part, 0) for window in windows for part in parts]
    loads: list[Load] = []
    for place in range(len(windows) + 1):
        for part in parts:
            if 1 in passes and place < len(windows):
                loads.append(Load(windows[place], part, 1))
            if 2 in passes and place > 0:
                loads.append(Load(windows[place - 1], part, 2))
    return loads


@dataclass
class LoadRing:
    """A ring buffer of tiles that are filled by loads.

    Attributes:
        loads: all loads, in the order of issue.
        tiles_sbuf: the buffer slots; load number n goes to slot n modulo the number of slots.
        fill: a function that issues the transfers of a load into a tile, and yields after each transfer.
        issued: the number of loads that have been issued.
        released: the keys of the loads whose tiles are not needed any more.
        numbers: for each load that has been issued, its index in ``loads``, by its key.
    """

    loads: list[Load]
    tiles_sbuf: list[nl.NkiTensor]
    fill: Callable[[nl.NkiTensor, Load], Iterator[None]]
    issued: int = 0
    released: set[LoadKey] = field(default_factory=set)
    numbers: dict[LoadKey, int] = field(default_factory=dict)

    def advance(self) -> Iterator[None]:
        """Issue all loads for which a buffer slot is free, and yield after each transfer.

        The caller thus can alternate between transfers of several tensors.
        """
        while self.issued < len(self.loads) and self._has_free_slot():
            load = self.loads[self.issued]
            yield from self.fill(self.tiles_sbuf[self.issued % len(self.tiles_sbuf)], load)
            self.numbers[load.key] = self.issued
            self.issued += 1

    def _has_free_slot(self) -> bool:
        before = self.issued - len(self.tiles_sbuf)
        return before < 0 or self.loads[before].key in self.released

    def key(self, window: Window, part: Part, visit: int) -> LoadKey:
        """Return the key of the load that provides a part of a window for pass number ``visit``."""
        is_once = self.loads[0].visit == 0
        return LoadKey(window.number, part.number, 0 if is_once else visit)

    def has(self, key: LoadKey) -> bool:
        """Return whether the load with this key has been issued."""
        return key in self.numbers

    def tile(self, key: LoadKey) -> nl.NkiTensor:
        """Return the tile that the load with this key fills; the load must have been issued."""
        return self.tiles_sbuf[self.numbers[key] % len(self.tiles_sbuf)]

    def release(self, key: LoadKey) -> None:
        """Mark the buffer slot of a load as free; call this method when nothing reads or writes its tile any more."""
        self.released.add(key)


class Source(Protocol):
    """The interface through which the loop reads items of a tensor [O, C, I]."""

    ring: LoadRing

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return an item as a view [columns, elements of the segment] for pass number ``visit``.

        The load of the item's part must have been issued.
        """


@dataclass
class PsumBanks:
    """PSUM banks that are used round-robin; ``taken`` counts the uses.

    Each bank is a tensor of its own, so that a write to a bank waits only for reads of the same bank.
    """

    tiles_psum: list[nl.NkiTensor]
    taken: int = 0

    @classmethod
    def make(cls, count: int, elements: int, dtype: nl.DType) -> PsumBanks:
        """Allocate ``count`` banks of type ``dtype``, each for an item of at most ``elements`` elements per column."""
        shape = (nl.tile_size.pmax, elements)
        return cls([nl.ndarray(shape, dtype=dtype, buffer=nl.psum) for _ in range(count)])

    def take(self) -> nl.NkiTensor:
        """Return the next bank of the round-robin order."""
        self.taken += 1
        return self.tiles_psum[(self.taken - 1) % len(self.tiles_psum)]


def natural_shape(windows: list[Window], parts: list[Part]) -> tuple[int, ...]:
    """Return a shape of natural tiles that is large enough for every part: (partitions, outer, segments, lines, inner).

    The elements of a segment are divided over partitions; a line is one element of every partition (:class:`.Segment`).
    """
    lines = max(segment.lines for part in parts for segment in part.segments)
    return (
        nl.tile_size.pmax,
        max(window.outer for window in windows),
        max(len(part.segments) for part in parts),
        lines,
        max(window.inner for window in windows),
    )


def _copy(of_hbm: nl.NkiTensor, of_sbuf: nl.NkiTensor, is_store: bool) -> None:
    if is_store:
        nisa.dma_copy(dst=of_hbm, src=of_sbuf)
    else:
        nisa.dma_copy(dst=of_sbuf, src=of_hbm)


def copy_natural(tensor_hbm: nl.NkiTensor, tile_sbuf: nl.NkiTensor, load: Load, is_store: bool) -> Iterator[None]:
    """Issue the transfers that load or store a part of a window, and yield after each segment of each outer index.

    Args:
        tensor_hbm: the tensor, [O, C, I].
        tile_sbuf: the natural tile.
        load: the window and the part.
        is_store: whether to copy the tile to HBM instead of HBM to the tile.
    """
    window = load.window
    for outer in range(window.outer):
        for segment in load.part.segments:
            place_sbuf = tile_sbuf[:, outer, load.part.slot(segment)]
            middle = segment.start + segment.full * segment.lines
            if segment.full > 0:
                of_hbm = window.of(tensor_hbm, outer, segment.start, middle)
                of_sbuf = place_sbuf[0 : segment.full, 0 : segment.lines, 0 : window.inner]
                _copy(of_hbm.reshape_dim(0, (segment.full, segment.lines)), of_sbuf, is_store)
            if segment.rest > 0:
                of_hbm = window.of(tensor_hbm, outer, middle, segment.end)
                of_sbuf = place_sbuf[segment.full : segment.full + 1, 0 : segment.rest, 0 : window.inner]
                _copy(of_hbm.reshape_dim(0, (1, segment.rest)), of_sbuf, is_store)
            yield


def natural_item(tile_sbuf: nl.NkiTensor, item: Item) -> nl.NkiTensor:
    """Return the view of an item's elements in a natural tile, [partitions, outer, lines, inner]."""
    strip = item.strip
    slot = item.part.slot(item.segment)
    outer = slice(strip.first_outer, strip.first_outer + strip.outer)
    inner = slice(strip.first_inner, strip.first_inner + strip.inner)
    return tile_sbuf[:, outer, slot, :, inner]


@dataclass
class TensorTransposedSource:
    """A :class:`Source` that loads natural tiles, whose items the Tensor engine transposes one by one into PSUM.

    Attributes:
        ring: the ring buffer of natural tiles.
        banks: for each pass that reads the tensor, by its number, the PSUM banks for transposed items.
    """

    ring: LoadRing
    banks: dict[int, PsumBanks]

    @classmethod
    def make(
        cls,
        tensor_hbm: nl.NkiTensor,
        shape: tuple[int, ...],
        loads: list[Load],
        buffers: int,
        longest: int,
        banks: dict[int, int],
    ) -> TensorTransposedSource:
        """Allocate the tiles and the PSUM banks.

        Args:
            tensor_hbm: the tensor, [O, C, I].
            shape: the shape of a natural tile.
            loads: all loads, in the order of issue.
            buffers: the number of natural tiles.
            longest: the maximum number of elements of a segment.
            banks: the number of PSUM banks of each pass that reads the tensor, by the number of the pass.
        """
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            return copy_natural(tensor_hbm, tile_sbuf, load, is_store=False)

        of_passes = {visit: PsumBanks.make(count, longest, tensor_hbm.dtype) for visit, count in banks.items()}
        return cls(LoadRing(loads, tiles, fill), of_passes)

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Transpose an item into PSUM, and return the view [columns, elements of the segment].

        Line i of the natural tile becomes elements i, i + ``segment.lines``, i + 2 ``segment.lines``, ... of the view.
        """
        segment, strip = item.segment, item.strip
        columns_sbuf = natural_item(self.ring.tile(self.ring.key(item.window, item.part, visit)), item)
        transposed_psum = self.banks[visit].take()[0 : strip.columns]
        for line in range(segment.lines):
            partitions = segment.partitions(line)
            nisa.nc_transpose(
                dst=transposed_psum[:, line : line + (partitions - 1) * segment.lines + 1 : segment.lines],
                data=columns_sbuf[0:partitions, :, line],
            )
        return transposed_psum[:, 0 : segment.size]


@dataclass
class DmaTransposedSource:
    """A :class:`Source` whose columns the DMA engines transpose into tiles [columns, strips, elements of the part].

    Attributes:
        ring: the ring buffer of these tiles.
    """

    ring: LoadRing

    @classmethod
    def make(
        cls, tensor_hbm: nl.NkiTensor, windows: list[Window], parts: list[Part], loads: list[Load], buffers: int
    ) -> DmaTransposedSource:
        """Allocate the tiles.

        Args:
            tensor_hbm: the tensor, [O, C, I].
            windows: the windows of the core.
            parts: the parts of every column.
            loads: all loads, in the order of issue.
            buffers: the number of tiles.
        """
        strips = max(len(window.strips()) for window in windows)
        elements = max(part.segments[-1].end - part.segments[0].start for part in parts)
        shape = (nl.tile_size.pmax, strips, elements)
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            start, end = load.part.segments[0].start, load.part.segments[-1].end
            for strip in load.window.strips():
                of_window = load.window.of(tensor_hbm, strip.first_outer, start, end)
                nisa.dma_transpose(
                    dst=tile_sbuf[0 : strip.columns, strip.number, 0 : end - start],
                    src=of_window[:, strip.first_inner : strip.first_inner + strip.inner],
                )
                yield

        return cls(LoadRing(loads, tiles, fill))

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return the view of an item in the tile of its part, in SBUF."""
        tile_sbuf = self.ring.tile(self.ring.key(item.window, item.part, visit))
        start = item.segment.start - item.part.segments[0].start
        return tile_sbuf[0 : item.strip.columns, item.strip.number, start : start + item.segment.size]


class Results(Protocol):
    """The interface through which the loop writes the results of items to a tensor [O, C, I].

    For each item the loop calls :meth:`piece`, computes the result into the returned view, and calls
    :meth:`transpose_back` and :meth:`finish`.
    """

    def piece(self, item: Item) -> nl.NkiTensor:
        """Return a view [columns, elements of the segment], into which the caller computes the result of an item."""

    def transpose_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Transpose the result ``piece_sbuf`` back on the Tensor engine, if the layout needs a transpose.

        Returns:
            The tensor to pass to :meth:`finish`: in PSUM if transposed, else ``piece_sbuf``.
        """

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy the result of an item to the tile of its part if it was transposed; after the part's last item, store
        the part to HBM.
        """


@dataclass
class TransposedResults:
    """A destination (:class:`Results`) of results that the Tensor engine transposes back.

    Attributes:
        result_hbm: the result tensor, [O, C, I].
        pieces_sbuf: tiles [128, elements of a segment] for results of items before the transpose, used round-robin.
        banks: the PSUM banks for results after the transpose.
        tile: a function that returns the natural tile to which the result of an item is copied.
        scalar_share: the share, from 0 to 1, of the copies out of PSUM that Scalar does; Vector does the others.
        made: two counters: the uses of ``pieces_sbuf``, and the copies out of PSUM.
    """

    result_hbm: nl.NkiTensor
    pieces_sbuf: list[nl.NkiTensor]
    banks: PsumBanks
    tile: Callable[[Item], nl.NkiTensor]
    scalar_share: float
    made: list[int] = field(default_factory=lambda: [0, 0])

    @classmethod
    def make(
        cls,
        result_hbm: nl.NkiTensor,
        longest: int,
        scalar_share: float,
        tile: Callable[[Item], nl.NkiTensor],
    ) -> TransposedResults:
        """Allocate the tiles and PSUM banks, for segments of at most ``longest`` elements."""
        shape = (nl.tile_size.pmax, longest)
        pieces = [nl.ndarray(shape, dtype=result_hbm.dtype, buffer=nl.sbuf) for _ in range(_PIECES)]
        # A line has up to 128 columns, and the last line of a segment may have few partitions.
        banks = PsumBanks.make(2, div_ceil(longest, STRIP_COLUMNS) * STRIP_COLUMNS, result_hbm.dtype)
        return cls(result_hbm, pieces, banks, tile, scalar_share)

    def piece(self, item: Item) -> nl.NkiTensor:
        """Return a view of the next tile of ``pieces_sbuf`` for the result of an item."""
        self.made[0] += 1
        piece_sbuf = self.pieces_sbuf[self.made[0] % len(self.pieces_sbuf)]
        return piece_sbuf[0 : item.strip.columns, 0 : item.segment.size]

    def transpose_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Transpose a result into PSUM; its lines lie side by side, [partitions, lines * columns]."""
        segment, columns = item.segment, item.strip.columns
        back_psum = self.banks.take()
        for line in range(segment.lines):
            partitions = segment.partitions(line)
            nisa.nc_transpose(
                dst=back_psum[0:partitions, line * columns : (line + 1) * columns],
                data=piece_sbuf[:, line : line + (partitions - 1) * segment.lines + 1 : segment.lines],
            )
        return back_psum

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy the result from PSUM to its natural tile; after the last item of a part, store the part."""
        segment, strip = item.segment, item.strip
        place_sbuf = natural_item(self.tile(item), item)
        for partitions, first, end in segment.blocks():
            from_psum = back_psum[0:partitions, first * strip.columns : end * strip.columns]
            from_psum = from_psum.reshape_dim(1, (end - first, strip.outer, strip.inner))
            self._copy(place_sbuf[0:partitions, :, first:end].permute((0, 2, 1, 3)), from_psum)
        if item.ends_part:
            for _ in copy_natural(self.result_hbm, self.tile(item), Load(item.window, item.part, 2), is_store=True):
                pass

    def _copy(self, dst_sbuf: nl.NkiTensor, src_psum: nl.NkiTensor) -> None:
        self.made[1] += 1
        if int(self.made[1] * self.scalar_share) > int((self.made[1] - 1) * self.scalar_share):
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=src_psum)
        else:
            nisa.tensor_copy(dst=dst_sbuf, src=src_psum)


@dataclass
class OwnTiles:
    """Natural or strided tiles for results that are not written over the tiles of an input.

    Attributes:
        tiles_sbuf: the tiles, which the parts of all windows use round-robin.
        numbers: for each part that has got a tile, by (number of the window, number of the part), its index in the
            order in which parts got tiles.
    """

    tiles_sbuf: list[nl.NkiTensor]
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def tile(self, item: Item) -> nl.NkiTensor:
        """Return the tile for the results of the item's part; all items of a part share a tile."""
        key = item.window.number, item.part.number
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
        return self.tiles_sbuf[self.numbers[key] % len(self.tiles_sbuf)]


def strided_shape(windows: list[Window], count: int) -> tuple[int, ...]:
    """Return the shape of a tile that holds a window of the strided layout: [outer, elements of a column, inner]."""
    return max(window.outer for window in windows), count, windows[0].inner


def _window_in_hbm(tensor_hbm: nl.NkiTensor, window: Window) -> nl.NkiTensor:
    return tensor_hbm[window.first_outer : window.first_outer + window.outer]


def _strided_item(tile_sbuf: nl.NkiTensor, item: Item) -> nl.NkiTensor:
    segment = item.segment
    return tile_sbuf[0 : item.strip.outer, segment.start : segment.end, item.strip.first_inner]


@dataclass
class StridedSource:
    """A :class:`Source` of the strided layout: a tile [outer, C, inner] holds a window, with one outer index on each
    partition.

    Attributes:
        ring: the ring buffer of these tiles.
    """

    ring: LoadRing

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, windows: list[Window], loads: list[Load], buffers: int) -> StridedSource:
        """Allocate the tiles.

        Args:
            tensor_hbm: the tensor, [O, C, I].
            windows: the windows of the core.
            loads: all loads, in the order of issue.
            buffers: the number of tiles.
        """
        shape = strided_shape(windows, tensor_hbm.shape[1])
        tiles = [nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf) for _ in range(buffers)]

        def fill(tile_sbuf: nl.NkiTensor, load: Load) -> Iterator[None]:
            nisa.dma_copy(dst=tile_sbuf[0 : load.window.outer], src=_window_in_hbm(tensor_hbm, load.window))
            yield

        return cls(LoadRing(loads, tiles, fill))

    def view(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return the view of an item in the tile of its window, in SBUF."""
        return _strided_item(self.ring.tile(self.ring.key(item.window, item.part, visit)), item)


@dataclass
class StridedResults:
    """A destination (:class:`Results`) of results that are computed in the layout in which they are stored.

    Attributes:
        result_hbm: the result tensor, [O, C, I].
        tile: a function that returns the tile for the results of an item's window.
    """

    result_hbm: nl.NkiTensor
    tile: Callable[[Item], nl.NkiTensor]

    def piece(self, item: Item) -> nl.NkiTensor:
        """Return the view of the item's columns in the tile of its window."""
        return _strided_item(self.tile(item), item)

    def transpose_back(self, item: Item, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return ``piece_sbuf`` itself: the strided layout needs no transpose."""
        return piece_sbuf

    def finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Store the window of the item, after its last item."""
        if item.ends_part:
            tile_sbuf = self.tile(item)[0 : item.window.outer]
            nisa.dma_copy(dst=_window_in_hbm(self.result_hbm, item.window), src=tile_sbuf)


def source_of(tensor_hbm: nl.NkiTensor, plan: ColumnPlan, banks: dict[int, int]) -> Source:
    """Return the source of the items of a tensor, in the layout of the plan.

    Args:
        tensor_hbm: the tensor, [O, C, I].
        plan: the plan of the core.
        banks: the number of PSUM banks of each pass that reads the tensor, by the number of the pass.
    """
    passes = tuple(banks)
    buffers = plan.buffers_of(passes)
    loads = loads_of(plan.windows, plan.parts, passes, plan.is_read_twice)
    if plan.layout is Layout.STRIDED:
        return StridedSource.make(tensor_hbm, plan.windows, loads, buffers)
    if plan.layout is Layout.DMA_TRANSPOSED:
        return DmaTransposedSource.make(tensor_hbm, plan.windows, plan.parts, loads, buffers)
    return TensorTransposedSource.make(
        tensor_hbm, natural_shape(plan.windows, plan.parts), loads, buffers, plan.longest, banks
    )


def _own_tiles(result_hbm: nl.NkiTensor, plan: ColumnPlan) -> OwnTiles:
    shape: tuple[int, ...] = natural_shape(plan.windows, plan.parts)
    if plan.layout is Layout.STRIDED:
        shape = strided_shape(plan.windows, result_hbm.shape[1])
    return OwnTiles([nl.ndarray(shape, dtype=result_hbm.dtype, buffer=nl.sbuf) for _ in range(OWN_TILES)])


def _tile_of_source(source: Source) -> Callable[[Item], nl.NkiTensor]:
    """Return a function that returns, for an item, the tile into which the second pass loaded the item's input."""
    ring = source.ring
    return lambda item: ring.tile(ring.key(item.window, item.part, 2))


def results_of(result_hbm: nl.NkiTensor, plan: ColumnPlan, overwritten: Source | None, scalar_share: float) -> Results:
    """Return the destination of the results, in the layout of the plan.

    Args:
        result_hbm: the result tensor, [O, C, I].
        plan: the plan of the core.
        overwritten: the source whose tiles the results overwrite; None to allocate tiles for the results.
        scalar_share: the share, from 0 to 1, of the copies out of PSUM that Scalar does; Vector does the others.
    """
    tile = _own_tiles(result_hbm, plan).tile if overwritten is None else _tile_of_source(overwritten)
    if plan.layout is Layout.STRIDED:
        return StridedResults(result_hbm, tile)
    return TransposedResults.make(result_hbm, plan.longest, scalar_share, tile)
