"""The forward on one core: X^T of a block of positions stays on chip, and W^T of the core's classes streams past it.

The cores share the classes, and swap what they have found of the positions at the end of a block of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.results import Results, found_results
from nkilib.experimental.loss.linear_cross_entropy.blocks import Block, Span, Step
from nkilib.experimental.loss.linear_cross_entropy.class_schedule import ClassSchedule, even_shares
from nkilib.experimental.loss.linear_cross_entropy.class_stream import ClassStream, ClassTiles
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import (
    TILES_OF_GROUP,
    WINDOW,
    ForwardSizes,
    PositionPlan,
)
from nkilib.experimental.loss.linear_cross_entropy.host.sizes import LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.kept_logits import KeptLogits
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS, store_positions
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch, has_options
from nkilib.experimental.loss.linear_cross_entropy.position_statistics import PositionStatistics
from nkilib.experimental.loss.linear_cross_entropy.positions import (
    StoredPositions,
    load_input,
    load_targets,
    target_values,
)
from nkilib.experimental.loss.linear_cross_entropy.score_tiles import ScoreTiles
from nkilib.experimental.loss.linear_cross_entropy.target_logits import TargetLogits, restore_masked
from nkilib.nki import nisa, nl


def forward_of_core(
    launch: LinearLaunch,
    options: Options,
    tiling: LinearTiling,
    results: Results,
    shares: list[Span] | None = None,
    kept: KeptLogits | None = None,
    program_share: float = 1.0,
) -> None:
    """The results, of which each core stores some.

    Args:
        launch, options, tiling: of the kernel.
        results: to be written.
        shares: the classes of each core; None for even ones. With some, no positions are left to a loop of the device.
        kept: where the logits of the core's classes are kept; None for nowhere.
        program_share: of the instructions that the program of a core may have, for this.
    """
    _require_room(launch, options, tiling)
    sizes = replace(_sizes(launch, options), program_share=program_share)
    plan = sizes.position_plan(*tiling)
    if shares is None:
        shares = even_shares(launch.vocab_size, nl.num_programs())
    else:
        plan = plan._replace(is_loop=False)
    forward = _Forward.make(launch, options, tiling, plan, sizes.most_bodies(plan), shares, kept)
    looped = plan.whole * plan.size if plan.is_loop else 0
    if looped > 0:
        forward.classes.open(forward.schedule.opening)
        nl.fori_loop(0, looped, lambda first: forward.run(Block(first, plan.size), results, False, True), plan.size)
    for first in range(looped, launch.num_positions, plan.size):
        left = launch.num_positions - first
        forward.run(Block(first, min(plan.size, left)), results, first == 0, left > plan.size)


def _sizes(launch: LinearLaunch, options: Options) -> ForwardSizes:
    return ForwardSizes(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        dtype_bytes(launch.dtype),
        nl.num_programs(),
        has_options(launch, options),
    )


def _require_room(launch: LinearLaunch, options: Options, tiling: LinearTiling) -> None:
    """Refuse a tiling whose tiles do not fit SBUF.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    tiles = min(div_ceil(tiling.position_block, PARTITIONS), launch.position_tiles)
    needed, most = _sizes(launch, options).bytes_of(tiles, tiling.class_block), nl.tile_size.sbuf_fmax_bytes
    require(
        needed <= most,
        f"{launch.function}: position_block and class_block must leave the tiles of {launch.num_features} features at "
        f"most {most} bytes of a partition, got {needed} with position_block={tiling.position_block} and "
        f"class_block={tiling.class_block}; None takes what choose_linear_tiling says",
    )


@dataclass(frozen=True)
class _Forward:
    """What the blocks of positions have in common.

    Attributes:
        launch, options: of the kernel.
        schedule: of the core's classes.
        input_sbuf: X^T, [128, ceil(D / 128), 128] for each tile of a block.
        classes: their stream.
        scores: tiles of logits.
        kept: where these are kept; None for nowhere.
    """

    launch: LinearLaunch
    options: Options
    schedule: ClassSchedule
    input_sbuf: list[nl.NkiTensor]
    classes: ClassStream
    scores: ScoreTiles
    kept: KeptLogits | None

    @classmethod
    def make(
        cls,
        launch: LinearLaunch,
        options: Options,
        tiling: LinearTiling,
        plan: PositionPlan,
        bodies: int,
        shares: list[Span],
        kept: KeptLogits | None,
    ) -> _Forward:
        tiles = plan.tiles
        depth = div_ceil(launch.num_features, PARTITIONS)
        schedule = ClassSchedule.make(shares, nl.program_id(), tiling.class_block, bodies)
        shape = (PARTITIONS, depth, PARTITIONS)
        largest = max(schedule.largest, 1)
        return cls(
            launch,
            options,
            schedule,
            [nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf) for _ in range(tiles)],
            ClassStream.make(launch, largest, options.needs_class_weights),
            ScoreTiles.make(
                options, launch.num_features, launch.bias_hbm is not None, min(tiles, TILES_OF_GROUP), largest
            ),
            kept,
        )

    def run(self, block: Block, results: Results, opens: bool, reopens: bool) -> None:
        """The results of a block of positions.

        Args:
            block: the positions.
            results: of all positions.
            opens: the first classes are still to be loaded, for which the first tile of positions does not wait.
            reopens: the first classes are loaded again at the end, for the next block.
        """
        input_sbuf = self.input_sbuf[0 : div_ceil(block.size, PARTITIONS)]
        of_block = _BlockForward.make(self, block, input_sbuf, reopens)
        load_input(input_sbuf[0:1], self.launch.input_hbm, block)
        if opens:
            self.classes.open(self.schedule.opening)
        if len(input_sbuf) > 1:
            load_input(input_sbuf[1:], self.launch.input_hbm, block.part(PARTITIONS, block.size - PARTITIONS))
        self.schedule.run(of_block.step)
        of_block.finish(block, results)


