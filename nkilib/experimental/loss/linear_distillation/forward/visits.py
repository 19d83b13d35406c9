# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The data that a first pass over the classes hands to the second pass, which a mixture of both distributions needs.

:class:`SecondVisit` is the interface that the first pass calls. The first pass hands over statistics
(:class:`PairTotals`) and scores (:class:`PairScoreGroup`), which :class:`KeptPair` keeps in HBM. *Scores* are the
logits before scaling, or tanh(logit / cap) under a cap.

The mixture M = beta P + (1 - beta) Q of teacher P and student Q needs the log-sum-exps of both models, which are known
only after all classes have been visited. So the scores of a block of positions are kept, or are recomputed, and a
second pass computes the sums of the mixture. From kept scores, the second pass for a block has no matrix products, and
runs between the tiles of the next block's first pass.

Each core keeps its scores in HBM. For each block of classes, a position's student scores are followed by its teacher
scores, so a transfer moves contiguous rows of twice the length; DMA is slower with rows of less than 2 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.scale import Scale
from nkilib.experimental.loss.linear.block_schedule import Block, Span, Step
from nkilib.experimental.loss.linear.class_schedule import ClassSchedule
from nkilib.nki import nisa, nl

_MODELS = 2


@dataclass(frozen=True)
class PairScoreGroup:
    """The scores of both models for some tiles of positions and a block of classes.

    Attributes:
        start: the number of the first tile of positions, counted in the block of positions.
        pair_sbuf: the scores, float32 [128, models, tiles, classes], student and teacher, each in the unit of its
            model.
    """

    start: int
    pair_sbuf: nl.NkiTensor

    @property
    def tiles(self) -> int:
        """The number of tiles of positions."""
        return int(self.pair_sbuf.shape[2])


@dataclass(frozen=True)
class ModelTotals:
    """The statistics of one model from the first pass, of the positions of a block: float32 [128, tiles].

    With the largest score m of a position and the scale of the model, S is the sum of exp(scale * (score - m)).

    Attributes:
        neg_max_sbuf: -m.
        sums_sbuf: S.
        log_sum_sbuf: log S.
        scale: the scale, of all positions or of each.
    """

    neg_max_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    log_sum_sbuf: nl.NkiTensor
    scale: Scale


@dataclass(frozen=True)
class PairTotals:
    """The statistics of a block of positions from the first pass.

    Attributes:
        block: the positions.
        tiles: the number of tiles of 128 positions.
        student, teacher: the totals of both models.
    """

    block: Block
    tiles: int
    student: ModelTotals
    teacher: ModelTotals


class RunBlock(Protocol):
    """A function that runs the first pass for a block of positions."""

    def __call__(self, block: Block, opens: bool, reopens: bool) -> None:
        """Process all classes.

        Args:
            block: the positions.
            opens: whether this call loads the first classes; False if they are on chip already.
            reopens: whether this call loads the first classes again at its end, for the next block.
        """


class SecondVisit(Protocol):
    """The interface of a second pass over the classes, which also determines the blocks of positions.

    The first pass calls, for each block of positions, ``begin``, then for each block of classes ``beside`` and
    ``keep``, then ``exchange`` and ``finish``.
    """

    @property
    def schedule(self) -> ClassSchedule:
        """The order of the core's classes, none of which are shared with the other core."""

    @property
    def tiles(self) -> int:
        """The number of tiles of the largest block of positions."""

    def run_blocks(self, run: RunBlock) -> None:
        """Run the first pass for each block of positions, and at the end the second pass for the last block."""

    def begin(self, tiles: int) -> None:
        """Prepare the first pass for a block of ``tiles`` tiles, and the second pass for the block before, if any."""

    def keep(self, scores: PairScoreGroup, step: Step) -> None:
        """Keep the scores of some tiles, which are complete, for the second pass."""

    def beside(self, step: Step, is_last: bool) -> Iterator[None]:
        """Start the second pass over a block of classes, for the block of positions before the current one.

        The call issues the first loads; each step of the iterator does a part of the work. The first pass takes one
        step after each pair of tiles, and all remaining steps after the last pair.

        Args:
            step: the step of the class schedule, which has the block of classes.
            is_last: whether it is the last step of the core for these positions.
        """

    def exchange(self) -> None:
        """Exchange the sums with the other core, and end the second pass for the previous block of positions."""

    def finish(self, totals: PairTotals) -> None:
        """End the first pass for a block of positions; ``totals`` are copied or used before the call returns."""


@dataclass(frozen=True)
class KeptPair:
    """The scores of student and teacher that one core keeps in HBM.

    Attributes:
        first_class: the first class of the core.
        scratch_hbm: the scores, float32 [positions, models * classes of the core]; for each block of classes the
            student's scores, then the teacher's.
    """

    first_class: int
    scratch_hbm: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int, share: Span, number: int) -> KeptPair:
        """Allocate the memory for the scores of ``tiles`` tiles of positions and the classes of a core.

        Args:
            tiles: the number of tiles of positions.
            share: the classes of the core.
            number: a number that makes the name of the tensor unique in the kernel.
        """
        shape = (tiles * PARTITIONS, _MODELS * share.size)
        name = f"kept_scores_{number}_hbm"
        return cls(share.first, nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm, name=name))

    def store(self, scores: PairScoreGroup, classes: Block) -> None:
        """Store the scores of a group of tiles, including rows beyond the last position."""
        for number in range(scores.tiles):
            nisa.dma_copy(
                dst=self._of_tile(scores.start + number, classes, 1)[:, 0], src=scores.pair_sbuf[:, :, number]
            )

    def load(self, dst_sbuf: nl.NkiTensor, tile: int, classes: Block) -> None:
        """Load the kept scores of one tile of positions.

        Args:
            dst_sbuf: the destination, float32 [128, blocks, models, classes].
            tile: the number of the tile.
            classes: the first of the blocks of classes, which are consecutive and of equal size.
        """
        nisa.dma_copy(dst=dst_sbuf, src=self._of_tile(tile, classes, int(dst_sbuf.shape[1])))

    def _of_tile(self, tile: int, classes: Block, blocks: int) -> nl.NkiTensor:
        """Return a view [128, blocks, models, classes]: the scores of tile ``tile`` for ``blocks`` blocks from
        ``classes`` on.
        """
        first = (classes.first - self.first_class) * _MODELS
        of_classes = Block(first, blocks * _MODELS * classes.size).of(self.scratch_hbm, 1)
        of_tile = of_classes.slice(0, tile * PARTITIONS, (tile + 1) * PARTITIONS)
        return of_tile.reshape_dim(1, (blocks, _MODELS, classes.size))
