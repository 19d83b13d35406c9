"""What a first visit of the classes hands to the second one that a mixture of both distributions needs.

M = beta P + (1 - beta) Q needs the log-sum-exps of both models, which are known when all classes have been visited. So
the scores of a block of positions are kept, or are computed again, and a second visit takes the sums of the mixture. It
has no products, or not those that the first one is waiting for, and advances between the tiles of the next block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nkilib.experimental.loss.linear.blocks import Block, Span, Step
from nkilib.nki import nl


@dataclass(frozen=True)
class ScoreGroup:
    """The scores of both models for some tiles of positions and a block of classes.

    Attributes:
        start: number of the first tile of positions, counted in the block of positions.
        student_sbuf, teacher_sbuf: float32 [128, tiles, classes], each in the unit of its model.
    """

    start: int
    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor

    @property
    def tiles(self) -> int:
        """How many tiles of positions."""
        return int(self.student_sbuf.shape[1])


@dataclass(frozen=True)
class ModelTotals:
    """What the first visit has found of one model: float32 [128, tiles], of the positions of a block.

    With the largest score m of a position and the scale of the model, S is the sum of exp(scale * (score - m)).

    Attributes:
        neg_max_sbuf: -m.
        sums_sbuf: S.
        log_sum_sbuf: log S.
    """

    neg_max_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    log_sum_sbuf: nl.NkiTensor


class StoreDivergence(Protocol):
    """Stores the results of a block of positions that the first visit does not know."""

    def __call__(self, divergence_sbuf: nl.NkiTensor, moment_sbuf: nl.NkiTensor) -> None:
        """Weight the divergence, leave out ignored positions, and store both.

        Args:
            divergence_sbuf: of every position, not weighted, float32 [128, tiles]. It is overwritten.
            moment_sbuf: KL(student || mixture), likewise.
        """


@dataclass(frozen=True)
class PairTotals:
    """What the first visit has found of a block of positions; the tiles stay as they are until the second one ends.

    Attributes:
        block: the positions.
        tiles: of 128 positions.
        student, teacher: totals of both models.
        store: for the results of the second visit.
    """

    block: Block
    tiles: int
    student: ModelTotals
    teacher: ModelTotals
    store: StoreDivergence


class SecondVisit(Protocol):
    """The second visit, as the first one drives it.

    For each block of positions: ``begin``, then for each block of classes ``beside`` and ``keep``, then ``exchange``
    and ``finish``. ``end`` comes after the last block of positions.
    """

    @property
    def shares(self) -> list[Span]:
        """The classes of each core: no core works on those of another one."""

    def begin(self, block: Block, tiles: int) -> None:
        """The first visit of a block of positions begins, and the second one of the block before it, if any."""

    def keep(self, scores: ScoreGroup, step: Step) -> None:
        """Keep the scores of some tiles, which are complete, for the second visit."""

    def beside(self, step: Step, is_last: bool) -> Iterator[None]:
        """The second visit of a block of classes, for the block of positions before this one.

        The first visit advances it once after each pair of tiles, and to its end after the last pair.

        Args:
            step: with the block of classes.
            is_last: it is the last one of the core.
        """

    def exchange(self) -> None:
        """All classes have been visited: end the second visit of the block of positions before this one."""

    def finish(self, totals: PairTotals) -> None:
        """The first visit of a block of positions is over."""

    def end(self) -> None:
        """Visit the last block of positions, which no other one follows."""
