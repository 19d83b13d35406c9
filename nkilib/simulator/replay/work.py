# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Work: the reads, writes and computations of the recorded instructions, in the detail that a plan needs.

- :class:`Work`: the work of one instruction or a part of it, in subclasses such as :class:`Elementwise`,
  :class:`Reduced`, :class:`Move`, :class:`Sum` and :class:`Action`;
- :class:`Ref`: elements that work reads or writes;
- :class:`Meeting`: an instruction at which both cores synchronise;
- :func:`blocks_for`, :func:`needs_all_rows`, :func:`row_count_of`, :func:`width_of`, :func:`is_large`: the division of
  row-wise work into blocks of rows.

*Row-wise* work is :class:`Elementwise` or :class:`Reduced`; a *row* is one index of dimension 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..engines.rowwise import blocks_of_rows
from ..memory.deferred import Rectangle, rectangle_of
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.dtypes import DType
from ..terms.enums import HBM, ON_CHIP
from ..terms.layout import Layout, extent, reshape_strides
from .stream import Guarded, PlaceholderStorage, RecordedCall, Stored, placeholder_of


class Ref:
    """A reference to the elements that a static view selects from its storage.

    Attributes:
        view: the view.
        storage, layout, dtype: the storage, layout and type of the view.
        numpy_type: the type in which the storage holds the elements.
        place: the rectangle of rows and bytes of the storage that contains the elements.
        is_block: whether the elements fill the rectangle.
    """

    __slots__ = ("dtype", "is_block", "layout", "numpy_type", "place", "storage", "view")

    def __init__(self, view: View) -> None:
        assert isinstance(view, NkiTensor)
        self.view = view
        self.storage: PlaceholderStorage = placeholder_of(view)
        self.layout: Layout = view.layout
        self.dtype: DType = view.dtype
        self.numpy_type: np.dtype[Any] = self.storage.numpy_type_of(view.dtype)
        width, row = self.numpy_type.itemsize, max(1, self.storage.partition_bytes)
        block = rectangle_of(view.layout, width, row)
        self.is_block = block is not None
        if block is None:
            low, high = extent(view.layout)
            top, bottom = low * width // row, -(-(high + 1) * width // row)
            is_one_row = bottom - top <= 1
            left, right = (low * width - top * row, (high + 1) * width - top * row) if is_one_row else (0, row)
            block = Rectangle(top, bottom, left, right)
        self.place = block

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.layout.shape[0] if self.layout.shape else 1

    @property
    def width(self) -> int:
        """The number of elements in each row."""
        return prod(self.layout.shape[1:])

    @property
    def size(self) -> int:
        return prod(self.layout.shape)

    @property
    def is_on_chip(self) -> bool:
        return self.storage.region in ON_CHIP

    @property
    def is_in_hbm(self) -> bool:
        return self.storage.region in HBM

    def as_matrix(self) -> Layout | None:
        """Return the layout of the elements as a matrix with the rows of the view; None if its rows are not dense."""
        if self.is_in_hbm and len(self.layout.shape) < 2:
            return None
        return self.as_rows(self.rows, self.width)

    def as_rows(self, rows: int, width: int) -> Layout | None:
        """Return the layout of the elements as a matrix [rows, width] with dense rows; None if there is none."""
        strides = reshape_strides(self.layout.shape, self.layout.strides, (rows, width))
        if strides is None or (width > 1 and strides[1] != 1):
            return None
        return Layout((rows, width), (strides[0], 1), self.layout.offset)

    def meets(self, other: Ref) -> bool:
        """Return whether two references may have an element in common; False is certain."""
        return self.storage is other.storage and self.place.meets(other.place)

    def is_same(self, other: Ref) -> bool:
        """Return whether two references name the same elements, read as the same type."""
        return self.storage is other.storage and self.layout == other.layout and self.dtype == other.dtype

    def __repr__(self) -> str:
        return f"Ref({self.storage.label}, {self.layout}, {self.dtype})"


@dataclass(eq=False)
class Work:
    """The work of one instruction or a part of it.

    Attributes:
        reads: the elements that it needs, including those in ``writes`` that it leaves unchanged or adds to.
        writes: the elements that it writes.
        chosen: the elements in ``reads`` from which an index chooses. Unwritten ones are an error only if they are
            chosen.
    """

    reads: list[Ref] = field(init=False, default_factory=list)
    writes: list[Ref] = field(init=False, default_factory=list)
    chosen: list[Ref] = field(init=False, default_factory=list)

    # Whether it has no effect but its writes, so that it can be dropped if nothing reads them.
    is_pure: ClassVar[bool] = True


