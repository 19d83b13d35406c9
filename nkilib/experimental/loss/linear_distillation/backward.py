# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of distillation from hidden states on one core: the gradient of the student's logits, and its products.

N positions; X and W are input and weight; P, Q and M = beta P + (1 - beta) Q are the distributions of teacher, student
and mixture; z is the logit after cap and temperature, lse its log-sum-exp, *scores* are the logits before scaling, or
tanh(logit / cap) under a cap. *Columns* are per-position scalars, float32 [128, tiles]: column t holds positions 128 t
to 128 t + 127, one in each partition. e_s and e_t are the exponentials exp(z - lse) of student and teacher.

Both fused linear losses share the loop that keeps blocks of the gradient in SBUF while X and W of the student stream
(:mod:`nkilib.experimental.loss.linear.backward.one_core`); :func:`backward_of_core` runs it. The teacher's operands
stream only for the logits. The per-position inputs of the gradient are computed once per launch (:class:`PairColumns`).
Tiles of the gradient are computed from these inputs and from the scores of both models (:class:`PairGradientTiles`).
The gradient of log-probabilities at labels has separate inputs and tiles (:class:`LabelColumns`, :class:`LabelTiles`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, log1p

from nkilib.core import arithmetic
from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.scale import ONE, Scale
from nkilib.core.rows.tiles import constant, difference, float32_like, product, scaled, selected
from nkilib.experimental.loss.cross_entropy.softcap import through_cap
from nkilib.experimental.loss.linear.backward.geometry import GRADIENT_SLOTS, BackwardSizes
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan, require_fitting_plan
from nkilib.experimental.loss.linear.backward.one_core import write_gradients_of_positions
from nkilib.experimental.loss.linear.backward.streams import OperandPair
from nkilib.experimental.loss.linear.backward.tile_maker import (
    BackwardProblem,
    LastProduct,
    TilePlace,
)
from nkilib.experimental.loss.linear.block_schedule import Block, Span
from nkilib.experimental.loss.linear.launch import Gradients, LinearTiling
from nkilib.experimental.loss.linear.operands import ClassRow, load_positions, with_rounded_input
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import (
    PairNeeds,
    copies_student,
    copies_teacher,
    opens_groups,
    spares_scores,
    takes_differences,
)
from nkilib.experimental.loss.linear_distillation.launch import (
    TEACHER,
    ModelOperands,
    ModelStatistics,
    PairLaunch,
    PairUpstream,
    backward_needs,
    parts_of_positions,
    valid_labels,
)
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class LogSumExp:
    """The log-sum-exp of one model, with which the softmax is exp(z + bias) * exp(lost); float32 [128, tiles] each.

    Attributes:
        maximum_sbuf, log_sum_sbuf: the two summands of the log-sum-exp.
        bias_sbuf: minus the log-sum-exp, rounded.
        lost_sbuf: the rounding error of the log-sum-exp.
    """

    maximum_sbuf: nl.NkiTensor
    log_sum_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    lost_sbuf: nl.NkiTensor

    @classmethod
    def loaded(cls, statistics: ModelStatistics) -> LogSumExp:
        """Load the log-sum-exps of all positions of a launch."""
        maximum_sbuf = load_positions(statistics.maximum_hbm, 0.0)
        log_sum_sbuf = load_positions(statistics.log_sum_hbm, 0.0)
        lse_sbuf = float32_like(maximum_sbuf)
        nisa.tensor_tensor(dst=lse_sbuf, data1=maximum_sbuf, data2=log_sum_sbuf, op=nl.add)
        lost_sbuf = difference(difference(lse_sbuf, maximum_sbuf), log_sum_sbuf)
        return cls(maximum_sbuf, log_sum_sbuf, scaled(lse_sbuf, -1.0), lost_sbuf)

    def less(self, other: LogSumExp) -> nl.NkiTensor:
        """Return this log-sum-exp minus ``other``; the maxima and the logs are subtracted separately, then added."""
        maxima_sbuf = difference(self.maximum_sbuf, other.maximum_sbuf)
        difference_sbuf = difference(self.log_sum_sbuf, other.log_sum_sbuf)
        nisa.tensor_tensor(dst=difference_sbuf, data1=difference_sbuf, data2=maxima_sbuf, op=nl.add)
        return difference_sbuf


@dataclass(frozen=True)
class LabelColumns:
    """The inputs of the gradient of the log-probability at a label; float32 [128, tiles] each.

    Attributes:
        label_sbuf: the label, counted from the first class of the launch's weights.
        label_factor_sbuf: the number that the gradient adds at the label: the upstream gradient of the log-probability
            times the derivative of z with respect to the logit.
        softmax_factor_sbuf: the factor of e_s, which the gradient adds at all classes.
    """

    label_sbuf: nl.NkiTensor
    label_factor_sbuf: nl.NkiTensor
    softmax_factor_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _UpstreamColumns:
    """The upstream gradients, and the forward's moment, per position: float32 [128, tiles] each.

    All but the labels are 0 at ignored positions.

    Attributes:
        moment_sbuf: the forward's moment: KL(student || teacher), KL(student || mixture), or 0 for KL(teacher ||
            student).
        factor_sbuf: the product of the upstream gradient of the divergence, the row weight, the derivative of z with
            respect to the logit, and for a mixture 1 - beta.
        label_sbuf, label_factor_sbuf: see :class:`LabelColumns`.
    """

    moment_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor
    label_sbuf: nl.NkiTensor | None
    label_factor_sbuf: nl.NkiTensor | None

    @classmethod
    def loaded(cls, launch: PairLaunch, upstream: PairUpstream, slope: Scale) -> _UpstreamColumns:
        """Load the upstream gradients of all positions of a launch; ``slope`` is the derivative of z with respect to
        the logit.
        """
        factor_sbuf = load_positions(upstream.grad_divergence_hbm, 0.0)
        has_moment = launch.options.beta > 0.0
        moment_sbuf = load_positions(upstream.moment_hbm, 0.0) if has_moment else constant(factor_sbuf, 0.0)
        if launch.row_weight_hbm is not None:
            factor_sbuf = product(factor_sbuf, load_positions(launch.row_weight_hbm, 0.0))
        label_sbuf = label_factor_sbuf = None
        if launch.labels_hbm is not None:
            label_sbuf = load_positions(launch.labels_hbm, 0.0)
            valid_sbuf = valid_labels(label_sbuf, launch.options.ignore_index)
            factor_sbuf, moment_sbuf = selected(factor_sbuf, valid_sbuf), selected(moment_sbuf, valid_sbuf)
            if upstream.grad_logprob_hbm is not None:
                label_factor_sbuf = selected(load_positions(upstream.grad_logprob_hbm, 0.0), valid_sbuf)
                label_factor_sbuf = slope.times(label_factor_sbuf)
                nisa.tensor_scalar(
                    dst=label_sbuf, data=label_sbuf, op0=nl.subtract, operand0=float(launch.classes.first)
                )
        mixture_factor = 1.0 - launch.options.beta if launch.is_mixed else 1.0
        return cls(moment_sbuf, slope.times(factor_sbuf, mixture_factor), label_sbuf, label_factor_sbuf)

    def sizes(self) -> list[nl.NkiTensor]:
        """Return bounds on the magnitudes of the gradients of logits, from which the power of two of float16 is chosen.

        They rest on |Q (log(Q / P) - KL(Q || P))| < KL(Q || P) + 1.
        """
        sizes_sbuf = float32_like(self.moment_sbuf)
        nisa.tensor_scalar(
            dst=sizes_sbuf, data=self.moment_sbuf, op0=nl.add, operand0=1.0, op1=nl.maximum, operand1=1.0
        )
        sizes = [product(sizes_sbuf, self.factor_sbuf)]
        return sizes if self.label_factor_sbuf is None else [*sizes, self.label_factor_sbuf]

    def multiplied(self, factor_sbuf: nl.NkiTensor) -> _UpstreamColumns:
        label_factor_sbuf = self.label_factor_sbuf
        if label_factor_sbuf is not None:
            label_factor_sbuf = scaled(label_factor_sbuf, factor_sbuf)
        return _UpstreamColumns(
            self.moment_sbuf, scaled(self.factor_sbuf, factor_sbuf), self.label_sbuf, label_factor_sbuf
        )


def _exponential(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    exponential_sbuf = float32_like(values_sbuf)
    nisa.activation(dst=exponential_sbuf, op=nl.exp, data=values_sbuf)
    return exponential_sbuf


def _center(
    launch: PairLaunch, student: LogSumExp, teacher: LogSumExp, moment_sbuf: nl.NkiTensor, scale: Scale
) -> nl.NkiTensor:
    """Compute ``center`` of :class:`PairGradientTiles`; for KL(teacher || student) ``ratio``.

    ``scale`` is the factor that turns the student's scores into z.
    """
    if launch.options.beta == 0.0:
        return _exponential(difference(teacher.lost_sbuf, student.lost_sbuf))
    if launch.is_mixed:
        center_sbuf, log_odds = student.less(teacher), log(launch.options.beta) - log1p(-launch.options.beta)
        nisa.tensor_scalar(dst=center_sbuf, data=center_sbuf, op0=nl.add, operand0=log_odds)
        return center_sbuf
    center_sbuf = difference(teacher.less(student), moment_sbuf)
    return center_sbuf if scale.is_one else scale.quotients(center_sbuf)


def _addend(launch: PairLaunch, moment_sbuf: nl.NkiTensor) -> nl.NkiTensor | None:
    if not launch.is_mixed:
        return None
    addend_sbuf = float32_like(moment_sbuf)
    nisa.tensor_scalar(dst=addend_sbuf, data=moment_sbuf, op0=nl.add, operand0=log1p(-launch.options.beta))
    return addend_sbuf


@dataclass(frozen=True)
class PairColumns:
    """The per-position inputs of the gradient, float32 [128, tiles] each; None if the divergence does not need them.

    :class:`PairGradientTiles` has the formulas.

    Attributes:
        student_bias_sbuf, teacher_bias_sbuf: minus the log-sum-exp of each model, which is added to z in the exponents.
        center_sbuf: ``center``; for KL(teacher || student) ``ratio``.
        addend_sbuf: ``addend``; None without a mixture.
        factor_sbuf: the factor of the divergence's terms: minus the upstream gradient times all constant factors.
        labels: the inputs of the gradient of the log-probability; None without one.
        power: the power of two that the gradient is multiplied by; None for 1.
        student_scale, teacher_scale: the factors that turn the scores of each model into z.
    """

    student_bias_sbuf: nl.NkiTensor
    teacher_bias_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    addend_sbuf: nl.NkiTensor | None
    factor_sbuf: nl.NkiTensor
    labels: LabelColumns | None
    power: PowerOfTwo | None
    student_scale: Scale
    teacher_scale: Scale

    @classmethod
    def make(cls, launch: PairLaunch, upstream: PairUpstream) -> PairColumns:
        """Compute the inputs for all positions of a launch."""
        temperatures = launch.temperatures_of(Block(0, launch.num_positions))
        scale, slope = launch.student.scale_of(temperatures), launch.student.slope_of(temperatures)
        student, teacher = LogSumExp.loaded(upstream.student), LogSumExp.loaded(upstream.teacher)
        upstreams = _UpstreamColumns.loaded(launch, upstream, slope)
        power = None
        if launch.student.dtype == nl.float16:
            power = PowerOfTwo.of_largest(upstreams.sizes())
            upstreams = upstreams.multiplied(power.factor_sbuf)
        lost_sbuf = _exponential(student.lost_sbuf)
        # The constant factor of the terms that the tiles compute, and for KL(student || teacher) the scale.
        factor_sbuf = (scale if launch.is_reverse else ONE).times(product(upstreams.factor_sbuf, lost_sbuf), -1.0)
        labels = None
        if upstreams.label_sbuf is not None and upstreams.label_factor_sbuf is not None:
            softmax_factor_sbuf = scaled(product(upstreams.label_factor_sbuf, lost_sbuf), -1.0)
            labels = LabelColumns(upstreams.label_sbuf, upstreams.label_factor_sbuf, softmax_factor_sbuf)
        return cls(
            student.bias_sbuf,
            teacher.bias_sbuf,
            _center(launch, student, teacher, upstreams.moment_sbuf, scale),
            _addend(launch, upstreams.moment_sbuf),
            factor_sbuf,
            labels,
            power,
            scale,
            launch.teacher.scale_of(temperatures),
        )


def _ring(is_needed: bool, slots: int, classes: int) -> list[nl.NkiTensor]:
    shape = (PARTITIONS, classes)
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(slots if is_needed else 0)]


@dataclass(frozen=True)
class LabelTiles:
    """The computation of the gradient of log-probabilities at labels, tile by tile.

    Attributes:
        columns: the inputs of the positions.
        count_sbuf: 0, 1, 2, ... in each partition, float32 [128, classes of a block].
        places_sbuf: the labels, counted from the first class of the block, float32 [128, tiles].
        tiles_sbuf: a ring buffer of tiles, float32 [128, classes of a tile].
    """

    columns: LabelColumns
    count_sbuf: nl.NkiTensor
    places_sbuf: nl.NkiTensor
    tiles_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, columns: LabelColumns, plan: BackwardPlan) -> LabelTiles:
        """Allocate the tensors, of the sizes that a plan gives."""
        block = plan.class_tiles * PARTITIONS
        count_sbuf = nl.ndarray((PARTITIONS, block), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=count_sbuf, pattern=[[1, block]], offset=0, channel_multiplier=0)
        places_sbuf = nl.ndarray(columns.label_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        return cls(columns, count_sbuf, places_sbuf, _ring(True, GRADIENT_SLOTS, plan.classes_of_tile))

    def begin(self, first_class: int) -> None:
        """Set ``places_sbuf`` to the labels counted from class ``first_class``."""
        nisa.tensor_scalar(
            dst=self.places_sbuf, data=self.columns.label_sbuf, op0=nl.subtract, operand0=float(first_class)
        )

    def advance(self, classes: int) -> None:
        """Count ``places_sbuf`` from a later class: subtract ``classes``."""
        nisa.tensor_scalar(dst=self.places_sbuf, data=self.places_sbuf, op0=nl.subtract, operand0=float(classes))

    def gradient(self, number: int, softmax_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """Compute tile ``number`` of the gradient of the log-probabilities, float32 [rows, classes].

        ``softmax_sbuf`` is e_s of the tile.
        """
        tile_sbuf = place.slot(self.tiles_sbuf, number)
        nisa.tensor_scalar(
            dst=tile_sbuf,
            data=place.of_classes(self.count_sbuf),
            op0=nl.equal,
            operand0=place.of(self.places_sbuf),
            op1=nl.multiply,
            operand1=place.of(self.columns.label_factor_sbuf),
        )
        nisa.scalar_tensor_tensor(
            dst=tile_sbuf,
            data=softmax_sbuf,
            op0=nl.multiply,
            operand0=place.of(self.columns.softmax_factor_sbuf),
            op1=nl.add,
            operand1=tile_sbuf,
        )
        return tile_sbuf


def _copied(product_psum: nl.NkiTensor, copies_sbuf: list[nl.NkiTensor], number: int, place: TilePlace) -> nl.NkiTensor:
    # The product itself, if there are no tiles for copies.
    if not copies_sbuf:
        return product_psum
    copy_sbuf = place.slot(copies_sbuf, number)
    nisa.activation(dst=copy_sbuf, op=nl.copy, data=product_psum)
    return copy_sbuf


def _write_softmax(
    dst_sbuf: nl.NkiTensor, scores: nl.NkiTensor, scale: Scale, bias_sbuf: nl.NkiTensor, place: TilePlace
) -> None:
    # exp(z - lse) is the softmax but for the rounding error of lse.
    of_place = scale.of(place.column, place.rows)
    nisa.activation(dst=dst_sbuf, op=nl.exp, data=scores, scale=of_place, bias=place.of(bias_sbuf))


@dataclass(frozen=True)
class PairGradientTiles:
    """Computes one tile of the student's gradient after another; implements :class:`.tile_maker.TileMaker`.

    Let a and b be the scores of student and teacher, r the factor that converts b to the unit of a, and c the student's
    scale, which turns a into z. Then the gradient of z is -1 times

    - (e_t * ratio - e_s) for KL(teacher || student), where ratio = exp(lost_t - lost_s),
    - (r b - a - center) * e_s * c for KL(student || teacher), where center = (lse_t - lse_s - KL) / c,
    - (softplus(c (r b - a) + center) + addend) * e_s * (1 - beta) for Jensen-Shannon, where center = lse_s - lse_t +
      log(beta / (1 - beta)) and addend = KL(student || mixture) + log(1 - beta),

    times exp(lost_s), which corrects the rounding error lost_s of the student's log-sum-exp (lost_t is the teacher's).
    The gradient of the log-probability at a label adds a number at its class and a multiple of e_s
    (:class:`LabelTiles`). Under a softcap of the student the sum is multiplied by 1 - tanh^2. The score of a masked
    class is a large finite number, so that its product with its exponential 0 is 0, not NaN.

    Scalar copies products from PSUM where Vector could not read them in place (:func:`copies_student`,
    :func:`copies_teacher`).

    Attributes:
        launch: the launch with scales, softcaps and beta.
        needs: the options that take memory or time.
        columns: the per-position inputs of the gradient.
        labels: the tiles for the gradient at labels; None without a gradient of the log-probability.
        terms_sbuf: a ring buffer of tiles, float32 [128, classes of a tile], for e_s and the products with it.
        others_sbuf: a ring buffer of such tiles, for differences of scores, or e_t.
        students_sbuf, teachers_sbuf: ring buffers of such tiles, for copies of products; empty if none are copied.
    """

    launch: PairLaunch
    needs: PairNeeds
    columns: PairColumns
    labels: LabelTiles | None
    terms_sbuf: list[nl.NkiTensor]
    others_sbuf: list[nl.NkiTensor]
    students_sbuf: list[nl.NkiTensor]
    teachers_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: PairLaunch, needs: PairNeeds, columns: PairColumns, plan: BackwardPlan) -> PairGradientTiles:
        """Allocate the ring buffers, of the sizes that a plan gives."""
        classes, opened = plan.classes_of_tile, plan.buffers.opened
        return cls(
            launch,
            needs,
            columns,
            None if columns.labels is None else LabelTiles.make(columns.labels, plan),
            _ring(True, GRADIENT_SLOTS, classes),
            _ring(True, opened if takes_differences(needs) else GRADIENT_SLOTS, classes),
            _ring(copies_student(needs), opened, classes),
            _ring(copies_teacher(needs), opened, classes),
        )

    @property
    def power(self) -> PowerOfTwo | None:
        return self.columns.power

    @property
    def rows(self) -> list[ClassRow]:
        """The per-class vectors that the tiles need besides the biases: none."""
        return []

    @property
    def float32_tiles(self) -> list[nl.NkiTensor]:
        return self.terms_sbuf

    @property
    def may_hold_scores(self) -> bool:
        """Whether the student's scores of a tile may be stored in the slot of its gradient; see
        :func:`spares_scores`.
        """
        return spares_scores(self.needs)

    @property
    def opens_groups(self) -> bool:
        """Whether several tiles are opened at a time: if Scalar needs another table of functions, for tanh or
        softplus.
        """
        return opens_groups(self.needs)

    def begin(self, first_class: int) -> None:
        """Prepare the labels for a block of classes that starts with class ``first_class`` of the launch."""
        if self.labels is not None:
            self.labels.begin(first_class)

    def advance(self, classes: int) -> None:
        """Prepare the labels for a block of classes that starts ``classes`` classes later than the current one."""
        if self.labels is not None:
            self.labels.advance(classes)

    def prepare(self, positions: Span, skipped: int, done: float, end: float) -> None:
        """Do nothing: there is no work before the logits are computed."""

    def open(self, number: int, scores: list[nl.NkiTensor], place: TilePlace) -> list[nl.NkiTensor]:
        """Return the student's scores of a tile, and a second tensor of the same shape.

        The second tensor holds the teacher's scores for KL(teacher || student), the differences of both models' scores
        for KL(student || teacher), and softplus of the scaled differences for a mixture.
        """
        student, teacher = scores
        student = _copied(student, self.students_sbuf, number, place)
        teacher = _copied(teacher, self.teachers_sbuf, number, place)
        if not takes_differences(self.needs):
            return [student, teacher]
        differences_sbuf = place.slot(self.others_sbuf, number)
        nisa.scalar_tensor_tensor(
            dst=differences_sbuf,
            data=teacher,
            op0=nl.multiply,
            operand0=self.launch.ratio,
            op1=nl.subtract,
            operand1=student,
        )
        if self.needs.mixed:
            nisa.activation(
                dst=differences_sbuf,
                op=nl.softplus,
                data=differences_sbuf,
                scale=self.columns.student_scale.of(place.column, place.rows),
                bias=place.of(self.columns.center_sbuf),
            )
        return [student, differences_sbuf]

    def make_tile(
        self, number: int, dst_sbuf: nl.NkiTensor, opened: list[nl.NkiTensor], place: TilePlace
    ) -> LastProduct | None:
        """Compute tile ``number``, and return its last product, which the caller issues later; None if there is none.

        Args:
            number: the number of the tile.
            dst_sbuf: the result, [rows, classes], in the dtype of the products.
            opened: the result of :meth:`open`; overwritten.
            place: the positions and classes of the tile.
        """
        student, other = opened
        columns = self.columns
        terms_sbuf, factor_sbuf = place.slot(self.terms_sbuf, number), place.of(columns.factor_sbuf)
        _write_softmax(terms_sbuf, student, columns.student_scale, columns.student_bias_sbuf, place)
        label_sbuf = None if self.labels is None else self.labels.gradient(number, terms_sbuf, place)
        self._take_terms(number, terms_sbuf, other, place)
        tangents = student if self.needs.student.softcap else None
        if label_sbuf is None:
            return self._finish(dst_sbuf, terms_sbuf, factor_sbuf, tangents)
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf if tangents is None else terms_sbuf,
            data=terms_sbuf,
            op0=nl.multiply,
            operand0=factor_sbuf,
            op1=nl.add,
            operand1=label_sbuf,
        )
        if tangents is not None:
            arithmetic.multiply_on_gpsimd(tangents, tangents, tangents)
            through_cap(dst_sbuf, terms_sbuf, tangents)
        return None

    def _take_terms(self, number: int, terms_sbuf: nl.NkiTensor, other: nl.NkiTensor, place: TilePlace) -> None:
        """Replace e_s in ``terms_sbuf`` by the terms of the divergence.

        ``other`` is the second tensor that :meth:`open` has returned.
        """
        columns = self.columns
        if not takes_differences(self.needs):
            teacher_sbuf = place.slot(self.others_sbuf, number)
            _write_softmax(teacher_sbuf, other, columns.teacher_scale, columns.teacher_bias_sbuf, place)
            nisa.scalar_tensor_tensor(
                dst=terms_sbuf,
                data=teacher_sbuf,
                op0=nl.multiply,
                operand0=place.of(columns.center_sbuf),
                op1=nl.subtract,
                operand1=terms_sbuf,
            )
            return
        added_sbuf = columns.center_sbuf if columns.addend_sbuf is None else columns.addend_sbuf
        nisa.scalar_tensor_tensor(
            dst=terms_sbuf,
            data=other,
            op0=nl.subtract if columns.addend_sbuf is None else nl.add,
            operand0=place.of(added_sbuf),
            op1=nl.multiply,
            operand1=terms_sbuf,
        )

    @staticmethod
    def _finish(
        dst_sbuf: nl.NkiTensor, terms_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor, tangents: nl.NkiTensor | None
    ) -> LastProduct | None:
        """Multiply the terms by the factor of each position; without a softcap, return this product instead of issuing
        it.

        With a softcap the result is also multiplied by 1 - tanh^2; ``tangents``, the tanh values, are overwritten.
        """
        if tangents is None:
            return LastProduct(dst_sbuf, terms_sbuf, factor_sbuf)
        arithmetic.multiply_on_gpsimd(tangents, tangents, tangents)
        nisa.tensor_scalar(
            dst=tangents,
            data=tangents,
            op0=nl.subtract,
            operand0=1.0,
            reverse0=True,
            op1=nl.multiply,
            operand1=factor_sbuf,
        )
        arithmetic.product(dst_sbuf, terms_sbuf, tangents)
        return None


