# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The divergence over all classes from each rank's part of both output layers: a forward and a backward that
communicate.

:func:`vocab_parallel_divergence` returns the results over all classes for this rank's operands;
:class:`VocabParallelDistillation` differentiates them. :func:`mixed` computes the divergence from a mixture of both
models. A KL divergence and the entropy are sums over the ranks. A rank computes its :class:`Share` of each softmax,
that is the sum of the softmax over the rank's classes (:func:`log_sum_below`, :func:`share_of`). From the shares
follows the rank's summand (:func:`divergence_term`, :func:`entropy_term`). A shard with only masked classes has the
share 0; its largest logit is not above the lowest logit of unmasked classes (:func:`lowest_logits`).

z denotes logits after scale, cap and temperature. With P_r and Q_r the shares of shard r in the teacher's and in the
student's softmax, and D_r and H_r the divergence and the entropy of the softmaxes over its classes alone, the chain
rule is::

    KL(P || Q) = sum_r P_r (D_r + log(P_r / Q_r))
    H(Q) = sum_r Q_r (H_r - log Q_r)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.core.host.options import values_of
from nkilib.torch.dispatch.autograd import Derivative, refuse_graph
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.functions.linear_distillation.operators import (
    FORWARD,
    SHARD_BACKWARD,
    SHARD_BACKWARD_ADDING,
    SHARD_MIXTURE,
    SHARD_STATISTICS,
    DistillationOperands,
    DistillationResults,
    Labels,
    MixtureSums,
    Recipe,
    ShardResults,
    Wanted,
    WantedTarget,
)
from nkilib.torch.functions.vocab_parallel.shard_autograd import (
    COMPUTE_DTYPES,
    backward_call,
    gradients_of_shard,
    save_for_backward,
)
from nkilib.torch.functions.vocab_parallel.shards import (
    VocabularyShards,
    greatest_of_ranks,
    product_or_zero,
    sums_of_ranks,
)
from nkilib.torch.losses.indexed import is_ignored

# Kernels take a bias of -inf as a finite one, twice as low as logits may be.
_LOWEST: Final = -(2.0**115)
# Up to this distance of a ratio from 1, its logarithm is computed by log1p of the distance.
_NEAR: Final = 0.5


class Share(NamedTuple):
    """A shard's share of the softmax of one model, [N] float32 each.

    Attributes:
        value: the share, from 0 to 1.
        log: the logarithm of the share, finite even if the share is too small for float32; -inf for a shard without
            unmasked classes.
    """

    value: Tensor
    log: Tensor


class LowestLogits(NamedTuple):
    """Lower bounds of the logits of unmasked classes of each model.

    A shard whose largest logit is not above the bound has only masked classes.
    """

    student: float | Tensor
    teacher: float | Tensor


def lowest_logits(student_unit: float, teacher_unit: float, temperature: float | Tensor) -> LowestLogits:
    """Return the lowest z that an unmasked class of each model can have.

    Args:
        student_unit, teacher_unit: the softcap of the model, or the logit scale if there is no softcap.
        temperature: the divisor of the logits of both models, one number or one per position.
    """
    lowest = _LOWEST / temperature
    return LowestLogits(lowest * min(1.0, student_unit), lowest * min(1.0, student_unit, teacher_unit))


def log_sum_below(maximum: Tensor, log_sum: Tensor, of_all: Tensor, masked: float | Tensor) -> Tensor:
    """Return log(sum exp(z - m)) over the classes of a shard, where m is the maximum of z over all shards.

    The result is -inf if the shard has no unmasked class.

    Args:
        maximum, log_sum: the maximum of the shard's logits, and log(sum exp(z - maximum)).
        of_all: m.
        masked: the model's bound in :class:`LowestLogits`; the shard has unmasked classes if its maximum is above it.
    """
    # Maxima are subtracted before anything is added to them, so that large logits cancel exactly.
    return torch.where(maximum > masked, log_sum - (of_all - maximum), -torch.inf)


