# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bytes that strided layouts occupy, as ranges, and checks whether layouts or tensors overlap.

- :func:`spans_of`, :func:`spans_of_rows`: the ranges of a layout (:class:`Spans`).
- :func:`first_meeting`: a byte that two layouts share.
- :class:`HbmPlaces`: the tensors to which a kernel gives an address in HBM; each is one range.

``width`` is the number of bytes of an element; a row is an index of dimension 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..terms.layout import Layout

Offsets = npt.NDArray[np.int64]


class Spans(NamedTuple):
    """Ranges of bytes that all have the same length: ``starts[i]`` to ``starts[i] + length`` (exclusive)."""

    starts: Offsets
    length: int


def _together(spans: Sequence[Spans]) -> tuple[Offsets, Offsets, Offsets]:
    """Return starts, ends and owners of all byte ranges; the owner is the index in ``spans`` from which a range
    comes.
    """
    starts = np.concatenate([item.starts for item in spans])
    counts = [item.starts.size for item in spans]
    lengths = np.repeat([item.length for item in spans], counts)
    return starts, starts + lengths, np.repeat(np.arange(len(spans)), counts)


def first_meeting(first: Sequence[Spans], second: Sequence[Spans]) -> tuple[int, int, int] | None:
    """Find a byte that lies in a range of ``first`` and in a range of ``second``.

    Returns:
        The byte, the index in ``first`` and the index in ``second`` of the :class:`Spans` that contain it; None if
        there is no such byte.
    """
    starts, ends, owners = _together([*first, *second])
    is_first = owners < len(first)
    order = np.argsort(starts, kind="stable")
    starts, ends, owners, is_first = starts[order], ends[order], owners[order], is_first[order]
    for side in (True, False):
        # A span overlaps one of the other side that starts no later than it if any of those ends after its start.
        reach = np.maximum.accumulate(np.where(is_first == side, ends, -1))
        met = np.flatnonzero((is_first != side) & (reach > starts))
        if met.size:
            at = int(met[0])
            partner = int(np.flatnonzero((is_first == side) & (starts <= starts[at]) & (ends > starts[at]))[0])
            one, other = (partner, at) if side else (at, partner)
            return int(starts[at]), int(owners[one]), int(owners[other]) - len(first)
    return None


def _merge(dimensions: Iterable[tuple[int, int]], width: int) -> tuple[Offsets, int]:
    """Return the byte ranges of an array: their starts, relative to the first element, and their common length.

    Args:
        dimensions: size and stride (in elements) of each dimension.
        width: the bytes of an element.
    """
    starts, length = np.zeros(1, np.int64), width
    for size, stride in sorted(dimensions, key=lambda dimension: abs(dimension[1])):
        step = abs(stride) * width
        if stride < 0:
            starts = starts - step * (size - 1)
        if size == 0:
            return np.zeros(0, np.int64), width
        if step == 0 or size == 1:
            continue
        if step <= length and starts.size == 1:
            length += step * (size - 1)
        else:
            starts = (starts[:, None] + step * np.arange(size)[None, :]).reshape(-1)
    return starts, length


def spans_of(layout: Layout, width: int) -> Spans:
    """Return the bytes of a layout, in as few ranges as its dimensions allow."""
    starts, length = _merge(zip(layout.shape, layout.strides, strict=True), width)
    return Spans(starts + layout.offset * width, length)


def spans_of_rows(layout: Layout, width: int, rows: Offsets) -> Spans:
    """Return the bytes that a layout occupies in the rows with the indices ``rows``."""
    starts, length = _merge(zip(layout.shape[1:], layout.strides[1:], strict=True), width)
    first = layout.offset * width + np.unique(rows) * (layout.strides[0] * width)
    return Spans((first[:, None] + starts[None, :]).reshape(-1), length)


@dataclass(frozen=True)
class _PlacedTensor:
    low: int
    high: int
    what: str


@dataclass
class HbmPlaces:
    """The tensors to which a kernel gives an address in one HBM: the private HBM of a core, or the shared HBM.

    The tensors must not overlap, because in the simulator each of them has its own memory.
    """

    places: list[_PlacedTensor] = field(default_factory=list)

    def take(self, low: int, nbytes: int, what: str) -> str | None:
        """Record a tensor at bytes ``low`` to ``low + nbytes`` (exclusive); ``what`` describes it in messages.

        Returns:
            An error message if the tensor overlaps an earlier one; otherwise None. A tensor in HBM counts as needed
            until the kernel ends.
        """
        mine = _PlacedTensor(low, low + nbytes, what)
        clash = next((other for other in self.places if other.low < mine.high and mine.low < other.high), None)
        self.places.append(mine)
        if clash is None:
            return None
        return (
            f"nl.ndarray: {what} at bytes {mine.low} to {mine.high} overlaps {clash.what} at bytes {clash.low} to "
            f"{clash.high}: place them apart, or make both views of one tensor"
        )
