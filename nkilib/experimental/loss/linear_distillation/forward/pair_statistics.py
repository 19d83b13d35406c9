# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The statistics of both models that the first pass over the classes computes for a block of positions, and its inputs.

*Scores* are the logits before scaling, or tanh(logit / cap) under a cap; the scale of a model turns scores into its
logits after cap and temperature. :class:`PairStatistics` are the maxima and sums over the classes, with the weighted
differences of scores that a divergence needs (:class:`GapMoment`, :class:`GapPass`). :class:`PairPositions` are the
caller's inputs: labels, which positions are valid, and row weights. :mod:`.pair_results` computes results from both.

As in linear cross-entropy, the statistics of a few blocks of classes (a *window*) are in adjacent columns of
:mod:`nkilib.core.rows.statistics`; a full window is combined into column 0. At the end the cores exchange the
statistics of their own classes, and combine the columns of both at once. The last classes may be *shared*: both cores
process them, each for its own tiles of positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.moments import EntropyMoment
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.statistics import Columns, Place, Statistics
from nkilib.core.rows.tiles import constant, float32_like, product, selected
from nkilib.experimental.loss.linear.block_schedule import WINDOW, Block
from nkilib.experimental.loss.linear.operands import load_positions
from nkilib.experimental.loss.linear_distillation.forward.visits import ModelTotals
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import PairNeeds
from nkilib.experimental.loss.linear_distillation.launch import PairLaunch, valid_labels
from nkilib.experimental.loss.temperatures import Temperatures
from nkilib.nki import nisa, nl

# W stays finite, so that a weight of 0 gives 0 with it.
_LARGEST_MOMENT = 2.0**126


@dataclass(frozen=True)
class GapMoment:
    """The sums of weighted differences of scores that a divergence needs, for a block of positions.

    The teacher's scores t are in the unit of the student's scores s. The weights come from one of the models, whose
    scores are x. A block k of classes has m_k = max x, g_k = max t - max s, e_j = exp(scale * (x_j - m_k)), and

        W_k = sum of e_j * (t_j - s_j - g_k)
        S_k = sum of e_j

    Over all classes of a position, m = max x, g = max t - max s, w_k = exp(scale * (m_k - m)), and

        W = sum of w_k * (W_k + S_k * (g_k - g))

    So equal scores give exactly 0, and large scores cancel before anything is summed. A masked class has a finite score
    far below all others: masked in the model of x, it adds 0; masked in the other model alone, it makes W very large.

    Attributes:
        columns: the layout of the tensors with one column for each block of classes.
        weighted_sbuf: W_k of blocks of classes, float32 [128, tiles, columns].
        row_weighted_sbuf: W of positions, float32 [128, tiles].
        gaps_sbuf, terms_sbuf: scratch memory of the shape of W_k.
    """

    columns: Columns
    weighted_sbuf: nl.NkiTensor
    row_weighted_sbuf: nl.NkiTensor
    gaps_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, weighted_sbuf: nl.NkiTensor) -> GapMoment:
        """Allocate the tensors other than ``weighted_sbuf``."""
        return cls(columns, weighted_sbuf, columns.row_tile(), columns.tile(), columns.tile())

    def take_gaps(
        self, student_distances_sbuf: nl.NkiTensor, teacher_distances_sbuf: nl.NkiTensor, ratio: float, chunks: int
    ) -> None:
        """Compute g_k - g from the maxima of both models.

        Args:
            student_distances_sbuf, teacher_distances_sbuf: for each model the maximum of the scores of each block minus
                the maximum over all blocks, float32 [128, tiles, chunks].
            ratio: the factor that converts the teacher's distances to the student's unit.
            chunks: the number of columns to use, one for each block.
        """
        nisa.scalar_tensor_tensor(
            dst=self.columns.in_use(self.gaps_sbuf, chunks),
            data=teacher_distances_sbuf,
            op0=nl.multiply,
            operand0=ratio,
            op1=nl.subtract,
            operand1=student_distances_sbuf,
        )

    def weight(self, weighting: Statistics, chunks: int) -> None:
        """Compute w_k * W_k for the first ``chunks`` columns; call it while ``weighting.weights_sbuf`` has w_k."""
        nisa.tensor_tensor(
            dst=self.columns.in_use(self.terms_sbuf, chunks),
            data1=self.columns.in_use(self.weighted_sbuf, chunks),
            data2=self.columns.in_use(weighting.weights_sbuf, chunks),
            op=nl.multiply,
        )

    def combine(self, weighting: Statistics, chunks: int) -> None:
        """Compute W from the first ``chunks`` columns; call it when ``weighting.weights_sbuf`` has w_k * S_k."""
        in_use = self.columns.in_use
        gaps_sbuf, terms_sbuf = in_use(self.gaps_sbuf, chunks), in_use(self.terms_sbuf, chunks)
        weights_sbuf = in_use(weighting.weights_sbuf, chunks)
        nisa.tensor_tensor(dst=gaps_sbuf, data1=gaps_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=terms_sbuf, data1=terms_sbuf, data2=gaps_sbuf, op=nl.add)
        sum_sbuf = float32_like(self.row_weighted_sbuf)
        nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=terms_sbuf, axis=2)
        nisa.tensor_scalar(
            dst=self.row_weighted_sbuf,
            data=sum_sbuf,
            op0=nl.minimum,
            operand0=_LARGEST_MOMENT,
            op1=nl.maximum,
            operand1=-_LARGEST_MOMENT,
        )

    def restart(self) -> None:
        """Copy the combined sum into column 0, where the next window continues."""
        self.columns.restart(self.weighted_sbuf, self.row_weighted_sbuf)


