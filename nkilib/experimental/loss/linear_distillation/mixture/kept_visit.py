# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second pass over the classes from kept scores, during the first pass of the next block of positions.

*Scores* are the logits before scaling, or tanh(logit / cap) under a cap. A *pair* is the scores of both models for one
tile of 128 positions and one or several blocks of classes; a *group* is the pairs that Scalar processes with one load
of each table; the *products* of a pair are softplus terms times exponentials, which Vector sums. A *slot* holds the
data of a block of positions between its two passes. The *pending* block is the one whose second pass is still to come.

The second pass (:class:`KeptVisit`) has no matrix products. While Tensor computes the products of the next block,
Scalar, Vector and GpSimd do a part of the second pass after each pair of tiles of that block. Only the second pass for
the last block runs alone, and uses wider tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS
from nkilib.experimental.loss.linear.block_schedule import WINDOW, Block, Span, Step
from nkilib.experimental.loss.linear.class_schedule import ClassSchedule, divide_classes
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear_distillation.forward.visits import KeptPair, PairScoreGroup, PairTotals, RunBlock
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import KeptSizes, MixtureBlocks, group_tiles
from nkilib.experimental.loss.linear_distillation.launch import PairLaunch
from nkilib.experimental.loss.linear_distillation.mixture.sums import (
    MixturePair,
    MixtureRows,
    MixtureStore,
    MixtureSums,
    MixtureTerms,
    ends_a_window,
)
from nkilib.nki import nisa, nl

# Tiles of positions times runs of blocks of classes that the last second pass unrolls at most; more are a loop.
_UNROLLED = 400


@dataclass(frozen=True)
class _Slot:
    """The data of a block of positions that is kept between its two passes.

    Attributes:
        kept: the scores in HBM; None on a core without classes.
        rows: the per-row scalars.
        neg_maxima: minus the largest scores of student and teacher, float32 [128, tiles]; NaN where a temperature is
            not accepted.
    """

    kept: KeptPair | None
    rows: MixtureRows
    neg_maxima: tuple[nl.NkiTensor, nl.NkiTensor]

    @classmethod
    def make(cls, launch: PairLaunch, tiles: int, share: Span, number: int) -> _Slot:
        """Allocate slot ``number`` for blocks of at most ``tiles`` tiles; ``share`` is the core's classes."""
        kept = KeptPair.make(tiles, share, number) if share.size > 0 else None
        student_sbuf, teacher_sbuf = (
            nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)
        )
        return cls(kept, MixtureRows.make(launch, tiles), (student_sbuf, teacher_sbuf))


@dataclass(frozen=True)
class _Pending:
    """A block of positions whose second pass is still to come.

    Attributes:
        block: the positions.
        tiles: the number of tiles of 128 positions.
        slot: the kept data of the block.
    """

    block: Block
    tiles: int
    slot: _Slot


class _Waiting(NamedTuple):
    """A pair whose exponentials have been issued, and whose products Vector computes later.

    Attributes:
        step: the step of the class schedule, which has the block of classes.
        pair: the scores and terms of the pair.
    """

    step: Step
    pair: MixturePair


@dataclass(frozen=True)
class _WaitingProducts:
    """A queue of pairs whose products Vector computes later, when Scalar has finished the exponentials.

    Attributes:
        terms: the memory of the pairs, and the operations on it.
        sums: the sums that the products are added to.
        waiting: the pairs.
    """

    terms: MixtureTerms
    sums: MixtureSums
    waiting: list[_Waiting] = field(default_factory=list)

    def add(self, step: Step, pair: MixturePair) -> None:
        self.waiting.append(_Waiting(step, pair))

    def take_all(self) -> None:
        for step, pair in self.waiting:
            self.terms.take_products(pair, self.sums, step)
        self.waiting.clear()


def _spans(schedule: ClassSchedule) -> list[Span]:
    # All blocks of classes of a core, in the order in which they are processed.
    plan = schedule.plan
    head = [] if schedule.head is None else [schedule.head]
    count = plan.iterations * plan.blocks_per_iteration
    return [*head, *(Span(plan.first + number * plan.size, plan.size) for number in range(count)), *plan.rest]


def _runs(blocks: list[Span], most: int) -> list[list[Span]]:
    """Group the blocks into runs of at most ``most`` blocks with the same number of classes."""
    runs: list[list[Span]] = []
    for block in blocks:
        if runs and len(runs[-1]) < most and runs[-1][0].size == block.size:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


