"""In which order the items of all windows are gone through: twice, the second time a group later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Step:
    """What is issued together.

    Attributes:
        first: an item of which the first pass gathers sums.
        combined: a group whose sums are complete.
        second: an item of which the second pass makes the result.
    """

    first: Item | None
    combined: Group | None
    second: Item | None


def steps_of(windows: list[Window], parts: list[Part], whole_windows: bool) -> list[Step]:
    """All steps: the second pass over a group stands beside the first one over the next group.

    Args:
        windows: of the core.
        parts: of every column.
        whole_windows: a group is a window, else a turn; columns of several parts need whole windows.
    """
    found: list[Step] = []
    before: Group | None = None
    for group in [*_groups(windows, parts, whole_windows), None]:
        first = () if group is None else group.items
        second = () if before is None else before.items
        for place in range(max(len(first), len(second))):
            found.append(
                Step(
                    first[place] if place < len(first) else None,
                    before if place == 0 else None,
                    second[place] if place < len(second) else None,
                )
            )
        before = group
    return found


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
