# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second pass from recomputed products (:func:`mixture_of_core`): no logits are kept.

D features. *Scores* are the logits before scaling, or tanh(logit / cap) under a cap; a *pair* is the scores of both
models for one tile of 128 positions and a block of classes; a *group* is the pairs that Scalar processes with one load
of each table.

X^T of both models for a block of positions stays on chip, and W^T of both streams, as in the first pass. While Scalar
and Vector process a group, Tensor multiplies the next one. The scores are computed from the products and stored in SBUF
(:class:`PairScores`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents
from nkilib.experimental.loss.linear.block_schedule import Block, PositionSplit, Step
from nkilib.experimental.loss.linear.class_schedule import ClassSchedule, ClassStream, ClassTiles, divide_classes
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.logits import LogitTiles
from nkilib.experimental.loss.linear.operands import Staging, load_input
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import MixtureSizes, group_tiles
from nkilib.experimental.loss.linear_distillation.launch import ModelOperands, PairLaunch, PairVectors
from nkilib.experimental.loss.linear_distillation.mixture.sums import (
    MixturePair,
    MixtureRows,
    MixtureSums,
    MixtureTerms,
    ends_a_window,
)
from nkilib.nki import nisa, nl

# Banks of PSUM that products use round-robin; one is left for the transposes of results.
_BANKS = 7
# Stores the results of a block of positions: its sums, its rows, and the log sums of student and teacher.
StoreSums = Callable[[Block, nl.NkiTensor, MixtureRows, tuple[nl.NkiTensor, nl.NkiTensor]], None]


@dataclass(frozen=True)
class _ModelScores:
    """The computation of the scores of one model.

    Attributes:
        model: the operands of the model.
        lowest: the score of a masked class.
        products: the computation of the products, in banks of PSUM.
    """

    model: ModelOperands
    lowest: float
    products: LogitTiles

    def raise_masked(self, classes: ClassTiles) -> None:
        """Raise biases of -inf, which mask their classes, to ``lowest``.

        Under a softcap they are raised to ``2 * lowest``: :meth:`take` then subtracts ``lowest`` from product + bias.
        """
        if classes.bias_sbuf is None:
            return
        least = self.lowest if self.model.softcap is None else 2.0 * self.lowest
        nisa.tensor_scalar(dst=classes.bias_sbuf, data=classes.bias_sbuf, op0=nl.maximum, operand0=least)

    def take(
        self,
        number: int,
        dst_sbuf: nl.NkiTensor,
        tangents_sbuf: nl.NkiTensor,
        input_sbuf: nl.NkiTensor,
        classes: ClassTiles,
    ) -> None:
        """Compute the scores of a tile.

        Args:
            number: the number that selects the bank of the product.
            dst_sbuf: the result, float32 [128, classes].
            tangents_sbuf: scratch memory of that shape, for tanh.
            input_sbuf: X^T of the tile of positions, [128, ceil(D / 128), 128].
            classes: W^T and the bias of the block of classes.
        """
        product_psum, cap = self.products.product(number, input_sbuf, classes.weight_sbuf), self.model.score_cap
        if classes.bias_sbuf is None:
            if cap is None:
                nisa.tensor_copy(dst=dst_sbuf, src=product_psum, engine=nisa.engine.vector)
            else:
                hyperbolic_tangents(dst_sbuf, product_psum, cap)
            return
        nisa.tensor_tensor(dst=dst_sbuf, data1=product_psum, data2=classes.bias_sbuf, op=nl.add)
        if cap is None:
            return
        hyperbolic_tangents(tangents_sbuf, dst_sbuf, cap)
        # The sum is the score of a masked class where there is one, and larger than any tangent elsewhere.
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=dst_sbuf,
            op0=nl.add,
            operand0=-self.lowest,
            op1=nl.minimum,
            operand1=tangents_sbuf,
        )


