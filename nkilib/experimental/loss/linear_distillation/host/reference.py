# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reference of the kernels: distillation from hidden states and its gradients in float64, from the same inputs.

N positions, V classes, R positions of a block; X, W and b are input, weight and bias of a model; z are its logits after
scale, softcap and temperature; P, Q and M = beta P + (1 - beta) Q are the distributions of teacher, student and
mixture. :class:`PairProblem` has the inputs of a launch, :class:`ModelProblem` those of one model.
:func:`pair_forward_reference`, :func:`mixture_reference` and :func:`pair_backward_reference` compute the results of the
three kernels. Products, divergences and gradients are float64 throughout. Positions are processed in blocks, so that no
[N, V] is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.cross_entropy.reference import Float64Array
from nkilib.experimental.loss.distillation.host import Distributions, divisor_of, kl
from nkilib.experimental.loss.linear.reference import EVERY_CLASS, LinearGradients, OutputLayer


@dataclass(frozen=True)
class ModelProblem(OutputLayer):
    """The output layer of one model, and the options from which z is computed: z = softcap(s * (X W^T + b), c) / T.

    Attributes:
        logit_scale: s.
        logit_softcap: c, or None.
        temperature: T: a number, or an array of one for each position, [N], or of one for all, [1].
    """

    logit_scale: float = 1.0
    logit_softcap: float | None = None
    temperature: float | npt.NDArray[Any] = 1.0

    def at_rows(self, rows: slice) -> ModelProblem:
        """Return the model with the temperatures of the positions ``rows``, so that :meth:`z_of` takes their logits."""
        if np.size(self.temperature) == 1:
            return self
        return replace(self, temperature=np.asarray(self.temperature)[rows])

    @property
    def divisor(self) -> Float64Array:
        """The temperature as a float64 divisor of logits, [N, 1] or [1, 1]."""
        return divisor_of(self.temperature)[:, np.newaxis]

    def z_of(self, logits: Float64Array) -> Float64Array:
        """Return z from X W^T + b; a masked class stays -inf."""
        scaled = self.logit_scale * logits
        if self.logit_softcap is not None:
            capped = self.logit_softcap * np.tanh(scaled / self.logit_softcap)
            scaled = np.where(np.isneginf(scaled), scaled, capped)
        return np.asarray(scaled / self.divisor)

    def slopes_of(self, logits: Float64Array) -> Float64Array:
        """Return the derivative of z with respect to X W^T + b; 0 for a masked class under a softcap."""
        slope = self.logit_scale / self.divisor
        if self.logit_softcap is None:
            return np.broadcast_to(slope, logits.shape)
        tangents = np.tanh(self.logit_scale * logits / self.logit_softcap)
        return np.asarray(slope * (1.0 - np.square(tangents)))