def share_of(below: Tensor, log_sum: Tensor) -> Share:
    """Return the share of a shard in the softmax over all classes.

    Args:
        below: the shard's log(sum exp(z - m)), from :func:`log_sum_below`.
        log_sum: log(sum exp(z - m)) over all shards.
    """
    log = below - log_sum
    return Share(torch.exp(log), log)


def entropy_term(own: ShardResults, student: Share) -> Tensor:
    """Return Q_r (H_r - log Q_r), this shard's summand of the student's entropy over all classes; see the module."""
    return product_or_zero(student.value, own.entropy - student.log)


def divergence_term(own: ShardResults, student: Share, teacher: Share, beta: float) -> Tensor:
    """Return this shard's summand of KL(teacher || student) if ``beta`` is 0, or of KL(student || teacher) if it is 1.

    The chain rule of the module has the term p log(p / q), for the shard's shares p and q of the first and the second
    model. It is computed as p log(p / q) - p + q, which is never negative. The added -p + q cancels in the sum over
    shards, because shares add up to 1. So rounded shares do not affect the small divergence of similar models.
    """
    of, other = (teacher, student) if beta == 0.0 else (student, teacher)
    distance = of.value - other.value
    relative = distance / other.value
    ratio = torch.where(relative.abs() < _NEAR, torch.log1p(relative), of.log - other.log)
    between = (product_or_zero(of.value, ratio) - distance).clamp(min=0.0)
    return product_or_zero(of.value, own.divergence) + between


class Mixed(NamedTuple):
    """The results of the mixture M = beta P + (1 - beta) Q over all classes, [N] float32 each.

    Attributes:
        divergence: beta KL(P || M) + (1 - beta) KL(Q || M), in nats.
        moment: KL(Q || M), in nats.
    """

    divergence: Tensor
    moment: Tensor


def mixed(sums: MixtureSums, beta: float) -> Mixed:
    """Return the generalized Jensen-Shannon divergence of each position, from sums over all shards.

    The sums are of probabilities exp(z - lse) with a rounded lse. Dividing by ``student_mass`` or ``teacher_mass``,
    which would be 1 without rounding, removes the error.
    """
    of_student = sums.student_terms / sums.student_mass
    of_teacher = sums.teacher_terms / sums.teacher_mass
    divergence = beta * of_teacher + (1.0 - beta) * of_student
    return Mixed(divergence.clamp(min=0.0), of_student)


def _claims(
    operands: DistillationOperands, recipe: Recipe, labels: Labels, wanted: Wanted, shards: VocabularyShards
) -> dict[str, float]:
    """Return the values that must be equal on all ranks, by name. An all-reduce compares them.

    One value says whether ``input`` needs a gradient: the backward then communicates, so all ranks must do it, or none.
    """
    numbers = values_of(recipe, labels, wanted)
    numbers["compute_dtype"] = COMPUTE_DTYPES.index(recipe.compute_dtype)
    optional = ("labels", "linear_bias", "teacher_bias", "row_weight", "temperatures")
    return {
        **{f"classes of rank {rank}": size for rank, size in enumerate(shards.sizes)},
        **{name: 0.0 if value is None else value for name, value in numbers.items()},
        **{name: getattr(operands, name) is not None for name in optional},
        "features": operands.input.shape[1],
        "features of the teacher": operands.teacher_input.shape[1],
        "input requires grad": operands.input.requires_grad and torch.is_grad_enabled(),
    }


class _Whole(NamedTuple):
    """The statistics over all classes, and the share of this rank's classes.

    Attributes:
        statistics: the student's maximum and log_sum, then the teacher's, [N] each.
        student, teacher: the share of this rank's classes in the softmax of each model.
        target_logit: the student's z at the label, [N]; [0] if it is not requested.
    """

    statistics: tuple[Tensor, Tensor, Tensor, Tensor]
    student: Share
    teacher: Share
    target_logit: Tensor


