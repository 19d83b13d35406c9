"""The loop over items: what each engine does is issued so early that no engine waits for another one.

In a step, Tensor turns the items of the next step; the first pass begins with an item, and gathers the sums of the one
before; the second pass prepares another one, and makes the result of the one before; and the result made a step before
is turned back, copied and stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from nkilib.experimental.softmax.column_geometry import Item
from nkilib.experimental.softmax.column_results import Results
from nkilib.experimental.softmax.column_sources import Source
from nkilib.experimental.softmax.column_steps import Group, Phase, Step
from nkilib.nki import nl


class Arithmetic(Protocol):
    """What is done to items; views are those of the readers that the pass needs, in their order."""

    def begin(self, item: Item, views: list[nl.NkiTensor]) -> None:
        """The first half of the first pass over an item."""

    def gather(self, item: Item, views: list[nl.NkiTensor]) -> None:
        """The second half."""

    def combine(self, group: Group, stage: int) -> None:
        """What comes between the passes over a group, one stage a step."""

    def prepare(self, item: Item, views: list[nl.NkiTensor]) -> None:
        """The first half of the second pass over an item."""

    def result(self, item: Item, views: list[nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """The second half."""


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

    def key(self, item: Item, visit: int) -> tuple[int, int, int]:
        """The load that an item of a pass is in."""
        return self.source.ring.key(item.window, item.part, visit)

    def ends(self, item: Item, visit: int, is_overwritten: bool) -> bool:
        """Whether nobody needs the load of an item after this pass over it; what is overwritten is still stored."""
        is_of_one_pass = self.key(item, visit)[2] != 0
        if is_overwritten and not (is_of_one_pass and visit == 1):
            return False
        return item.ends_part and (is_of_one_pass or visit == max(self.passes))


@dataclass
class Pipeline:
    """All steps of a core.

    Attributes:
        steps: in their order.
        readers: of the tensors that are read; the first one may be overwritten.
        arithmetic: of items.
        results: where they go.
        overwrites: whether results take the place of the first tensor's items in SBUF.
        made: the result that waits to be turned back, and its item.
        views: of readers, by reader, pass and item.
    """

    steps: list[Step]
    readers: list[Reader]
    arithmetic: Arithmetic
    results: Results
    overwrites: bool
    made: tuple[Item, nl.NkiTensor] | None = None
    views: dict[tuple[int, int, int], nl.NkiTensor] = field(default_factory=dict)

    def run(self) -> None:
        """Issue everything."""
        self._advance()
        for step, following in zip(self.steps, [*self.steps[1:], None], strict=True):
            if not self._look_ahead(step):  # its place is that of a result which waits to be stored
                self._finish_made()
                self._look_ahead(step)
            self._step(step, following)
            self._advance()
        self._finish_made()

    def _step(self, step: Step, following: Step | None) -> None:
        turned = None
        if self.made is not None:
            item, piece_sbuf = self.made
            turned = item, self.results.turn_back(item, piece_sbuf)
            self.made = None
        for phase, do in ((Phase.BEGIN, self.arithmetic.begin), (Phase.PREPARE, self.arithmetic.prepare)):
            if phase in step.items:
                do(step.items[phase], self._views(step.items[phase], phase))
        if following is not None:
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
        for phase, item in step.items.items():
            for place, reader in enumerate(self.readers):
                key = place, phase.visit, id(item)
                if phase not in reader.phases or key in self.views:
                    continue
                self._advance()
                if not reader.source.ring.has(reader.key(item, phase.visit)):
                    return False
                self.views[key] = reader.source.view(item, phase.visit)
        return True

    def _views(self, item: Item, phase: Phase) -> list[nl.NkiTensor | None]:
        """What a phase may read; the last one of a pass is done with it."""
        readers = [place for place, reader in enumerate(self.readers) if phase.visit in reader.passes]
        views = [self.views.get((place, phase.visit, id(item))) for place in readers]
        if phase in (Phase.GATHER, Phase.RESULT):
            for place in readers:
                self.views.pop((place, phase.visit, id(item)))
                reader = self.readers[place]
                if reader.ends(item, phase.visit, self.overwrites and place == 0):
                    reader.source.ring.release(reader.key(item, phase.visit))
        return views

    def _finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy and store; then the place of what was written over is free."""
        self.results.finish(item, back_psum)
        if self.overwrites and item.ends_part:
            reader = self.readers[0]
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
            self._advance()