@dataclass(frozen=True)
class PairProblem:
    """The inputs and options of a launch.

    Some results are computed once and kept, so the arrays must not change after the first use.

    Attributes:
        student, teacher: the models over the same positions and classes. Their temperatures are equal.
        labels: [N] integers, or None; positions of ``ignore_index`` are ignored.
        row_weight: the factor of each divergence, [N], or None for 1.
        beta: 0 for KL(teacher || student), 1 for KL(student || teacher); between them the generalized Jensen-Shannon
            divergence.
        ignore_index: the label of ignored positions.
        first_class: the first class of the shard, if the models are a shard of the vocabulary; else 0.
    """

    student: ModelProblem
    teacher: ModelProblem
    labels: npt.NDArray[Any] | None = None
    row_weight: npt.NDArray[Any] | None = None
    beta: float = 0.0
    ignore_index: int = -100
    first_class: int = 0

    @property
    def num_positions(self) -> int:
        """The number of positions, N."""
        return len(self.student.input)

    @property
    def is_mixed(self) -> bool:
        """Whether the divergence needs the mixture of both distributions."""
        return 0.0 < self.beta < 1.0

    @property
    def counts(self) -> npt.NDArray[np.bool_]:
        """The mask of the valid positions, [N]."""
        if self.labels is None:
            return np.ones(self.num_positions, np.bool_)
        return np.asarray(self.labels) != self.ignore_index

    @property
    def weights(self) -> Float64Array:
        """The row weight of each position, 0 where the position is ignored, [N]."""
        weights = np.ones(self.num_positions) if self.row_weight is None else self.row_weight.astype(np.float64)
        return np.where(self.counts, weights, 0.0)

    @property
    def local_labels(self) -> npt.NDArray[np.int64]:
        """The labels counted from ``first_class``, [N]; -1 where a position is ignored or its class is in another
        shard.
        """
        if self.labels is None:
            return np.full(self.num_positions, -1, np.int64)
        labels = np.asarray(self.labels, np.int64) - self.first_class
        is_local = self.counts & (labels >= 0) & (labels < self.student.vocab_size)
        return np.where(is_local, labels, -1)

    @property
    def classes_first(self) -> tuple[Float64Array, Float64Array]:
        """The weights of student and teacher as [V, features]."""
        return self.student.classes_first, self.teacher.classes_first

    def row_blocks(self) -> Iterator[slice]:
        """Yield slices that cover the positions in order."""
        return self.student.row_blocks()

    def scores_of(self, rows: slice, weights: tuple[Float64Array, Float64Array]) -> tuple[Float64Array, Float64Array]:
        """Return z of student and teacher at the R positions ``rows``, [R, V]; ``weights`` are ``classes_first``."""
        student, teacher = (
            model.at_rows(rows).z_of(model.logits_of(rows, weight))
            for model, weight in zip((self.student, self.teacher), weights, strict=True)
        )
        return student, teacher

    @cached_property
    def forward(self) -> ExactResults:
        """The results of :func:`pair_forward_reference`, read-only."""
        weights = self.classes_first
        blocks = [_forward_of(self, rows, weights) for rows in self.row_blocks()]
        names = [result.name for result in fields(ExactResults)]
        results = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
        for values in results.values():
            values.flags.writeable = False
        return ExactResults(**results)


@dataclass(frozen=True)
class Statistics:
    """The log-sum-exp of both models as maximum and log of the sum of exponentials, [N] each, of any float dtype."""

    student_maximum: npt.NDArray[Any]
    student_log_sum: npt.NDArray[Any]
    teacher_maximum: npt.NDArray[Any]
    teacher_log_sum: npt.NDArray[Any]

    @property
    def student_lse(self) -> Float64Array:
        """The log-sum-exp of the student, [N]."""
        return self.student_maximum.astype(np.float64) + self.student_log_sum.astype(np.float64)

    @property
    def teacher_lse(self) -> Float64Array:
        """The log-sum-exp of the teacher, [N]."""
        return self.teacher_maximum.astype(np.float64) + self.teacher_log_sum.astype(np.float64)

    def distributions(self, rows: slice, student: Float64Array, teacher: Float64Array) -> Distributions:
        """Return the log-probabilities of both models at positions ``rows``.

        Args:
            rows: R positions.
            student, teacher: z of each model at these positions, [R, V].
        """
        return Distributions(student - self.student_lse[rows, np.newaxis], teacher - self.teacher_lse[rows, np.newaxis])


@dataclass(frozen=True)
class ExactResults(Statistics):
    """The results of ``linear_distillation_forward``, float64 [N] each.

    Attributes:
        divergence: the weighted divergence, 0 where a position is ignored.
        entropy: the entropy of the student.
        moment: KL(student || teacher) for beta 1, KL(student || mixture) for beta between 0 and 1, 0 for beta 0.
        logprob: the log-probability of the label, 0 where a position is ignored. For a shard it is relative to the
            shard's own log-sum-exp.
        target_logit: z of the student at the label; 0 where a position is ignored or the label's class is in another
            shard.
    """

    divergence: Float64Array
    entropy: Float64Array
    moment: Float64Array
    logprob: Float64Array
    target_logit: Float64Array


