# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of linear cross-entropy on one core.

N positions, D features, K target ids per position; X and W are the operands, z is the logit after cap and temperature,
*scores* are the logits, or tanh(logit / cap) under a cap.

:func:`forward_of_core` loops over the blocks of positions. X^T of a block stays on chip, and W^T of the core's classes
streams. Each core has its own classes; at the end of a block the cores swap their statistics of the positions. The last
classes may be *shared*: both cores process them, each for its own tiles of positions.

:class:`Keeping` keeps the logits for gradients in the same launch. For several target ids per position the results are
log-probabilities [N, K] instead of a loss (:class:`ScoreResults`, :func:`score_results`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.tiles import FLOAT32_LOWEST, constant, difference, float32_like, selected
from nkilib.experimental.loss.cross_entropy.launch import Options
from nkilib.experimental.loss.cross_entropy.results import (
    Group,
    GroupResult,
    Results,
    computed_results,
    new_vector,
    results_of_all_classes,
)
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.cross_entropy.targets import TargetValues
from nkilib.experimental.loss.linear.block_schedule import WINDOW, Block, PositionSplit, Span, Step
from nkilib.experimental.loss.linear.class_schedule import (
    ClassDivision,
    ClassSchedule,
    ClassStream,
    ClassTiles,
    divide_classes,
    tiles_of_core,
)
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.logit_passes import TargetLogits, over_ids, restore_masked
from nkilib.experimental.loss.linear.logits import LogitsInHbm
from nkilib.experimental.loss.linear.operands import Staging, StoredPositions, load_input, store_positions
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import ForwardSizes
from nkilib.experimental.loss.linear_cross_entropy.launch import LinearLaunch, forward_needs
from nkilib.experimental.loss.linear_cross_entropy.position_statistics import PositionStatistics
from nkilib.experimental.loss.linear_cross_entropy.score_tiles import ScoreTiles
from nkilib.experimental.loss.linear_cross_entropy.targets import load_targets, one_or_several, store_ids, target_values
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class ScoreResults:
    """The result tensors of token scores, in HBM; None for results that the kernel does not return.

    Attributes:
        logprob_hbm, target_logit_hbm: tensors [N, K].
        lse_hbm: log-sum-exp, [N].
        others: the results that do not depend on the ids, [N] each; the loss and the target logit in it are not used.
    """

    logprob_hbm: nl.NkiTensor
    lse_hbm: nl.NkiTensor
    target_logit_hbm: nl.NkiTensor | None
    others: Results

    @classmethod
    def of_options(cls, launch: LinearLaunch, options: Options) -> ScoreResults:
        """Allocate the tensors for the results that ``options`` request."""

        def matrix(name: str) -> nl.NkiTensor:
            shape = (launch.num_positions, launch.ids)
            return nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name=name)

        def vector(name: str, is_wanted: bool, dtype: nl.DType = nl.float32) -> nl.NkiTensor | None:
            return new_vector(name, launch.num_positions, dtype) if is_wanted else None

        wanted = options.wanted
        logprob_hbm = matrix("logprob_hbm")
        lse_hbm = new_vector("lse_hbm", launch.num_positions, nl.float32)
        others = Results(
            logprob_hbm,
            lse_hbm,
            argmax_hbm=vector("argmax_hbm", wanted.argmax, nl.int32),
            entropy_hbm=vector("entropy_hbm", wanted.entropy),
            maximum_hbm=vector("maximum_hbm", wanted.log_sum),
            log_sum_hbm=vector("log_sum_hbm", wanted.log_sum),
            log_sum_squares_hbm=vector("log_sum_squares_hbm", wanted.log_sum_squares),
            mean_logit_hbm=vector("mean_logit_hbm", wanted.mean_logit),
        )
        return cls(logprob_hbm, lse_hbm, matrix("target_logit_hbm") if wanted.target else None, others)

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the tensors that are not None, in the order in which the kernel returns them."""
        others = self.others
        tensors = (
            self.logprob_hbm,
            self.lse_hbm,
            self.target_logit_hbm,
            others.argmax_hbm,
            others.entropy_hbm,
            others.maximum_hbm,
            others.log_sum_hbm,
            others.log_sum_squares_hbm,
            others.mean_logit_hbm,
        )
        return tuple(tensor_hbm for tensor_hbm in tensors if tensor_hbm is not None)


def _scores(targets: TargetValues, options: Options) -> nl.NkiTensor:
    """Return the scores at the targets: the target logits, or under a cap their tanh."""
    if options.softcap is None:
        return targets.logits_sbuf
    tangents_sbuf = float32_like(targets.logits_sbuf)
    hyperbolic_tangents(tangents_sbuf, targets.logits_sbuf, options.softcap)
    masked_tangents(tangents_sbuf, tangents_sbuf, targets.logits_sbuf)
    return tangents_sbuf


def _of_ids(values_sbuf: nl.NkiTensor, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    # A view in the shape of ``like_sbuf``, which has one value for each target id.
    return values_sbuf if len(like_sbuf.shape) == 2 else over_ids(values_sbuf, like_sbuf.shape[2])


def _logprob(scores_sbuf: nl.NkiTensor, lse_sbuf: nl.NkiTensor, group: Group, targets: TargetValues) -> nl.NkiTensor:
    """Return the log-probabilities z[t] - m - log d of the target ids t; 0 where the id is ignored, NaN where lse is
    infinite.

    m is the maximum of z, and d the sum of exp(z - m). The result is not computed as z[t] - lse, because the rounding
    of a large lse = m + log d loses a part of log d.
    """
    statistics = group.statistics
    distance_sbuf = float32_like(scores_sbuf)
    nisa.tensor_tensor(
        dst=distance_sbuf, data1=scores_sbuf, data2=_of_ids(statistics.row_neg_max_sbuf, scores_sbuf), op=nl.add
    )
    # Adding lse * 0 makes the log-probability NaN where lse is infinite or NaN.
    subtracted_sbuf = float32_like(lse_sbuf)
    nisa.scalar_tensor_tensor(
        dst=subtracted_sbuf,
        data=lse_sbuf,
        op0=nl.multiply,
        operand0=0.0,
        op1=nl.add,
        operand1=statistics.log_sum_sbuf,
    )
    statistics.scale.take_difference(distance_sbuf, distance_sbuf, _of_ids(subtracted_sbuf, scores_sbuf))
    if targets.masks is None:
        return distance_sbuf
    return selected(distance_sbuf, targets.masks.valid_sbuf)


def score_results(group: Group, results: ScoreResults, options: Options) -> list[GroupResult]:
    """Return the results of a block of positions, each with its tensor in HBM.

    Args:
        group: the statistics of the positions over all classes, including the log of the sum of exponentials.
        results: the result tensors.
        options: the options of the launch.
    """
    statistics, targets = group.statistics, group.targets
    if targets is None or targets.masks is None:
        raise ValueError("linear_token_scores_forward: there must be targets, got none; pass targets_hbm")
    lse_sbuf = difference(statistics.log_sum_sbuf, statistics.scaled(statistics.row_neg_max_sbuf))
    scores_sbuf = _scores(targets, options)
    pairs = [
        (one_or_several(results.logprob_hbm), _logprob(scores_sbuf, lse_sbuf, group, targets)),
        (results.lse_hbm, lse_sbuf),
        *results_of_all_classes(group, results.others),
    ]
    if results.target_logit_hbm is not None:
        local_sbuf = selected(statistics.scaled(scores_sbuf), targets.masks.local_sbuf)
        pairs.append((one_or_several(results.target_logit_hbm), local_sbuf))
    if results.others.maximum_hbm is not None:
        pairs.append((results.others.maximum_hbm, statistics.scale.times(statistics.row_neg_max_sbuf, -1.0)))
        pairs.append((results.others.log_sum_hbm, statistics.log_sum_sbuf))
    return [GroupResult(vector_hbm, tile_sbuf) for vector_hbm, tile_sbuf in pairs if vector_hbm is not None]


def _forward_sizes(launch: LinearLaunch, options: Options) -> ForwardSizes:
    return ForwardSizes(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        dtype_bytes(launch.dtype),
        nl.num_programs(),
        forward_needs(launch, options),
        weight_itemsize=launch.casts.weight,
        staging_bytes=launch.casts.forward_staging(launch.has_classes_first),
        ids=launch.ids,
    )


def _require_room(launch: LinearLaunch, options: Options, tiling: LinearTiling) -> None:
    """Check that the tiles of a tiling fit SBUF.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    tiles = min(div_ceil(tiling.position_block, PARTITIONS), launch.position_tiles)
    needed, most = _forward_sizes(launch, options).bytes_of(tiles, tiling.class_block), usable_sbuf_bytes()
    require(
        needed <= most,
        f"{launch.function}: position_block and class_block must leave the tiles of {launch.num_features} features at "
        f"most {most} bytes of a partition, got {needed} with position_block={tiling.position_block} and "
        f"class_block={tiling.class_block}; None takes the value of choose_linear_tiling",
    )


