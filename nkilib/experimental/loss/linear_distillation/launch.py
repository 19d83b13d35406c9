# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of distillation from hidden states: operands and options, and the sizes from which host code chooses a
tiling.

N positions, V classes; X, W and b are input, weight and bias of a model; dW is the gradient of the student's W.

:class:`PairLaunch` holds the operands of both models (:class:`ModelOperands`), the options (:class:`PairOptions`) and
the requested results (:class:`PairWanted`). A backward also receives results of the forward and upstream gradients
(:class:`PairUpstream`). A second pass that recomputes the products receives the log-sum-exps of both models
(:class:`PairVectors`). :func:`forward_sizes` and :func:`backward_sizes` return the sizes for a tiling,
:func:`pair_needs` and :func:`backward_needs` the options that take memory or time.

A tile of logits of a model holds *scores*: the product with its bias, or ``tanh(scale * (product + bias) / cap)`` under
a softcap. The factor :attr:`ModelOperands.scale` turns scores into z, the logits after scale, softcap and temperature.
It is a constant of the host, so logit scale, softcap and temperature take no instruction but the tanh. If each position
has a temperature, the factor is a tile, an operand of the same instructions (:meth:`ModelOperands.scale_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.scale import ConstantScale, Scale
from nkilib.experimental.loss.cross_entropy.launch import Classes
from nkilib.experimental.loss.distillation.launch import TEMPERATURE_LIMITS
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes, PairSizes
from nkilib.experimental.loss.linear.backward.memory_plan import program_share
from nkilib.experimental.loss.linear.block_schedule import Block, PositionParts
from nkilib.experimental.loss.linear.launch import LinearOperands, LinearTiling
from nkilib.experimental.loss.linear.operands import AllPositions, load_positions
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import (
    ModelNeeds,
    PairForwardSizes,
    PairNeeds,
    StreamSizes,
    gradient_needs,
)
from nkilib.experimental.loss.linear_distillation.host.tiling import pair_parts
from nkilib.experimental.loss.temperatures import Temperatures
from nkilib.nki import nisa, nl

STUDENT, TEACHER = "student", "teacher"
# A masked class has this logit, times a scale of at least 1. Sums of its differences over a block stay finite.
_LOWEST = -(2.0**116)
# A mean of differences of logits of this size counts as infinite.
_INFINITE = 2.0**48


@dataclass(frozen=True)
class PairOptions:
    """The options of the loss.

    Attributes:
        beta: 0 for KL(teacher || student), 1 for KL(student || teacher); between them the generalized Jensen-Shannon
            divergence.
        temperature: T, which divides the logits of both models.
        ignore_index: the label of ignored positions.
    """

    beta: float = 0.0
    temperature: float = 1.0
    ignore_index: int = -100

    @property
    def is_mixed(self) -> bool:
        """Whether the divergence needs the mixture of both distributions."""
        return 0.0 < self.beta < 1.0

    @property
    def is_reverse(self) -> bool:
        """Whether the divergence is weighted by the student's probabilities: KL(student || teacher)."""
        return self.beta == 1.0


@dataclass(frozen=True)
class PairWanted:
    """The results of the forward that a caller can ask for.

    Attributes:
        logprob: the student's log-probability of the label.
        target: the student's z at the label.
    """

    logprob: bool = False
    target: bool = False

    @property
    def needs_target(self) -> bool:
        """Whether the student's logit at the label is needed."""
        return self.logprob or self.target


@dataclass(frozen=True)
class ModelOperands(LinearOperands):
    """The operands of one model, and the options from which z is computed: z = softcap(s * (X W^T + b), c) / T.

    Attributes:
        name: ``STUDENT`` or ``TEACHER``.
        logit_scale: s.
        softcap: c; None for none.
        temperature: T.
    """

    name: str = field(default=STUDENT, kw_only=True)
    logit_scale: float = field(default=1.0, kw_only=True)
    softcap: float | None = field(default=None, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)

    @property
    def prefix(self) -> str:
        """The prefix of the names of the model's arguments: ``"student_"`` or ``"teacher_"``."""
        return f"{self.name}_"

    @property
    def unit(self) -> float:
        """The factor that turns a score into a logit: the logit scale s without a softcap c, and c with one."""
        return self.logit_scale if self.softcap is None else self.softcap

    @property
    def scale(self) -> float:
        """The factor that turns a score into z, for the constant temperature; see :meth:`scale_of` for one per
        position.
        """
        return self.unit / self.temperature

    def scale_of(self, temperatures: Temperatures | None) -> Scale:
        """Return :attr:`scale`, divided by the temperatures of positions if there are any."""
        return ConstantScale(self.scale) if temperatures is None else temperatures.scale(self.scale)

    def slope_of(self, temperatures: Temperatures | None) -> Scale:
        """Return the derivative of z with respect to the logit; under a softcap, the derivative where tanh is 0."""
        slope = self.logit_scale / self.temperature
        return ConstantScale(slope) if temperatures is None else temperatures.scale(slope)

    @property
    def score_cap(self) -> float | None:
        """The softcap of ``X W^T + b``: a score is ``tanh((X W^T + b) / score_cap)``. None without a softcap."""
        return None if self.softcap is None else self.softcap / self.logit_scale

    def of_positions(self, block: Block) -> ModelOperands:
        """Return the same operands with only the rows of X that are in ``block``."""
        return replace(self, input_hbm=block.of(self.input_hbm))


def valid_labels(labels_sbuf: nl.NkiTensor, ignore_index: int) -> nl.NkiTensor:
    """Return a mask, uint32: 1 where a label is not ignored, else 0.

    A label is a class or ``ignore_index``. float32 holds classes exactly, so no other label equals ``ignore_index``.
    """
    valid_sbuf = nl.ndarray(labels_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=valid_sbuf, data=labels_sbuf, op0=nl.not_equal, operand0=float(ignore_index))
    return valid_sbuf


@dataclass(frozen=True)
class PairLaunch:
    """A launch of any of the kernels.

    Attributes:
        function: the name of the kernel in error messages.
        student, teacher: the operands of both models, over the same positions and classes.
        options: the options of the loss.
        classes: the classes of the vocabulary that the weights contain.
        labels_hbm: the labels, int32 [N]; None if every position is valid, and no result at a label is wanted.
        row_weight_hbm: the factor of each divergence, float32 [N]; None for 1.
        wanted: further results of the forward.
        temperature_hbm: the temperatures of positions, float32 [N] or [1], in place of the temperature of the options;
            or None.
    """

    function: str
    student: ModelOperands
    teacher: ModelOperands
    options: PairOptions
    classes: Classes
    labels_hbm: nl.NkiTensor | None = None
    row_weight_hbm: nl.NkiTensor | None = None
    wanted: PairWanted = PairWanted()
    temperature_hbm: nl.NkiTensor | None = None

    @property
    def models(self) -> tuple[ModelOperands, ModelOperands]:
        """The operands of student and teacher."""
        return self.student, self.teacher

    @property
    def num_positions(self) -> int:
        """The number of positions, N."""
        return self.student.num_positions

    @property
    def vocab_size(self) -> int:
        """The number of classes of the weights, V."""
        return self.student.vocab_size

    @property
    def is_mixed(self) -> bool:
        """Whether the divergence needs the mixture of both distributions."""
        return self.options.is_mixed

    @property
    def is_reverse(self) -> bool:
        """Whether the divergence is weighted by the student's probabilities: KL(student || teacher)."""
        return self.options.is_reverse

    @property
    def ratio(self) -> float:
        """The factor that converts the teacher's scores to the unit of the student's.

        It is 1 if logit scales and softcaps of both models are equal.
        """
        return self.teacher.unit / self.student.unit

    def lowest(self, model: ModelOperands) -> float:
        """Return the score of a masked class of a model.

        The score stays finite if it is multiplied by :attr:`ratio`. exp(scale * (lowest - m)) is 0 for any score m of a
        class that is not masked.
        """
        ratio = self.ratio if model.name == TEACHER else 1.0
        return _LOWEST / max(1.0, model.unit, ratio)

    @property
    def infinite(self) -> float:
        """The mean difference of logits, before the temperature, from which on a divergence is infinite.

        A class that one model masks reaches it, if the other model gives it a probability of 2^-68 or more.
        """
        return _INFINITE * min(1.0, self.student.unit, self.teacher.unit)

    def of_positions(self, block: Block) -> PairLaunch:
        """Return the launch with only the positions in ``block``."""

        def of(vector_hbm: nl.NkiTensor | None) -> nl.NkiTensor | None:
            return None if vector_hbm is None else block.of(vector_hbm)

        return replace(
            self,
            student=self.student.of_positions(block),
            teacher=self.teacher.of_positions(block),
            labels_hbm=of(self.labels_hbm),
            row_weight_hbm=of(self.row_weight_hbm),
            temperature_hbm=self._temperature_of(block),
        )

    def temperatures_of(self, block: Block) -> Temperatures | None:
        """Load the temperatures of a block of positions, [128, tiles]; return None if ``temperature_hbm`` is None."""
        temperature_hbm = self._temperature_of(block)
        if temperature_hbm is None:
            return None
        valid_sbuf = None
        if self.labels_hbm is not None:
            valid_sbuf = valid_labels(load_positions(block.of(self.labels_hbm), 0.0), self.options.ignore_index)
        shape = (PARTITIONS, div_ceil(block.size, PARTITIONS))
        return Temperatures.load(temperature_hbm, AllPositions(fill=1.0), shape, TEMPERATURE_LIMITS, valid_sbuf)

    def _temperature_of(self, block: Block) -> nl.NkiTensor | None:
        # [1] is the temperature of all positions.
        if self.temperature_hbm is None or tuple(self.temperature_hbm.shape) == (1,):
            return self.temperature_hbm
        return block.of(self.temperature_hbm)


@dataclass(frozen=True)
class ModelStatistics:
    """The log-sum-exp of one model over all classes, [N] float32 each.

    Attributes:
        maximum_hbm: the largest z.
        log_sum_hbm: log(sum(exp(z - maximum))).
    """

    maximum_hbm: nl.NkiTensor
    log_sum_hbm: nl.NkiTensor

    def of_positions(self, block: Block) -> ModelStatistics:
        """Return the statistics of a block of positions."""
        return ModelStatistics(block.of(self.maximum_hbm), block.of(self.log_sum_hbm))


@dataclass(frozen=True)
class PairUpstream:
    """Results of the forward and upstream gradients, vectors [N] in HBM, float32.

    Attributes:
        student, teacher: the statistics of each model.
        moment_hbm: KL(student || mixture) or KL(student || teacher), from the forward; not read for KL(teacher ||
            student).
        grad_divergence_hbm: the upstream gradient of each divergence.
        grad_logprob_hbm: the upstream gradient of each log-probability of a label; None for 0.
    """

    student: ModelStatistics
    teacher: ModelStatistics
    moment_hbm: nl.NkiTensor
    grad_divergence_hbm: nl.NkiTensor
    grad_logprob_hbm: nl.NkiTensor | None

    def of_positions(self, block: Block) -> PairUpstream:
        """Return the vectors of a block of positions."""
        return PairUpstream(
            self.student.of_positions(block),
            self.teacher.of_positions(block),
            block.of(self.moment_hbm),
            block.of(self.grad_divergence_hbm),
            None if self.grad_logprob_hbm is None else block.of(self.grad_logprob_hbm),
        )


@dataclass(frozen=True)
class PairVectors:
    """The log-sum-exps of all positions over all classes, float32 [N] in HBM.

    Attributes:
        student_maximum_hbm, teacher_maximum_hbm: the largest z of each model.
        student_log_sum_hbm, teacher_log_sum_hbm: the log of the sum of exp(z - maximum).
    """

    student_maximum_hbm: nl.NkiTensor
    student_log_sum_hbm: nl.NkiTensor
    teacher_maximum_hbm: nl.NkiTensor
    teacher_log_sum_hbm: nl.NkiTensor

    def named(self) -> dict[str, nl.NkiTensor]:
        """Return the vectors by the names of the arguments."""
        return {
            "student_maximum_hbm": self.student_maximum_hbm,
            "student_log_sum_hbm": self.student_log_sum_hbm,
            "teacher_maximum_hbm": self.teacher_maximum_hbm,
            "teacher_log_sum_hbm": self.teacher_log_sum_hbm,
        }

    def of_positions(self, block: Block) -> PairVectors:
        """Return the log-sum-exps of a block of positions, as views."""
        return PairVectors(*(block.of(vector_hbm) for vector_hbm in self.named().values()))


def pair_needs(launch: PairLaunch) -> PairNeeds:
    """Return the options of a forward that take memory or time."""
    has_temperatures = launch.temperature_hbm is not None
    student, teacher = (
        ModelNeeds(model.bias_hbm is not None, model.softcap is not None, model.scale != 1.0 or has_temperatures)
        for model in launch.models
    )
    return PairNeeds(
        student,
        teacher,
        mixed=launch.is_mixed,
        reverse=launch.is_reverse,
        target=launch.wanted.needs_target,
        ratio=launch.ratio != 1.0,
        temperatures=has_temperatures,
    )


def stream_sizes(model: ModelOperands) -> StreamSizes:
    """Return the sizes of one model's operands in a forward."""
    return StreamSizes(
        model.num_features,
        dtype_bytes(model.dtype),
        weight_itemsize=model.casts.weight,
        staging_bytes=model.casts.forward_staging(model.has_classes_first),
    )


def forward_sizes(launch: PairLaunch, program_share: float = 1.0) -> PairForwardSizes:
    """Return the sizes of a forward that may use the fraction ``program_share`` of a program's allowed instructions."""
    student, teacher = (stream_sizes(model) for model in launch.models)
    return PairForwardSizes(
        launch.num_positions,
        launch.vocab_size,
        student,
        teacher,
        nl.num_programs(),
        pair_needs(launch).of_products(student.products + teacher.products),
        program_share,
    )


def require_room(launch: PairLaunch, tiling: LinearTiling, bytes_of: Callable[[int, int], int], chooser: str) -> None:
    """Check that the tiles of a tiling fit SBUF.

    Args:
        launch: the launch of the kernel.
        tiling: the tiling.
        bytes_of: a function that returns the bytes of a partition for a number of tiles of positions and a number of
            classes of a block.
        chooser: the name of the function that chooses a tiling, for the message.

    Raises:
        AssertionError: if they do not fit; the message names function, requirement, value and remedy.
    """
    tiles = min(div_ceil(tiling.position_block, PARTITIONS), div_ceil(launch.num_positions, PARTITIONS))
    needed, most = bytes_of(tiles, tiling.class_block), usable_sbuf_bytes()
    remedy = f"None takes the value of {chooser}"
    if bytes_of(1, PARTITIONS) > most:
        remedy = "no smaller one fits either: pass compute_dtype=nl.bfloat16 for less, or fewer features"
    require(
        needed <= most,
        f"{launch.function}: position_block and class_block must leave the tiles of {launch.student.num_features} and "
        f"{launch.teacher.num_features} features at most {most} bytes of a partition, got {needed} with "
        f"position_block={tiling.position_block} and class_block={tiling.class_block}; {remedy}",
    )


def backward_needs(launch: PairLaunch, upstream: PairUpstream) -> PairNeeds:
    """Return the options of a backward that take memory or time."""
    return replace(pair_needs(launch), target=upstream.grad_logprob_hbm is not None)


def parts_of_positions(launch: PairLaunch) -> PositionParts:
    """Return the parts into which the positions of a backward are split: one, or several for very many positions."""
    student, teacher = launch.models
    feature_bytes = sum(model.num_features * dtype_bytes(model.dtype) for model in launch.models)
    return pair_parts(launch.num_positions, student.num_features, teacher.num_features, feature_bytes)


def backward_sizes(
    launch: PairLaunch, upstream: PairUpstream, adds_to_weight: bool, bias_wanted: bool
) -> BackwardSizes:
    """Return the sizes for the plan of a backward; if the positions are split into parts, the sizes of a part.

    Args:
        launch, upstream: the launch of the kernel, and its upstream gradients.
        adds_to_weight: whether the caller passes a sum to which dW is added.
        bias_wanted: whether the gradient of the student's bias is wanted.
    """
    parts = parts_of_positions(launch)
    needs = replace(backward_needs(launch, upstream), sums_bias=bias_wanted and launch.student.rounds_more_than_bias)
    student, teacher = launch.student, PairSizes.of_operands(launch.teacher)
    staging = student.casts.backward_staging(student.has_classes_first)
    return BackwardSizes(
        parts.size,
        student.num_features,
        launch.vocab_size,
        dtype_bytes(student.dtype),
        student.has_classes_first,
        gradient_needs(needs),
        adds_to_weight or parts.is_split,
        program_share=program_share(parts),
        weight_itemsize=student.casts.weight,
        staging_bytes=max(staging, teacher.staging_bytes),
        further=(teacher,),
    )
