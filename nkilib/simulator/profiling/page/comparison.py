# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The comparison of two profiles by line of the kernel: which lines correspond, and how their times differ.

:func:`compared` returns a :class:`Change` for each line that either profile spends time on, the largest change first.

*Content* is the dictionary that a page is made of (:func:`.content.content_of`); *before* is the older profile, *after*
the profile that the page is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from .content import Content

# Lines that change by less than this, in picoseconds, are left out: they are 0.0 us in the table.
_LEAST_PS = 50_000

Line = tuple[int, int]


class Change(NamedTuple):
    """A line of the kernel in both profiles. Pairs are (before, after).

    Attributes:
        text: the text of the line.
        before: the index of the file and the number of the line in the older profile; None if it lacks the line.
        after: the index of the file and the number of the line in the profile that the page is about; None if it lacks
            the line.
        path_ps: the picoseconds of the critical path.
        busy_ps: the busy picoseconds of all engines, added up.
        counts: the numbers of instructions.
    """

    text: str
    before: Line | None
    after: Line | None
    path_ps: tuple[int, int]
    busy_ps: tuple[int, int]
    counts: tuple[int, int]

    @property
    def change_ps(self) -> int:
        """The increase of the time on the critical path, in picoseconds."""
        return self.path_ps[1] - self.path_ps[0]


def _text_of(content: Content, line: Line) -> str:
    for first, text in content["files"][line[0]]["parts"]:
        if first <= line[1] < first + len(text):
            return str(text[line[1] - first]).strip()
    return ""


def _pairs_of_files(before: Content, after: Content) -> Iterator[tuple[int, int]]:
    """Yield pairs of files that are versions of each other.

    Files of the same name are a pair. The remaining files of each profile are sorted by the time of the critical path
    that is spent in them, and paired in this order.
    """
    names = {file["name"]: index for index, file in enumerate(after["files"])}
    found = {index: names[file["name"]] for index, file in enumerate(before["files"]) if file["name"] in names}
    yield from found.items()

    def busiest(content: Content, taken: set[int]) -> list[int]:
        spent: dict[int, int] = {}
        for file, _, path_ps, *_ in content["lines"]:
            if file not in taken:
                spent[file] = spent.get(file, 0) + path_ps
        return sorted(spent, key=lambda file: -spent[file])

    yield from zip(busiest(before, set(found)), busiest(after, set(found.values())), strict=False)


def _numbered(content: Content, file: int) -> list[tuple[int, str]]:
    # Numbers and texts of the lines from the first to the last one that issues instructions.
    used = [line for own, line, *_ in content["lines"] if own == file]
    first, last = min(used, default=0), max(used, default=-1)
    lines = ((begin + at, line) for begin, text in content["files"][file]["parts"] for at, line in enumerate(text))
    return [(number, line.strip()) for number, line in lines if first <= number <= last]


def _same_lines(before: Content, after: Content) -> dict[Line, Line]:
    # From lines of the first profile to the lines of the second one with the same text at the same position.
    same: dict[Line, Line] = {}
    for own, other in _pairs_of_files(before, after):
        first, second = _numbered(before, own), _numbered(after, other)
        own_texts, other_texts = ([text for _, text in lines] for lines in (first, second))
        for block in SequenceMatcher(None, own_texts, other_texts, autojunk=False).get_matching_blocks():
            for at in range(block.size):
                same[own, first[block.a + at][0]] = other, second[block.b + at][0]
    return same


def compared(before: Content, after: Content) -> list[Change]:
    """Return the lines whose time on the critical path differs by at least 0.05 us, or that only one profile has.

    The largest change comes first.

    Args:
        before: the content of the profile to compare with.
        after: the content of the profile that the page is about.
    """
    sums = [
        {(file, line): (path, sum(busy.values()), count) for file, line, path, count, _, busy in content["lines"]}
        for content in (before, after)
    ]
    same = _same_lines(before, after)
    none = 0, 0, 0
    changes: list[Change] = []
    taken: set[Line] = set()
    for line, (path, busy, count) in sums[0].items():
        other = same.get(line)
        other = other if other in sums[1] else None
        their_path, their_busy, their_count = sums[1][other] if other else none
        if other:
            taken.add(other)
        text = _text_of(before, line)
        changes.append(Change(text, line, other, (path, their_path), (busy, their_busy), (count, their_count)))
    for line, (path, busy, count) in sums[1].items():
        if line not in taken:
            changes.append(Change(_text_of(after, line), None, line, (0, path), (0, busy), (0, count)))
    kept = [change for change in changes if abs(change.change_ps) >= _LEAST_PS or not (change.before and change.after)]
    return sorted(kept, key=lambda change: -abs(change.change_ps))
