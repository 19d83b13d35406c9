# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a first visit of the classes hands to the second one that a mixture of both distributions needs.

M = beta P + (1 - beta) Q needs the log-sum-exps of both models, which are known when all classes have been visited. So
the scores of a block of positions are kept, or are computed again, and a second visit takes the sums of the mixture. It
has no products, or not those that the first one is waiting for, and advances between the tiles of the next block.

Scores that are kept stand in HBM, on the side of one core. For each block of classes a position has the student's and
then the teacher's: what a transfer moves for a position is contiguous, and twice as long as the scores of one model.
DMA moves rows of less than 2 KiB more slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.linear.forward.class_schedule import ClassSchedule
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, Step
from nkilib.nki import nisa, nl

_MODELS = 2


@dataclass(frozen=True)
class ScoreGroup:
    """The scores of both models for some tiles of positions and a block of classes.

    Attributes:
        start: number of the first tile of positions, counted in the block of positions.
        pair_sbuf: float32 [128, models, tiles, classes], student and teacher, each in the unit of its model.
    """

    start: int
    pair_sbuf: nl.NkiTensor

    @property
    def tiles(self) -> int:
        """How many tiles of positions."""
        return int(self.pair_sbuf.shape[2])


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


@dataclass(frozen=True)
class PairTotals:
    """What the first visit has found of a block of positions.

    Attributes:
        block: the positions.
        tiles: of 128 positions.
        student, teacher: totals of both models.
    """

    block: Block
    tiles: int
    student: ModelTotals
    teacher: ModelTotals


class RunBlock(Protocol):
    """The first visit of a block of positions."""

    def __call__(self, block: Block, opens: bool, reopens: bool) -> None:
        """Go through all classes.

        Args:
            block: the positions.
            opens: the first classes are still to be loaded.
            reopens: the first classes are loaded again at the end, for the next block.
        """


class SecondVisit(Protocol):
    """The second visit, which says which blocks of positions there are, and which the first one drives.

    For each block of positions: ``begin``, then for each block of classes ``beside`` and ``keep``, then ``exchange``
    and ``finish``.
    """

    @property
    def schedule(self) -> ClassSchedule:
        """How the core goes through its classes, without any that the cores share."""

    @property
    def tiles(self) -> int:
        """Tiles of the largest block of positions."""

    def run_blocks(self, run: RunBlock) -> None:
        """Run the first visit of each block of positions, and at last the second one that has none beside it."""

    def begin(self, tiles: int) -> None:
        """The first visit of a block of positions begins, and the second one of the block before it, if any."""

    def keep(self, scores: ScoreGroup, step: Step) -> None:
        """Keep the scores of some tiles, which are complete, for the second visit."""

    def beside(self, step: Step, is_last: bool) -> Iterator[None]:
        """The second visit of a block of classes, for the block of positions before this one.

        The first loads are issued by the call. The first visit advances the iterator once after each pair of tiles, and
        to its end after the last pair.

        Args:
            step: with the block of classes.
            is_last: it is the last one of the core.
        """

    def exchange(self) -> None:
        """All classes have been visited: end the second visit of the block of positions before this one."""

    def finish(self, totals: PairTotals) -> None:
        """The first visit of a block of positions is over. The totals are read at once, and need not stay."""


@dataclass(frozen=True)
class KeptPair:
    """A scratch of one core.

    Attributes:
        first_class: of the core.
        scratch_hbm: float32 [positions, models * classes of the core].
    """

    first_class: int
    scratch_hbm: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int, share: Span, number: int) -> KeptPair:
        """For so many tiles of positions and a core's share of the classes; the name has the number."""
        shape = (tiles * PARTITIONS, _MODELS * share.size)
        name = f"kept_scores_{number}_hbm"
        return cls(share.first, nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm, name=name))

    def store(self, scores: ScoreGroup, classes: Block) -> None:
        """Keep the scores of a group of tiles, those of rows behind the last position too."""
        for number in range(scores.tiles):
            nisa.dma_copy(
                dst=self._of_tile(scores.start + number, classes, 1)[:, 0], src=scores.pair_sbuf[:, :, number]
            )

    def load(self, dst_sbuf: nl.NkiTensor, tile: int, classes: Block) -> None:
        """Load what is kept of one tile of positions.

        Args:
            dst_sbuf: float32 [128, blocks, models, classes].
            tile: its number.
            classes: the first block of classes of equal blocks, one after the other.
        """
        nisa.dma_copy(dst=dst_sbuf, src=self._of_tile(tile, classes, int(dst_sbuf.shape[1])))

    def _of_tile(self, tile: int, classes: Block, blocks: int) -> nl.NkiTensor:
        """The view [128, blocks, models, classes]."""
        first = (classes.first - self.first_class) * _MODELS
        of_classes = Block(first, blocks * _MODELS * classes.size).of(self.scratch_hbm, 1)
        of_tile = of_classes.slice(0, tile * PARTITIONS, (tile + 1) * PARTITIONS)
        return of_tile.reshape_dim(1, (blocks, _MODELS, classes.size))
