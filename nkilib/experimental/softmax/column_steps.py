"""In which order the items of all windows are gone through: twice, the second time a group and some steps later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


def steps_of(windows: list[Window], parts: list[Part], whole_windows: bool, stages: int) -> list[Step]:
    """All steps: the second pass over a group stands beside the first one over the next group.

    Args:
        windows: of the core.
        parts: of every column.
        whole_windows: a group is a window, else a turn; columns of several parts need whole windows.
        stages: steps between the passes over a group, in which its sums are combined.
    """
    items: dict[Phase, dict[int, Item]] = {phase: {} for phase in Phase}
    combined: dict[int, list[tuple[Group, int]]] = {}
    begun = free = 0  # the first step in which no item begins, and in which none is prepared
    for group in _groups(windows, parts, whole_windows):
        for item in group.items:
            items[Phase.BEGIN][begun] = items[Phase.GATHER][begun + 1] = item
            begun += 1
        for stage in range(stages):
            combined.setdefault(begun + 1 + stage, []).append((group, stage))
        free = max(free, begun + 1 + stages)
        for item in group.items:
            items[Phase.PREPARE][free] = items[Phase.RESULT][free + 1] = item
            free += 1
    return [
        Step(
            {phase: of_phase[number] for phase, of_phase in items.items() if number in of_phase},
            tuple(combined.get(number, ())),
        )
        for number in range(free + 1)
    ]


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
