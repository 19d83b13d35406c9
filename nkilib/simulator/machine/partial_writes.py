# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of the lines that wrote some elements of a tensor, for the message about elements that were never written.

:class:`PartialWriteWatch` gives each core a :class:`PartialWrites`, from which :func:`where_unwritten` makes text.

The record exists only if reading unwritten elements is an error or a warning. A write after which the tensor has no
unwritten element is ignored; most writes are of this kind, and cost only one check.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..memory.storage import Storage
from ..tensors.view import View
from ..terms.descriptions import first_and_last
from ..terms.errors import kernel_location
from ..terms.layout import Layout
from .observer import Issued, Observer, Observers, Watcher


class _Box(NamedTuple):
    """A rectangle of a storage: a range of rows (indices of dimension 0) and a range of bytes of a row, ends
    included.
    """

    first_row: int
    last_row: int
    first_byte: int
    last_byte: int

    def distance_to(self, row: int, byte: int) -> tuple[int, int]:
        """Return the distance from the box to byte ``byte`` of row ``row``, as (rows, bytes); (0, 0) inside the box."""
        rows = max(self.first_row - row, row - self.last_row, 0)
        return rows, max(self.first_byte - byte, byte - self.last_byte, 0)


def _box_of(storage: Storage, layout: Layout, width: int) -> _Box:
    """Return the smallest box that contains the elements of ``layout``, which have ``width`` bytes each."""
    row_bytes = max(storage.partition_bytes, 1)
    rows = columns = 0
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        reach = abs(stride) * width * max(size - 1, 0)
        if abs(stride) * width >= row_bytes:
            rows += reach // row_bytes
        else:
            columns += reach
    first_row, first_byte = divmod(layout.offset * width, row_bytes)
    last_byte = first_byte + columns + width - 1
    rows += last_byte // row_bytes  # a view that folds rows into a dimension of its own
    return _Box(first_row, first_row + rows, first_byte, min(last_byte, row_bytes - 1))


class PartialWrites(Observer):
    """A record of one core's writes after which the written tensor still had unwritten elements.

    Args:
        seen: for each storage number, a dict from a written box to the ``file:line`` that wrote it last; the box that
            was written last stands last. All cores of a launch share ``seen``: a core may read elements that were left
            unwritten by the other core.
    """

    def __init__(self, seen: dict[int, dict[_Box, str]]) -> None:
        self._seen = seen

    def issued(self, call: Issued) -> None:
        for _, position in call.definition.outputs:
            view = call.values[position]
            if view is not None and not view.storage.written.is_full:
                self.note(view)
        for operand in call.indirect:
            if operand.is_output and not operand.base.storage.written.is_full:
                self.note(operand.base)

    def note(self, view: View) -> None:
        """Record that the running instruction has written ``view``, whose tensor still has unwritten elements."""
        storage = view.storage
        if view.indirect_access is None:
            box = _box_of(storage, view.layout, storage.width_of(view.dtype))
        else:  # somewhere in it: no row or byte of a row has a higher index
            box = _Box(0, storage.nbytes, 0, storage.nbytes)
        boxes = self._seen.setdefault(storage.number, {})
        boxes.pop(box, None)  # to stand at the end again
        boxes[box] = kernel_location()

    def line_near(self, view: View, index: list[int]) -> str | None:
        """Return the ``file:line`` of the write nearest to the element ``index`` of ``view``; None if there was no
        write.

        Of several equally near writes, the last one is chosen.
        """
        storage = view.storage
        boxes = list(self._seen.get(storage.number, {}).items())
        if not boxes:
            return None
        width = storage.width_of(view.dtype)
        at = view.layout.offset + sum(step * stride for step, stride in zip(index, view.layout.strides, strict=True))
        row, byte = divmod(at * width, max(storage.partition_bytes, 1))
        _, place = min(reversed(boxes), key=lambda item: item[0].distance_to(row, byte))
        return place


class PartialWriteWatch(Watcher):
    """The watcher that gives each core of a launch a record of its partial writes."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[_Box, str]] = {}

    def watch(self, number: int, observers: Observers) -> Observer:
        return PartialWrites(self._seen)

    def conclude(self, has_ended: bool) -> None:
        return


def where_unwritten(writes: PartialWrites | None, view: View, among: npt.NDArray[np.bool_] | None = None) -> str:
    """Return text with the first and last unwritten elements of ``view``, and the line that last wrote nearest to the
    first.

    Args:
        writes: the recorded writes; None leaves out the line.
        view: a static view with unwritten elements.
        among: a mask of the elements to consider, in the shape of the view; None for all.
    """
    unwritten = view.storage.unwritten(view.layout, view.dtype, among)
    elements = first_and_last(unwritten)
    line = None if writes is None else writes.line_near(view, np.argwhere(unwritten)[0].tolist())
    if line is not None:
        return f"{elements}; {line} was the last to write near it"
    return f"{elements}; nothing has written to this tensor" if view.covers_storage() and unwritten.all() else elements
