# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The statistics of both models that the first visit gathers for a block of positions, and the results of these
positions.

:class:`PairStatistics` are the maxima and sums over the classes, :class:`PairPositions` the caller's inputs for the
positions: labels, which positions are valid, and row weights. :class:`PairResults` are the vectors of the results,
which :func:`results_of_models`, :func:`divergence_results` and :func:`label_results` compute: divergence, entropy,
log-probability, and the statistics that are saved.

As in linear cross-entropy, the statistics of a few blocks of classes, a window, stand side by side in the columns of
:mod:`nkilib.core.rows.statistics`; a full window is combined into column 0. At the end the cores exchange their
columns, and combine the columns of both at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.moments import EntropyMoment
from nkilib.core.rows.scale import ConstantScale, Scale
from nkilib.core.rows.statistics import Columns, Place, Statistics
from nkilib.core.rows.tiles import constant, difference, float32_like, product, scaled, selected
from nkilib.experimental.loss.cross_entropy.results import GroupResult, new_vector
from nkilib.experimental.loss.distillation.pair import Exponentials
from nkilib.experimental.loss.distillation.totals import log_ratio
from nkilib.experimental.loss.linear.block_schedule import WINDOW, Block
from nkilib.experimental.loss.linear.operands import load_positions
from nkilib.experimental.loss.linear_distillation.forward.visits import ModelTotals
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import PairNeeds
from nkilib.experimental.loss.linear_distillation.launch import ModelOperands, PairLaunch
from nkilib.nki import nisa, nl

# W stays finite, so that a weight of 0 gives 0 with it.
_LARGEST_MOMENT = 2.0**126

# The overflow of float32.
_OVERFLOW = 2.0**128
# A masked score times this factor is infinite; any other score times it is finite.
_FACTOR_OF_MASKED = 2.0**20


@dataclass(frozen=True)
class GapMoment:
    """The sums of weighted differences of scores that a divergence needs, of a block of positions.

    With the teacher's scores t in the unit of the student's scores s, the weights e_j = exp(scale * (x_j - m)) of one
    model, and for a block k of classes the difference g_k = max t - max s of its maxima,

        W_k = sum of e_j * (t_j - s_j - g_k)

    and for a position, whose maxima differ by g, where w_k = exp(scale * (m_k - m)) are the weights of the blocks and
    S_k the sums of e_j,

        W = sum of w_k * (W_k + S_k * (g_k - g))

    so that equal scores give 0 exactly, and large scores cancel before anything is summed. A masked class has a finite
    score far below all others: masked in the model of the weights it adds 0, masked in the other model it makes W very
    large.

    Attributes:
        columns: the layout of the tiles of blocks.
        weighted_sbuf: W_k of blocks of classes, float32 [128, tiles, columns].
        row_weighted_sbuf: W of positions, float32 [128, tiles].
        gaps_sbuf, terms_sbuf: scratch tiles of the shape of W_k.
    """

    columns: Columns
    weighted_sbuf: nl.NkiTensor
    row_weighted_sbuf: nl.NkiTensor
    gaps_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, weighted_sbuf: nl.NkiTensor) -> GapMoment:
        """Allocate the tiles, given the tile of W_k."""
        return cls(columns, weighted_sbuf, columns.row_tile(), columns.tile(), columns.tile())

    def take_gaps(
        self, student_distances_sbuf: nl.NkiTensor, teacher_distances_sbuf: nl.NkiTensor, ratio: float, chunks: int
    ) -> None:
        """Compute g_k - g from the distances m_k - m of both models, before these become weights."""
        nisa.scalar_tensor_tensor(
            dst=self.columns.in_use(self.gaps_sbuf, chunks),
            data=teacher_distances_sbuf,
            op0=nl.multiply,
            operand0=ratio,
            op1=nl.subtract,
            operand1=student_distances_sbuf,
        )

    def weight(self, weighting: Statistics, chunks: int) -> None:
        """Compute w_k * W_k, while the weights are w_k."""
        nisa.tensor_tensor(
            dst=self.columns.in_use(self.terms_sbuf, chunks),
            data1=self.columns.in_use(self.weighted_sbuf, chunks),
            data2=self.columns.in_use(weighting.weights_sbuf, chunks),
            op=nl.multiply,
        )

    def combine(self, weighting: Statistics, chunks: int) -> None:
        """Compute W, once the weights have become w_k * S_k: a block without weight adds 0, whatever its gap is."""
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
        """Put the combined sum into column 0."""
        self.columns.restart(self.weighted_sbuf, self.row_weighted_sbuf)