@dataclass(frozen=True)
class PairScores:
    """The computation of the scores of both models.

    Attributes:
        student, teacher: the scores of each model.
    """

    student: _ModelScores
    teacher: _ModelScores

    @classmethod
    def make(cls, launch: PairLaunch, class_block: int) -> PairScores:
        """Allocate the banks for blocks of at most ``class_block`` classes."""
        banks = [nl.ndarray((PARTITIONS, class_block), dtype=nl.float32, buffer=nl.psum) for _ in range(_BANKS)]
        return cls(
            *(
                _ModelScores(model, launch.lowest(model), LogitTiles(model.num_features, None, banks, [], []))
                for model in launch.models
            )
        )

    def raise_masked(self, classes: tuple[ClassTiles, ClassTiles]) -> None:
        """Raise biases of -inf of a block of classes to finite values, after the biases are loaded."""
        self.student.raise_masked(classes[0])
        self.teacher.raise_masked(classes[1])

    def take(
        self,
        number: int,
        pair: MixturePair,
        inputs: tuple[nl.NkiTensor, nl.NkiTensor],
        classes: tuple[ClassTiles, ClassTiles],
    ) -> None:
        """Compute the scores of a pair.

        Args:
            number: the running number of the pair, which selects the banks of its products.
            pair: the memory of the scores.
            inputs: X^T of the tile of positions, of each model.
            classes: the operands of the block of classes, of each model.
        """
        tangents_sbuf = pair.student_logs_sbuf[:, 0]
        self.student.take(2 * number, pair.student_sbuf[:, 0], tangents_sbuf, inputs[0], classes[0])
        self.teacher.take(2 * number + 1, pair.teacher_sbuf[:, 0], tangents_sbuf, inputs[1], classes[1])


@dataclass
class _Group:
    """Pairs whose scores are computed, and whose sums are still to be computed."""

    pairs: list[MixturePair]
    step: Step