@dataclass(frozen=True)
class _Pass:
    """The forward of some tiles of positions over several blocks of classes.

    Attributes:
        tiles: the numbers of the tiles in the block of positions, at least one.
        targets: the target logits of these positions.
        first_classes_sbuf: two buffer slots for the first class of a block of classes, float32 [128, 1]; empty without
            an argmax.
    """

    tiles: range
    targets: TargetLogits
    first_classes_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(
        cls, forward: _CoreForward, targets_sbuf: nl.NkiTensor, picked_sbuf: nl.NkiTensor, tiles: range, first: int
    ) -> _Pass:
        """Return the forward of some tiles of positions, before any block of classes.

        Args:
            forward: the forward of the core.
            targets_sbuf: the targets of the block of positions.
            picked_sbuf: the tensor that gets the logits at these targets.
            tiles: the numbers of the tiles in the block of positions.
            first: the first class of the first block, counted from the first class of the weight.
        """
        first_class = forward.options.classes.first + first
        targets = TargetLogits.make(
            targets_sbuf[:, tiles.start : tiles.stop],
            first_class,
            picked_sbuf[:, tiles.start : tiles.stop],
            forward.scores.logits_sbuf[0].shape[2],
            forward.scores.group_tiles,
            forward.schedule.sizes,
        )
        ring = []
        if forward.options.wanted.argmax:
            ring = [nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
        for first_class_sbuf in ring:
            nisa.memset(dst=first_class_sbuf, value=float(first_class))
        return cls(tiles, targets, ring)

    def first_class_of(self, step: Step) -> nl.NkiTensor:
        return self.first_classes_sbuf[step.number % len(self.first_classes_sbuf)]

    def advance(self, step: Step) -> None:
        next_sbuf = self.first_classes_sbuf[(step.number + 1) % len(self.first_classes_sbuf)]
        nisa.tensor_scalar(dst=next_sbuf, data=self.first_class_of(step), op0=nl.add, operand0=float(step.block.size))


@dataclass(frozen=True)
class _BlockForward:
    """The forward of one block of positions.

    Attributes:
        forward: the forward of the core.
        block: the positions.
        input_sbuf: X^T of each tile of the block, [128, ceil(D / 128), 128].
        statistics: the statistics over the classes that were processed so far.
        own: the forward of all tiles over the core's own classes.
        shared: the forward of the tiles ``part`` over the shared classes; None without shared classes or tiles.
        shared_picked_sbuf: the target logits found in the shared classes, float32 in the shape of the targets; None
            without shared classes.
        part: the numbers of the tiles whose results this core stores: its own, or all if no classes are shared.
        reopens: whether the last step loads the first classes again, for the next block of positions.
    """

    forward: _CoreForward
    block: Block
    input_sbuf: list[nl.NkiTensor]
    statistics: PositionStatistics
    own: _Pass
    shared: _Pass | None
    shared_picked_sbuf: nl.NkiTensor | None
    part: range
    reopens: bool

    @classmethod
    def make(cls, forward: _CoreForward, block: Block, input_sbuf: list[nl.NkiTensor], reopens: bool) -> _BlockForward:
        launch, options, schedule = forward.launch, forward.options, forward.schedule
        targets_sbuf = load_targets(launch, block)
        values = target_values(launch, options, targets_sbuf, float32_like(targets_sbuf))
        of_shared = len(schedule.shared)
        needs = forward_needs(launch, options)
        scale = options.scale_of(launch.of_positions(block).temperatures())
        statistics = PositionStatistics.make(StoredPositions(block), values, WINDOW, of_shared, scale, options, needs)
        tiles, shared = range(len(input_sbuf)), None
        own = _Pass.make(forward, targets_sbuf, statistics.picked_sbuf, tiles, schedule.first)
        shared_picked_sbuf = constant(targets_sbuf, FLOAT32_LOWEST) if of_shared > 0 else None
        part = tiles if shared_picked_sbuf is None else tiles_of_core(len(tiles))
        if shared_picked_sbuf is not None and part:
            shared = _Pass.make(forward, targets_sbuf, shared_picked_sbuf, part, schedule.shared[0].first)
        return cls(forward, block, input_sbuf, statistics, own, shared, shared_picked_sbuf, part, reopens)

    def step(self, step: Step) -> None:
        statistics, is_last = self.statistics, step.number == self.forward.schedule.count - 1
        column = statistics.column(step.number)
        self._take(step, self.own, column, is_last and not self.forward.schedule.shared)
        if column == statistics.window and not is_last:
            self.forward.scores.waiting.take_all()
            statistics.combine_window()

    def shared_step(self, step: Step) -> None:
        schedule = self.forward.schedule
        number = step.number - schedule.count
        is_last = number + 1 == len(schedule.shared)
        self._take(step, self.shared, self.statistics.shared_column(number), is_last)
        self.forward.scores.waiting.take_all()

    def finish(self, block: Block, results: Results | ScoreResults) -> None:
        """Compute and store the results over all classes.

        If classes are shared, each core stores all results of its own tiles of positions. Otherwise each core stores
        some of the results, for all positions of the block.
        """
        launch, statistics = self.forward.launch, self.statistics
        statistics.finish(self.shared_picked_sbuf)
        if launch.bias_hbm is not None:
            restore_masked(statistics.targets.logits_sbuf)
        first, end = self.part.start * PARTITIONS, min(self.part.stop * PARTITIONS, block.size)
        for number, result in enumerate(self._result_tiles(results)):
            is_own = self.shared_picked_sbuf is not None or number % nl.num_programs() == nl.program_id()
            if is_own and end > first:
                vector_hbm = block.part(first, end - first).of(result.vector_hbm)
                store = store_positions if len(vector_hbm.shape) == 1 else store_ids
                store(vector_hbm, result.tile_sbuf[:, self.part.start : self.part.stop])

    def _result_tiles(self, results: Results | ScoreResults) -> Iterable[GroupResult]:
        group, options = self.statistics.group, self.forward.options
        if isinstance(results, ScoreResults):
            return score_results(group, results, options)
        return computed_results(group, results, options)

    def _take(self, step: Step, through: _Pass | None, column: int, is_last: bool) -> None:
        """Process one block of classes, and store its statistics in column ``column``.

        Args:
            step: the step of the class schedule, which has the block of classes.
            through: the tiles of positions to process; with None the block is only loaded.
            column: the column of the statistics.
            is_last: whether this is the last block of classes of these positions.
        """
        stream, opening = self.forward.classes, self.forward.schedule.opening
        classes = stream.advance(step)
        reopens = is_last and self.reopens
        is_late = stream.share_a_buffer(step, opening)
        if reopens and not is_late:
            stream.open(opening)
        if through is not None:
            self._take_tiles(step, through, classes, column)
        if reopens and is_late:
            stream.open(opening)

    def _take_tiles(self, step: Step, through: _Pass, classes: ClassTiles, column: int) -> None:
        self._take_class_sums(classes, step, column)
        self.forward.scores.take_counts(classes, self.statistics, column)
        through.targets.aim(step.block.size)
        group_tiles = self.forward.scores.group_tiles
        for start in range(through.tiles.start, through.tiles.stop, group_tiles):
            tiles = range(start, min(start + group_tiles, through.tiles.stop))
            self._take_group(tiles, classes, through, step, column)
        through.targets.keep()
        if self.statistics.group.argmax is not None:
            through.advance(step)

    def _take_group(self, tiles: range, classes: ClassTiles, through: _Pass, step: Step, column: int) -> None:
        scores, argmax = self.forward.scores, self.statistics.group.argmax
        banks_per_block = div_ceil(len(self.input_sbuf), scores.group_tiles) * scores.group_tiles
        first_bank = step.number * banks_per_block + tiles.start - through.tiles.start
        input_sbuf = self.input_sbuf[tiles.start : tiles.stop]
        group = scores.open(tiles.start, input_sbuf, classes, self.statistics, column, first_bank)
        through.targets.gather(group.logits_sbuf, tiles.start - through.tiles.start)
        if argmax is not None:
            scores.search(group, argmax, through.first_class_of(step), column, first_bank)
        scores.take_sums(group, classes, self.statistics, column, first_bank)
        if self.forward.kept is not None:
            first_tile = int(self.block.first) // PARTITIONS
            self.forward.kept.store(group.scores_sbuf, first_tile + tiles.start, step.block)

    def _take_class_sums(self, classes: ClassTiles, step: Step, column: int) -> None:
        # The sum of the class weights of a block is the same for all positions.
        moments = self.statistics.group.moments
        if moments is None or moments.first is None:
            return
        column_sbuf = moments.first.factors_sbuf[:, :, column]
        if classes.factors_sbuf is None:
            nisa.memset(dst=column_sbuf, value=float(step.block.size))
            return
        total_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total_sbuf, op=nl.add, data=classes.factors_sbuf, axis=1)
        nisa.tensor_copy(dst=column_sbuf, src=total_sbuf.broadcast(1, column_sbuf.shape[1]))