class _Divergence(NamedTuple):
    """The divergence, ``moment`` and entropy over all classes, [N] each, as :class:`DistillationResults` defines them.

    They are not yet multiplied by ``row_weight``, and not yet 0 at ignored positions.
    """

    divergence: Tensor
    moment: Tensor
    entropy: Tensor


def _whole(
    caller: Caller,
    own: ShardResults,
    recipe: Recipe,
    temperatures: Tensor | None,
    group: dist.ProcessGroup | None,
    claims: dict[str, float],
) -> _Whole:
    """Return the statistics over all classes and this rank's shares.

    One all-reduce takes the maxima, a second one adds the sums of exponentials relative to them, and the target logits.

    Args:
        caller: the function that error messages name.
        own: the results of this rank's shard.
        recipe: the options that define the logits.
        temperatures: the temperatures of the positions; None means the one of ``recipe``.
        group: the process group; None means all processes.
        claims: the values of :func:`_claims`. If they are not equal on all ranks, ValueError is raised on the CPU; on a
            device or under torch.compile, where values are not read, the log-sums are NaN.
    """
    maxima, agreed, _ = greatest_of_ranks(caller, torch.cat([own.student_maximum, own.teacher_maximum]), claims, group)
    student_maximum, teacher_maximum = maxima.view(2, own.student_maximum.shape[0])
    temperature = recipe.temperature if temperatures is None else temperatures
    of_student, of_teacher = lowest_logits(recipe.student_unit, recipe.teacher_unit, temperature)
    student = log_sum_below(own.student_maximum, own.student_log_sum, student_maximum, of_student)
    teacher = log_sum_below(own.teacher_maximum, own.teacher_log_sum, teacher_maximum, of_teacher)
    summands = {"student": torch.exp(student), "teacher": torch.exp(teacher), "target_logit": own.target_logit}
    sums = sums_of_ranks(summands, group)
    student_log_sum, teacher_log_sum = (
        torch.where(agreed, sums[name].log(), torch.nan) for name in ("student", "teacher")
    )
    return _Whole(
        (student_maximum, student_log_sum, teacher_maximum, teacher_log_sum),
        share_of(student, student_log_sum),
        share_of(teacher, teacher_log_sum),
        sums["target_logit"],
    )


def _divergence(
    operands: DistillationOperands,
    own: ShardResults,
    whole: _Whole,
    recipe: Recipe,
    group: dist.ProcessGroup | None,
) -> _Divergence:
    """Return divergence and entropy over all classes: the sum of all ranks' summands, which are computed from the
    statistics ``whole``.
    """
    summands = {"entropy": entropy_term(own, whole.student)}
    if recipe.is_mixed:
        mixture = SHARD_MIXTURE.op(operands.input.device)
        tensors = (*operands.models, *whole.statistics, *operands.biases, operands.temperatures)
        sums = mixture(*tensors, **SHARD_MIXTURE.keywords_from(recipe))
        totals = sums_of_ranks({**summands, **MixtureSums(*sums)._asdict()}, group)
        divergence, moment = mixed(MixtureSums(*(totals[name] for name in MixtureSums._fields)), recipe.beta)
        return _Divergence(divergence, moment, totals["entropy"])
    summands["divergence"] = divergence_term(own, whole.student, whole.teacher, recipe.beta)
    totals = sums_of_ranks(summands, group)
    divergence = totals["divergence"]
    moment = divergence if recipe.beta == 1.0 else torch.zeros_like(divergence)
    return _Divergence(divergence, moment, totals["entropy"])


def _zero_where_ignored(values: Tensor, operands: DistillationOperands, labels: Labels) -> Tensor:
    if operands.labels is None:
        return values
    return torch.where(is_ignored(operands.labels, labels.ignore_index), 0.0, values)