class _StepVisit:
    """The second pass over one block of classes, or several blocks of the same size.

    Attributes:
        pending: the block of positions.
        terms: the memory of pairs on chip, and the operations on it.
        products: the queue of pairs whose products are computed later.
        step: the step of the class schedule with the block of classes, or with the first of several blocks.
        blocks: the number of blocks of classes.
    """

    def __init__(
        self, pending: _Pending, terms: MixtureTerms, products: _WaitingProducts, step: Step, blocks: int = 1
    ) -> None:
        self.pending, self.terms, self.products, self.step, self.blocks = pending, terms, products, step, blocks
        self._loaded: list[MixturePair] = []
        self._opened: list[MixturePair] = []
        self._tiles_loaded = self._tiles_taken = 0

    @property
    def tiles(self) -> int:
        return self.pending.tiles

    def load_group(self) -> None:
        """Load the scores of the next group, if any, and compute their differences."""
        end = min(self._tiles_loaded + self.terms.group, self.tiles)
        kept = self.pending.slot.kept
        if kept is None:
            return
        for tile in range(self._tiles_loaded, end):
            pair = self.terms.next_pair(tile, self.blocks, self.step.block.size)
            kept.load(pair.scores_sbuf, tile, self.step.block)
            self.terms.take_difference(pair)
            self._loaded.append(pair)
        self._tiles_loaded = end

    def take_until(self, end: int) -> None:
        """Compute softplus and exponentials of the tiles up to ``end - 1``, and queue the pairs in ``products``."""
        rows = self.pending.slot.rows
        while self._tiles_taken < end:
            opens = not self._opened
            if opens:
                self._opened, self._loaded = self._loaded, []
                for pair in self._opened:
                    self.terms.take_logs(pair, rows)
            pair = self._opened.pop(0)
            self.terms.take_exponentials(pair, rows, self.products.sums, self.step)
            if opens:
                # The next group overwrites the previous one, so nothing of that may wait any more.
                self.products.take_all()
                self.load_group()
            self.products.add(self.step, pair)
            self._tiles_taken += 1


