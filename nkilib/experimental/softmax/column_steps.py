# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The order in which a core processes the items of its windows.

Two passes process every item. The second pass over a group of items starts a few steps after the first pass over that
group has ended, and it runs in the same steps as the first pass over the next group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from nkilib.experimental.softmax.column_geometry import Item, Part, Strip, Window


@dataclass(frozen=True)
class Group:
    """Neighbouring strips of a window whose sums are combined together.

    Attributes:
        window: the window that the strips belong to.
        first, end: the number of the first strip, and the number of the last strip plus one.
        rows: the number of partitions that hold columns in at least one of the strips.
        items: the items of all the strips, in their order.
    """

    window: Window
    first: int
    end: int
    rows: int
    items: tuple[Item, ...]


class Phase(IntEnum):
    """The four phases of an item: two halves of the first pass, then two halves of the second pass.

    Every phase of an item is issued in a step of its own. The second half of a pass is issued in the step that follows
    the first half, or in a later step if its load is missing.
    """

    BEGIN = 0
    GATHER = 1
    PREPARE = 2
    RESULT = 3

    @property
    def visit(self) -> int:
        """The number of the pass that the phase belongs to: 1 or 2."""
        return 1 if self <= Phase.GATHER else 2


@dataclass(frozen=True)
class Step:
    """The work that is issued together in one iteration of the loop.

    Attributes:
        items: the item that each phase processes.
        combined: groups whose sums are complete, with the number of the stage that combines them in this step.
    """

    items: dict[Phase, Item]
    combined: tuple[tuple[Group, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the step has no work to issue."""
        return not self.items and not self.combined


@dataclass
class Schedule:
    """The choice of the next step: the second pass over a group runs beside the first pass over the next group.

    An item whose load has no buffer slot yet is left out of a step and is issued in a later step, so either pass may
    wait while the other pass continues. At most one item of a pass is between its two halves. Hence a pass whose
    second half waits does not begin another item.

    Attributes:
        groups: the groups of all windows, in the order in which they are processed.
        stages: the number of stages that combine the sums of a group between its two passes.
        beginning: the number of the group, and the number of the item in this group, that the first pass begins next.
        begun: the item that is between the two halves of the first pass, or None.
        prepared: the item that is between the two halves of the second pass, or None.
        combining: groups whose sums are complete, with the number of the stage that combines them next.
        ready: items that the second pass may begin, in order.
    """

    groups: list[Group]
    stages: int
    beginning: tuple[int, int] = (0, 0)
    begun: Item | None = None
    prepared: Item | None = None
    combining: list[tuple[Group, int]] = field(default_factory=list)
    ready: deque[Item] = field(default_factory=deque)

    @classmethod
    def make(cls, windows: list[Window], parts: list[Part], whole_windows: bool, stages: int) -> Schedule:
        """Make a schedule that has not taken any step.

        Args:
            windows: the windows of the core.
            parts: the parts of every column.
            whole_windows: whether a group is a whole window instead of one strip. Columns of several parts need True.
            stages: the number of stages that combine the sums of a group.
        """
        return cls(list(_groups(windows, parts, whole_windows)), stages)

    def next(self) -> Step:
        """Return the next step, under the assumption that all its items are on chip; the step is empty at the end."""
        number, place = self.beginning
        items = {
            Phase.BEGIN: self.groups[number].items[place] if number < len(self.groups) else None,
            Phase.GATHER: self.begun,
            Phase.PREPARE: self.ready[0] if self.ready else None,
            Phase.RESULT: self.prepared,
        }
        return Step({phase: item for phase, item in items.items() if item is not None}, tuple(self.combining))

    def take(self, step: Step) -> None:
        """Record that a step was issued: the step that :meth:`next` returned, or one with some of its items only."""
        combined = [(group, stage + 1) for group, stage in step.combined]
        self.combining = [(group, stage) for group, stage in combined if stage < self.stages]
        for group, stage in combined:
            if stage == self.stages:
                self.ready.extend(group.items)
        if Phase.GATHER in step.items:
            self.begun = None
            number, place = self.beginning
            if place == 0:  # the item was the last one of the group before
                self.combining.append((self.groups[number - 1], 0))
        if Phase.BEGIN in step.items:
            self.begun = step.items[Phase.BEGIN]
            number, place = self.beginning
            is_last = place + 1 == len(self.groups[number].items)
            self.beginning = (number + 1, 0) if is_last else (number, place + 1)
        if Phase.RESULT in step.items:
            self.prepared = None
        if Phase.PREPARE in step.items:
            self.prepared = self.ready.popleft()


def _groups(windows: list[Window], parts: list[Part], whole_windows: bool) -> Iterator[Group]:
    for window in windows:
        strips = window.strips()
        if whole_windows:
            items = tuple(item for part in parts for strip in strips for item in _items(window, part, strip, strips))
            yield Group(window, 0, len(strips), max(strip.columns for strip in strips), items)
            continue
        for strip in strips:
            items = tuple(_items(window, parts[0], strip, strips))
            yield Group(window, strip.number, strip.number + 1, strip.columns, items)


def _items(window: Window, part: Part, strip: Strip, strips: list[Strip]) -> list[Item]:
    return [
        Item(window, part, strip, segment, strip is strips[-1] and segment is part.segments[-1])
        for segment in part.segments
    ]