@dataclass(frozen=True)
class GapPass:
    """The pass of Vector that computes W_k of :class:`GapMoment` for one tile, after other engines have computed its
    operands.

    Attributes:
        moment: the sums, which W_k is stored in.
        gap_sbuf: the teacher's minus the student's scores, t - s, float32 [128, classes]; it is overwritten.
        center_sbuf: g_k, float32 [128, 1].
        weights_sbuf: the weights e, float32 [128, classes].
        place: the column of the tile in the statistics.
    """

    moment: GapMoment
    gap_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor
    place: Place

    def take(self) -> None:
        nisa.scalar_tensor_tensor(
            dst=self.gap_sbuf,
            data=self.gap_sbuf,
            op0=nl.subtract,
            operand0=self.center_sbuf,
            op1=nl.multiply,
            operand1=self.weights_sbuf,
            reduce_op=nl.add,
            reduce_res=self.place.of(self.moment.weighted_sbuf),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )


def _statistics(columns: Columns, scale: Scale, parts: Iterator[nl.NkiTensor]) -> Statistics:
    neg_max_sbuf, sums_sbuf = next(parts), next(parts)
    return Statistics(
        columns,
        scale,
        neg_max_sbuf=neg_max_sbuf,
        bias_sbuf=neg_max_sbuf if scale.is_one else columns.tile(),
        sums_sbuf=sums_sbuf,
        weights_sbuf=columns.tile(),
        exact_neg_max_sbuf=nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf),
        row_neg_max_sbuf=columns.row_tile(),
        row_sum_sbuf=columns.row_tile(),
        log_sum_sbuf=columns.row_tile(),
    )