@dataclass(eq=False)
class Elementwise(Work):
    """The computation of results element by element, as ``compute`` in engines/rowwise.py does it.

    Attributes:
        dst: the elements that receive the results.
        tiles: the operands that are tiles.
        apply: the function that computes some rows.
        reduction: the reduction of the results into accumulator registers, or None.
        columns: the scalar operands, each a number or a ``Ref``.
        destination: the elements that receive the registers of the reduction, or None.
        is_dst_dead: whether nothing reads the results in ``dst``, so that they are not stored.
    """

    dst: Ref
    tiles: list[Ref]
    apply: Callable[..., object]
    reduction: Any
    columns: list[Any]
    destination: Ref | None
    is_dst_dead: bool = False

    def __post_init__(self) -> None:
        self.reads = [*self.tiles, *[each for each in self.columns if isinstance(each, Ref)]]
        if self.reduction is not None and isinstance(self.reduction.initial, View):
            self.reads.append(Ref(self.reduction.initial))
        self.writes = [self.dst] if self.destination is None else [self.dst, self.destination]

    @property
    def is_pure(self) -> bool:  # type: ignore[override]
        """Whether the work has no effect besides its writes; a reduction also changes registers."""
        return self.reduction is None


@dataclass(eq=False)
class Reduced(Work):
    """The reduction of each row of a tile to a few numbers, as ``reduce_rows`` in engines/rowwise.py does it."""

    dst: Ref
    tile: Ref
    reduce: Callable[..., object]
    reads_bfloat16: bool

    def __post_init__(self) -> None:
        self.reads, self.writes = [self.tile], [self.dst]


@dataclass(eq=False)
class Action(Work):
    """A call of a function with whole arrays, as ``act`` in engines/actions.py makes it."""

    function: Callable[..., object]
    operands: list[Ref]
    may_refuse: bool

    @classmethod
    def of(
        cls,
        function: Callable[..., object],
        writes: Sequence[View],
        reads: Sequence[View],
        updates: Sequence[View],
        chosen: Sequence[View] = (),
        *,
        may_refuse: bool,
    ) -> Action:
        """Return the action that a call of ``act`` in engines/actions.py with these arguments describes."""
        written, changed, read, some = (list(map(Ref, views)) for views in (writes, updates, reads, chosen))
        action = cls(function, [*written, *changed, *read, *some], may_refuse)
        action.writes, action.reads, action.chosen = [*written, *changed], [*changed, *read, *some], some
        return action

    @property
    def is_pure(self) -> bool:  # type: ignore[override]
        """Whether the work has no effect besides its writes; False if it may raise an error for some values."""
        return bool(self.writes) and not self.may_refuse


@dataclass(eq=False)
class Move(Work):
    """A copy of elements to as many elements, cast if their types differ; see ``move`` in engines/dma_endpoints.py."""

    dst: Ref
    src: Ref

    def __post_init__(self) -> None:
        self.reads, self.writes = [self.src], [self.dst]


@dataclass(eq=False)
class Product(Work):
    """A product of matrices that is assigned or added to a matrix in PSUM; see engines/tensor/accumulation.py."""

    dst: Ref
    stationary: Ref
    moving: Ref
    is_added: bool

    def __post_init__(self) -> None:
        self.reads, self.writes = [self.stationary, self.moving], [self.dst]
        if self.is_added:
            self.reads.append(self.dst)