@dataclass
class _RecomputedVisit:
    """The operands and buffers that all blocks of positions share.

    Attributes:
        launch, vectors, store: the arguments of :func:`mixture_of_core`.
        schedule: the order of the core's classes.
        inputs: X^T of each model, [128, ceil(D / 128), 128] for each tile of a block.
        staging: the memory in which operands are cast to the dtype of the products; None if none is cast.
        streams: the buffers of W^T of each model.
        scores: the computation of the scores.
        terms: the memory of pairs on chip, and the operations on it.
        rows: the per-row scalars of a block of positions.
        sums: the sums of a block of positions.
        waiting: the last group, whose sums are computed after the scores of the next group are issued; or None.
    """

    launch: PairLaunch
    vectors: PairVectors
    store: StoreSums
    schedule: ClassSchedule
    inputs: tuple[list[nl.NkiTensor], list[nl.NkiTensor]]
    staging: Staging | None
    streams: tuple[ClassStream, ClassStream]
    scores: PairScores
    terms: MixtureTerms
    rows: MixtureRows
    sums: MixtureSums
    waiting: _Group | None = field(default=None)

    @classmethod
    def make(
        cls,
        launch: PairLaunch,
        vectors: PairVectors,
        sizes: MixtureSizes,
        tiling: LinearTiling,
        plan: PositionSplit,
        store: StoreSums,
    ) -> _RecomputedVisit:
        """Allocate the buffers for the blocks of positions of the plan."""
        student, teacher = launch.models
        division = divide_classes(launch.vocab_size, 0, nl.num_programs(), tiling.class_block)
        schedule = ClassSchedule.make(division, nl.program_id(0), tiling.class_block, sizes.most_bodies(plan))
        largest = max(schedule.largest, 1)
        staging = Staging.make(sizes.forward.staging_bytes)

        def inputs(num_features: int, dtype: nl.DType) -> list[nl.NkiTensor]:
            shape = (PARTITIONS, div_ceil(num_features, PARTITIONS), PARTITIONS)
            return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(plan.tiles)]

        return cls(
            launch,
            vectors,
            store,
            schedule,
            (inputs(student.num_features, student.dtype), inputs(teacher.num_features, teacher.dtype)),
            staging,
            (
                ClassStream.make(student, largest, False, staging),
                ClassStream.make(teacher, largest, False, staging),
            ),
            PairScores.make(launch, largest),
            MixtureTerms.make(launch, group_tiles(plan.tiles, tiling.class_block), largest),
            MixtureRows.make(launch, plan.tiles),
            MixtureSums.make(plan.tiles),
        )

    def open(self) -> None:
        for stream in self.streams:
            stream.open(self.schedule.opening)

    def run(self, block: Block, opens: bool, reopens: bool) -> None:
        """Compute and store the sums of a block of positions.

        Args:
            block: the positions.
            opens: whether this method loads the first classes; False if they are on chip already.
            reopens: whether this method loads the first classes again at its end, for the next block.
        """
        tiles = div_ceil(block.size, PARTITIONS)
        self._load_inputs(0, block.part(0, min(PARTITIONS, block.size)))
        if opens:
            self.open()
        rows = self.rows.of_tiles(tiles)
        log_sums = rows.take_vectors(self.launch, self.vectors, block)
        if tiles > 1:
            self._load_inputs(1, block.part(PARTITIONS, block.size - PARTITIONS))
        self.sums.clear()
        self.terms.restart()
        self.schedule.run(lambda step: self._take(step, tiles, rows, reopens))
        self.store(block, self.sums.exchanged()[:, :, 0:tiles], rows, log_sums)

    def _load_inputs(self, start: int, block: Block) -> None:
        end = start + div_ceil(block.size, PARTITIONS)
        for tiles_sbuf, model in zip(self.inputs, self.launch.models, strict=True):
            load_input(tiles_sbuf[start:end], model.input_hbm, block, self.staging)

    def _take(self, step: Step, tiles: int, rows: MixtureRows, reopens: bool) -> None:
        """Process one block of classes: compute the scores of each group of tiles, and the sums of the group before it.

        Args:
            step: the step of the class schedule, which has the block of classes.
            tiles: the number of tiles of positions.
            rows: the per-row scalars.
            reopens: whether the last block of classes loads the first classes again, for the next block of positions.
        """
        opening = self.schedule.opening
        classes = (self.streams[0].advance(step), self.streams[1].advance(step))
        is_last = step.number == self.schedule.count - 1
        is_late = ClassStream.share_a_buffer(step, opening)
        if reopens and is_last and not is_late:
            self.open()
        self.scores.raise_masked(classes)
        for start in range(0, tiles, self.terms.group):
            group = self._open(range(start, min(start + self.terms.group, tiles)), step, classes)
            self._close_waiting(rows)
            self.waiting = group
        if is_last or ends_a_window(step):
            # A loop of the device ends with a window, and its body is traced once: nothing may wait there.
            self._close_waiting(rows)
        self.sums.close(step, is_last)
        if reopens and is_last and is_late:
            self.open()

    def _open(self, tiles: range, step: Step, classes: tuple[ClassTiles, ClassTiles]) -> _Group:
        pairs = [self.terms.next_pair(tile, 1, step.block.size) for tile in tiles]
        first = step.number * len(self.inputs[0])
        for pair in pairs:
            inputs = (self.inputs[0][pair.tile], self.inputs[1][pair.tile])
            self.scores.take(first + pair.tile, pair, inputs, classes)
            self.terms.take_difference(pair)
        return _Group(pairs, step)

    def _close_waiting(self, rows: MixtureRows) -> None:
        """Compute the sums of the group in :attr:`waiting`, if any, and set :attr:`waiting` to None."""
        group, self.waiting = self.waiting, None
        if group is None:
            return
        for pair in group.pairs:
            self.terms.take_logs(pair, rows)
        for pair in group.pairs:
            self.terms.take_exponentials(pair, rows, self.sums, group.step)
        for pair in group.pairs:
            self.terms.take_products(pair, self.sums, group.step)


def mixture_of_core(
    launch: PairLaunch, vectors: PairVectors, sizes: MixtureSizes, tiling: LinearTiling, store: StoreSums
) -> None:
    """Compute the mixture sums of all positions, and pass the sums of each block, over all cores' classes, to
    ``store``.

    Args:
        launch: the launch of the kernel.
        vectors: maxima and log sums of all positions.
        sizes: the sizes of the launch.
        tiling: a tiling that fits SBUF.
        store: the function that stores the results of each block of positions.
    """
    plan = sizes.position_plan(tiling)
    products = _RecomputedVisit.make(launch, vectors, sizes, tiling, plan, store)
    looped = plan.whole * plan.size if plan.is_loop else 0
    if looped > 0:
        products.open()
        nl.fori_loop(0, looped, lambda first: products.run(Block(first, plan.size), False, True), plan.size)
    for first in range(looped, launch.num_positions, plan.size):
        left = launch.num_positions - first
        products.run(Block(first, min(plan.size, left)), first == 0, left > plan.size)