@dataclass(frozen=True)
class _BlockForward:
    """A block of positions.

    Attributes:
        forward: of the core.
        first_tile: of positions, counted in the launch, where logits are kept.
        input_sbuf: X^T of its tiles.
        statistics: gathered so far.
        targets: what is found of the logits at the targets.
        reopens: the last step loads the first classes again, for another block of positions.
        first_class_sbuf: class of the first column of the next block, float32 [128, 1]; for the argmax.
    """

    forward: _Forward
    first_tile: int
    input_sbuf: list[nl.NkiTensor]
    statistics: PositionStatistics
    targets: TargetLogits
    reopens: bool
    first_class_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, forward: _Forward, block: Block, input_sbuf: list[nl.NkiTensor], reopens: bool) -> _BlockForward:
        launch, options = forward.launch, forward.options
        targets_sbuf = load_targets(launch, block)
        first_class = options.classes.first + forward.schedule.first
        picked_sbuf = nl.ndarray(targets_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        values = target_values(launch, options, targets_sbuf, picked_sbuf)
        statistics = PositionStatistics.make(StoredPositions(block), values, WINDOW, options)
        stride = forward.scores.logits_sbuf[0].shape[2]
        sizes = forward.schedule.sizes
        targets = TargetLogits.make(targets_sbuf, first_class, statistics.picked_sbuf, stride, TILES_OF_GROUP, sizes)
        first_class_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        if options.wanted.argmax:
            nisa.memset(dst=first_class_sbuf, value=float(first_class))
        first_tile = 0 if forward.kept is None else int(block.first) // PARTITIONS
        return cls(forward, first_tile, input_sbuf, statistics, targets, reopens, first_class_sbuf)

    def step(self, step: Step) -> None:
        """One block of classes."""
        forward, statistics = self.forward, self.statistics
        is_last = step.number == forward.schedule.count - 1
        classes = forward.classes.advance(step)
        if is_last and self.reopens:
            forward.classes.open(forward.schedule.opening)
        self._take_class_sums(classes, step)
        self.targets.aim(step.block.size)
        tiles = len(self.input_sbuf)
        for start in range(0, tiles, TILES_OF_GROUP):
            self._group(self.input_sbuf[start : start + TILES_OF_GROUP], start, classes, step)
        self.targets.keep()
        self._shift_argmax(step)
        if statistics.column(step.number) == statistics.window and not is_last:
            statistics.combine_window()

    def finish(self, block: Block, results: Results) -> None:
        """Results of all classes of all cores; the cores store them in turn."""
        statistics = self.statistics
        statistics.finish(self.forward.schedule.count)
        if self.forward.launch.bias_hbm is not None:
            restore_masked(statistics.targets.logits_sbuf)
        for number, found in enumerate(found_results(statistics.group, results, self.forward.options)):
            if number % nl.num_programs() == nl.program_id():
                store_positions(block.of(found.vector_hbm), found.tile_sbuf)

    def _group(self, input_sbuf: list[nl.NkiTensor], start: int, classes: ClassTiles, step: Step) -> None:
        scores, argmax = self.forward.scores, self.statistics.group.argmax
        first_bank = step.number * div_ceil(len(self.input_sbuf), TILES_OF_GROUP) * TILES_OF_GROUP + start
        group = scores.open(start, input_sbuf, classes, self.statistics, step.number, first_bank)
        self.targets.gather(group.logits_sbuf, start)
        if argmax is not None:
            for tile in range(len(input_sbuf)):
                place = self.statistics.place(start + tile, step.number)
                argmax.take(group.logits(tile), group.neg_max_sbuf[:, tile : tile + 1], place, 0)
        scores.take_sums(group, classes, self.statistics, step.number, first_bank)
        if self.forward.kept is not None:
            self.forward.kept.store(group.scores_sbuf, self.first_tile + start, step.block)

    def _take_class_sums(self, classes: ClassTiles, step: Step) -> None:
        """The sum of the factors of a block of classes, the same for all positions."""
        moments = self.statistics.group.moments
        if moments is None or moments.first is None:
            return
        column_sbuf = moments.first.factors_sbuf[:, :, self.statistics.column(step.number)]
        if classes.factors_sbuf is None:
            nisa.memset(dst=column_sbuf, value=float(step.block.size))
            return
        total_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total_sbuf, op=nl.add, data=classes.factors_sbuf, axis=1)
        nisa.tensor_copy(dst=column_sbuf, src=total_sbuf.broadcast(1, column_sbuf.shape[1]))

    def _shift_argmax(self, step: Step) -> None:
        """The columns that were found, counted over all classes."""
        argmax = self.statistics.group.argmax
        if argmax is None:
            return
        column_sbuf = argmax.found_sbuf[:, :, self.statistics.column(step.number)]
        nisa.tensor_scalar(dst=column_sbuf, data=column_sbuf, op0=nl.add, operand0=self.first_class_sbuf)
        nisa.tensor_scalar(
            dst=self.first_class_sbuf, data=self.first_class_sbuf, op0=nl.add, operand0=float(step.block.size)
        )
