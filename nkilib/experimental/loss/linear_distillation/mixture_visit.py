"""The second visit of scores that are kept, beside the first visit of the next block of positions.

It has no product: what it takes of Scalar, Vector and GpSimd fits beside the products of another block, between whose
pairs of tiles it advances. Only the last block's is by itself, and takes wider tiles then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Block, Span, Step, plan_blocks
from nkilib.experimental.loss.linear.class_schedule import divide_classes
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.sizes import WINDOW, LinearTiling
from nkilib.experimental.loss.linear_distillation.host.kept_tiling import KeptSizes
from nkilib.experimental.loss.linear_distillation.host.mixture_blocks import MixtureBlocks
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import group_tiles
from nkilib.experimental.loss.linear_distillation.kept_pair import KeptPair
from nkilib.experimental.loss.linear_distillation.mixture_results import MixtureStore
from nkilib.experimental.loss.linear_distillation.mixture_rows import MixtureRows
from nkilib.experimental.loss.linear_distillation.mixture_sums import MixtureSums
from nkilib.experimental.loss.linear_distillation.mixture_terms import MixturePair, MixtureTerms
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.visits import PairTotals, RunBlock, ScoreGroup
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class _Slot:
    """What is kept of a block of positions between its two visits.

    Attributes:
        kept: the scores; None on a core without classes.
        rows: scalars of its rows.
        neg_maxima: minus the largest scores of student and teacher, float32 [128, tiles].
    """

    kept: KeptPair | None
    rows: MixtureRows
    neg_maxima: tuple[nl.NkiTensor, nl.NkiTensor]

    @classmethod
    def make(cls, tiles: int, share: Span, number: int) -> _Slot:
        """For blocks of at most so many tiles."""
        kept = KeptPair.make(tiles * PARTITIONS, share, number) if share.size > 0 else None
        student_sbuf, teacher_sbuf = (
            nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)
        )
        return cls(kept, MixtureRows.make(tiles), (student_sbuf, teacher_sbuf))


@dataclass(frozen=True)
class _Pending:
    """A block of positions whose second visit is still to come.

    Attributes:
        block: the positions.
        tiles: of 128 positions.
        slot: what is kept of it.
    """

    block: Block
    tiles: int
    slot: _Slot


@dataclass
class KeptVisit:
    """The second visit of all blocks of positions.

    Attributes:
        launch: of the kernel.
        store: of the results.
        shares: the classes of each core.
        blocks: of positions.
        bodies, bare_bodies: blocks of classes in the program for each block of positions, and for the last second
            visit.
        slots: that the blocks take in turn.
        terms: tiles on chip.
        sums: of a block of positions.
        turn: of the next block.
        pending: whose scores are kept; None at first.
        tiles_beside: tiles of the block of the first visit.
    """

    launch: PairLaunch
    store: MixtureStore
    shares: list[Span]
    blocks: MixtureBlocks
    bodies: int
    bare_bodies: int
    slots: list[_Slot]
    terms: MixtureTerms
    sums: MixtureSums
    turn: int = 0
    pending: _Pending | None = None
    tiles_beside: int = 0

    @classmethod
    def make(cls, launch: PairLaunch, sizes: KeptSizes, tiling: LinearTiling, store: MixtureStore) -> KeptVisit:
        """For a tiling that fits SBUF."""
        blocks, class_block = sizes.blocks(tiling), tiling.class_block
        shares = divide_classes(launch.vocab_size, 0, nl.num_programs(), class_block).shares
        share = shares[nl.program_id(0)]
        return cls(
            launch,
            store,
            shares,
            blocks,
            sizes.most_bodies(blocks, class_block),
            sizes.bare_bodies(blocks),
            [_Slot.make(tiles, share, number) for number, tiles in enumerate(blocks.slots)],
            MixtureTerms.make(launch, group_tiles(blocks.largest, class_block), class_block),
            MixtureSums.make(blocks.largest),
        )

    @property
    def tiles(self) -> int:
        """Tiles of the largest block of positions."""
        return self.blocks.largest

    def run_blocks(self, run: RunBlock) -> None:
        """Run the first visit of each block of positions, and at last the second one that has none beside it."""
        blocks = self.blocks
        first = self._run_some(run, 0, blocks.leading)
        if blocks.pairs > 0:
            size = blocks.looped * PARTITIONS
            end = first + 2 * blocks.pairs * size

            def pair(start: nisa.NkiScalar) -> None:
                # The block before is that of the iteration before, whose place the same slot has.
                self._resume(Block(start - size, size))
                run(Block(start, size), False, True)
                run(Block(start + size, size), False, True)

            nl.fori_loop(first, end, pair, 2 * size)
            self._resume(Block(end - size, size))
            self._run_some(run, end, blocks.trailing)
        self._end()

    def begin(self, tiles: int) -> None:
        """The first visit of a block of positions begins, and the second one of the block before it, if any."""
        self.tiles_beside = tiles
        if self.pending is not None:
            self.sums.clear()
            self.terms.restart()

    def keep(self, scores: ScoreGroup, step: Step) -> None:
        """Keep the scores of some tiles."""
        kept = self._next_slot.kept
        if kept is not None:
            kept.store(scores, step.block)

    def beside(self, step: Step, is_last: bool) -> Iterator[None]:
        """The second visit of a block of classes, for the block of positions before this one."""
        if self.pending is None:
            return iter(())
        visit = _StepVisit(self.pending, self.terms, self.sums, step)
        visit.load_group()
        return self._advance(visit, is_last)

    def exchange(self) -> None:
        """End the second visit of the block of positions before this one."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        sums_sbuf = self.sums.exchanged()[:, :, 0 : pending.tiles]
        student_sbuf, teacher_sbuf = (neg_max_sbuf[:, 0 : pending.tiles] for neg_max_sbuf in pending.slot.neg_maxima)
        self.store.store(pending.block, sums_sbuf, (student_sbuf, teacher_sbuf))

    def finish(self, totals: PairTotals) -> None:
        """The first visit of a block of positions is over."""
        slot, tiles = self._next_slot, totals.tiles
        slot.rows.of_tiles(tiles).of_totals(self.launch, totals.student, totals.teacher)
        for neg_max_sbuf, model in zip(slot.neg_maxima, (totals.student, totals.teacher), strict=True):
            nisa.tensor_copy(dst=neg_max_sbuf[:, 0:tiles], src=model.neg_max_sbuf)
        self.pending = _Pending(totals.block, tiles, slot)
        self.turn += 1

    @property
    def _next_slot(self) -> _Slot:
        """That of the block of the first visit."""
        return self.slots[self.turn % len(self.slots)]

    def _run_some(self, run: RunBlock, first: int, blocks: tuple[int, ...]) -> int:
        """Run blocks of positions from ``first`` on; the position behind them."""
        total = self.launch.num_positions
        for tiles in blocks:
            size = min(tiles * PARTITIONS, total - first)
            run(Block(first, size), first == 0, first + size < total)
            first += size
        return first

    def _resume(self, block: Block) -> None:
        """The block whose second visit is to come is this one, whose first visit stands in the program once."""
        if self.pending is not None:
            self.pending = _Pending(block, self.pending.tiles, self.pending.slot)

    def _advance(self, visit: _StepVisit, is_last: bool) -> Iterator[None]:
        """As many tiles at a time as spread evenly; none at first, while the scores of the first group are loaded."""
        last = max(1, self.tiles_beside - 1)
        for number in range(self.tiles_beside - 1):
            visit.take_until(visit.tiles * number // last)
            yield
        visit.take_until(visit.tiles)
        self.sums.close(visit.step, is_last)
        yield

    def _end(self) -> None:
        """The second visit of the last block of positions, in tiles of as many classes as a group has room for."""
        pending = self.pending
        if pending is None:
            return
        terms = self.terms.with_wide_tiles()
        self.sums.clear()
        terms.restart()
        plan = plan_blocks(self.shares, nl.program_id(0), terms.classes, self.bare_bodies, WINDOW)

        def visit(step: Step) -> None:
            of_step = _StepVisit(pending, terms, self.sums, step)
            of_step.load_group()
            of_step.take_until(of_step.tiles)
            self.sums.close(step, step.number == plan.count - 1)

        plan.run(visit)
        self.exchange()


class _StepVisit:
    """The second visit of a block of classes.

    Attributes:
        pending: the block of positions.
        terms, sums: of the visit.
        step: with the block of classes.
    """

    def __init__(self, pending: _Pending, terms: MixtureTerms, sums: MixtureSums, step: Step) -> None:
        self.pending, self.terms, self.sums, self.step = pending, terms, sums, step
        self._loaded: list[MixturePair] = []
        self._opened: list[MixturePair] = []
        self._next_load = 0
        self._taken = 0

    @property
    def tiles(self) -> int:
        """Tiles of positions."""
        return self.pending.tiles

    def load_group(self) -> None:
        """Load the scores of the next group, and take their differences."""
        end = min(self._next_load + self.terms.group, self.tiles)
        kept = self.pending.slot.kept
        self._loaded = []
        if kept is None:
            return
        for tile in range(self._next_load, end):
            pair = self.terms.next_pair(tile, self.step.block.size)
            kept.load(pair.student_sbuf, pair.teacher_sbuf, tile, self.step.block)
            self.terms.take_difference(pair)
            self._loaded.append(pair)
        self._next_load = end

    def take_until(self, end: int) -> None:
        """Take tiles until so many of all are taken."""
        while self._taken < end:
            if not self._opened:
                self._open_group()
            self.terms.take_sums(self._opened.pop(0), self.pending.slot.rows, self.sums, self.step)
            self._taken += 1

    def _open_group(self) -> None:
        """The logs of the group that is loaded, while the next one is."""
        self._opened = self._loaded
        self.load_group()
        for pair in self._opened:
            self.terms.take_logs(pair, self.pending.slot.rows)