@dataclass(eq=False)
class Side:
    """The left or the right operands of several products: a series of matrices of one storage at equal distances.

    Attributes:
        first: the first matrix.
        count: the number of matrices.
        distance: the number of elements from one matrix to the next.
    """

    first: Ref
    count: int = 1
    distance: int = 0

    def goes_on_with(self, ref: Ref) -> bool:
        """Return whether ``ref`` continues the series: same storage and shape, and the same distance from the last
        matrix.
        """
        if ref.storage is not self.first.storage or ref.dtype != self.first.dtype:
            return False
        shape, strides, offset = ref.layout
        if shape != self.first.layout.shape or strides != self.first.layout.strides:
            return False
        return self.count == 1 or offset == self.first.layout.offset + self.count * self.distance

    def add(self, ref: Ref) -> None:
        """Add ``ref`` as the next matrix of the series."""
        if self.count == 1:
            self.distance = ref.layout.offset - self.first.layout.offset
        self.count += 1

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for two series with the same elements."""
        return self.first.storage.number, self.first.layout, self.first.dtype, self.count, self.distance


@dataclass(eq=False)
class Run:
    """Successive products whose left operands, and also whose right operands, are at equal distances in memory."""

    left: Side
    right: Side


@dataclass(eq=False)
class Sum(Work):
    """The work of several matmuls: a sum of products, assigned or added to a matrix of PSUM.

    Each product is computed separately and added in the order of the matmuls, so that the results are bitwise identical
    to one matmul after the other; engines/tensor/accumulation.py says why.
    """

    dst: Ref
    is_added: bool
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writes = [self.dst]
        self.reads = [self.dst] if self.is_added else []

    def add(self, product: Product) -> None:
        """Add ``product`` as the last one of the sum."""
        left, right = product.stationary, product.moving
        self.reads += [left, right]
        last = self.runs[-1] if self.runs else None
        if last is not None and last.left.goes_on_with(left) and last.right.goes_on_with(right):
            last.left.add(left)
            last.right.add(right)
        else:
            self.runs.append(Run(Side(left), Side(right)))


def everything(storage: PlaceholderStorage) -> Rectangle:
    """Return the rectangle that contains all rows and bytes of a storage."""
    row = max(1, storage.partition_bytes)
    return Rectangle(0, -(-storage.nbytes // row), 0, row)


@dataclass(eq=False)
class Whole(Work):
    """An instruction whose function runs in every replay as in a normal launch, on the plan's memory."""

    call: RecordedCall
    is_pure: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for view, is_written in self.call.tensors:
            indirect = view.indirect_access
            ref = Ref(view if indirect is None else view.with_layout(view.layout))
            if indirect is not None:
                ref.place, ref.is_block = everything(ref.storage), False
                self.chosen.append(ref)
                assert isinstance(indirect.index, View)
                self.reads.append(Ref(indirect.index))
            if is_written:
                self.writes.append(ref)
            # It may leave elements of what it writes as they were.
            self.reads.append(ref)


@dataclass(eq=False)
class Check(Work):
    """A check that the elements loaded into a register or an address are the same as in the recorded launch."""

    guard: Guarded
    is_pure: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.reads = [Ref(self.guard.view)]


@dataclass(eq=False)
class Store(Work):
    """A store of a register or a scalar to a tensor; the value is known from the recorded launch."""

    stored: Stored

    def __post_init__(self) -> None:
        self.writes = [Ref(self.stored.view)]


@dataclass(eq=False)
class Meeting(Whole):
    """An instruction at which both cores synchronise: a barrier, an exchange or a collective."""


def _in_step(read: Ref, written: Ref) -> bool:
    # Whether row r of ``read`` shares elements with no row of ``written`` except row r.
    return read.place.top == written.place.top and read.rows == written.rows and read.is_block and written.is_block


def needs_all_rows(work: Elementwise) -> bool:
    """Return whether ``work`` must run on all rows at once, because a block of rows may overwrite what later blocks
    read.
    """
    for written in work.writes:
        for read in work.reads:
            if read.storage is written.storage and read.place.meets(written.place) and not _in_step(read, written):
                return True
    return False


def row_count_of(work: Work) -> int:
    """Return the number of rows of row-wise work, which are the partitions of its tiles."""
    return work.tile.rows if isinstance(work, Reduced) else work.writes[0].rows


def width_of(work: Work) -> int:
    """Return the largest number of elements in a row of any operand or result of row-wise work."""
    return max(ref.width for ref in (*work.reads, *work.writes))


def blocks_for(rows: int, width: int) -> list[slice]:
    """Return slices that divide rows into blocks, as equal as possible, whose elements fit in a cache.

    Args:
        rows: the number of rows.
        width: the number of elements of a row.
    """
    count = len(blocks_of_rows(rows, width))
    step = -(-rows // count)
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]


def is_large(work: Work) -> bool:
    """Return whether row-wise work has so many elements that it runs in several blocks of rows."""
    return len(blocks_for(row_count_of(work), width_of(work))) > 1