def _combined(
    caller: Caller,
    operands: DistillationOperands,
    own: ShardResults,
    recipe: Recipe,
    labels: Labels,
    group: dist.ProcessGroup | None,
    claims: dict[str, float],
) -> DistillationResults:
    """Return the results over all classes. Three all-reduces combine the results of each rank's shard (``own``)."""
    whole = _whole(caller, own, recipe, operands.temperatures, group, claims)
    combined = _divergence(operands, own, whole, recipe, group)
    maximum, log_sum, *_ = whole.statistics
    logprob = whole.target_logit
    if logprob.shape == maximum.shape:
        # In this order, since large logits cancel exactly in the difference.
        logprob = _zero_where_ignored((logprob - maximum) - log_sum, operands, labels)
    loss = combined.divergence if operands.row_weight is None else operands.row_weight * combined.divergence
    loss = _zero_where_ignored(loss, operands, labels)
    return DistillationResults(loss, combined.entropy, combined.moment, *whole.statistics, logprob)


_OF_SHARD: Final = Derivative(FORWARD, SHARD_BACKWARD, adding=SHARD_BACKWARD_ADDING)
# The differentiable results; the others are constants.
_DIFFERENTIABLE: Final = ("divergence", "logprob")


class VocabParallelDistillation(torch.autograd.Function):
    """An autograd function that returns results over all ranks, with derivatives with respect to this rank's tensors.

    The arguments of ``apply`` are, in order: the inputs of the forward operator, with this rank's classes; the results,
    already computed; the options of the operators; the process group.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        linear_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        labels: Tensor | None,
        linear_bias: Tensor | None,
        teacher_bias: Tensor | None,
        row_weight: Tensor | None,
        grad_weight_sum: Tensor | None,
        temperatures: Tensor | None,
        results: DistillationResults,
        options: dict[str, Any],
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, ...]:
        tensors = {
            "input": input,
            "linear_weight": linear_weight,
            "teacher_input": teacher_input,
            "teacher_weight": teacher_weight,
            "labels": labels,
            "linear_bias": linear_bias,
            "teacher_bias": teacher_bias,
            "row_weight": row_weight,
            "temperatures": temperatures,
            **results._asdict(),
        }
        returned: dict[str, Tensor] = {name: getattr(results, name) for name in _DIFFERENTIABLE}
        save_for_backward(ctx, _OF_SHARD, tensors, options, returned, grad_weight_sum)
        ctx.group = group
        return tuple(returned.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph(SHARD_BACKWARD)  # a sum over ranks without a graph would be taken for a constant
        call, _ = backward_call(ctx, _OF_SHARD)
        upstream = _OF_SHARD.upstream(call, dict(zip(_DIFFERENTIABLE, grads, strict=True)))
        return *gradients_of_shard(ctx, _OF_SHARD, call.replaced(upstream), bool(upstream)), *[None] * 3


def vocab_parallel_divergence(
    caller: Caller,
    operands: DistillationOperands,
    recipe: Recipe,
    labels: Labels,
    wanted: Wanted,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
) -> DistillationResults:
    """Return the results of the forward operator over all classes, differentiable with respect to this rank's tensors.

    Args:
        caller: the function that error messages name.
        operands: this rank's operands.
        recipe: the options that define both models' logits and the loss.
        labels: the label of ignored positions.
        wanted: whether the log-probability is requested.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
    """
    claims = _claims(operands, recipe, labels, wanted, shards)
    options = values_of(recipe, labels, shards.columns, wanted)
    with torch.no_grad():
        constants = operands.constants()
        keywords = SHARD_STATISTICS.taken({**options, **values_of(WantedTarget(wanted.with_logprob))})
        statistics = SHARD_STATISTICS.op(constants.input.device)
        tensors = (*constants.models, constants.labels, *constants.biases, constants.temperatures)
        own = ShardResults(*statistics(*tensors, **keywords))
        results = _combined(caller, constants, own, recipe, labels, group, claims)
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelDistillation.apply
    outputs = apply(*operands, results, options, group)
    return results._replace(**dict(zip(_DIFFERENTIABLE, outputs, strict=True)))