@dataclass(frozen=True)
class GapPass:
    """The pass that computes W_k of one tile, once another engine has computed the differences and the weights.

    Attributes:
        moment: the sums.
        gap_sbuf: t - s, float32 [128, classes]; it is overwritten.
        center_sbuf: g_k, float32 [128, 1].
        weights_sbuf: e, float32 [128, classes].
        place: the place of the tile in the statistics.
    """

    moment: GapMoment
    gap_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor
    place: Place

    def take(self) -> None:
        """Issue the pass."""
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
        student, teacher: maxima and sums of exponentials.
        entropy: the moment of the student's entropy.
        entropy_terms_sbuf, distances_sbuf: scratch tiles, float32 [128, tiles, columns].
        gap: the weighted differences; None for the divergence of a mixture.
        picked_sbuf: the student's scores at the labels in this core's classes, float32 [128, tiles]; None if no label
            is wanted.
        exchanged_sbuf: all statistics, [128, columns, statistics, tiles], so that the columns of a core are contiguous:
            the columns of this core, of the other core, and of blocks of classes that the cores share.
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

    @classmethod
    def make(cls, launch: PairLaunch, needs: PairNeeds, tiles: int, shared: int) -> PairStatistics:
        """Allocate the statistics before any class is added.

        ``shared`` is the number of blocks of classes that the cores share; each has a column. The initial maximum is a
        masked score, whose distance from other scores is finite.
        """
        own, count = WINDOW + 1, needs.exchanged_statistics
        swapped = nl.num_programs() * own
        exchanged_sbuf = nl.ndarray((PARTITIONS, swapped + shared, count, tiles), dtype=nl.float32, buffer=nl.sbuf)
        parts = iter([exchanged_sbuf[:, :, number].permute((0, 2, 1)) for number in range(count)])
        columns = Columns(PARTITIONS, tiles, swapped + shared)
        student = _statistics(columns, ConstantScale(launch.student.scale), parts)
        teacher = _statistics(columns, ConstantScale(launch.teacher.scale), parts)
        entropy = EntropyMoment(next(parts), columns.row_tile())
        gap = None if launch.is_mixed else GapMoment.make(columns, next(parts))
        picked_sbuf = next(parts)[:, :, 0] if needs.target else None
        for start, end in ((0, own), (swapped, swapped + shared)):
            if start == end:
                continue
            nisa.memset(dst=exchanged_sbuf[:, start:end], value=0.0)
            for model, side in zip(launch.models, (student, teacher), strict=True):
                nisa.memset(dst=side.neg_max_sbuf[:, :, start:end], value=-launch.lowest(model))
        return cls(launch, student, teacher, entropy, columns.tile(), columns.tile(), gap, picked_sbuf, exchanged_sbuf)

    @property
    def columns(self) -> Columns:
        """The layout of the tiles of blocks."""
        return self.student.columns

    @property
    def models(self) -> tuple[Statistics, Statistics]:
        """The statistics of student and teacher."""
        return self.student, self.teacher

    @property
    def weighting(self) -> Statistics:
        """The model whose probabilities are the weights of the divergence."""
        return self.student if self.launch.is_reverse else self.teacher

    @staticmethod
    def column(number: int) -> int:
        """Return the column of block ``number`` of classes."""
        return 1 + number % WINDOW

    @staticmethod
    def shared_column(number: int) -> int:
        """Return the column of block ``number`` of the classes that the cores share."""
        return nl.num_programs() * (WINDOW + 1) + number

    def combine_window(self) -> None:
        """Combine a full window into column 0."""
        self._combine(WINDOW + 1)
        for side in self.models:
            side.restart()
        self.columns.restart(self.entropy.entropy_sbuf, self.entropy.row_entropy_sbuf)
        if self.gap is not None:
            self.gap.restart()

    def exchange(self, number: int) -> None:
        """Exchange the statistics of the cores' own classes; this core had ``number`` blocks of them."""
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
        """Combine the statistics of all columns, and compute logs."""
        self._combine(self.columns.count)
        for side in self.models:
            side.take_logs()

    def received_picked(self) -> nl.NkiTensor | None:
        """Return the student's scores at the labels in the other core's classes; None on one core."""
        if self.picked_sbuf is None or nl.num_programs() == 1:
            return None
        last = int(self.exchanged_sbuf.shape[2]) - 1
        return self.exchanged_sbuf[:, WINDOW + 1, last]

    def totals(self) -> tuple[ModelTotals, ModelTotals]:
        """Return the totals of student and teacher, once all columns are combined."""
        student, teacher = (
            ModelTotals(side.row_neg_max_sbuf, side.row_sum_sbuf, side.log_sum_sbuf) for side in self.models
        )
        return student, teacher

    def _combine(self, chunks: int) -> None:
        """Combine maxima, sums and moments of the columns of ``chunks`` blocks."""
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
        """Reset the columns that the last blocks of classes did not use, if windows were combined before.

        Column 0 already includes these columns. The last window is not combined by itself: if it is full, there is
        nothing to reset.
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


def _compared(labels_sbuf: nl.NkiTensor, ignore_index: float) -> nl.NkiTensor:
    valid_sbuf = nl.ndarray(labels_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=valid_sbuf, data=labels_sbuf, op0=nl.not_equal, operand0=ignore_index)
    return valid_sbuf


def _local_labels(launch: PairLaunch, labels_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return a mask of the labels that are not ignored and whose classes are in the weights of this launch."""
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
    """The inputs of a block of positions, tiles [128, tiles]; None for inputs that the launch does not have.

    Attributes:
        labels_sbuf: the labels, float32, exact up to class 2^24.
        weights_sbuf: row weights, float32.
        valid_sbuf: uint32, 1 where the label is not ignored.
        is_local_sbuf: uint32, 1 where the label is not ignored and its class is in the weights of this launch.
        picked_sbuf: the student's scores at the labels, float32; computed later.
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
            valid_sbuf = _compared(labels_sbuf, float(launch.options.ignore_index))
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
        """Set the student's scores at the labels: the largest of the candidates, which parts of the classes have found.

        A masked class gets -inf.
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


