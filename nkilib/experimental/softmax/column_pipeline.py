"""The loop over items: what each engine does is issued so early that no engine waits for another one.

In a step, Tensor turns the items of the next step; the first pass begins with an item, and gathers the sums of the one
before; the second pass prepares another one, and makes the result of the one before; and the result made a step before
is turned back, copied and stored.

An item whose load has no place yet waits for a later step. One of the two passes can always go on: loads take places
in the order in which the passes need them, so the oldest load that has a place is what one of the passes comes to next;
and the places of columns that are loaded once hold all parts of a window, so that its first pass can end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, Protocol

from nkilib.core.rows.checks import require
from nkilib.experimental.softmax.column_geometry import Item
from nkilib.experimental.softmax.column_loads import LoadKey
from nkilib.experimental.softmax.column_results import Results
from nkilib.experimental.softmax.column_sources import Source
from nkilib.experimental.softmax.column_steps import Group, Phase, Schedule, Step
from nkilib.nki import nl


class Arithmetic(Protocol):
    """What is done to items; views are by number of the reader."""

    def begin(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """The first half of the first pass over an item."""

    def gather(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """The second half."""

    def combine(self, group: Group, stage: int) -> None:
        """What comes between the passes over a group, one stage a step."""

    def prepare(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """The first half of the second pass over an item."""

    def result(self, item: Item, views: dict[int, nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """The second half."""


# A load into the place of what was just stored waits for the store; where both have one queue, what comes after it
# waits as well. So many steps later the store is done.
_STEPS_OF_STORE = 8


class ViewKey(NamedTuple):
    """An item that a reader gave: numbers of the reader and the pass, and the item's identity."""

    reader: int
    visit: int
    item: int


@dataclass(frozen=True)
class Reader:
    """A source, and what reads its items.

    Attributes:
        source: of items.
        phases: the first one of each pass that reads them.
    """

    source: Source
    phases: tuple[Phase, ...]

    @property
    def passes(self) -> tuple[int, ...]:
        """Those that read it."""
        return tuple(phase.visit for phase in self.phases)

    def key(self, item: Item, visit: int) -> LoadKey:
        """The load that an item of a pass is in."""
        return self.source.ring.key(item.window, item.part, visit)

    def ends(self, item: Item, visit: int, is_overwritten: bool) -> bool:
        """Whether nobody needs the load of an item after this pass over it; what is overwritten is still stored."""
        is_of_one_pass = self.key(item, visit).visit != 0
        if is_overwritten and not (is_of_one_pass and visit == 1):
            return False
        return item.ends_part and (is_of_one_pass or visit == max(self.passes))


@dataclass
class Pipeline:
    """All steps of a core.

    Attributes:
        schedule: of the steps.
        readers: of the tensors that are read; the first one may be overwritten.
        arithmetic: of items.
        results: where they go.
        overwrites: whether results take the place of the first tensor's items in SBUF.
        made: the result that waits to be turned back, and its item.
        views: of readers, by reader, pass and item.
        stored: the number of the step in which a part was stored, and its last item, while its place is not free.
        taken: steps so far.
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
        """Issue everything."""
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
        """Those items of a step whose loads have places, turned."""
        if self._look_ahead(step):
            return step
        self._finish_made()  # a place may be that of a result which waits to be stored
        self._release_stored(0)
        if self._look_ahead(step):
            return step
        waiting = {phase for phase, item in step.items.items() if not self._is_turned(item, phase)}
        # The second half of a pass over an item holds up the first half of the pass over the next one.
        for half, before in ((Phase.GATHER, Phase.BEGIN), (Phase.RESULT, Phase.PREPARE)):
            if half in waiting:
                waiting.add(before)
        issued = Step({phase: item for phase, item in step.items.items() if phase not in waiting}, step.combined)
        require(not issued.is_empty, "softmax over columns: a step must have an item, and both passes wait for places")
        return issued

    def _is_turned(self, item: Item, phase: Phase) -> bool:
        """Whether everything is there that is read from this phase on."""
        return all(
            phase not in reader.phases or ViewKey(place, phase.visit, id(item)) in self.views
            for place, reader in enumerate(self.readers)
        )

    def _step(self, step: Step, following: Step) -> None:
        turned = None
        if self.made is not None:
            item, piece_sbuf = self.made
            turned = item, self.results.turn_back(item, piece_sbuf)
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
        if turned is not None:
            self._finish(*turned)

    def _look_ahead(self, step: Step) -> bool:
        """Turn the items of a step, as far as that is not done; False if a load has no place yet."""
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
        """What a phase may read, by reader; the last one of a pass is done with it."""
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
        """Copy and store; some time later the place of what was written over is free."""
        self.results.finish(item, back_psum)
        if self.overwrites and item.ends_part:
            self.stored.append((self.taken, item))

    def _release_stored(self, steps: int) -> None:
        """Free the places whose stores were issued so many steps ago."""
        reader = self.readers[0]
        while self.stored and self.stored[0][0] + steps <= self.taken:
            _, item = self.stored.pop(0)
            reader.source.ring.release(reader.key(item, 2))

    def _advance(self) -> None:
        """Load what has a place, of all tensors in turn: the first items need some of each."""
        for _ in zip_longest(*[reader.source.ring.advance() for reader in self.readers]):
            pass

    def _finish_made(self) -> None:
        if self.made is not None:
            item, piece_sbuf = self.made
            self.made = None
            self._finish(item, self.results.turn_back(item, piece_sbuf))