@dataclass(frozen=True)
class Keeping:
    """How a forward keeps its logits in HBM, for gradients in the same launch.

    Attributes:
        kept: the memory for the logits of this core; None if the core has no classes.
        shares: the classes of each core.
        program_share: the fraction of a program's allowed instructions that the forward may use.
    """

    kept: LogitsInHbm | None
    shares: list[Span]
    program_share: float


@dataclass(frozen=True)
class _CoreForward:
    """The operands and buffers that all blocks of positions share.

    Attributes:
        launch, options: the operands and options of the kernel.
        schedule: the schedule of the core's classes.
        input_sbuf: X^T, [128, ceil(D / 128), 128] for each tile of a block.
        classes: the buffers of W^T.
        scores: the buffers and the computation of the tiles of scores.
        kept: the memory in HBM for the logits; None if they are not kept.
    """

    launch: LinearLaunch
    options: Options
    schedule: ClassSchedule
    input_sbuf: list[nl.NkiTensor]
    classes: ClassStream
    scores: ScoreTiles
    kept: LogitsInHbm | None

    @classmethod
    def make(
        cls,
        launch: LinearLaunch,
        options: Options,
        tiling: LinearTiling,
        plan: PositionSplit,
        bodies: int,
        keeping: Keeping | None,
    ) -> _CoreForward:
        """Allocate the memory of a core.

        Args:
            launch, options, tiling: the operands, the options and the tiling of the kernel.
            plan: the split of the positions.
            bodies: the largest number of copies of the code for a block of classes, for each block of positions.
            keeping: how the logits are kept; None if they are not.
        """
        tiles, sizes = plan.tiles, _forward_sizes(launch, options)
        depth = div_ceil(launch.num_features, PARTITIONS)
        if keeping is None:
            shared = sizes.shared_classes(plan, tiling.class_block)
            division = divide_classes(launch.vocab_size, shared, nl.num_programs(), tiling.class_block)
        else:
            division = ClassDivision(keeping.shares, ())
        schedule = ClassSchedule.make(division, nl.program_id(), tiling.class_block, bodies)
        shape = (PARTITIONS, depth, PARTITIONS)
        largest = max(schedule.largest, 1)
        staging = Staging.make(launch.casts.forward_staging(launch.has_classes_first))
        return cls(
            launch,
            options,
            schedule,
            [nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf) for _ in range(tiles)],
            ClassStream.make(launch, largest, options.needs_class_weights, staging),
            ScoreTiles.make(
                options, forward_needs(launch, options), launch.num_features, min(tiles, sizes.group_tiles), largest
            ),
            None if keeping is None else keeping.kept,
        )

    def run(self, block: Block, results: Results | ScoreResults, opens: bool, reopens: bool) -> None:
        """Compute the results of a block of positions.

        Args:
            block: the positions.
            results: the results of all positions.
            opens: whether this method loads the first classes; False if they are on chip already.
            reopens: whether this method loads the first classes again at its end, for the next block.
        """
        input_sbuf = self.input_sbuf[0 : div_ceil(block.size, PARTITIONS)]
        load_input(input_sbuf[0:1], self.launch.input_hbm, block, self.classes.staging)
        if opens:
            self.classes.open(self.schedule.opening)
        of_block = _BlockForward.make(self, block, input_sbuf, reopens)
        if len(input_sbuf) > 1:
            rest = block.part(PARTITIONS, block.size - PARTITIONS)
            load_input(input_sbuf[1:], self.launch.input_hbm, rest, self.classes.staging)
        self.schedule.run(of_block.step)
        self.scores.waiting.take_all()
        of_block.statistics.exchange(self.schedule.count)
        self.schedule.run_shared(of_block.shared_step)
        of_block.finish(block, results)


