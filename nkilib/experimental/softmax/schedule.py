# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The order in which the stages of a loop over resident rows are issued.

A batch goes through its pieces twice: their statistics are taken, those of a row are combined, and its pieces are
finished. Each engine and each queue runs its instructions in the order of issue, so what would be waited for is issued
late enough to be there: a stage of the combination a step after the one before, the end of a piece after them, its
store a step later. Then a queue that loads and stores share is held up by no store, and by no load whose place is not
free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from nkilib.experimental.softmax.row_batches import RowBatch
from nkilib.experimental.softmax.row_plan import Piece

# Pieces that are loaded ahead at most.
LOADS_AHEAD = 4
# Pieces for whose end something is loaded ahead at most.
LOADS_AGAIN_AHEAD = 4


class Stages(Protocol):
    """What a loop does. Batches come by their number."""

    @property
    def batches(self) -> list[RowBatch]:
        """Of the core."""

    @property
    def batches_on_chip(self) -> int:
        """Batches that have tiles: number n takes the tiles of n - ``batches_on_chip``."""

    @property
    def combining_stages(self) -> int:
        """How many there are."""

    def load(self, number: int, piece: Piece) -> None:
        """Issue the load of a piece."""

    @property
    def loads_again(self) -> bool:
        """Whether something is loaded for the second pass."""

    def load_again(self, number: int, piece: Piece) -> None:
        """Issue the load of what the end of a piece takes besides."""

    def prepare(self, number: int, piece: Piece) -> None:
        """What comes before the statistics of a piece, two steps before most of them."""

    def open(self, number: int, piece: Piece) -> None:
        """Take the statistics of a piece that others wait for, a step before the others."""

    def take(self, number: int, piece: Piece) -> None:
        """Take the other statistics of a piece."""

    def combine(self, number: int, stage: int) -> None:
        """Stage 0, 1, ... of combining the statistics of a batch."""

    def finish(self, number: int, piece: Piece) -> None:
        """Compute the results of a piece."""

    def store(self, number: int, piece: Piece) -> None:
        """Issue the store of a piece."""


def run(stages: Stages) -> None:
    """All stages of all batches, in steps: each takes the statistics of one piece, and finishes one."""
    _Run(stages).run()


@dataclass(frozen=True)
class _Due:
    """Something that is to be issued from a step on: a stage of a batch's combination, or a piece's end or store."""

    step: int
    number: int
    stage: int = 0
    piece: Piece | None = None


class _Run:
    """How far each stage is, in pieces."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.pieces = [(number, piece) for number, batch in enumerate(stages.batches) for piece in batch.pieces]
        self.step = self.loaded = self.prepared = self.opened = self.taken = 0
        self.stored_batches = self.stored_pieces = 0
        self.combining: deque[_Due] = deque()
        self.finishing: deque[_Due] = deque()
        self.storing: deque[_Due] = deque()
        self.again: deque[tuple[int, Piece]] = deque()
        self.loaded_again = self.finished = 0

    def run(self) -> None:
        while self.taken < len(self.pieces) or self.combining or self.finishing or self.storing:
            self._load()
            self._open()
            self._take()
            self._store()
            self._load()
            self._load_again()
            while self.combining and self.combining[0].step <= self.step:
                due = self.combining.popleft()
                self.stages.combine(due.number, due.stage)
            self._finish()
            self.step += 1

    def _load(self) -> None:
        """Ahead, into tiles that are free."""
        while self.loaded < len(self.pieces) and self.loaded <= self.taken + LOADS_AHEAD:
            number, piece = self.pieces[self.loaded]
            if not self._is_free(number, piece):
                return
            self.stages.load(number, piece)
            self.loaded += 1

    def _open(self) -> None:
        while self.prepared < min(self.loaded, self.taken + 3):
            self.stages.prepare(*self.pieces[self.prepared])
            self.prepared += 1
        while self.opened < min(self.prepared, self.taken + 2):
            self.stages.open(*self.pieces[self.opened])
            self.opened += 1

    def _take(self) -> None:
        if self.taken >= self.opened:
            return
        number, piece = self.pieces[self.taken]
        self.stages.take(number, piece)
        self.taken += 1
        pieces = self.stages.batches[number].pieces
        if piece != pieces[-1]:
            return
        combined = self.step + 1 + self.stages.combining_stages
        self.combining += [_Due(step, number, step - self.step - 1) for step in range(self.step + 1, combined)]
        self.finishing += [_Due(combined, number, piece=each) for each in pieces]
        if self.stages.loads_again:
            self.again += [(number, each) for each in pieces]

    def _load_again(self) -> None:
        while self.again and self.loaded_again < self.finished + LOADS_AGAIN_AHEAD:
            self.stages.load_again(*self.again.popleft())
            self.loaded_again += 1

    def _finish(self) -> None:
        if self.finishing and self.finishing[0].step <= self.step:
            due = self.finishing.popleft()
            if due.piece is not None:
                self.stages.finish(due.number, due.piece)
                self.finished += 1
            self.storing.append(_Due(self.step + 1, due.number, piece=due.piece))

    def _store(self) -> None:
        while self.storing and self.storing[0].step <= self.step:
            due = self.storing.popleft()
            if due.piece is not None:
                self.stages.store(due.number, due.piece)
            self.stored_pieces += 1
            if self.stored_pieces == len(self.stages.batches[due.number].pieces):
                self.stored_batches, self.stored_pieces = due.number + 1, 0

    def _is_free(self, number: int, piece: Piece) -> bool:
        """Whether what lay in the place of a piece has been stored."""
        before = number - self.stages.batches_on_chip
        if before < self.stored_batches:
            return True
        batch, batch_before = self.stages.batches[number], self.stages.batches[before]
        is_alike = batch.each == batch_before.each
        return is_alike and before == self.stored_batches and batch.pieces.index(piece) < self.stored_pieces