class ExactMixtureSums(NamedTuple):
    """The results of ``linear_distillation_mixture``, float64 [N] each, or bounds on their errors.

    All sums are over the classes of the shard; p, q and M are the probabilities of teacher, student and mixture.

    Attributes:
        student_terms: sum of q log(q / M).
        teacher_terms: sum of p log(p / M).
        student_mass, teacher_mass: sum of q, and sum of p.
    """

    student_terms: Float64Array
    teacher_terms: Float64Array
    student_mass: Float64Array
    teacher_mass: Float64Array


@dataclass(frozen=True)
class PairUpstream:
    """The inputs of the backward that the forward does not have.

    Attributes:
        statistics: the log-sum-exps over all classes, as the kernel received them.
        moment: the moment of the forward, [N], as the kernel received it.
        grad_divergence: the upstream gradient of each divergence, [N].
        grad_logprob: the upstream gradient of each log-probability, [N], or None.
    """

    statistics: Statistics
    moment: npt.NDArray[Any]
    grad_divergence: npt.NDArray[Any]
    grad_logprob: npt.NDArray[Any] | None = None

    @classmethod
    def of_results(
        cls, results: ExactResults, grad_divergence: npt.NDArray[Any], grad_logprob: npt.NDArray[Any] | None = None
    ) -> PairUpstream:
        """Return the inputs with statistics and moment from the results of a forward."""
        return cls(results, results.moment, grad_divergence, grad_logprob)


def divergence_of(problem: PairProblem, pair: Distributions) -> Float64Array:
    """Return the unweighted divergence of every position."""
    if not problem.is_mixed:
        student, teacher = pair.student_log, pair.teacher_log
        return kl(teacher, student) if problem.beta == 0.0 else kl(student, teacher)
    mixture = pair.mixture_log(problem.beta)
    divergence = problem.beta * kl(pair.teacher_log, mixture) + (1.0 - problem.beta) * kl(pair.student_log, mixture)
    return np.asarray(divergence)


def moment_of(problem: PairProblem, pair: Distributions) -> Float64Array:
    """Return the moment of each position, which the student's gradient needs.

    It is KL(student || mixture) for beta between 0 and 1, KL(student || teacher) for beta 1, and 0 for beta 0.
    """
    if problem.beta == 0.0:
        return np.zeros(len(pair.student_log))
    return kl(pair.student_log, pair.mixture_log(problem.beta) if problem.is_mixed else pair.teacher_log)


def divergence_gradient(problem: PairProblem, moment: npt.NDArray[Any], pair: Distributions) -> Float64Array:
    """Return the gradient of an unweighted divergence with respect to the student's z, [R, V].

    For a class that is masked in the student the gradient is 0 if beta is more than 0, and -P if beta is 0.
    """
    if problem.beta == 0.0:
        return pair.student - pair.teacher
    against = pair.mixture_log(problem.beta) if problem.is_mixed else pair.teacher_log
    factor = 1.0 - problem.beta if problem.is_mixed else 1.0
    with np.errstate(invalid="ignore"):
        distance = pair.student_log - against - moment.astype(np.float64)[:, np.newaxis]
        return np.asarray(np.where(np.isneginf(pair.student_log), 0.0, factor * pair.student * distance))


def z_gradient_of(problem: PairProblem, upstream: PairUpstream, rows: slice, pair: Distributions) -> Float64Array:
    """Return the gradient with respect to the student's z at the R positions ``rows``, [R, V].

    ``pair`` has the distributions at these positions.
    """
    coefficient = upstream.grad_divergence[rows].astype(np.float64) * problem.weights[rows]
    coefficient = np.where(problem.counts[rows], coefficient, 0.0)
    gradient = np.where(
        problem.counts[rows, np.newaxis], divergence_gradient(problem, upstream.moment[rows], pair), 0.0
    )
    gradient = coefficient[:, np.newaxis] * gradient
    if upstream.grad_logprob is not None:
        of_logprob = np.where(problem.counts[rows], upstream.grad_logprob[rows].astype(np.float64), 0.0)
        gradient = gradient - of_logprob[:, np.newaxis] * pair.student
        labels = problem.local_labels[rows]
        labelled = np.flatnonzero(labels >= 0)
        gradient[labelled, labels[labelled]] += of_logprob[labelled]
    return np.asarray(gradient)