@dataclass(frozen=True)
class PairStatistics:
    """The statistics of a block of positions.

    Attributes:
        launch: the launch of the kernel.
        student, teacher: the maxima and sums of exponentials of each model.
        entropy: the sums for the student's entropy.
        entropy_terms_sbuf, distances_sbuf: scratch memory, float32 [128, tiles, columns].
        gap: the weighted differences; None for the divergence of a mixture.
        picked_sbuf: the student's scores at the labels in this core's classes, float32 [128, tiles]; None if no label
            is wanted.
        exchanged_sbuf: the statistics that the cores exchange, float32 [128, columns, statistics, tiles]. The columns
            are, in order: one for the combined statistics, one per block of the window, as many for the other core, and
            one per shared block.
        temperatures: the temperatures of the positions; None if all have the temperature of the launch.
    """

    launch: PairLaunch
    student: Statistics
    teacher: Statistics
    entropy: EntropyMoment
    entropy_terms_sbuf: nl.NkiTensor
    distances_sbuf: nl.NkiTensor
    gap: GapMoment | None
    picked_sbuf: nl.NkiTensor | None
    exchanged_sbuf: nl.NkiTensor
    temperatures: Temperatures | None

    @classmethod
    def make(
        cls, launch: PairLaunch, needs: PairNeeds, tiles: int, shared: int, temperatures: Temperatures | None
    ) -> PairStatistics:
        """Allocate the statistics before any class is added.

        The initial maximum is a masked score, whose distance from other scores is finite.

        Args:
            launch, needs: the launch, and its options that take memory.
            tiles: the number of tiles of positions of the block.
            shared: the number of shared blocks of classes; each has a column.
            temperatures: the temperatures of the positions.
        """
        own, count = WINDOW + 1, needs.exchanged_statistics
        swapped = nl.num_programs() * own
        exchanged_sbuf = nl.ndarray((PARTITIONS, swapped + shared, count, tiles), dtype=nl.float32, buffer=nl.sbuf)
        parts = iter([exchanged_sbuf[:, :, number].permute((0, 2, 1)) for number in range(count)])
        columns = Columns(PARTITIONS, tiles, swapped + shared)
        student = _statistics(columns, launch.student.scale_of(temperatures), parts)
        teacher = _statistics(columns, launch.teacher.scale_of(temperatures), parts)
        entropy = EntropyMoment(next(parts), columns.row_tile())
        gap = None if launch.is_mixed else GapMoment.make(columns, next(parts))
        picked_sbuf = next(parts)[:, :, 0] if needs.target else None
        for start, end in ((0, own), (swapped, swapped + shared)):
            if start == end:
                continue
            nisa.memset(dst=exchanged_sbuf[:, start:end], value=0.0)
            for model, side in zip(launch.models, (student, teacher), strict=True):
                nisa.memset(dst=side.neg_max_sbuf[:, :, start:end], value=-launch.lowest(model))
        scratch = (columns.tile(), columns.tile())
        return cls(launch, student, teacher, entropy, *scratch, gap, picked_sbuf, exchanged_sbuf, temperatures)

    @property
    def columns(self) -> Columns:
        """The layout of the tensors [128, tiles, columns] of statistics, which have one column for each block of
        classes.
        """
        return self.student.columns

    @property
    def models(self) -> tuple[Statistics, Statistics]:
        """The statistics of student and teacher."""
        return self.student, self.teacher

    @property
    def weighting(self) -> Statistics:
        """The statistics of the model whose probabilities are the weights of the divergence."""
        return self.student if self.launch.is_reverse else self.teacher

    @staticmethod
    def column(number: int) -> int:
        """Return the column of the statistics for block ``number`` of classes."""
        return 1 + number % WINDOW

    @staticmethod
    def shared_column(number: int) -> int:
        """Return the column of the statistics for block ``number`` of the shared classes."""
        return nl.num_programs() * (WINDOW + 1) + number

    def combine_window(self) -> None:
        """Combine the statistics of a full window of blocks of classes into column 0."""
        self._combine(WINDOW + 1)
        for side in self.models:
            side.restart()
        self.columns.restart(self.entropy.entropy_sbuf, self.entropy.row_entropy_sbuf)
        if self.gap is not None:
            self.gap.restart()

    def exchange(self, number: int) -> None:
        """Exchange the statistics of the cores' own classes; ``number`` is how many blocks of classes this core had."""
        self._forget_combined(number)
        if nl.num_programs() == 1:
            return
        own, other = WINDOW + 1, 1 - nl.program_id()
        nisa.sendrecv(
            src=self.exchanged_sbuf[:, 0:own],
            dst=self.exchanged_sbuf[:, own : 2 * own],
            send_to_rank=other,
            recv_from_rank=other,
            pipe_id=0,
        )

    def finish(self) -> None:
        """Combine the statistics of all columns, and compute the logs of the sums of exponentials."""
        self._combine(self.columns.count)
        for side in self.models:
            side.take_logs()

    def received_picked(self) -> nl.NkiTensor | None:
        """Return the student's scores at the labels in the other core's classes; None on one core or if no label is
        wanted.
        """
        if self.picked_sbuf is None or nl.num_programs() == 1:
            return None
        last = int(self.exchanged_sbuf.shape[2]) - 1
        return self.exchanged_sbuf[:, WINDOW + 1, last]

    def totals(self) -> tuple[ModelTotals, ModelTotals]:
        """Return the totals of student and teacher, after all columns are combined."""
        student, teacher = (
            ModelTotals(side.row_neg_max_sbuf, side.row_sum_sbuf, side.log_sum_sbuf, side.scale) for side in self.models
        )
        return student, teacher

    def _combine(self, chunks: int) -> None:
        distances = [side.take_distances(chunks) for side in self.models]
        kept_sbuf = self.columns.in_use(self.distances_sbuf, chunks)
        nisa.tensor_copy(dst=kept_sbuf, src=distances[0])
        if self.gap is not None:
            self.gap.take_gaps(distances[0], distances[1], self.launch.ratio, chunks)
        for side in self.models:
            side.take_weights(chunks)
        terms_sbuf = self.columns.in_use(self.entropy_terms_sbuf, chunks)
        self.entropy.combine(self.student, kept_sbuf, terms_sbuf, chunks)
        if self.gap is not None:
            self.gap.weight(self.weighting, chunks)
        for side in self.models:
            side.combine_sums(chunks)
        if self.gap is not None:
            self.gap.combine(self.weighting, chunks)

    def _forget_combined(self, number: int) -> None:
        """Reset the columns that the last window of blocks did not fill.

        These columns still hold the statistics of the window before, which column 0 contains already. ``number`` is the
        number of blocks of the core's own classes.
        """
        left = number % WINDOW
        if left == 0 or number < WINDOW:
            return
        start, end = left + 1, WINDOW + 1
        summed = [self.student.sums_sbuf, self.teacher.sums_sbuf, self.entropy.entropy_sbuf]
        if self.gap is not None:
            summed.append(self.gap.weighted_sbuf)
        for sums_sbuf in summed:
            nisa.memset(dst=sums_sbuf[:, :, start:end], value=0.0)
        for model, side in zip(self.launch.models, self.models, strict=True):
            nisa.memset(dst=side.neg_max_sbuf[:, :, start:end], value=-self.launch.lowest(model))


