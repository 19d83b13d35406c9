# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors whose rows the two cores divide: checking that each core stays within its own rows excludes races.

Most kernels with a tensor that two cores write divide it so. A search for races element by element, as in
machine/races.py, takes longer than the transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..tensors.view import View
from ..terms.layout import Layout, extent
from .errors import ReplayFailed
from .ghosts import Ghost, ghost_of
from .stream import Indexed


class Territory(NamedTuple):
    """The rows of a tensor (indices of its dimension 0) that one core may touch.

    Attributes:
        is_own: for each row, whether the core may touch it.
        row_bytes: the bytes of a row.
    """

    is_own: npt.NDArray[np.bool_]
    row_bytes: int

    def checking(self, view: View) -> Callable[[npt.NDArray[Any]], None]:
        """Return a check that raises ``ReplayFailed`` for an index that leads ``view`` out of the core's rows.

        The instruction itself refuses rows that do not exist.
        """
        span, is_own = _Span.of(view, self.row_bytes), self.is_own

        def check(index: npt.NDArray[Any]) -> None:
            if not is_own.take(span.ends(index), mode="clip").all():
                raise ReplayFailed("a core touches what may be the other core's")

        return check


class _Span(NamedTuple):
    """The bytes of a tensor that one row of an indirect view occupies, for index 0.

    Attributes:
        first, last: the first and the last byte.
        step: the bytes by which the row moves for each step of the index.
        limit: the exclusive upper limit of the index.
        row_bytes: the bytes of a row of the tensor.
    """

    first: int
    last: int
    step: int
    limit: int
    row_bytes: int

    @classmethod
    def of(cls, view: View, row_bytes: int) -> _Span:
        indirect = view.indirect_access
        assert indirect is not None
        width = ghost_of(view).width_of(view.dtype)
        low, high = extent(Layout(view.shape[1:], view.strides[1:], view.offset))
        return cls(low * width, (high + 1) * width - 1, indirect.stride * width, indirect.limit, row_bytes)

    @property
    def is_long(self) -> bool:
        """Whether the span may reach over whole rows of the tensor between its first and its last one."""
        return self.last - self.first >= 2 * self.row_bytes

    def ends(self, index: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the rows of the tensor in which the span begins and ends, for all indices that are in range."""
        rows = index[(index >= 0) & (index < self.limit)].astype(np.int64) * self.step
        return np.concatenate(((rows + self.first) // self.row_bytes, (rows + self.last) // self.row_bytes))


def territories(
    ghost: Ghost, touched: Sequence[Sequence[View]], indexed: Sequence[Sequence[Indexed]]
) -> list[Territory] | None:
    """Return the rows of a tensor that belong to each of two cores; None if the cores do not divide the rows.

    They do not if both touch the same row, if one of them touches none, or if a row of a view in ``indexed`` may reach
    over whole rows. Rows that no core touches belong to the core that has the row before them.

    Args:
        ghost: the tensor.
        touched: by core, the static views of it that the core reads or writes.
        indexed: by core, the views of it whose rows the data chose when the launch was recorded.
    """
    row_bytes = max(1, ghost.partition_bytes)
    count = -(-ghost.nbytes // row_bytes)
    sides = [Territory(np.zeros(count, np.bool_), row_bytes) for _ in touched]
    for side, views, chosen in zip(sides, touched, indexed, strict=True):
        for view in views:
            _mark(side, view)
        for chosen_view in chosen:
            span = _Span.of(chosen_view.view, row_bytes)
            if span.is_long:
                return None
            side.is_own[span.ends(chosen_view.index).clip(0, count - 1)] = True
    first, second = (side.is_own for side in sides)
    if (first & second).any() or not first.any() or not second.any():
        return None
    owner = _filled(np.where(first, 0, np.where(second, 1, _NOBODY)))
    return [Territory(owner == number, row_bytes) for number in range(len(sides))]


_NOBODY = -1


def _filled(owners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the owner of each row: rows without one get that of the row before, the first rows that of the next."""
    known = np.flatnonzero(owners != _NOBODY)
    places = np.searchsorted(known, np.arange(len(owners)), side="right") - 1
    filled: npt.NDArray[np.int64] = owners[known[places.clip(0)]]
    return filled


def _mark(side: Territory, view: View) -> None:
    """Mark the rows in which a view has elements."""
    width = ghost_of(view).width_of(view.dtype)
    starts = np.array([view.offset * width])
    low = high = 0
    for size, stride in zip(view.shape, view.strides, strict=True):
        if abs(stride) * width >= side.row_bytes:
            starts = (starts[:, np.newaxis] + np.arange(size) * stride * width).reshape(-1)
        elif stride > 0:
            high += (size - 1) * stride * width
        else:
            low += (size - 1) * stride * width
    for start in range(low, high + width, side.row_bytes):
        side.is_own[(starts + start) // side.row_bytes] = True
    side.is_own[(starts + high + width - 1) // side.row_bytes] = True