def _operands_of_model(launch: PairLaunch, model: ModelOperands) -> OperandPair:
    """Return the operands of a model, with the score and bias of a masked class.

    Under a softcap of the student, tanh of a masked score may stay -1, where the gradient through the softcap is 0.
    """
    lowest, is_teacher = launch.lowest(model), model.name == TEACHER
    masked_score = lowest if is_teacher and model.softcap is not None else None
    lowest_bias = lowest if masked_score is None else 2.0 * lowest
    # The teacher is only needed for differences of scores.
    stays = not is_teacher or launch.options.beta == 0.0
    return OperandPair(model, model.score_cap, lowest_bias, masked_score, stays)


def _problem_of_launch(launch: PairLaunch, upstream: PairUpstream) -> BackwardProblem:
    needs = backward_needs(launch, upstream)

    def make_tiles(plan: BackwardPlan) -> PairGradientTiles:
        return PairGradientTiles.make(launch, needs, PairColumns.make(launch, upstream), plan)

    return BackwardProblem(
        [_operands_of_model(launch, launch.student), _operands_of_model(launch, launch.teacher)], make_tiles
    )


def backward_of_core(
    launch: PairLaunch, upstream: PairUpstream, sizes: BackwardSizes, tiling: LinearTiling, gradients: Gradients
) -> None:
    """Compute and store the gradients; this core works on its own part of the classes.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    require_fitting_plan(launch.function, tiling, BackwardPlan.of(sizes, *tiling))
    parts = parts_of_positions(launch)
    student, teacher = (with_rounded_input(model, model.prefix) for model in launch.models)
    launch = replace(launch, student=student, teacher=teacher)

    def problem_of(block: Block) -> BackwardProblem:
        if not parts.is_split:
            return _problem_of_launch(launch, upstream)
        return _problem_of_launch(launch.of_positions(block), upstream.of_positions(block))

    write_gradients_of_positions(launch.student, gradients, parts, sizes, tiling, problem_of)