@dataclass(frozen=True)
class PairResults:
    """Vectors [N] in HBM, float32, in the order in which the forward returns them; None for results not requested."""

    divergence_hbm: nl.NkiTensor
    entropy_hbm: nl.NkiTensor
    moment_hbm: nl.NkiTensor
    student_maximum_hbm: nl.NkiTensor
    student_log_sum_hbm: nl.NkiTensor
    teacher_maximum_hbm: nl.NkiTensor
    teacher_log_sum_hbm: nl.NkiTensor
    logprob_hbm: nl.NkiTensor | None
    target_logit_hbm: nl.NkiTensor | None

    @classmethod
    def of_launch(cls, launch: PairLaunch) -> PairResults:
        """Allocate the vectors of a launch."""

        def vector(name: str) -> nl.NkiTensor:
            return new_vector(name, launch.num_positions, nl.float32)

        return cls(
            vector("divergence_hbm"),
            vector("entropy_hbm"),
            vector("moment_hbm"),
            vector("student_maximum_hbm"),
            vector("student_log_sum_hbm"),
            vector("teacher_maximum_hbm"),
            vector("teacher_log_sum_hbm"),
            vector("logprob_hbm") if launch.wanted.logprob else None,
            vector("target_logit_hbm") if launch.wanted.target else None,
        )

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the vectors that the kernel returns."""
        vectors: list[nl.NkiTensor | None] = [getattr(self, field.name) for field in fields(self)]
        return tuple(vector_hbm for vector_hbm in vectors if vector_hbm is not None)


def results_of_models(statistics: PairStatistics, results: PairResults) -> list[GroupResult]:
    """Return the entropy and the statistics of both models, once the logs of the statistics are computed."""
    student, teacher = statistics.models
    group_results = [GroupResult(results.entropy_hbm, statistics.entropy.entropies(student))]
    for side, maximum_hbm, log_sum_hbm in (
        (student, results.student_maximum_hbm, results.student_log_sum_hbm),
        (teacher, results.teacher_maximum_hbm, results.teacher_log_sum_hbm),
    ):
        group_results.append(GroupResult(maximum_hbm, side.scale.times(side.row_neg_max_sbuf, -1.0)))
        group_results.append(GroupResult(log_sum_hbm, side.log_sum_sbuf))
    return group_results


def _beyond(launch: PairLaunch, model: ModelOperands) -> float:
    """Return the factor that takes a masked score out of the range of float32; 1 if a shard may mask all classes."""
    if launch.classes.is_shard:
        return 1.0
    return _FACTOR_OF_MASKED * 2.0**116 / -launch.lowest(model)


def add_nan_of_empty(
    launch: PairLaunch, values_sbuf: nl.NkiTensor, neg_maxima: tuple[nl.NkiTensor, nl.NkiTensor]
) -> None:
    """Add NaN where a model masks every class, as in PyTorch, or has a logit of +inf or NaN.

    A shard of the vocabulary may mask all of its classes: its probability is 0 then, and it adds 0.

    Args:
        launch: the launch of the kernel.
        values_sbuf: the values of positions that NaN is added to, float32 [128, tiles].
        neg_maxima: minus the largest scores of student and teacher, float32 [128, tiles].
    """
    for model, suspects_sbuf in zip(launch.models, neg_maxima, strict=True):
        nan_sbuf = float32_like(suspects_sbuf)
        nisa.tensor_scalar(
            dst=nan_sbuf,
            data=suspects_sbuf,
            op0=nl.multiply,
            operand0=_beyond(launch, model),
            op1=nl.multiply,
            operand1=0.0,
        )
        nisa.tensor_tensor(dst=values_sbuf, data1=values_sbuf, data2=nan_sbuf, op=nl.add)


def _overflown(values_sbuf: nl.NkiTensor, factor: float, inverse: float) -> nl.NkiTensor:
    """Multiply the values by both factors, in place; the first factor makes large values overflow float32."""
    nisa.tensor_scalar(
        dst=values_sbuf, data=values_sbuf, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=inverse
    )
    return values_sbuf


def _logits_of_scores(launch: PairLaunch, mean_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Multiply a mean of differences of scores by the student's scale: infinite from ``launch.infinite`` on.

    Large values overflow before they are multiplied by a unit of less than 1, and after they are multiplied by a unit
    of more than 1. So the factor that makes them overflow stays below 2^121 whatever the units are.
    """
    unit, temperature = launch.student.unit, launch.options.temperature
    if unit < 1.0:
        factor = _OVERFLOW / (launch.infinite / unit)
        return scaled(_overflown(mean_sbuf, factor, 1.0 / factor), unit / temperature)
    if unit != 1.0:
        mean_sbuf = scaled(mean_sbuf, unit)
    factor = _OVERFLOW / launch.infinite
    return _overflown(mean_sbuf, factor, 1.0 / (factor * temperature))


