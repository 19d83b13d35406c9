# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The order in which a loop over rows issues its instructions: :func:`run` issues the stages of :class:`Stages`.

A *batch* is a set of rows that are in SBUF together (:class:`RowBatch`). A *piece* is the part of a batch that one
instruction handles: some rows, or some columns of them (:class:`RowPiece`). Three kinds of work follow one another:

1. The first pass computes the statistics of each piece of a batch, such as maxima and sums.
2. *Combining stages* combine the statistics of the batch's pieces.
3. The second pass computes the results of each piece.

Each engine and each DMA queue runs its instructions in the order of issue, so an instruction that waits delays those
behind it. Therefore the loop runs in *steps*, and issues work late enough that its operands are ready: each combining
stage one step after the previous one, and the store of a piece's results one step after their computation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from nkilib.core.rows.row_plan import RowBatch, RowPiece

# The maximum number of pieces that are loaded ahead.
LOADS_AHEAD = 4
# The maximum number of pieces for whose second pass data are loaded ahead.
LOADS_AGAIN_AHEAD = 4


class Stages(Protocol):
    """The stages of a loop over batches; one method issues the instructions of each stage.

    The argument ``number`` of the methods is the index of a batch in :attr:`batches`.
    """

    @property
    def batches(self) -> list[RowBatch]:
        """The batches that this core processes, in order."""

    @property
    def batches_on_chip(self) -> int:
        """The number of batches that have tiles at the same time; batch n reuses the tiles of batch n minus this."""

    @property
    def combining_stages(self) -> int:
        """The number of stages that combine the statistics of a batch's pieces."""

    @property
    def most_taken(self) -> int | None:
        """The maximum number of pieces that :meth:`take` has processed and :meth:`finish` has not; None: no maximum."""

    def load(self, number: int, piece: RowPiece) -> None:
        """Issue the load of a piece from HBM into its tile."""

    @property
    def loads_again(self) -> bool:
        """Whether the second pass over a piece needs data that :meth:`load_again` loads."""

    def load_again(self, number: int, piece: RowPiece) -> None:
        """Issue the load of data that only the second pass over a piece needs."""

    def prepare(self, number: int, piece: RowPiece) -> None:
        """Issue work that :meth:`open` needs.

        The loop calls this method two steps before :meth:`take` of the piece; for the first two pieces, in step 0.
        """

    def open(self, number: int, piece: RowPiece) -> None:
        """Compute those statistics of a piece that :meth:`take` needs, for example maxima.

        The loop calls this method one step before :meth:`take` of the piece; for the first piece, in the same step.
        """

    def take(self, number: int, piece: RowPiece) -> None:
        """Compute the remaining statistics of a piece, for example sums."""

    def combine(self, number: int, stage: int) -> None:
        """Issue combining stage number ``stage``, counted from 0, of a batch."""

    def finish(self, number: int, piece: RowPiece) -> None:
        """Compute the results of a piece, after the statistics of its batch have been combined."""

    def store(self, number: int, piece: RowPiece) -> None:
        """Issue the store of a piece's results to HBM."""


@dataclass(frozen=True)
class _Due:
    """Work that waits to be issued, in step number ``step`` or later: for batch ``number``, combining stage ``stage``
    if ``piece`` is None, else :meth:`Stages.finish` or :meth:`Stages.store` of the piece.
    """

    step: int
    number: int
    stage: int = 0
    piece: RowPiece | None = None


class _Run:
    """The state of the loop: for each kind of work the number of pieces done, and queues of work that waits."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.pieces = [(number, piece) for number, batch in enumerate(stages.batches) for piece in batch.pieces]
        self.step = self.loaded = self.prepared = self.opened = self.taken = 0
        self.stored_batches = self.stored_pieces = 0
        self.combining: deque[_Due] = deque()
        self.finishing: deque[_Due] = deque()
        self.storing: deque[_Due] = deque()
        self.again: deque[tuple[int, RowPiece]] = deque()
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
        most = self.stages.most_taken
        if self.taken >= self.opened or (most is not None and self.taken - self.finished >= most):
            return
        number, piece = self.pieces[self.taken]
        self.stages.take(number, piece)
        self.taken += 1
        pieces = self.stages.batches[number].pieces
        if piece != pieces[-1]:
            return
        combined = self.step + 1 + self.stages.combining_stages
        self.combining += [_Due(step, number, step - self.step - 1) for step in range(self.step + 1, combined)]
        self.finishing += [_Due(combined, number, piece=batch_piece) for batch_piece in pieces]
        if self.stages.loads_again:
            self.again += [(number, batch_piece) for batch_piece in pieces]

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

    def _is_free(self, number: int, piece: RowPiece) -> bool:
        """Return whether a piece may be loaded: the stores of the results that its place held are issued."""
        before = number - self.stages.batches_on_chip
        if before < self.stored_batches:
            return True
        batch, batch_before = self.stages.batches[number], self.stages.batches[before]
        is_alike = batch.rows_each == batch_before.rows_each
        return is_alike and before == self.stored_batches and batch.pieces.index(piece) < self.stored_pieces


def run(stages: Stages) -> None:
    """Issue all stages of all batches, in steps.

    A step computes the statistics of one piece and the results of another.
    """
    _Run(stages).run()
