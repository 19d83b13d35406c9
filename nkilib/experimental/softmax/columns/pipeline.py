# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loop over items of columns, which issues work so early that no engine waits for another engine.

:mod:`.plan` defines the terms: an *item* is one segment (a range of elements of every column) of one strip (up to 128
columns); a *window* is the strips that are loaded together, in one or more *parts* of consecutive segments. A *group*
is the strips whose statistics are combined together: a strip, or a whole window.

Two passes process every item. The first pass computes the statistics of a group's items; a few *stages* combine them;
the second pass computes the results. Each pass over an item has two halves, its *phases* (:class:`Phase`).

The loop (:class:`Pipeline`) runs in steps, which a :class:`Schedule` makes. A step issues one phase of each kind, for
different items: the second half of a pass for one item, and the first half for the next item. The second pass over a
group runs in the same steps as the first pass over the next group. If the layout needs it, a step also transposes the
items of the next step, and transposes the result of the previous step back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import zip_longest
from typing import NamedTuple, Protocol

from nkilib.core.rows.checks import require
from nkilib.experimental.softmax.columns.layouts import LoadKey, Results, Source
from nkilib.experimental.softmax.columns.plan import ColumnPlan, Item, Part, Strip, Window
from nkilib.nki import nl

# A load into the buffer slot of a part that was just stored waits for the store. If both use the same queue, later
# transfers wait too. After this number of steps the store is done.
_STEPS_OF_STORE = 8


@dataclass(frozen=True)
class Group:
    """Neighbouring strips of a window whose statistics are combined together.

    Attributes:
        window: the window that the strips belong to.
        first, end: the range [first, end) of numbers of strips in the window.
        rows: the largest number of columns of a strip, each on a partition.
        items: the items of all the strips, in the order of processing.
    """

    window: Window
    first: int
    end: int
    rows: int
    items: tuple[Item, ...]


class Phase(IntEnum):
    """The four phases of an item: the two halves of the first pass over it, then the two halves of the second pass.

    Every phase of an item is issued in a step of its own. The second half of a pass is issued in the step after the
    first half, or later if the load of its data is not issued yet.
    """

    BEGIN = 0
    GATHER = 1
    PREPARE = 2
    RESULT = 3

    @property
    def visit(self) -> int:
        """The number of the pass to which the phase belongs: 1 or 2."""
        return 1 if self <= Phase.GATHER else 2


