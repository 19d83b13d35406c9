# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward on one core: X^T of both models stays on chip, and two streams of W^T of the core's classes pass by it.

The cores share the classes, and swap what they have found of the positions at the end of a block of them. A divergence
from a mixture needs a second visit (:mod:`.visits`), for which this one keeps the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.rows.tiles import FLOAT32_LOWEST, constant
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.results import Found
from nkilib.experimental.loss.linear.forward.class_schedule import ClassSchedule, divide_classes
from nkilib.experimental.loss.linear.forward.streams import ClassStream, load_input
from nkilib.experimental.loss.linear.forward.target_logits import TargetLogits
from nkilib.experimental.loss.linear.shared.blocks import Block, Step
from nkilib.experimental.loss.linear.shared.operands import store_positions
from nkilib.experimental.loss.linear.shared.sizes import WINDOW, LinearTiling
from nkilib.experimental.loss.linear.shared.staging import Staging, with_rounded_bias
from nkilib.experimental.loss.linear_distillation.forward.pair_positions import PairPositions
from nkilib.experimental.loss.linear_distillation.forward.pair_results import (
    PairResults,
    found_divergence,
    found_of_both,
    found_of_labels,
)
from nkilib.experimental.loss.linear_distillation.forward.pair_statistics import PairStatistics
from nkilib.experimental.loss.linear_distillation.forward.pair_tiles import PairClasses, PairInputs, PairTiles
from nkilib.experimental.loss.linear_distillation.forward.visits import PairTotals, SecondVisit
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import PairForwardSizes
from nkilib.experimental.loss.linear_distillation.shared.options import PairLaunch
from nkilib.nki import nl


def forward_of_core(
    launch: PairLaunch,
    tiling: LinearTiling,
    results: PairResults,
    sizes: PairForwardSizes,
    second: SecondVisit | None = None,
    *,
    has_divergence: bool = True,
) -> None:
    """Write the results, of which each core stores some.

    Args:
        launch: of the kernel.
        tiling: that fits SBUF.
        results: of all positions.
        sizes: of the launch.
        second: the second visit of a mixture, which stores the divergence and its moment; None without one.
        has_divergence: False leaves divergence and moment to whoever comes later.
    """
    student, teacher = (with_rounded_bias(model, model.prefix) for model in launch.models)
    launch = replace(launch, student=student, teacher=teacher)
    if second is not None:
        forward = _Forward.make(launch, tiling, sizes, second, False)
        second.run_blocks(lambda block, opens, reopens: forward.run(block, results, opens, reopens))
        return
    plan = sizes.position_plan(*tiling)
    forward = _Forward.make(launch, tiling, sizes, None, has_divergence)
    looped = plan.whole * plan.size if plan.is_loop else 0
    if looped > 0:
        forward.open_classes()
        nl.fori_loop(0, looped, lambda first: forward.run(Block(first, plan.size), results, False, True), plan.size)
    for first in range(looped, launch.num_positions, plan.size):
        left = launch.num_positions - first
        forward.run(Block(first, min(plan.size, left)), results, first == 0, left > plan.size)