def forward_of_core(
    launch: LinearLaunch,
    options: Options,
    tiling: LinearTiling,
    results: Results | ScoreResults,
    keeping: Keeping | None = None,
) -> None:
    """Compute the results of all positions; each core stores some of them.

    Args:
        launch, options, tiling: the operands, the options and the tiling of the kernel.
        results: the tensors for the results.
        keeping: how the logits are kept, if gradients follow in the same launch; else None.
    """
    _require_room(launch, options, tiling)
    sizes = _forward_sizes(launch, options)
    if keeping is not None:
        sizes = replace(sizes, program_share=keeping.program_share)
    plan = sizes.position_plan(*tiling)
    if keeping is not None:
        # The address of kept logits depends on the loop over classes, and cannot depend on another loop.
        plan = plan._replace(is_loop=False)
    forward = _CoreForward.make(launch, options, tiling, plan, sizes.most_bodies(plan), keeping)
    looped = plan.whole * plan.size if plan.is_loop else 0
    if looped > 0:
        forward.classes.open(forward.schedule.opening)
        nl.fori_loop(0, looped, lambda first: forward.run(Block(first, plan.size), results, False, True), plan.size)
    for first in range(looped, launch.num_positions, plan.size):
        left = launch.num_positions - first
        forward.run(Block(first, min(plan.size, left)), results, first == 0, left > plan.size)
