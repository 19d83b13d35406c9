"""In which order the items of all windows are gone through: twice, the second time a group and some steps later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from nkilib.experimental.softmax.column_geometry import Item, Part, Turn, Window


@dataclass(frozen=True)
class Group:
    """Turns of a window whose sums are combined together.

    Attributes:
        window: of the turns.
        first, end: numbers of its first turn, and of the one after its last.
        rows: partitions on which all turns have columns, or on which one of them has.
        items: of all of them.
    """

    window: Window
    first: int
    end: int
    rows: int
    items: tuple[Item, ...]


class Phase(IntEnum):
    """What is done to an item, in different steps: the two of a pass in neighbouring ones."""

    BEGIN = 0
    GATHER = 1
    PREPARE = 2
    RESULT = 3

    @property
    def visit(self) -> int:
        """The pass that it belongs to."""
        return 1 if self <= Phase.GATHER else 2


@dataclass(frozen=True)
class Step:
    """What is issued together.

    Attributes:
        items: for each phase, the item that it is done to.
        combined: groups whose sums are complete, and the number of what is done to them in this step.
    """

    items: dict[Phase, Item]
    combined: tuple[tuple[Group, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to issue."""
        return not self.items and not self.combined


@dataclass
class Schedule:
    """Which step comes next: the second pass over a group stands beside the first one over the next group.

    An item whose load has no place yet is left out of a step and comes in a later one, so either pass may wait while
    the other one goes on. The two halves of a pass over an item hold it up together: between them is one item at most.

    Attributes:
        groups: of all windows, in their order.
        stages: steps between the passes over a group, in which its sums are combined.
        beginning: numbers of the group and of its item that begin next.
        begun, prepared: the item that is between the halves of the first pass, or of the second one.
        combining: groups whose sums are complete, and what is done to them next.
        ready: items whose second pass may start.
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
        """Nothing is done yet.

        Args:
            windows: of the core.
            parts: of every column.
            whole_windows: a group is a window, else a turn; columns of several parts need whole windows.
            stages: steps between the passes over a group.
        """
        return cls(list(_groups(windows, parts, whole_windows)), stages)

    def next(self) -> Step:
        """What is to be issued next, if every item of it is on chip; nothing in it at the end."""
        number, place = self.beginning
        items = {
            Phase.BEGIN: self.groups[number].items[place] if number < len(self.groups) else None,
            Phase.GATHER: self.begun,
            Phase.PREPARE: self.ready[0] if self.ready else None,
            Phase.RESULT: self.prepared,
        }
        return Step({phase: item for phase, item in items.items() if item is not None}, tuple(self.combining))

    def take(self, step: Step) -> None:
        """A step is issued: the one of :meth:`next`, or some of its items."""
        combined = [(group, stage + 1) for group, stage in step.combined]
        self.combining = [(group, stage) for group, stage in combined if stage < self.stages]
        for group, stage in combined:
            if stage == self.stages:
                self.ready.extend(group.items)
        if Phase.GATHER in step.items:
            self.begun = None
            number, place = self.beginning
            if place == 0:  # of the group before, that was the last one
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
        turns = window.turns()
        if whole_windows:
            items = tuple(item for part in parts for turn in turns for item in _items(window, part, turn, turns))
            yield Group(window, 0, len(turns), max(turn.columns for turn in turns), items)
            continue
        for turn in turns:
            items = tuple(_items(window, parts[0], turn, turns))
            yield Group(window, turn.number, turn.number + 1, turn.columns, items)


def _items(window: Window, part: Part, turn: Turn, turns: list[Turn]) -> list[Item]:
    return [
        Item(window, part, turn, segment, turn is turns[-1] and segment is part.segments[-1])
        for segment in part.segments
    ]
