# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The divergence over all classes from what each rank has of both output layers: a forward that communicates."""

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
    """The inputs of the forward operator, of this rank's classes.

    Attributes:
        input: [N, Ds], the same on all ranks.
        linear_weight: [V, Ds].
        teacher_input: [N, Dt], the same on all ranks.
        teacher_weight: [V, Dt].
        labels: [N] integers, counted over all classes; or None.
        linear_bias, teacher_bias: [V] float32, or None.
        row_weight: [N] float32, or None.
        grad_weight_sum: [V, Ds] float32, or None.
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
        """Hidden states and weights."""
        return self.input, self.linear_weight, self.teacher_input, self.teacher_weight

    @property
    def biases(self) -> tuple[Tensor | None, Tensor | None]:
        """Of both models."""
        return self.linear_bias, self.teacher_bias

    def constants(self) -> DistillationOperands:
        """Without autograd."""
        return DistillationOperands(*(None if each is None else each.detach() for each in self))  # type: ignore[arg-type]


def vocab_parallel_results(
    caller: Caller,
    operands: DistillationOperands,
    recipe: Recipe,
    labels: Labels,
    wanted: Wanted,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
) -> DistillationResults:
    """What the forward operator would return for all classes, differentiable by what this rank has.

    Args:
        caller: who is named in errors.
        operands: of this rank.
        recipe: of both models and the loss.
        labels: which of them say that a position does not count.
        wanted: whether the log-probability is asked for.
        shards: of all ranks.
        group: None for all processes.
    """
    claims = _claims(operands, recipe, labels, wanted, shards)
    with torch.no_grad():
        given = operands.constants()
        target = WantedTarget(wanted.with_logprob)
        keywords = SHARD_STATISTICS.keywords_from(recipe, labels, shards.columns, target)
        statistics = SHARD_STATISTICS.op(given.input.device)
        own = ShardResults(*statistics(*given.models, given.labels, *given.biases, **keywords))
        results = _combined(caller, given, own, recipe, labels, group, claims)
    options = {**values_of(recipe), **values_of(labels), **values_of(shards.columns), **values_of(wanted)}
    apply: Callable[..., tuple[Tensor, ...]] = VocabParallelDistillation.apply
    found = apply(*operands, results, options, group)
    return results._replace(**dict(zip(DIFFERENTIABLE, found, strict=True)))


def _claims(
    operands: DistillationOperands, recipe: Recipe, labels: Labels, wanted: Wanted, shards: VocabularyShards
) -> dict[str, float]:
    """What all ranks must have alike, by name.

    The backward communicates where the input needs a gradient: on every rank, or on none.
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
    """Of all classes, and this shard's share.

    Attributes:
        statistics: maximum and log_sum of the student, then of the teacher, [N] each.
        student, teacher: this shard's share of either softmax.
        target_logit: the student's z at the label, [N]; [0] if it is not asked for.
    """

    statistics: tuple[Tensor, Tensor, Tensor, Tensor]
    student: Share
    teacher: Share
    target_logit: Tensor


class _Divergence(NamedTuple):
    """Of all classes and every position, not weighted, [N] each."""

    divergence: Tensor
    moment: Tensor
    entropy: Tensor


def _combined(
    caller: Caller,
    given: DistillationOperands,
    own: ShardResults,
    recipe: Recipe,
    labels: Labels,
    group: dist.ProcessGroup | None,
    claims: dict[str, float],
) -> DistillationResults:
    """The results of all classes: three all-reduces."""
    whole = _whole(caller, own, recipe, group, claims)
    found = _divergence(given, own, whole, recipe, group)
    maximum, log_sum, *_ = whole.statistics
    logprob = whole.target_logit
    if logprob.shape == maximum.shape:
        # In this order, since large logits cancel exactly in the difference.
        logprob = _of_counted((logprob - maximum) - log_sum, given, labels)
    loss = found.divergence if given.row_weight is None else given.row_weight * found.divergence
    loss = _of_counted(loss, given, labels)
    return DistillationResults(loss, found.entropy, found.moment, *whole.statistics, logprob)


def _whole(
    caller: Caller, own: ShardResults, recipe: Recipe, group: dist.ProcessGroup | None, claims: dict[str, float]
) -> _Whole:
    """Communicate maxima, then sums of exponentials."""
    maxima, agreed = greatest_of_ranks(caller, torch.cat([own.student_maximum, own.teacher_maximum]), claims, group)
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
    given: DistillationOperands,
    own: ShardResults,
    whole: _Whole,
    recipe: Recipe,
    group: dist.ProcessGroup | None,
) -> _Divergence:
    """Communicate the parts of divergence and entropy, which take the statistics of all classes."""
    summands = {"entropy": entropy_term(own, whole.student)}
    if recipe.is_mixed:
        mixture = SHARD_MIXTURE.op(given.input.device)
        sums = mixture(*given.models, *whole.statistics, *given.biases, **SHARD_MIXTURE.keywords_from(recipe))
        found = sums_of_ranks({**summands, **MixtureSums(*sums)._asdict()}, group)
        divergence, moment = mixed(MixtureSums(*(found[name] for name in MixtureSums._fields)), recipe.beta)
        return _Divergence(divergence, moment, found["entropy"])
    summands["divergence"] = divergence_term(own, whole.student, whole.teacher, recipe.beta)
    found = sums_of_ranks(summands, group)
    divergence = found["divergence"]
    moment = divergence if recipe.beta == 1.0 else torch.zeros_like(divergence)
    return _Divergence(divergence, moment, found["entropy"])


def _of_counted(values: Tensor, given: DistillationOperands, labels: Labels) -> Tensor:
    """0 where a position does not count."""
    if given.labels is None:
        return values
    return torch.where(is_ignored(given.labels, labels.ignore_index), 0.0, values)
