# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A lower bound on the use of on-chip memory by a running kernel; if it exceeds the capacity, the kernel can never fit.

A tensor that an instruction has just touched, and that an earlier one had touched before, has held data all the time in
between, whatever the rest of the kernel does. Lifetimes only grow, so tensors that certainly overlap at one moment do
so at the end. If they take more than a region has, in bytes times quarters of the partitions, there is no placement for
them, and the check at the end would fail. The check at the end (capacity.py) finds more: kernels whose tensors leave
gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from .lives import LiveRange


class _Span(NamedTuple):
    """A part of a tensor's lifetime, from the instruction after number ``before`` to number ``last``.

    ``area`` is the space that the tensor takes; see :class:`LiveRange`.
    """

    last: int
    before: int
    area: int


class CertainUse:
    """The space of a region that tensors certainly take, at each moment (number of an instruction) so far.

    Tensors that instructions touch are collected in a list, the window, which contains each tensor once. As long as the
    highest use before the window and all tensors of the window fit together, nothing has to be computed. When they do
    not, the spans (:class:`_Span`) of the window's tensors are added to the moments so far, and a new window begins.

    A moment is the end of a span: spans that overlap do so where the first of them ends. A later touch
    adds to all moments after the tensor's previous touch, up to now. So a moment can be dropped as soon as a later one
    takes as much, and of the remaining moments the first takes most.

    Args:
        room: the size of the region, in bytes times quarters of the partitions.

    Attributes:
        window: the number of the window, from 1, which its tensors carry.
    """

    def __init__(self, room: int) -> None:
        self.window = 1
        self._room = room
        self._most = 0  # that is taken at one time, without the window
        self._bound = 0  # with all of the window at once
        self._lives: list[LiveRange] = []  # of the window
        self._ended: list[_Span] = []  # of its tensors that were overwritten
        self._moments: list[int] = []
        self._falls: list[int] = []  # by how much the next moment uses less; for the last one, its use

    def touch(self, life: LiveRange, number: int) -> bool:
        """Record that instruction ``number`` touches a tensor that is not in the window yet.

        The result is whether the tensors that certainly overlap still fit the region.
        """
        life.touch(number)
        return self._enter(life)

    def restart(self, life: LiveRange, number: int) -> bool:
        """Record that instruction ``number`` overwrites a whole tensor; the result is that of :meth:`touch`."""
        is_inside, is_counted = life.window == self.window, life.last == number
        if is_inside:
            self._ended.append(_span(life))
        life.restart(number)
        life.counted = number if is_counted else number - 1
        return is_inside or self._enter(life)

    @property
    def moment(self) -> int:
        """The number of the instruction with the highest use, as last computed."""
        return self._moments[0]

    def _enter(self, life: LiveRange) -> bool:
        life.window = self.window
        self._lives.append(life)
        self._bound += life.area
        if self._bound > self._room:
            self._close()
        return self._most <= self._room

    def _close(self) -> None:
        """Add the uncounted spans of the window's tensors to the moments so far, and begin a new window."""
        for span in sorted([*self._ended, *map(_span, self._lives)]):
            self._add(*span)
        for life in self._lives:
            life.counted = life.last
        self._lives, self._ended = [], []
        self._bound = self._most
        self.window += 1

    def _add(self, last: int, before: int, area: int) -> None:
        moments, falls = self._moments, self._falls
        if not moments or moments[-1] != last:
            moments.append(last)
            falls.append(0)
        falls[-1] += area
        first = bisect_right(moments, before)
        if first == 0:
            self._most += area
            return
        fall, kept = falls[first - 1] - area, first
        while kept and fall <= 0:  # the earlier moment uses no more than the next one
            kept -= 1
            if kept:
                fall += falls[kept - 1]
            else:
                self._most -= fall
        del moments[kept:first], falls[kept:first]
        if kept:
            falls[kept - 1] = fall


def _span(life: LiveRange) -> _Span:
    """Return the part of a tensor's lifetime that was not counted yet."""
    return _Span(life.last, max(life.counted, life.first - 1), life.area)
