# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The record of the written elements of a storage (:class:`WrittenMap`).

The record of a large storage holds blocks of rows and columns (:class:`WrittenBlocks`) instead of a mask, as long as
every write is such a block. The record costs nothing while all or no elements are written. ``itemsize`` is the number
of bytes of an element.
"""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..terms.layout import Layout, is_dense

# Views of which it is remembered that all of them was written: more than a kernel has of a tile in a loop.
_MOST_KNOWN = 256


class _Block(NamedTuple):
    """A block of a large matrix: a range of rows, and bytes ``columns[0]`` to ``columns[1]`` (exclusive) of each
    row.
    """

    rows: slice
    columns: tuple[int, int]


class WrittenBlocks:
    """The written blocks of a large matrix: for each range of columns that was written, the rows in which it was
    written.

    A kernel writes its large result in blocks of rows and columns. Marking every element takes half as long as writing
    a bfloat16 matrix; marking the rows of each range of columns takes almost no time.

    Attributes:
        unit: the size of the narrowest element that was marked, in bytes.
    """

    def __init__(self, nbytes: int, row_bytes: int, unit: int) -> None:
        self._row_bytes = row_bytes
        self._rows = nbytes // row_bytes
        self._written: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}
        self.unit = unit

    @property
    def is_empty(self) -> bool:
        return not self._written

    def mark(self, layout: Layout, itemsize: int) -> bool:
        """Record that the elements of ``layout`` were written, if they form a block; return whether they do."""
        block = self._block_of(layout, itemsize)
        if block is None:
            return False
        rows = self._written.get(block.columns)
        if rows is None:
            rows = self._written[block.columns] = np.zeros(self._rows, np.bool_)
        rows[block.rows] = True
        self.unit = min(self.unit, itemsize)
        return True

    def is_complete(self) -> bool:
        """Return whether the ranges of columns that were written in all rows cover the whole matrix."""
        end = 0
        for first, last in sorted(columns for columns, rows in self._written.items() if rows.all()):
            if first > end:
                return False
            end = max(end, last)
        return end == self._row_bytes

    def covers(self, layout: Layout, itemsize: int) -> bool:
        """Return True if ``layout`` is a block that is certainly written, in a single recorded range of columns.

        False means that this is not known.
        """
        block = self._block_of(layout, itemsize)
        return block is not None and any(
            first <= block.columns[0] and block.columns[1] <= last and bool(rows[block.rows].all())
            for (first, last), rows in self._written.items()
        )

    def covers_each(self, layout: Layout, itemsize: int, indices: npt.NDArray[np.int64]) -> bool:
        """Return True if the elements of ``layout`` at ``indices`` of dimension 0 are certainly written.

        The elements at one index must lie in a single recorded range of columns. False means that this is not known.
        """
        if not is_dense(layout.shape[1:], layout.strides[1:]):
            return False
        at_rows, at_columns = np.divmod((layout.offset + indices * layout.strides[0]) * itemsize, self._row_bytes)
        width = prod(layout.shape[1:]) * itemsize
        is_covered = np.zeros(len(indices), np.bool_)
        for (first, last), rows in self._written.items():
            is_covered |= (first <= at_columns) & (at_columns + width <= last) & rows[at_rows]
        return bool(is_covered.all())

    def mask(self, unit: int) -> npt.NDArray[np.bool_]:
        """Return a mask with one element for every ``unit`` bytes of the matrix: True where they were written."""
        mask = np.zeros((self._rows, self._row_bytes // unit), np.bool_)
        for (first, last), rows in self._written.items():
            mask[rows, first // unit : last // unit] = True
        return mask.reshape(-1)

    def _block_of(self, layout: Layout, itemsize: int) -> _Block | None:
        if not layout.shape or 0 in layout.shape or not is_dense(layout.shape[1:], layout.strides[1:]):
            return None
        count = layout.shape[0]
        step, beside = divmod(layout.strides[0] * itemsize, self._row_bytes) if count > 1 else (1, 0)
        first, start = divmod(layout.offset * itemsize, self._row_bytes)
        end = start + prod(layout.shape[1:]) * itemsize
        if beside or step < 1 or end > self._row_bytes:
            return None
        return _Block(slice(first, first + (count - 1) * step + 1, step), (start, end))


class WrittenMap:
    """The record of the written elements of a storage.

    A storage starts wholly unwritten or wholly written; only a write of some elements makes a mask with one element for
    every ``unit`` bytes. The unit is the width of the storage's own type, and becomes smaller when a view of a narrower
    type writes. For a large storage, blocks of rows and columns are recorded instead, as long as every write is a
    block. Two cores may mark different elements at the same time; a lock guards the blocks, and making and refining the
    mask.

    Args:
        nbytes: the size of the storage in bytes.
        unit: the bytes of an element.
        written: whether all elements are written at first.
        row_bytes: the bytes of one index of dimension 0, if blocks are to be recorded; else 0.

    Attributes:
        is_full: whether every element is known to be written; a plain attribute, because every operand reads it.
    """

    __slots__ = ("_blocks", "_known", "_lock", "_mask", "_nbytes", "_unit", "is_full")

    def __init__(self, nbytes: int, unit: int, written: bool, row_bytes: int = 0) -> None:
        self._nbytes = nbytes
        self._unit = unit
        self.is_full = written
        self._mask: npt.NDArray[np.bool_] | None = None
        self._blocks = WrittenBlocks(nbytes, row_bytes, unit) if row_bytes and not written else None
        self._lock = Lock()
        self._known: set[tuple[Layout, int]] = set()

    @property
    def is_untouched(self) -> bool:
        """Whether no element was ever written."""
        return not self.is_full and self._mask is None and (self._blocks is None or self._blocks.is_empty)

    def mark_all(self) -> None:
        """Record that every element has a value."""
        self.is_full = True

    def mark(self, layout: Layout, itemsize: int, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Record that the elements of ``layout`` were written; with ``rows``, only those at these indices of dimension
        0.
        """
        if self.is_full or (rows is None and (layout, itemsize) in self._known):
            return
        if rows is None and self._is_everything(layout, itemsize):
            self.is_full = True
            return
        if self._blocks is not None and self._mark_block(layout, itemsize, rows):
            return
        while True:
            mask = self._make_mask(itemsize)
            self._elements(mask, layout, itemsize)[... if rows is None else rows] = True
            with self._lock:  # not while the other core refines the mask, for its copy may have missed the marks
                if self._mask is mask:
                    break
        if rows is None:
            self._remember(layout, itemsize)

    def mark_where(self, layout: Layout, itemsize: int, chosen: npt.NDArray[np.bool_]) -> None:
        """Record that the elements of ``layout`` where the mask ``chosen`` is true were written."""
        if chosen.all():
            self.mark(layout, itemsize)
        elif not self.is_full:
            self.mask_of(layout, itemsize)[chosen] = True

    def clear(self, layout: Layout, itemsize: int) -> None:
        """Mark all elements of ``layout`` as unwritten."""
        self._known.clear()
        if self._blocks is None and self._is_everything(layout, itemsize):
            self.is_full, self._mask = False, None
            return
        self._make_clearable(itemsize)
        if not self.is_untouched:
            self.mask_of(layout, itemsize)[...] = False

    def clear_where(self, layout: Layout, itemsize: int, chosen: npt.NDArray[np.bool_]) -> None:
        """Mark the elements of ``layout`` where the mask ``chosen`` is true as unwritten."""
        self._known.clear()
        self._make_clearable(itemsize)
        if not self.is_untouched:
            self.mask_of(layout, itemsize)[chosen] = False

    def mask_of(self, layout: Layout, itemsize: int) -> npt.NDArray[np.bool_]:
        """Return the writable mask of the elements of ``layout``; its last axis counts units within an element.

        Call this only while :attr:`is_full` is False.
        """
        return self._elements(self._make_mask(itemsize), layout, itemsize)

    def is_written(self, layout: Layout, itemsize: int) -> bool:
        """Return whether every element of ``layout`` was written."""
        if self.is_full or (layout, itemsize) in self._known or 0 in layout.shape:
            return True
        with self._lock:
            is_written = self._blocks is not None and self._blocks.covers(layout, itemsize)
        if not is_written and not self.is_untouched:
            is_written = bool(self.mask_of(layout, itemsize).all())
        if is_written:
            self._remember(layout, itemsize)
        return is_written

    def _is_everything(self, layout: Layout, itemsize: int) -> bool:
        return prod(layout.shape) * itemsize == self._nbytes and is_dense(layout.shape, layout.strides)

    def _mark_block(self, layout: Layout, itemsize: int, rows: npt.NDArray[np.int64] | None) -> bool:
        """Mark the elements as written if they form a block of rows and columns; return whether they are now marked."""
        with self._lock:
            blocks = self._blocks
            if blocks is None:
                return False
            if rows is not None:
                return blocks.covers_each(layout, itemsize, rows)
            is_block = blocks.mark(layout, itemsize)
            if is_block and blocks.is_complete():
                self.is_full = True
            return is_block

    def _remember(self, layout: Layout, itemsize: int) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add((layout, itemsize))

    def _make_clearable(self, itemsize: int) -> None:
        """If :attr:`is_full` is set, replace it by a full mask, so that elements can be marked as unwritten."""
        if self.is_full:
            self._make_mask(itemsize)[...] = True
            self.is_full = False

    def _elements(self, mask: npt.NDArray[np.bool_], layout: Layout, itemsize: int) -> npt.NDArray[np.bool_]:
        per_element = itemsize * mask.size // self._nbytes
        if 0 in layout.shape:  # its offset may lie behind the end
            return np.empty((*layout.shape, per_element), np.bool_)
        # By position: numpy takes twice as long to find its arguments by keyword.
        strides = [*[stride * per_element for stride in layout.strides], 1]
        return np.ndarray((*layout.shape, per_element), np.bool_, mask, layout.offset * per_element, strides)

    def _make_mask(self, itemsize: int) -> npt.NDArray[Any]:
        with self._lock:
            if self._mask is None and self._blocks is not None:
                self._unit = min(self._blocks.unit, itemsize)
                self._mask, self._blocks = self._blocks.mask(self._unit), None
            elif self._mask is None:
                self._unit = min(self._unit, itemsize)
                self._mask = np.zeros(self._nbytes // self._unit, np.bool_)
            elif itemsize < self._unit:
                self._mask = np.repeat(self._mask, self._unit // itemsize)
                self._unit = itemsize
            return self._mask
