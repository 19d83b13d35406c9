# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The divergence over all classes from each rank's part of both output layers: a forward that communicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.core.host.options import values_of
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.linear_distillation.autograd import DIFFERENTIABLE, VocabParallelDistillation
from nkilib.torch.functions.linear_distillation.operators import (
    SHARD_MIXTURE,
    SHARD_STATISTICS,
    Labels,
    Recipe,
    Wanted,
    WantedTarget,
)
from nkilib.torch.functions.linear_distillation.results import DistillationResults, MixtureSums, ShardResults
from nkilib.torch.functions.linear_distillation.statistics import (
    Share,
    divergence_term,
    entropy_term,
    log_sum_below,
    masked_logits,
    mixed,
    share_of,
)
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from nkilib.torch.functions.vocab_parallel.statistics import greatest_of_ranks, sums_of_ranks
from nkilib.torch.losses.target_indices import is_ignored

_TYPES: Final = (None, "bfloat16", "float16", "float32")


class DistillationOperands(NamedTuple):
    """The inputs of the forward operator, with this rank's classes.

    Attributes:
        input: the student's hidden states [N, Ds], the same on all ranks.
        linear_weight: the student's weight [V, Ds].
        teacher_input: the teacher's hidden states [N, Dt], the same on all ranks.
        teacher_weight: the teacher's weight [V, Dt].
        labels: integers [N], counted over all classes; or None.
        linear_bias, teacher_bias: the biases [V] float32, or None.
        row_weight: the weights of positions [N] float32, or None.
        grad_weight_sum: the accumulator of the weight's gradient [V, Ds] float32, or None.
    """

    input: Tensor
    linear_weight: Tensor
    teacher_input: Tensor
    teacher_weight: Tensor
    labels: Tensor | None
    linear_bias: Tensor | None
    teacher_bias: Tensor | None
    row_weight: Tensor | None
    grad_weight_sum: Tensor | None

    @property
    def models(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The hidden states and weights of both models."""
        return self.input, self.linear_weight, self.teacher_input, self.teacher_weight

    @property
    def biases(self) -> tuple[Tensor | None, Tensor | None]:
        """The biases of both models."""
        return self.linear_bias, self.teacher_bias

    def constants(self) -> DistillationOperands:
        """Return the operands detached from autograd."""
        return DistillationOperands(*(None if tensor is None else tensor.detach() for tensor in self))  # type: ignore[arg-type]


def vocab_parallel_results(
    caller: Caller,
    operands: DistillationOperands,
    recipe: Recipe,
    labels: Labels,
    wanted: Wanted,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
) -> DistillationResults:
    """Return the results that the forward operator would have for all classes, differentiable with respect to this
    rank's tensors.

    Args:
        caller: the function that error messages name.
        operands: this rank's operands.
        recipe: the numbers of both models and of the loss.
        labels: the label of ignored positions.
        wanted: whether the log-probability is requested.
        shards: the shards of all ranks.
        group: the process group; None means all processes.
    """
    claims = _claims(operands, recipe, labels, wanted, shards)
    with torch.no_grad():
        constants = operands.constants()
        target = WantedTarget(wanted.with_logprob)
        keywords = SHARD_STATISTICS.keywords_from(recipe, labels, shards.columns, target)
        statistics = SHARD_STATISTICS.op(constants.input.device)
        own = ShardResults(*statistics(*constants.models, constants.labels, *constants.biases, **keywords))
        results = _combined(caller, constants, own, recipe, labels, group, claims)
    options = {**values_of(recipe), **values_of(labels), **values_of(shards.columns), **values_of(wanted)}
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelDistillation.apply
    outputs = apply(*operands, results, options, group)
    return results._replace(**dict(zip(DIFFERENTIABLE, outputs, strict=True)))


def _claims(
    operands: DistillationOperands, recipe: Recipe, labels: Labels, wanted: Wanted, shards: VocabularyShards
) -> dict[str, float]:
    """Return the values that must be equal on all ranks, by name.

    The need of a gradient of ``input`` is one of them: the backward then communicates, so every rank must do it, or
    none.
    """
    numbers = {**values_of(recipe), **values_of(labels), **values_of(wanted)}
    numbers["compute_dtype"] = _TYPES.index(recipe.compute_dtype)
    optional = ("labels", "linear_bias", "teacher_bias", "row_weight")
    return {
        **{f"classes of rank {rank}": size for rank, size in enumerate(shards.sizes)},
        **{name: 0.0 if value is None else value for name, value in numbers.items()},
        **{name: getattr(operands, name) is not None for name in optional},
        "features": operands.input.shape[1],
        "features of the teacher": operands.teacher_input.shape[1],
        "input requires grad": operands.input.requires_grad and torch.is_grad_enabled(),
    }


class _Whole(NamedTuple):
    """The statistics over all classes, and the share that this rank's classes have in them.

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
    """The divergence results over all classes, [N] each, before they are multiplied by ``row_weight``; see
    :class:`DistillationResults`.
    """

    divergence: Tensor
    moment: Tensor
    entropy: Tensor


def _combined(
    caller: Caller,
    operands: DistillationOperands,
    own: ShardResults,
    recipe: Recipe,
    labels: Labels,
    group: dist.ProcessGroup | None,
    claims: dict[str, float],
) -> DistillationResults:
    """Return the results over all classes, with three all-reduces."""
    whole = _whole(caller, own, recipe, group, claims)
    combined = _divergence(operands, own, whole, recipe, group)
    maximum, log_sum, *_ = whole.statistics
    logprob = whole.target_logit
    if logprob.shape == maximum.shape:
        # In this order, since large logits cancel exactly in the difference.
        logprob = _zero_where_ignored((logprob - maximum) - log_sum, operands, labels)
    loss = combined.divergence if operands.row_weight is None else operands.row_weight * combined.divergence
    loss = _zero_where_ignored(loss, operands, labels)
    return DistillationResults(loss, combined.entropy, combined.moment, *whole.statistics, logprob)


def _whole(
    caller: Caller, own: ShardResults, recipe: Recipe, group: dist.ProcessGroup | None, claims: dict[str, float]
) -> _Whole:
    """Communicate the maxima, then the sums of exponentials, and return the statistics over all classes."""
    maxima, agreed, _ = greatest_of_ranks(caller, torch.cat([own.student_maximum, own.teacher_maximum]), claims, group)
    student_maximum, teacher_maximum = maxima.view(2, own.student_maximum.shape[0])
    of_student, of_teacher = masked_logits(recipe.student_unit, recipe.teacher_unit, recipe.temperature)
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
    """Compute this rank's summands of divergence and entropy from the statistics over all classes, sum them over the
    ranks, and return both.
    """
    summands = {"entropy": entropy_term(own, whole.student)}
    if recipe.is_mixed:
        mixture = SHARD_MIXTURE.op(operands.input.device)
        sums = mixture(*operands.models, *whole.statistics, *operands.biases, **SHARD_MIXTURE.keywords_from(recipe))
        totals = sums_of_ranks({**summands, **MixtureSums(*sums)._asdict()}, group)
        divergence, moment = mixed(MixtureSums(*(totals[name] for name in MixtureSums._fields)), recipe.beta)
        return _Divergence(divergence, moment, totals["entropy"])
    summands["divergence"] = divergence_term(own, whole.student, whole.teacher, recipe.beta)
    totals = sums_of_ranks(summands, group)
    divergence = totals["divergence"]
    moment = divergence if recipe.beta == 1.0 else torch.zeros_like(divergence)
    return _Divergence(divergence, moment, totals["entropy"])


def _zero_where_ignored(values: Tensor, operands: DistillationOperands, labels: Labels) -> Tensor:
    """Return the values with 0 at ignored positions."""
    if operands.labels is None:
        return values
    return torch.where(is_ignored(operands.labels, labels.ignore_index), 0.0, values)
