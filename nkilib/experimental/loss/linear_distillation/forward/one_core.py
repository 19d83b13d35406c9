# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward on one core: X^T of both models stays on chip, and W^T of the core's classes streams for each model.

N positions, D features; *scores* are the logits before scaling, or tanh(logit / cap) under a cap.
:func:`forward_of_core` loops over the blocks of positions. The cores divide the classes, and exchange their statistics
at the end of a block. The last classes may be *shared*: both cores process them, each for its own tiles of positions. A
divergence from a mixture needs a second pass over the classes (:mod:`.visits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.tiles import FLOAT32_LOWEST, constant
from nkilib.experimental.loss.cross_entropy.results import GroupResult
from nkilib.experimental.loss.linear.block_schedule import WINDOW, Block, Step
from nkilib.experimental.loss.linear.class_schedule import ClassSchedule, ClassStream, divide_classes, tiles_of_core
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.logit_passes import TargetLogits
from nkilib.experimental.loss.linear.operands import Staging, load_input, store_positions
from nkilib.experimental.loss.linear_distillation.forward.pair_results import (
    PairResults,
    divergence_results,
    label_results,
    results_of_models,
)
from nkilib.experimental.loss.linear_distillation.forward.pair_statistics import PairPositions, PairStatistics
from nkilib.experimental.loss.linear_distillation.forward.pair_tiles import PairClasses, PairInputs, PairTiles
from nkilib.experimental.loss.linear_distillation.forward.visits import PairTotals, SecondVisit
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import PairForwardSizes
from nkilib.experimental.loss.linear_distillation.launch import PairLaunch
from nkilib.nki import nl


@dataclass(frozen=True)
class _Pass:
    """The forward of some tiles of positions over several blocks of classes.

    Attributes:
        tiles: the numbers of the tiles in the block of positions, at least one.
        targets: the student's scores at the labels of these positions; None if they are not wanted.
    """

    tiles: range
    targets: TargetLogits | None

    @classmethod
    def make(
        cls,
        forward: _CoreForward,
        labels_sbuf: nl.NkiTensor | None,
        picked_sbuf: nl.NkiTensor | None,
        tiles: range,
        first: int,
    ) -> _Pass:
        """Return the forward of some tiles of positions, before any block of classes.

        Args:
            forward: the forward of the core.
            labels_sbuf: the labels of the block of positions; None if no score at a label is wanted.
            picked_sbuf: the tensor that gets the student's scores at these labels; None without ``labels_sbuf``.
            tiles: the numbers of the tiles in the block of positions.
            first: the first class of the first block, counted from the first class of the weights.
        """
        if labels_sbuf is None or picked_sbuf is None:
            return cls(tiles, None)
        targets = TargetLogits.make(
            labels_sbuf[:, tiles.start : tiles.stop],
            forward.launch.classes.first + first,
            picked_sbuf[:, tiles.start : tiles.stop],
            max(forward.schedule.largest, 1),
            forward.pairs.group_tiles,
            forward.schedule.sizes,
        )
        return cls(tiles, targets)


@dataclass(frozen=True)
class _BlockForward:
    """The forward of a block of positions.

    Attributes:
        forward: the forward of the core.
        block: the positions.
        inputs: X^T of the tiles, of each model.
        positions: labels and row weights.
        statistics: the statistics over the classes that were processed so far.
        own: the forward of all tiles over the core's own classes.
        shared: the forward of the tiles ``part`` over the shared classes; None without shared classes or tiles.
        shared_picked_sbuf: the student's scores at the labels that are shared classes, float32 [128, tiles]; None
            without shared classes, or if these scores are not wanted.
        part: the numbers of the tiles whose results this core stores: its own, or all if no classes are shared.
        reopens: whether the last step loads the first classes again, for another block of positions.
    """

    forward: _CoreForward
    block: Block
    inputs: PairInputs
    positions: PairPositions
    statistics: PairStatistics
    own: _Pass
    shared: _Pass | None
    shared_picked_sbuf: nl.NkiTensor | None
    part: range
    reopens: bool

    @classmethod
    def make(cls, forward: _CoreForward, block: Block, inputs: PairInputs, reopens: bool) -> _BlockForward:
        schedule, tiles = forward.schedule, range(len(inputs[0]))
        positions = PairPositions.load(forward.launch, block)
        of_shared = len(schedule.shared)
        temperatures = forward.launch.temperatures_of(block)
        statistics = PairStatistics.make(forward.launch, forward.sizes.needs, len(tiles), of_shared, temperatures)
        labels_sbuf = positions.labels_sbuf
        own = _Pass.make(forward, labels_sbuf, statistics.picked_sbuf, tiles, schedule.first)
        part, shared, shared_picked_sbuf = tiles, None, None
        if of_shared > 0:
            part = tiles_of_core(len(tiles))
            if statistics.picked_sbuf is not None:
                shared_picked_sbuf = constant(statistics.picked_sbuf, FLOAT32_LOWEST)
            if part:
                shared = _Pass.make(forward, labels_sbuf, shared_picked_sbuf, part, schedule.shared[0].first)
        return cls(forward, block, inputs, positions, statistics, own, shared, shared_picked_sbuf, part, reopens)

    def step(self, step: Step) -> None:
        statistics, is_last = self.statistics, step.number == self.forward.schedule.count - 1
        column = statistics.column(step.number)
        self._take(step, self.own, column, is_last and not self.forward.schedule.shared)
        if step.number % WINDOW == WINDOW - 1 and not is_last:
            self.forward.pairs.take_waiting()
            statistics.combine_window()

    def shared_step(self, step: Step) -> None:
        schedule = self.forward.schedule
        number = step.number - schedule.count
        is_last = number + 1 == len(schedule.shared)
        self._take(step, self.shared, self.statistics.shared_column(number), is_last)
        self.forward.pairs.take_waiting()

    def finish(self, results: PairResults) -> None:
        """Compute and store the results over all classes.

        If classes are shared, each core stores all results of its own tiles of positions. Otherwise each core stores
        some of the results, for all positions of the block.
        """
        forward, statistics, positions = self.forward, self.statistics, self.positions
        launch, second = forward.launch, forward.second
        statistics.finish()
        picked = (statistics.picked_sbuf, statistics.received_picked(), self.shared_picked_sbuf)
        positions.join_picked(launch, [scores_sbuf for scores_sbuf in picked if scores_sbuf is not None])
        group_results = results_of_models(statistics, results)
        group_results += label_results(statistics, positions, results)
        if forward.has_divergence:
            group_results += divergence_results(launch, statistics, positions, results)
        self._store(group_results)
        if second is not None:
            student, teacher = statistics.totals()
            second.finish(PairTotals(self.block, len(self.inputs[0]), student, teacher))

    def _store(self, group_results: list[GroupResult]) -> None:
        first, end = self.part.start * PARTITIONS, min(self.part.stop * PARTITIONS, self.block.size)
        for number, (vector_hbm, tile_sbuf) in enumerate(group_results):
            is_own = self.forward.schedule.shared or number % nl.num_programs() == nl.program_id()
            if is_own and end > first:
                of_block_hbm = self.block.part(first, end - first).of(vector_hbm)
                store_positions(of_block_hbm, tile_sbuf[:, self.part.start : self.part.stop])

    def _take(self, step: Step, through: _Pass | None, column: int, is_last: bool) -> None:
        """Process one block of classes, and store its statistics in column ``column``.

        Args:
            step: the step of the class schedule, which has the block of classes.
            through: the tiles of positions to process; with None the block is only loaded.
            column: the column of the statistics.
            is_last: whether this is the last block of classes of these positions.
        """
        forward, opening, second = self.forward, self.forward.schedule.opening, self.forward.second
        # Before W of the next block is loaded, because the kept scores are needed first.
        beside = iter(()) if second is None else second.beside(step, is_last)
        student, teacher = (stream.advance(step) for stream in forward.streams)
        reopens = is_last and self.reopens
        is_late = ClassStream.share_a_buffer(step, opening)
        if reopens and not is_late:
            forward.open_classes()
        if through is not None:
            self._take_tiles(step, through, (student, teacher), column, beside)
        if reopens and is_late:
            forward.open_classes()

    def _take_tiles(
        self, step: Step, through: _Pass, classes: PairClasses, column: int, beside: Iterator[None]
    ) -> None:
        pairs = self.forward.pairs
        pairs.raise_biases(classes)
        if through.targets is not None:
            through.targets.aim(step.block.size)
        for start in range(through.tiles.start, through.tiles.stop, pairs.group_tiles):
            tiles = range(start, min(start + pairs.group_tiles, through.tiles.stop))
            self._take_group(tiles, classes, through, step, column)
            for _ in tiles:
                next(beside, None)
        for _ in beside:
            pass
        if through.targets is not None:
            through.targets.keep()

    def _take_group(self, tiles: range, classes: PairClasses, through: _Pass, step: Step, column: int) -> None:
        pairs, second = self.forward.pairs, self.forward.second
        pairs_of_step = div_ceil(len(self.inputs[0]), pairs.group_tiles) * pairs.group_tiles
        first = step.number * pairs_of_step + tiles.start - through.tiles.start
        inputs = (self.inputs[0][tiles.start : tiles.stop], self.inputs[1][tiles.start : tiles.stop])
        group = pairs.open(tiles.start, inputs, classes, self.statistics, column, first)
        if through.targets is not None:
            through.targets.gather(group.student.wide_sbuf, tiles.start - through.tiles.start)
        if second is not None and group.scores is not None:
            second.keep(group.scores, step)
        pairs.take_sums(group, self.statistics)


@dataclass(frozen=True)
class _CoreForward:
    """The operands and buffers that all blocks of positions share.

    Attributes:
        launch: the launch of the kernel.
        sizes: the sizes of the launch.
        schedule: the order of the core's classes.
        inputs: X^T of each model, [128, ceil(D / 128), 128] for each tile of a block.
        streams: the buffers of W^T of each model.
        pairs: the buffers and the computation of the tiles of scores of both models.
        staging: the memory in which operands are cast to the dtype of the products; None if none is cast.
        second: the second pass over the classes; None without one.
        has_divergence: whether this pass stores divergence and moment.
    """

    launch: PairLaunch
    sizes: PairForwardSizes
    schedule: ClassSchedule
    inputs: tuple[list[nl.NkiTensor], list[nl.NkiTensor]]
    streams: tuple[ClassStream, ClassStream]
    pairs: PairTiles
    staging: Staging | None
    second: SecondVisit | None
    has_divergence: bool

    @classmethod
    def make(
        cls,
        launch: PairLaunch,
        tiling: LinearTiling,
        sizes: PairForwardSizes,
        second: SecondVisit | None,
        has_divergence: bool,
    ) -> _CoreForward:
        """Allocate the buffers for the blocks of positions of the tiling, or of the second pass."""
        if second is None:
            plan = sizes.position_plan(*tiling)
            tiles, bodies = plan.tiles, sizes.most_bodies(plan)
            shared = sizes.shared_classes(plan, tiling.class_block)
            division = divide_classes(launch.vocab_size, shared, nl.num_programs(), tiling.class_block)
            schedule = ClassSchedule.make(division, nl.program_id(), tiling.class_block, bodies)
        else:
            tiles, schedule = second.tiles, second.schedule
        largest = max(schedule.largest, 1)
        staging = Staging.make(sizes.staging_bytes)

        def inputs(num_features: int, dtype: nl.DType) -> list[nl.NkiTensor]:
            shape = (PARTITIONS, div_ceil(num_features, PARTITIONS), PARTITIONS)
            return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(tiles)]

        student, teacher = launch.models
        return cls(
            launch,
            sizes,
            schedule,
            (inputs(student.num_features, student.dtype), inputs(teacher.num_features, teacher.dtype)),
            (
                ClassStream.make(student, largest, False, staging),
                ClassStream.make(teacher, largest, False, staging),
            ),
            PairTiles.make(launch, sizes.needs, tiles, largest),
            staging,
            second,
            has_divergence,
        )

    def open_classes(self) -> None:
        for stream in self.streams:
            stream.open(self.schedule.opening)

    def run(self, block: Block, results: PairResults, opens: bool, reopens: bool) -> None:
        """Compute the results of a block of positions.

        Args:
            block: the positions.
            results: the results of all positions.
            opens: whether this method loads the first classes; False if they are on chip already.
            reopens: whether this method loads the first classes again at its end, for the next block.
        """
        tiles = div_ceil(block.size, PARTITIONS)
        inputs = (self.inputs[0][0:tiles], self.inputs[1][0:tiles])
        self._load_inputs((inputs[0][0:1], inputs[1][0:1]), block)
        if opens:
            self.open_classes()
        of_block = _BlockForward.make(self, block, inputs, reopens)
        if tiles > 1:
            other_positions = block.part(PARTITIONS, block.size - PARTITIONS)
            self._load_inputs((inputs[0][1:], inputs[1][1:]), other_positions)
        self.pairs.restart()
        if self.second is not None:
            self.second.begin(tiles)
        self.schedule.run(of_block.step)
        self.pairs.take_waiting()
        of_block.statistics.exchange(self.schedule.count)
        if self.second is not None:
            self.second.exchange()
        self.schedule.run_shared(of_block.shared_step)
        of_block.finish(results)

    def _load_inputs(self, inputs: PairInputs, block: Block) -> None:
        for model, tiles_sbuf in zip(self.launch.models, inputs, strict=True):
            load_input(tiles_sbuf, model.input_hbm, block, self.staging)


def forward_of_core(
    launch: PairLaunch,
    tiling: LinearTiling,
    results: PairResults,
    sizes: PairForwardSizes,
    second: SecondVisit | None = None,
    *,
    has_divergence: bool = True,
) -> None:
    """Compute the results of all positions; each core stores some of them.

    Args:
        launch: the launch of the kernel.
        tiling: a tiling that fits SBUF.
        results: the results of all positions.
        sizes: the sizes of the launch.
        second: the second pass of a mixture, which stores the divergence and its moment; None without one.
        has_divergence: whether divergence and moment are stored by this pass; False leaves them to the caller.
    """
    if second is not None:
        forward = _CoreForward.make(launch, tiling, sizes, second, False)
        second.run_blocks(lambda block, opens, reopens: forward.run(block, results, opens, reopens))
        return
    plan = sizes.position_plan(*tiling)
    forward = _CoreForward.make(launch, tiling, sizes, None, has_divergence)
    looped = plan.whole * plan.size if plan.is_loop else 0
    if looped > 0:
        forward.open_classes()
        nl.fori_loop(0, looped, lambda first: forward.run(Block(first, plan.size), results, False, True), plan.size)
    for first in range(looped, launch.num_positions, plan.size):
        left = launch.num_positions - first
        forward.run(Block(first, min(plan.size, left)), results, first == 0, left > plan.size)