@dataclass(frozen=True)
class _Forward:
    """What the blocks of positions have in common.

    Attributes:
        launch: of the kernel.
        sizes: of the launch.
        schedule: of the core's classes.
        inputs: X^T of each model, [128, ceil(D / 128), 128] for each tile of a block.
        streams: of the classes of each model.
        pairs: tiles of logits.
        staging: of operands of other types than the products; None without any.
        second: the second visit; None without one.
        has_divergence: divergence and moment are stored here.
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
    ) -> _Forward:
        """For blocks of positions as the tiling has them, or as the second visit says."""
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
        """Load what the first step takes for loaded."""
        for stream in self.streams:
            stream.open(self.schedule.opening)

    def run(self, block: Block, results: PairResults, opens: bool, reopens: bool) -> None:
        """The results of a block of positions.

        Args:
            block: the positions.
            results: of all positions.
            opens: the first classes are still to be loaded, for which the first tile of positions does not wait.
            reopens: the first classes are loaded again at the end, for the next block.
        """
        tiles = div_ceil(block.size, PARTITIONS)
        inputs = (self.inputs[0][0:tiles], self.inputs[1][0:tiles])
        self._load_inputs((inputs[0][0:1], inputs[1][0:1]), block)
        if opens:
            self.open_classes()
        of_block = _BlockForward.make(self, block, inputs, reopens)
        if tiles > 1:
            rest = block.part(PARTITIONS, block.size - PARTITIONS)
            self._load_inputs((inputs[0][1:], inputs[1][1:]), rest)
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


@dataclass(frozen=True)
class _Pass:
    """Classes that some tiles of positions go through.

    Attributes:
        tiles: of the positions, at least one.
        targets: what is found of the student's scores at the labels of these; None where none is asked for.
    """

    tiles: range
    targets: TargetLogits | None

    @classmethod
    def make(
        cls,
        forward: _Forward,
        labels_sbuf: nl.NkiTensor | None,
        picked_sbuf: nl.NkiTensor | None,
        tiles: range,
        first: int,
    ) -> _Pass:
        """From class ``first`` of the weights on."""
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
    """A block of positions.

    Attributes:
        forward: of the core.
        block: the positions.
        inputs: X^T of its tiles, of each model.
        positions: what the caller says of them.
        statistics: gathered so far.
        own, shared: how all tiles go through the core's own classes, and its part of them through shared ones; None
            without any.
        shared_picked_sbuf: the student's scores at the labels that are found in shared classes, float32 [128, tiles];
            None where there are no such classes.
        part: the tiles whose results the core stores: its part of them, or all where no classes are shared.
        reopens: the last step loads the first classes again, for another block of positions.
    """

    forward: _Forward
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
    def make(cls, forward: _Forward, block: Block, inputs: PairInputs, reopens: bool) -> _BlockForward:
        schedule, tiles = forward.schedule, range(len(inputs[0]))
        positions = PairPositions.load(forward.launch, block)
        of_shared = len(schedule.shared)
        statistics = PairStatistics.make(forward.launch, forward.sizes.needs, len(tiles), of_shared)
        labels_sbuf = positions.labels_sbuf
        own = _Pass.make(forward, labels_sbuf, statistics.picked_sbuf, tiles, schedule.first)
        part, shared, shared_picked_sbuf = tiles, None, None
        if of_shared > 0:
            part = _part_of_core(len(tiles))
            if statistics.picked_sbuf is not None:
                shared_picked_sbuf = constant(statistics.picked_sbuf, FLOAT32_LOWEST)
            if part:
                shared = _Pass.make(forward, labels_sbuf, shared_picked_sbuf, part, schedule.shared[0].first)
        return cls(forward, block, inputs, positions, statistics, own, shared, shared_picked_sbuf, part, reopens)

    def step(self, step: Step) -> None:
        """One block of the core's own classes."""
        statistics, is_last = self.statistics, step.number == self.forward.schedule.count - 1
        column = statistics.column(step.number)
        self._take(step, self.own, column, is_last and not self.forward.schedule.shared)
        if step.number % WINDOW == WINDOW - 1 and not is_last:
            self.forward.pairs.take_waiting()
            statistics.combine_window()

    def shared_step(self, step: Step) -> None:
        """One block of the classes that the cores share."""
        schedule = self.forward.schedule
        number = step.number - schedule.count
        is_last = number + 1 == len(schedule.shared)
        self._take(step, self.shared, self.statistics.shared_column(number), is_last)
        self.forward.pairs.take_waiting()

    def finish(self, results: PairResults) -> None:
        """Results of all classes. Each core stores those of its part, or all cores those of all positions in turn."""
        forward, statistics, positions = self.forward, self.statistics, self.positions
        launch, second = forward.launch, forward.second
        statistics.finish()
        picked = (statistics.picked_sbuf, statistics.received_picked(), self.shared_picked_sbuf)
        positions.join_picked(launch, [found_sbuf for found_sbuf in picked if found_sbuf is not None])
        found = found_of_both(statistics, results)
        found += found_of_labels(statistics, positions, results)
        if forward.has_divergence:
            found += found_divergence(launch, statistics, positions, results)
        self._store(found)
        if second is not None:
            student, teacher = statistics.totals()
            second.finish(PairTotals(self.block, len(self.inputs[0]), student, teacher))

    def _store(self, found: list[Found]) -> None:
        first, end = self.part.start * PARTITIONS, min(self.part.stop * PARTITIONS, self.block.size)
        for number, (vector_hbm, tile_sbuf) in enumerate(found):
            is_own = self.forward.schedule.shared or number % nl.num_programs() == nl.program_id()
            if is_own and end > first:
                of_block_hbm = self.block.part(first, end - first).of(vector_hbm)
                store_positions(of_block_hbm, tile_sbuf[:, self.part.start : self.part.stop])

    def _take(self, step: Step, through: _Pass | None, column: int, is_last: bool) -> None:
        """One block of classes, whose statistics stand in a column; None: it is loaded, and no tile goes through."""
        forward, opening, second = self.forward, self.forward.schedule.opening, self.forward.second
        # Before W of the next block is loaded: what is kept is needed first.
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
        each = div_ceil(len(self.inputs[0]), pairs.group_tiles) * pairs.group_tiles
        first = step.number * each + tiles.start - through.tiles.start
        inputs = (self.inputs[0][tiles.start : tiles.stop], self.inputs[1][tiles.start : tiles.stop])
        group = pairs.open(tiles.start, inputs, classes, self.statistics, column, first)
        if through.targets is not None:
            through.targets.gather(group.student.wide_sbuf, tiles.start - through.tiles.start)
        if second is not None and group.scores is not None:
            second.keep(group.scores, step)
        pairs.take_sums(group, self.statistics)


def _part_of_core(tiles: int) -> range:
    """The tiles of positions that a core takes where the cores share classes."""
    core, cores = nl.program_id(), nl.num_programs()
    return range(div_ceil(tiles * core, cores), div_ceil(tiles * (core + 1), cores))