@dataclass(frozen=True)
class Step:
    """The work that one step of the loop issues.

    Attributes:
        items: the item that each phase processes; a phase without an item is absent.
        combined: the groups that a combining stage is issued for, each with the number of the stage, from 0.
    """

    items: dict[Phase, Item]
    combined: tuple[tuple[Group, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the step has no work to issue."""
        return not self.items and not self.combined


@dataclass(frozen=True)
class ColumnLoop:
    """The plan of a core, and the properties of its loop that follow from the plan.

    Attributes:
        plan: the division of the launch into windows, parts and segments.
        phases: for each tensor that the loop reads: the first phase that reads it, of each pass that reads it.
        kept: the number of tiles that keep values of the first pass for the second pass; 0 if the second pass computes
            these values again.
        whole_windows: True if the second pass over a window starts after the first pass over the whole window; False if
            the second pass over a strip of columns starts after the first pass over that strip.
        stages: the number of combining stages; each takes one step.
        overwrites: whether results are written over the items of the first tensor in SBUF.
    """

    plan: ColumnPlan
    phases: tuple[tuple[Phase, ...], ...]
    kept: int
    whole_windows: bool
    stages: int
    overwrites: bool


def _items(window: Window, part: Part, strip: Strip, strips: list[Strip]) -> list[Item]:
    return [
        Item(window, part, strip, segment, strip is strips[-1] and segment is part.segments[-1])
        for segment in part.segments
    ]


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


@dataclass
class Schedule:
    """The schedule of the loop: which items and stages each step issues.

    :meth:`next` proposes a step. The caller leaves out items whose loads are not issued yet; :meth:`take` records what
    was issued, and the items come again in the next step. So either pass may wait while the other pass continues.

    Attributes:
        groups: the groups of all windows, in the order in which they are processed.
        stages: the number of stages that combine the statistics of a group.
        beginning: the item that the first pass begins next: the index of its group, and its index in the group.
        begun: the item that is between the two halves of the first pass, or None.
        prepared: the item that is between the two halves of the second pass, or None.
        combining: the groups between the two passes, each with the number of the combining stage to issue next.
        ready: the items whose second pass may begin, in order.
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
        """Make the schedule of a loop that has not started.

        Args:
            windows: the windows of the core.
            parts: the parts of every column.
            whole_windows: whether a group is a whole window instead of one strip; True if columns have several parts.
            stages: the number of stages that combine the statistics of a group.
        """
        return cls(list(_groups(windows, parts, whole_windows)), stages)

    def next(self) -> Step:
        """Return the next step, as if all loads had been issued; an empty step means that the loop is finished."""
        number, place = self.beginning
        items = {
            Phase.BEGIN: self.groups[number].items[place] if number < len(self.groups) else None,
            Phase.GATHER: self.begun,
            Phase.PREPARE: self.ready[0] if self.ready else None,
            Phase.RESULT: self.prepared,
        }
        return Step({phase: item for phase, item in items.items() if item is not None}, tuple(self.combining))

    def take(self, step: Step) -> None:
        """Record that ``step`` has been issued.

        ``step`` is the step that :meth:`next` returned, or the same step without some of its items.
        """
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


class Arithmetic(Protocol):
    """The interface of the computation on items.

    The argument ``views`` holds the views of an item, by the index of the :class:`Reader`. A reader has a view from the
    phase in :attr:`Reader.phases` to the end of the pass.
    """

    def begin(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Issue the first half of the first pass over an item."""

    def gather(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Issue the second half of the first pass over an item."""

    def combine(self, group: Group, stage: int) -> None:
        """Issue combining stage number ``stage`` of a group, between the two passes."""

    def prepare(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Issue the first half of the second pass over an item."""

    def result(self, item: Item, views: dict[int, nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """Issue the second half of the second pass over an item: write its result to ``dst_sbuf``."""


class ViewKey(NamedTuple):
    """The key of a view: the index of the reader, the number of the pass, and ``id`` of the item."""

    reader: int
    visit: int
    item: int


@dataclass(frozen=True)
class Reader:
    """A source of items, and the passes of the loop that read it.

    Attributes:
        source: the source of the items of one tensor.
        phases: for each pass that reads the tensor, the first :class:`Phase` of the pass that reads it.
    """

    source: Source
    phases: tuple[Phase, ...]

    @property
    def passes(self) -> tuple[int, ...]:
        """The numbers of the passes that read the source."""
        return tuple(phase.visit for phase in self.phases)

    def key(self, item: Item, visit: int) -> LoadKey:
        """Return the key of the load that provides an item for pass number ``visit``."""
        return self.source.ring.key(item.window, item.part, visit)

    def ends(self, item: Item, visit: int, is_overwritten: bool) -> bool:
        """Return whether the load of an item's part may be released after pass number ``visit`` over the item.

        ``is_overwritten`` states that the results of the second pass are written over the loaded data. A load that the
        second pass reads is then released later, when the results have been stored.
        """
        is_of_one_pass = self.key(item, visit).visit != 0
        if is_overwritten and not (is_of_one_pass and visit == 1):
            return False
        return item.ends_part and (is_of_one_pass or visit == max(self.passes))


@dataclass
class Pipeline:
    """The loop that issues all steps of a core.

    An item whose load is not issued, for want of a free buffer slot, waits for a later step. The loop cannot block: one
    of the two passes can always continue. Each reader has a ring buffer, which issues its loads in the order of
    :func:`.loads_of`. A step that lacks an item first stores all finished results, so that a slot is occupied only
    by a load that a pass has yet to read. There are two cases:

    - Each pass has its own loads. Let L be the first load, in the common order, that a pass has yet to read. All loads
      before L are released, so L is issued in every ring buffer that has it, and the pass of L can continue. If that is
      the second pass, the first pass over the window has ended, because its loads come before L.
    - One load serves both passes. If the second pass has an item, all loads before the item's load are released, so
      this load is issued, and the second pass can continue. If not, the first pass is in the first window that the
      second pass has not finished. All loads of earlier windows are released. A ring buffer that both passes read has a
      slot for every part of a window; one that only the first pass reads has released all earlier parts. So the load of
      the current item is issued, and the first pass can continue.

    Attributes:
        schedule: the order of the steps.
        readers: one reader for each tensor that is read.
        arithmetic: the computation on items.
        results: the destination of the results.
        overwrites: whether results are written over the tiles of the first reader.
        made: an item whose result was computed in the previous step, and the result; None if there is none.
        views: the views of items that a phase has yet to read.
        stored: parts that were stored and whose buffer slots are not released yet: for each the number of the step, and
            the part's last item.
        taken: the number of steps that were issued.
    """

    schedule: Schedule
    readers: list[Reader]
    arithmetic: Arithmetic
    results: Results
    overwrites: bool
    made: tuple[Item, nl.NkiTensor] | None = None
    views: dict[ViewKey, nl.NkiTensor] = field(default_factory=dict)
    stored: list[tuple[int, Item]] = field(default_factory=list)
    taken: int = 0

    def run(self) -> None:
        """Run the loop: issue all loads, steps and stores of the core."""
        self._advance()
        step = self.schedule.next()
        while not step.is_empty:
            step = self._on_chip(step)
            self.schedule.take(step)
            following = self.schedule.next()
            self._step(step, following)
            self.taken += 1
            self._release_stored(_STEPS_OF_STORE)
            self._advance()
            step = following
        self._finish_made()

    def _on_chip(self, step: Step) -> Step:
        """Make the views of the items of ``step``, and return the step without items whose loads are not issued yet."""
        if self._look_ahead(step):
            return step
        self._finish_made()  # a result that waits to be stored may occupy the buffer slot
        self._release_stored(0)
        if self._look_ahead(step):
            return step
        waiting = {phase for phase, item in step.items.items() if not self._is_transposed(item, phase)}
        # While the second half of a pass over an item waits, the first half over the next item waits too.
        for half, before in ((Phase.GATHER, Phase.BEGIN), (Phase.RESULT, Phase.PREPARE)):
            if half in waiting:
                waiting.add(before)
        issued = Step({phase: item for phase, item in step.items.items() if phase not in waiting}, step.combined)
        require(not issued.is_empty, "softmax over columns: a step must have an item, and both passes wait for buffers")
        return issued

    def _is_transposed(self, item: Item, phase: Phase) -> bool:
        """Return whether :attr:`views` has the item's views from all readers that have ``phase`` in their phases."""
        return all(
            phase not in reader.phases or ViewKey(place, phase.visit, id(item)) in self.views
            for place, reader in enumerate(self.readers)
        )

    def _step(self, step: Step, following: Step) -> None:
        transposed = None
        if self.made is not None:
            item, piece_sbuf = self.made
            transposed = item, self.results.transpose_back(item, piece_sbuf)
            self.made = None
        for phase, do in ((Phase.BEGIN, self.arithmetic.begin), (Phase.PREPARE, self.arithmetic.prepare)):
            if phase in step.items:
                do(step.items[phase], self._views(step.items[phase], phase))
        self._look_ahead(following)
        if Phase.GATHER in step.items:
            item = step.items[Phase.GATHER]
            self.arithmetic.gather(item, self._views(item, Phase.GATHER))
        for group, stage in step.combined:
            self.arithmetic.combine(group, stage)
        if Phase.RESULT in step.items:
            item = step.items[Phase.RESULT]
            piece_sbuf = self.results.piece(item)
            self.arithmetic.result(item, self._views(item, Phase.RESULT), piece_sbuf)
            self.made = item, piece_sbuf
        if transposed is not None:
            self._finish(*transposed)

    def _look_ahead(self, step: Step) -> bool:
        """Make the views of the items of a step, with a transpose if the layout needs it; return False if an item's
        load is not issued yet, and leave this item out.
        """
        is_complete = True
        for phase, item in step.items.items():
            for place, reader in enumerate(self.readers):
                key = ViewKey(place, phase.visit, id(item))
                if phase not in reader.phases or key in self.views:
                    continue
                self._advance()
                if not reader.source.ring.has(reader.key(item, phase.visit)):
                    is_complete = False
                    continue
                self.views[key] = reader.source.view(item, phase.visit)
        return is_complete

    def _views(self, item: Item, phase: Phase) -> dict[int, nl.NkiTensor]:
        """Return the views of an item that ``phase`` may read, by the index of the reader.

        In the second half of a pass, also remove them from :attr:`views`, and release loads that are not needed again.
        """
        keys = {place: ViewKey(place, phase.visit, id(item)) for place in range(len(self.readers))}
        views = {place: self.views[key] for place, key in keys.items() if key in self.views}
        if phase in (Phase.GATHER, Phase.RESULT):
            for place in views:
                self.views.pop(keys[place])
                reader = self.readers[place]
                if reader.ends(item, phase.visit, self.overwrites and place == 0):
                    reader.source.ring.release(reader.key(item, phase.visit))
        return views

    def _finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy and store the result of an item.

        If results overwrite their input, the buffer slot of the part becomes free some steps later.
        """
        self.results.finish(item, back_psum)
        if self.overwrites and item.ends_part:
            self.stored.append((self.taken, item))

    def _release_stored(self, steps: int) -> None:
        """Release the buffer slots of results that were stored at least ``steps`` steps ago."""
        reader = self.readers[0]
        while self.stored and self.stored[0][0] + steps <= self.taken:
            _, item = self.stored.pop(0)
            reader.source.ring.release(reader.key(item, 2))

    def _advance(self) -> None:
        for _ in zip_longest(*[reader.source.ring.advance() for reader in self.readers]):
            pass

    def _finish_made(self) -> None:
        if self.made is not None:
            item, piece_sbuf = self.made
            self.made = None
            self._finish(item, self.results.transpose_back(item, piece_sbuf))
