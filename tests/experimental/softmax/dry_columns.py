# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A dry run of the loop over columns. It records the order of items and checks that the data they read is still there.

The dry run uses the plan, the schedule, the pipeline and the ring buffers of the kernels. A tile holds only the name of
the data that was written to it last, so a launch of thousands of instructions takes milliseconds. A read fails if
another load, strip or item has overwritten the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nkilib.experimental.softmax.columns.layouts import Load, LoadKey, LoadRing, loads_of
from nkilib.experimental.softmax.columns.pipeline import ColumnLoop, Group, Phase, Pipeline, Reader, Schedule, Step
from nkilib.experimental.softmax.columns.plan import OWN_TILES, Item, Layout

# Tiles between the halves of a pass, as the arithmetic has them where it keeps nothing.
_COPIES = 3


@dataclass
class Tile:
    """A tile of SBUF or a bank of PSUM. It holds the name of the data that was written to it last."""

    holds: Any = None


class View(NamedTuple):
    """A view that a source gave: its tile, and the name that the tile held at that time."""

    tile: Tile
    holds: Any


def name(item: Item) -> tuple[int, int, int, int]:
    """Return numbers that identify an item among all items of a core."""
    return item.window.number, item.part.number, item.strip.number, item.segment.number


@dataclass
class Tiles:
    """Tiles that are used round-robin."""

    tiles: list[Tile]
    taken: int = 0

    @classmethod
    def make(cls, count: int) -> Tiles:
        """Return ``count`` tiles that hold nothing."""
        return cls([Tile() for _ in range(count)])

    def take(self, holds: Any) -> View:
        """Write to the next tile and return a view of it."""
        tile = self.tiles[self.taken % len(self.tiles)]
        self.taken += 1
        tile.holds = holds
        return View(tile, holds)


def read(view: View, wanted: Any) -> None:
    """Read a view.

    Raises:
        AssertionError: the view belongs to another item, or its data was overwritten.
    """
    assert view.holds == wanted, f"an item reads {view.holds} instead of {wanted}"
    assert view.tile.holds == wanted, f"{view.tile.holds} was written where {wanted} is still read"


@dataclass
class DrySource:
    """See :class:`.layouts.Source`.

    Attributes:
        ring: the ring buffer of loads.
        banks: the banks of PSUM of each pass; the dict is empty if views lie in SBUF.
    """

    ring: LoadRing
    banks: dict[int, Tiles]

    def view(self, item: Item, visit: int) -> Any:
        """Return a view of the item, and check that its load is still in its tile."""
        key = self.ring.key(item.window, item.part, visit)
        tile: Any = self.ring.tile(key)
        read(View(tile, tile.holds), key)
        return self.banks[visit].take(name(item)) if self.banks else View(tile, key)


@dataclass
class DryResults:
    """See :class:`.layouts.Results`: every part is stored once, after all of its items.

    Attributes:
        overwritten: the source whose tiles results overwrite; None if results have tiles of their own.
        own: the tiles of their own, which parts use round-robin.
        written: the items that were written to the tile of each part.
        views: the views of the tiles of parts.
        stored: how often each part was stored.
    """

    overwritten: DrySource | None
    own: Tiles
    written: dict[tuple[int, int], set[Any]] = field(default_factory=dict)
    views: dict[tuple[int, int], View] = field(default_factory=dict)
    stored: Counter[tuple[int, int]] = field(default_factory=Counter)

    def piece(self, item: Item) -> Any:
        """Return nothing: the dry run writes an item only in :meth:`finish`."""
        return None

    def transpose_back(self, item: Item, piece_sbuf: Any) -> Any:
        """Return nothing: the dry run keeps no transposed results."""
        return None

    def finish(self, item: Item, back_psum: Any) -> None:
        """Write the item, and store the part after its last item."""
        of_part = item.window.number, item.part.number
        if of_part not in self.views:
            self.views[of_part] = self._tile(item, of_part)
            self.written[of_part] = set()
        view = self.views[of_part]
        read(view, view.holds)
        self.written[of_part].add(name(item))
        if item.ends_part:
            expected = len(item.window.strips()) * len(item.part.segments)
            assert len(self.written[of_part]) == expected, f"part {of_part} is stored before it is complete"
            self.stored[of_part] += 1

    def _tile(self, item: Item, of_part: tuple[int, int]) -> View:
        if self.overwritten is None:
            return self.own.take(of_part)
        ring = self.overwritten.ring
        key = ring.key(item.window, item.part, 2)
        tile: Any = ring.tile(key)
        return View(tile, key)


