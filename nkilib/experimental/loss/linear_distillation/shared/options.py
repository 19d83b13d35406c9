# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a launch of the kernels works on, and what can be chosen.

A backward is also given results of the forward and gradients of them, :class:`PairUpstream`.

A tile of logits of a model holds scores: the product with its bias, or ``tanh(scale * (product + bias) / cap)`` under a
softcap. What the scores are multiplied with to give z, :attr:`ModelOperands.scale`, is a constant of the host, so that
logit scale, softcap and temperature take no instruction but that for the tangents.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nkilib.experimental.loss.cross_entropy.options import Classes
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.nki import nl

STUDENT, TEACHER = "student", "teacher"
# A masked class has this logit, times a scale of at least 1. Sums of its differences over a block stay finite.
_LOWEST = -(2.0**116)
# A mean of differences of logits that is as large counts as infinite.
_INFINITE = 2.0**48


@dataclass(frozen=True)
class PairOptions:
    """The options of the loss.

    Attributes:
        beta: 0: KL(teacher || student); 1: KL(student || teacher); between them the generalized Jensen-Shannon
            divergence.
        temperature: T, divides the logits of both models.
        ignore_index: the label of positions that do not count.
    """

    beta: float = 0.0
    temperature: float = 1.0
    ignore_index: int = -100

    @property
    def is_mixed(self) -> bool:
        """The divergence needs the mixture of both distributions."""
        return 0.0 < self.beta < 1.0

    @property
    def is_reverse(self) -> bool:
        """The student's probabilities are the weights of the divergence."""
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
        """The logit at the label is needed."""
        return self.logprob or self.target


@dataclass(frozen=True)
class ModelOperands(LinearOperands):
    """The operands of one model, with what makes z of their product: z = softcap(s * (X W^T + b), c) / T.

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
        """Of the names of its tensors."""
        return f"{self.name}_"

    @property
    def unit(self) -> float:
        """What a score is multiplied with to give a logit: s without a softcap, c with one."""
        return self.logit_scale if self.softcap is None else self.softcap

    @property
    def scale(self) -> float:
        """What a score is multiplied with to give z."""
        return self.unit / self.temperature

    @property
    def score_cap(self) -> float | None:
        """The softcap of ``X W^T + b``: a score is ``tanh((X W^T + b) / score_cap)``. None without a softcap."""
        return None if self.softcap is None else self.softcap / self.logit_scale

    def of_positions(self, block: Block) -> ModelOperands:
        """The operands for some positions alone."""
        return replace(self, input_hbm=block.of(self.input_hbm))


@dataclass(frozen=True)
class PairLaunch:
    """A launch of any of the kernels.

    Attributes:
        function: that is named in errors.
        student, teacher: operands of both models, over the same positions and classes.
        options: of the loss.
        classes: which classes of the vocabulary the weights hold.
        labels_hbm: [N], int32; None: every position counts, and no label is asked for.
        row_weight_hbm: [N], float32; None for 1.
        wanted: further results of the forward.
    """

    function: str
    student: ModelOperands
    teacher: ModelOperands
    options: PairOptions
    classes: Classes
    labels_hbm: nl.NkiTensor | None = None
    row_weight_hbm: nl.NkiTensor | None = None
    wanted: PairWanted = PairWanted()

    @property
    def models(self) -> tuple[ModelOperands, ModelOperands]:
        """Student and teacher."""
        return self.student, self.teacher

    @property
    def num_positions(self) -> int:
        """N."""
        return self.student.num_positions

    @property
    def vocab_size(self) -> int:
        """V: the classes that the weights hold."""
        return self.student.vocab_size

    @property
    def is_mixed(self) -> bool:
        """The divergence needs the mixture of both distributions."""
        return self.options.is_mixed

    @property
    def is_reverse(self) -> bool:
        """The student's probabilities are the weights of the divergence."""
        return self.options.is_reverse

    @property
    def ratio(self) -> float:
        """What the teacher's scores are multiplied with to stand in the unit of the student's.

        1 where logit scales and softcaps are alike: then differences of scores are not rounded for it.
        """
        return self.teacher.unit / self.student.unit

    def lowest(self, model: ModelOperands) -> float:
        """The score of a masked class, which is finite, and finite in the student's unit too.

        exp(scale * (lowest - m)) is 0 for any score m of a class that is not masked.
        """
        ratio = self.ratio if model.name == TEACHER else 1.0
        return _LOWEST / max(1.0, model.unit, ratio)

    @property
    def infinite(self) -> float:
        """A mean of differences of logits, before the temperature, from which on a divergence is infinite.

        A masked class of probability 2^-68 reaches it.
        """
        return _INFINITE * min(1.0, self.student.unit, self.teacher.unit)

    def of_positions(self, block: Block) -> PairLaunch:
        """The launch for some positions alone."""

        def of(vector_hbm: nl.NkiTensor | None) -> nl.NkiTensor | None:
            return None if vector_hbm is None else block.of(vector_hbm)

        return replace(
            self,
            student=self.student.of_positions(block),
            teacher=self.teacher.of_positions(block),
            labels_hbm=of(self.labels_hbm),
            row_weight_hbm=of(self.row_weight_hbm),
        )


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
        """Those of some positions alone."""
        return ModelStatistics(block.of(self.maximum_hbm), block.of(self.log_sum_hbm))


@dataclass(frozen=True)
class PairUpstream:
    """Vectors [N] in HBM, float32.

    Attributes:
        student, teacher: of each model.
        moment_hbm: KL(student || mixture) or KL(student || teacher), from the forward; not looked at for
            KL(teacher || student).
        grad_divergence_hbm: the gradient of each divergence.
        grad_logprob_hbm: the gradient of each log-probability of a label; None for 0.
    """

    student: ModelStatistics
    teacher: ModelStatistics
    moment_hbm: nl.NkiTensor
    grad_divergence_hbm: nl.NkiTensor
    grad_logprob_hbm: nl.NkiTensor | None

    def of_positions(self, block: Block) -> PairUpstream:
        """What comes to some positions alone."""
        return PairUpstream(
            self.student.of_positions(block),
            self.teacher.of_positions(block),
            block.of(self.moment_hbm),
            block.of(self.grad_divergence_hbm),
            None if self.grad_logprob_hbm is None else block.of(self.grad_logprob_hbm),
        )