@dataclass
class KeptVisit:
    """The second pass for all blocks of positions; implements :class:`.SecondVisit`.

    Attributes:
        launch: the launch of the kernel.
        store: the vectors of the results in HBM.
        schedule: the order of the core's classes, in both passes.
        blocks: the sizes of the blocks of positions.
        slots: the slots, which blocks of positions use round-robin.
        terms: the memory of pairs on chip, and the operations on it.
        sums: the sums of the pending block.
        products: the queue of pairs whose products are computed later.
        slot_number: the number of the next block of positions, which determines its slot.
        pending: the pending block; None if there is none.
        tiles_beside: the number of tiles of the block of positions whose first pass runs at the same time.
    """

    launch: PairLaunch
    store: MixtureStore
    schedule: ClassSchedule
    blocks: MixtureBlocks
    slots: list[_Slot]
    terms: MixtureTerms
    sums: MixtureSums
    products: _WaitingProducts
    slot_number: int = 0
    pending: _Pending | None = None
    tiles_beside: int = 0

    @classmethod
    def make(cls, launch: PairLaunch, sizes: KeptSizes, tiling: LinearTiling, store: MixtureStore) -> KeptVisit:
        """Allocate the slots and buffers for a tiling that fits SBUF."""
        blocks, class_block = sizes.blocks(tiling), tiling.class_block
        division = divide_classes(launch.vocab_size, 0, nl.num_programs(), class_block)
        bodies, core = sizes.most_bodies(blocks, class_block), nl.program_id(0)
        share = division.shares[core]
        terms = MixtureTerms.make(launch, group_tiles(blocks.largest, class_block), class_block)
        sums = MixtureSums.make(blocks.largest)
        return cls(
            launch,
            store,
            ClassSchedule.make(division, core, class_block, bodies),
            blocks,
            [_Slot.make(launch, tiles, share, number) for number, tiles in enumerate(blocks.slots)],
            terms,
            sums,
            _WaitingProducts(terms, sums),
        )

    @property
    def tiles(self) -> int:
        return self.blocks.largest

    def run_blocks(self, run: RunBlock) -> None:
        blocks = self.blocks
        first = self._run_some(run, 0, blocks.leading)
        if blocks.pairs > 0:
            size = blocks.looped * PARTITIONS
            end = first + 2 * blocks.pairs * size

            def pair(start: nisa.NkiScalar) -> None:
                # The pending block is the last one of the previous iteration, which had the same slot.
                self._resume(Block(start - size, size))
                run(Block(start, size), False, True)
                run(Block(start + size, size), False, True)

            nl.fori_loop(first, end, pair, 2 * size)
            self._resume(Block(end - size, size))
            self._run_some(run, end, blocks.trailing)
        self._end()

    def begin(self, tiles: int) -> None:
        self.tiles_beside = tiles
        if self.pending is not None:
            self.sums.clear()
            self.terms.restart()

    def keep(self, scores: PairScoreGroup, step: Step) -> None:
        """Store the scores of some tiles in HBM for the second pass."""
        kept = self._next_slot.kept
        if kept is not None:
            kept.store(scores, step.block)

    def beside(self, step: Step, is_last: bool) -> Iterator[None]:
        """Start the second pass over a block of classes, for the previous block of positions; see
        :meth:`.SecondVisit.beside`.

        The steps of the returned iterator do the work. The iterator is empty without a previous block.
        """
        if self.pending is None:
            return iter(())
        visit = _StepVisit(self.pending, self.terms, self.products, step)
        visit.load_group()
        return self._advance(visit, is_last)

    def exchange(self) -> None:
        """Exchange the sums of the previous block of positions with the other core, and store its results.

        This ends the second pass for that block; without a previous block nothing is done.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return
        sums_sbuf = self.sums.exchanged()[:, :, 0 : pending.tiles]
        student_sbuf, teacher_sbuf = (neg_max_sbuf[:, 0 : pending.tiles] for neg_max_sbuf in pending.slot.neg_maxima)
        self.store.store(pending.block, sums_sbuf, (student_sbuf, teacher_sbuf))

    def finish(self, totals: PairTotals) -> None:
        """End the first pass for a block of positions: compute its per-row scalars from ``totals``.

        The block becomes the pending block.
        """
        slot, tiles = self._next_slot, totals.tiles
        slot.rows.of_tiles(tiles).take_totals(self.launch, totals.student, totals.teacher)
        for neg_max_sbuf, model in zip(slot.neg_maxima, (totals.student, totals.teacher), strict=True):
            nisa.tensor_copy(dst=neg_max_sbuf[:, 0:tiles], src=model.neg_max_sbuf)
            model.scale.add_nan(neg_max_sbuf[:, 0:tiles])
        self.pending = _Pending(totals.block, tiles, slot)
        self.slot_number += 1

    @property
    def _next_slot(self) -> _Slot:
        return self.slots[self.slot_number % len(self.slots)]

    def _run_some(self, run: RunBlock, first: int, blocks: tuple[int, ...]) -> int:
        """Call ``run`` for successive blocks of positions, from position ``first`` on; return the end of the last one.

        ``blocks`` has the number of tiles of each block.
        """
        total = self.launch.num_positions
        for tiles in blocks:
            size = min(tiles * PARTITIONS, total - first)
            run(Block(first, size), first == 0, first + size < total)
            first += size
        return first

    def _resume(self, block: Block) -> None:
        """Replace the positions of the pending block, if there is one, by ``block``.

        In a device loop, whose body is traced once, these positions depend on the loop variable.
        """
        if self.pending is not None:
            self.pending = _Pending(block, self.pending.tiles, self.pending.slot)

    def _advance(self, visit: _StepVisit, is_last: bool) -> Iterator[None]:
        """Divide the tiles of ``visit`` into ``tiles_beside`` parts, and process one part in each iteration.

        If there are several parts, the first one is empty: the scores of the first group are still being loaded.
        """
        advances = self.tiles_beside
        for number in range(advances):
            # The passes of tiles that Scalar received one pair of the first pass ago.
            self.products.take_all()
            is_over = number + 1 == advances
            visit.take_until(visit.tiles if is_over else visit.tiles * number // (advances - 1))
            if is_over:
                self._close(visit.step, is_last)
            yield

    def _close(self, step: Step, is_last: bool) -> None:
        if is_last or ends_a_window(step):
            # A loop of the device ends with a window, and its body is traced once: nothing may wait there.
            self.products.take_all()
        self.sums.close(step, is_last)

    def _end(self) -> None:
        """Run the second pass for the last block of positions, in tiles of as many classes as a group has room for.

        If these are more tiles than are unrolled, run a device loop over single blocks of classes instead.
        """
        pending = self.pending
        if pending is None:
            return
        self.sums.clear()
        self.terms.restart()
        runs = _runs(_spans(self.schedule), min(WINDOW, self.terms.group))
        if len(runs) * pending.tiles > _UNROLLED:
            self.schedule.run(lambda step: self._visit_run(pending, self.terms, step, 1, self.schedule.count))
        else:
            wide = self.terms.with_wide_tiles(WINDOW)
            for number, run in enumerate(runs):
                terms = wide if len(run) > 1 else self.terms
                step = Step(Block(*run[0]), number, run[0].size, None)
                self._visit_run(pending, terms, step, len(run), len(runs))
        self.exchange()

    def _visit_run(self, pending: _Pending, terms: MixtureTerms, step: Step, blocks: int, steps: int) -> None:
        """Do the second pass over ``blocks`` blocks of classes, from the block of ``step`` on, without a first pass.

        ``steps`` is the number of calls of this method for all classes; the last call also ends the sums.
        """
        # Wide tiles use the memory of other tiles.
        self.products.take_all()
        visit = _StepVisit(pending, terms, self.products, step, blocks)
        visit.load_group()
        visit.take_until(visit.tiles)
        self._close(step, step.number == steps - 1)