@dataclass
class DryArithmetic:
    """See :class:`.pipeline.Arithmetic`. This class checks the order of the phases and the data that they read.

    Attributes:
        loop: the loop of the core.
        kept: the tiles that keep results of the first pass for the second pass.
        begun, made: the tiles between the halves of the first pass, and between the halves of the second pass.
        waiting: the views that were written for a later phase and not read yet.
        gathered: the items whose first pass has ended.
        combined: the number of stages that were issued for each group, by window and strip.
        issued: everything that was issued, in order.
    """

    loop: ColumnLoop
    kept: Tiles
    begun: Tiles = field(default_factory=lambda: Tiles.make(_COPIES))
    made: Tiles = field(default_factory=lambda: Tiles.make(_COPIES))
    waiting: dict[tuple[str, Any], View] = field(default_factory=dict)
    gathered: set[Any] = field(default_factory=set)
    combined: Counter[tuple[int, int]] = field(default_factory=Counter)
    issued: list[Any] = field(default_factory=list)

    def begin(self, item: Item, views: dict[int, Any]) -> None:
        """The first half of the first pass."""
        self._read(item, views, Phase.BEGIN)
        self.waiting["begun", name(item)] = self.begun.take(name(item))

    def gather(self, item: Item, views: dict[int, Any]) -> None:
        """The second half."""
        self._read(item, views, Phase.GATHER)
        read(self.waiting.pop(("begun", name(item))), name(item))
        if self.kept.tiles:
            self.waiting["kept", name(item)] = self.kept.take(name(item))
        assert name(item) not in self.gathered
        self.gathered.add(name(item))

    def combine(self, group: Group, stage: int) -> None:
        """One stage a step, in their order, after all items of the group."""
        assert all(name(item) in self.gathered for item in group.items)
        of_group = group.window.number, group.first
        assert self.combined[of_group] == stage
        self.combined[of_group] += 1
        self.issued.append(("combine", of_group, stage))

    def prepare(self, item: Item, views: dict[int, Any]) -> None:
        """The first half of the second pass."""
        strip = 0 if self.loop.whole_windows else item.strip.number
        assert self.combined[item.window.number, strip] == self.loop.stages
        self._read(item, views, Phase.PREPARE)
        self.waiting["made", name(item)] = self.made.take(name(item))

    def result(self, item: Item, views: dict[int, Any], dst_sbuf: Any) -> None:
        """The second half."""
        self._read(item, views, Phase.RESULT)
        read(self.waiting.pop(("made", name(item))), name(item))
        if self.kept.tiles:
            read(self.waiting.pop(("kept", name(item))), name(item))

    def _read(self, item: Item, views: dict[int, Any], phase: Phase) -> None:
        self.issued.append((phase.name, name(item)))
        is_forward = len(self.loop.phases) == 1
        for reader, phases in enumerate(self.loop.phases):
            # The second half of the first pass of the forward reads again what was transposed for the first half.
            if phase in phases or (is_forward and phase is Phase.GATHER):
                read(views[reader], self._wanted(item, phase))

    def _wanted(self, item: Item, phase: Phase) -> Any:
        """Name a view's content: a transposed copy of the item in PSUM, or else the load of the phase's own pass."""
        plan = self.loop.plan
        if plan.layout is Layout.TENSOR_TRANSPOSED:
            return name(item)
        return LoadKey(item.window.number, item.part.number, phase.visit if plan.is_read_twice else 0)


@dataclass
class WatchedSchedule(Schedule):
    """A schedule that counts the steps from which the item of a phase was left out."""

    waits: Counter[Phase] = field(default_factory=Counter)

    def take(self, step: Step) -> None:
        """Count the items that were left out, then take the step."""
        self.waits.update(self.next().items.keys() - step.items.keys())
        super().take(step)


@dataclass(frozen=True)
class DryRun:
    """The work that a core issued.

    Attributes:
        issued: loads, phases and stages in the order in which they were issued.
        waits: steps from which the item of a phase was left out, since a load had no place yet.
    """

    issued: list[Any]
    waits: Counter[Phase]


def dry_run(loop: ColumnLoop) -> DryRun:
    """Issue everything that a core issues, without data.

    Raises:
        AssertionError: something is read that is not there, or a part is not stored once.
    """
    plan = loop.plan
    if not plan.windows:
        return DryRun([], Counter())
    arithmetic = DryArithmetic(loop, Tiles.make(loop.kept))
    sources = []
    for number, phases in enumerate(loop.phases):
        passes = tuple(phase.visit for phase in phases)

        def fill(tile: Any, load: Load, number: int = number) -> Iterator[None]:
            arithmetic.issued.append(("load", number, load.key))
            tile.holds = load.key
            yield

        tiles: list[Any] = [Tile() for _ in range(plan.buffers_of(passes))]
        ring = LoadRing(loads_of(plan.windows, plan.parts, passes, plan.is_read_twice), tiles, fill)
        banks = _banks(loop, phases) if plan.layout is Layout.TENSOR_TRANSPOSED else {}
        sources.append(DrySource(ring, banks))
    results = DryResults(sources[0] if loop.overwrites else None, Tiles.make(OWN_TILES))
    readers = [Reader(source, phases) for source, phases in zip(sources, loop.phases, strict=True)]
    unwatched = Schedule.make(plan.windows, plan.parts, loop.whole_windows, loop.stages)
    schedule = WatchedSchedule(unwatched.groups, unwatched.stages)
    Pipeline(schedule, readers, arithmetic, results, loop.overwrites).run()
    parts = {(window.number, part.number): 1 for window in plan.windows for part in plan.parts}
    assert dict(results.stored) == parts
    return DryRun(arithmetic.issued, schedule.waits)


def _banks(loop: ColumnLoop, phases: tuple[Phase, ...]) -> dict[int, Tiles]:
    """Return banks of PSUM as the kernels have them: three where a view is read in both halves of the first pass."""
    if len(loop.phases) == 1:
        return {phase.visit: Tiles.make(3 if phase is Phase.BEGIN else 2) for phase in phases}
    is_of_grad = phases == (Phase.GATHER, Phase.RESULT)
    return {phase.visit: Tiles.make(2 if is_of_grad else 2 // len(phases)) for phase in phases}