def _divergence(launch: PairLaunch, statistics: PairStatistics) -> nl.NkiTensor:
    """Compute scale * W / S - log(S_t / S_s), at least 0.

    S_t and S_s are the sums of exponentials of teacher and student, S is that of the model whose probabilities are the
    weights, and W is the sum of :class:`GapMoment`. With the student's weights this expression is the mean of log P -
    log Q, so its sign is reversed.
    """
    student, teacher = statistics.models
    if statistics.gap is None:
        raise ValueError(f"{launch.function}: a mixture has no weighted differences")
    sides = [
        Exponentials(side.scale.most, side.row_neg_max_sbuf, side.row_neg_max_sbuf, side.row_sum_sbuf)
        for side in (teacher, student)
    ]
    ratio_sbuf = log_ratio(*sides)
    inverse_sbuf = float32_like(ratio_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=statistics.weighting.row_sum_sbuf)
    mean_sbuf = product(statistics.gap.row_weighted_sbuf, inverse_sbuf)
    mean_sbuf = _logits_of_scores(launch, mean_sbuf)
    # KL(t||s) = mean - log(S_t / S_s), and KL(s||t) = log(S_t / S_s) - mean.
    first_sbuf, second_sbuf = (ratio_sbuf, mean_sbuf) if launch.is_reverse else (mean_sbuf, ratio_sbuf)
    divergence_sbuf = difference(first_sbuf, second_sbuf)
    nisa.tensor_scalar(dst=divergence_sbuf, data=divergence_sbuf, op0=nl.maximum, operand0=0.0)
    add_nan_of_empty(launch, divergence_sbuf, (student.row_neg_max_sbuf, teacher.row_neg_max_sbuf))
    return divergence_sbuf


def divergence_results(
    launch: PairLaunch, statistics: PairStatistics, positions: PairPositions, results: PairResults
) -> list[GroupResult]:
    """Return the Kullback-Leibler divergence, weighted, and its moment.

    The moment is the unweighted divergence for KL(student || teacher), and 0 for KL(teacher || student). A shard of the
    vocabulary cannot know the divergence from a mixture: both are 0 then.
    """
    if launch.is_mixed:
        nothing_sbuf = constant(statistics.student.row_sum_sbuf, 0.0)
        return [GroupResult(results.divergence_hbm, nothing_sbuf), GroupResult(results.moment_hbm, nothing_sbuf)]
    divergence_sbuf = _divergence(launch, statistics)
    moment_sbuf = divergence_sbuf if launch.is_reverse else constant(divergence_sbuf, 0.0)
    return [
        GroupResult(results.divergence_hbm, positions.weighted(divergence_sbuf)),
        GroupResult(results.moment_hbm, moment_sbuf),
    ]


def label_results(statistics: PairStatistics, positions: PairPositions, results: PairResults) -> list[GroupResult]:
    """Return the log-probabilities and the logits at the labels."""
    score_sbuf = positions.picked_sbuf
    if score_sbuf is None:
        return []
    group_results: list[GroupResult] = []
    student = statistics.student
    if results.logprob_hbm is not None:
        distance_sbuf = float32_like(score_sbuf)
        nisa.tensor_tensor(dst=distance_sbuf, data1=score_sbuf, data2=student.row_neg_max_sbuf, op=nl.add)
        logprob_sbuf = difference(student.scaled(distance_sbuf), student.log_sum_sbuf)
        group_results.append(GroupResult(results.logprob_hbm, positions.where_local(logprob_sbuf)))
    if results.target_logit_hbm is not None:
        logit_sbuf = student.scaled(score_sbuf)
        group_results.append(GroupResult(results.target_logit_hbm, positions.where_local(logit_sbuf)))
    return group_results