def _forward_of(problem: PairProblem, rows: slice, weights: tuple[Float64Array, Float64Array]) -> ExactResults:
    student, teacher = problem.scores_of(rows, weights)
    maxima = student.max(axis=1), teacher.max(axis=1)
    sums = tuple(
        np.exp(z - maximum[:, np.newaxis]).sum(axis=1) for z, maximum in zip((student, teacher), maxima, strict=True)
    )
    log_sums = np.log(sums[0]), np.log(sums[1])
    pair = Distributions(
        student - maxima[0][:, np.newaxis] - log_sums[0][:, np.newaxis],
        teacher - maxima[1][:, np.newaxis] - log_sums[1][:, np.newaxis],
    )
    counts, labels = problem.counts[rows], problem.local_labels[rows]
    with np.errstate(invalid="ignore"):
        divergence = np.where(counts, divergence_of(problem, pair) * problem.weights[rows], 0.0)
        terms = np.where(np.isneginf(pair.student_log), 0.0, pair.student * pair.student_log)
    positions = np.arange(len(labels))
    at_label = np.where(labels >= 0, student[positions, labels], 0.0)
    logprob = np.where(counts & (labels >= 0), pair.student_log[positions, labels], 0.0)
    return ExactResults(
        maxima[0],
        log_sums[0],
        maxima[1],
        log_sums[1],
        divergence,
        -terms.sum(axis=1),
        moment_of(problem, pair),
        logprob,
        at_label,
    )


def pair_forward_reference(problem: PairProblem) -> ExactResults:
    """Return all results of ``linear_distillation_forward``, from the classes that the problem has.

    PyTorch equivalent, in float64, for beta 0 and without ignored labels::

        log_q = F.log_softmax(F.linear(student_input, student_weight, student_bias) / temperature, -1)
        log_p = F.log_softmax(F.linear(teacher_input, teacher_weight, teacher_bias) / temperature, -1)
        divergence = row_weight * F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
        entropy = -(log_q.exp() * log_q).sum(-1)
    """
    return problem.forward


def mixture_reference(problem: PairProblem, statistics: Statistics) -> ExactMixtureSums:
    """Return all results of ``linear_distillation_mixture``, with the log-sum-exps that the kernel received.

    Args:
        problem: the problem with the classes of a shard.
        statistics: the log-sum-exps over all classes.
    """
    weights = problem.classes_first
    blocks = []
    for rows in problem.row_blocks():
        pair = statistics.distributions(rows, *problem.scores_of(rows, weights))
        mixture = pair.mixture_log(problem.beta)
        blocks.append(
            ExactMixtureSums(
                kl(pair.student_log, mixture),
                kl(pair.teacher_log, mixture),
                pair.student.sum(axis=1),
                pair.teacher.sum(axis=1),
            )
        )
    return ExactMixtureSums(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def pair_backward_reference(
    problem: PairProblem, upstream: PairUpstream, classes: slice = EVERY_CLASS
) -> LinearGradients:
    """Return all gradients of ``linear_distillation_backward``: those of the student's input, weight and bias.

    PyTorch equivalent, in float64 and for exact statistics, with the forward's results::

        torch.autograd.grad((divergence, logprob), (input, weight, bias), (grad_divergence, grad_logprob))

    Args:
        problem: the problem with all classes.
        upstream: the upstream gradients and statistics that the kernel received.
        classes: the classes of a vocabulary shard: dX is then the sum over these classes, and dW and db are those of
            these classes.
    """
    weights = problem.classes_first
    blocks = (
        (rows, z_gradient_of(problem, upstream, rows, pair) * problem.student.at_rows(rows).slopes_of(logits))
        for rows in problem.row_blocks()
        for logits in (problem.student.logits_of(rows, weights[0]),)
        for pair in (upstream.statistics.distributions(rows, *problem.scores_of(rows, weights)),)
    )
    return problem.student.gradients(blocks, weights[0], classes)