def _local_labels(launch: PairLaunch, labels_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return a mask of the labels that are not ignored and whose classes this launch's weights include."""
    classes = launch.classes
    in_range_sbuf, is_local_sbuf = (
        float32_like(labels_sbuf),
        nl.ndarray(labels_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf),
    )
    nisa.tensor_scalar(dst=in_range_sbuf, data=labels_sbuf, op0=nl.greater_equal, operand0=float(classes.first))
    nisa.scalar_tensor_tensor(
        dst=in_range_sbuf,
        data=labels_sbuf,
        op0=nl.less_equal,
        operand0=float(classes.first + classes.count - 1),
        op1=nl.multiply,
        operand1=in_range_sbuf,
    )
    nisa.scalar_tensor_tensor(
        dst=is_local_sbuf,
        data=labels_sbuf,
        op0=nl.not_equal,
        operand0=float(launch.options.ignore_index),
        op1=nl.multiply,
        operand1=in_range_sbuf,
    )
    return is_local_sbuf


@dataclass(frozen=True)
class PairPositions:
    """The caller's inputs for a block of positions, [128, tiles] each; None for inputs that the launch does not have.

    Attributes:
        labels_sbuf: the labels, float32, exact up to class 2^24.
        weights_sbuf: row weights, float32.
        valid_sbuf: uint32, 1 where the label is not ignored.
        is_local_sbuf: uint32, 1 where the label is not ignored and its class is in the weights of this launch.
        picked_sbuf: memory for the student's scores at the labels, float32; see :meth:`join_picked`.
    """

    labels_sbuf: nl.NkiTensor | None
    weights_sbuf: nl.NkiTensor | None
    valid_sbuf: nl.NkiTensor | None
    is_local_sbuf: nl.NkiTensor | None
    picked_sbuf: nl.NkiTensor | None

    @classmethod
    def load(cls, launch: PairLaunch, block: Block) -> PairPositions:
        """Load the inputs of a block of positions."""
        labels_sbuf = weights_sbuf = valid_sbuf = is_local_sbuf = picked_sbuf = None
        if launch.row_weight_hbm is not None:
            weights_sbuf = load_positions(block.of(launch.row_weight_hbm), fill=0.0)
        if launch.labels_hbm is not None:
            labels_sbuf = load_positions(block.of(launch.labels_hbm), fill=-1.0)
            valid_sbuf = valid_labels(labels_sbuf, launch.options.ignore_index)
            if launch.wanted.needs_target:
                is_local_sbuf, picked_sbuf = _local_labels(launch, labels_sbuf), float32_like(labels_sbuf)
        return cls(labels_sbuf, weights_sbuf, valid_sbuf, is_local_sbuf, picked_sbuf)

    def weighted(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values times the row weights, and 0 at ignored positions."""
        if self.weights_sbuf is not None:
            values_sbuf = product(values_sbuf, self.weights_sbuf)
        return values_sbuf if self.valid_sbuf is None else selected(values_sbuf, self.valid_sbuf)

    def where_local(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values, and 0 at labels that are ignored or whose class is in another shard."""
        return values_sbuf if self.is_local_sbuf is None else selected(values_sbuf, self.is_local_sbuf)

    def join_picked(self, launch: PairLaunch, candidates: list[nl.NkiTensor]) -> None:
        """Set ``picked_sbuf`` to the largest of the candidates; to -inf where the label is a masked class.

        Args:
            launch: the launch of the kernel.
            candidates: for each part of the classes, the scores found there, float32 [128, tiles].
        """
        if self.picked_sbuf is None:
            return
        nisa.tensor_copy(dst=self.picked_sbuf, src=candidates[0])
        for other_sbuf in candidates[1:]:
            nisa.tensor_tensor(dst=self.picked_sbuf, data1=self.picked_sbuf, data2=other_sbuf, op=nl.maximum)
        if launch.student.bias_hbm is None:
            return
        is_masked_sbuf = nl.ndarray(self.picked_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        # Half of the score, because a product is added to a masked score.
        lowest = 0.5 * launch.lowest(launch.student)
        nisa.tensor_scalar(dst=is_masked_sbuf, data=self.picked_sbuf, op0=nl.less_equal, operand0=lowest)
        infinite_sbuf = constant(self.picked_sbuf, float("-inf"))
        nisa.tensor_copy_predicated(dst=self.picked_sbuf, src=infinite_sbuf, predicate=is_masked_sbuf)
