# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of which blocks of a large matrix were written, in one byte for each row and distinct range of columns.

A kernel writes its large result in blocks of rows and columns. To mark every element of them takes half as long as to
write a bfloat16 matrix; to mark the rows of each range of columns takes almost no time.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..terms.layout import Layout, is_dense


class _Block(NamedTuple):
    """The rows of a block of a matrix, and bytes ``columns[0]`` to ``columns[1]`` (exclusive) of each."""

    rows: slice
    columns: tuple[int, int]


class WrittenBlocks:
    """The written blocks of a matrix: for each range of columns that was written, the rows in which it was.

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
        """Record that the elements of ``layout`` were written; return False if they are no block."""
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
        """Return whether the ranges of columns that were written in all rows make up the matrix."""
        end = 0
        for first, last in sorted(columns for columns, rows in self._written.items() if rows.all()):
            if first > end:
                return False
            end = max(end, last)
        return end == self._row_bytes

    def covers(self, layout: Layout, itemsize: int) -> bool:
        """Return whether ``layout`` is a block in one recorded range of columns; if False, it may still be written."""
        block = self._block_of(layout, itemsize)
        return block is not None and any(
            first <= block.columns[0] and block.columns[1] <= last and bool(rows[block.rows].all())
            for (first, last), rows in self._written.items()
        )

    def covers_each(self, layout: Layout, itemsize: int, indices: npt.NDArray[np.int64]) -> bool:
        """Return whether recorded ranges of columns contain the elements of ``layout`` at these indices of dimension 0.

        The elements at one index must lie in a single range; if False, the elements may still be written.
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
        """Return a mask with one byte for every ``unit`` bytes of the matrix: whether they were written."""
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
