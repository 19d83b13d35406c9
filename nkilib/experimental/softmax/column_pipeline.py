"""The loop over items: what each engine does is issued so early that no engine waits for another one.

In a step, Tensor turns the items of the next step, the first pass gathers the sums of one item, the second pass makes
the result of another one, and the result made a step before is turned back, copied and stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nkilib.experimental.softmax.column_geometry import Item
from nkilib.experimental.softmax.column_results import Results
from nkilib.experimental.softmax.column_sources import Source
from nkilib.experimental.softmax.column_steps import Group, Step
from nkilib.nki import nl


class Arithmetic(Protocol):
    """What is done to items."""

    def gather(self, item: Item, views: list[nl.NkiTensor]) -> None:
        """The first pass over an item."""

    def combine(self, group: Group) -> None:
        """What comes between the passes over a group."""

    def result(self, item: Item, views: list[nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """The second pass over an item."""


@dataclass(frozen=True)
class Reader:
    """A source, and which passes need its items.

    Attributes:
        source: of items.
        passes: that read it.
    """

    source: Source
    passes: tuple[int, ...]

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
    """

    steps: list[Step]
    readers: list[Reader]
    arithmetic: Arithmetic
    results: Results
    overwrites: bool
    made: tuple[Item, nl.NkiTensor] | None = None
    views: dict[tuple[int, int], list[nl.NkiTensor]] = field(default_factory=dict)

    def run(self) -> None:
        """Issue everything."""
        self._advance()
        for number in range(len(self.steps)):
            self._look_ahead(number)
            if not self._is_ready(number):  # its place is that of a result which waits to be stored
                self._finish_made()
                self._look_ahead(number)
            self._look_ahead(number + 1)
            self._step(number)
            self._advance()
        self._finish_made()

    def _step(self, number: int) -> None:
        turned = None
        if self.made is not None:
            item, piece_sbuf = self.made
            turned = item, self.results.turn_back(item, piece_sbuf)
            self.made = None
        step = self.steps[number]
        if step.first is not None:
            self.arithmetic.gather(step.first, self.views.pop((number, 1)))
            self._release(step.first, 1)
        if step.combined is not None:
            self.arithmetic.combine(step.combined)
        if step.second is not None:
            piece_sbuf = self.results.piece(step.second)
            self.arithmetic.result(step.second, self.views.pop((number, 2)), piece_sbuf)
            self._release(step.second, 2)
            self.made = step.second, piece_sbuf
        if turned is not None:
            self._finish(*turned)

    def _look_ahead(self, number: int) -> None:
        """Turn the items of a step, unless that is done, or a load has no place yet."""
        if number >= len(self.steps):
            return
        step = self.steps[number]
        for visit, item in ((1, step.first), (2, step.second)):
            if item is None or (number, visit) in self.views:
                continue
            readers = [reader for reader in self.readers if visit in reader.passes]
            self._advance()
            if all(reader.source.ring.has(reader.key(item, visit)) for reader in readers):
                self.views[number, visit] = [reader.source.view(item, visit) for reader in readers]

    def _is_ready(self, number: int) -> bool:
        step = self.steps[number]
        wanted = [(number, visit) for visit, item in ((1, step.first), (2, step.second)) if item is not None]
        return all(place in self.views for place in wanted)

    def _release(self, item: Item, visit: int) -> None:
        for place, reader in enumerate(self.readers):
            is_overwritten = self.overwrites and place == 0
            if visit in reader.passes and reader.ends(item, visit, is_overwritten):
                reader.source.ring.release(reader.key(item, visit))

    def _finish(self, item: Item, back_psum: nl.NkiTensor) -> None:
        """Copy and store; then the place of what was written over is free."""
        self.results.finish(item, back_psum)
        if self.overwrites and item.ends_part:
            reader = self.readers[0]
            reader.source.ring.release(reader.key(item, 2))

    def _advance(self) -> None:
        for reader in self.readers:
            reader.source.ring.advance()

    def _finish_made(self) -> None:
        if self.made is not None:
            item, piece_sbuf = self.made
            self.made = None
            self._finish(item, self.results.turn_back(item, piece_sbuf))
            self._advance()
