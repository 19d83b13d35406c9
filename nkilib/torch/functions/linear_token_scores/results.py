# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of ``linear_token_scores`` and of its operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class LinearTokenScores(NamedTuple):
    """The scores of each position, of the shape of the targets, float32 except for ``argmax``; None for those not
    requested.

    z denotes the logits after scale, cap and temperature, and p their softmax. Ignored positions have all scores except
    the log-probability.

    Attributes:
        logprob: log-probability of the target in nats, at most 0; 0 where it is ignored. Differentiable.
        entropy: the entropy of the softmax, in nats. Differentiable.
        lse: log-sum-exp of the logits, in nats. Differentiable.
        argmax: int64, the first class with the largest logit; V, which is no class, in a row that holds a NaN.
        log_sum_squares: log of the sum of p^2, at most 0.
        mean_logit: the mean of z over the classes that no bias of -inf masks.
    """

    logprob: Tensor
    entropy: Tensor | None
    lse: Tensor | None
    argmax: Tensor | None
    log_sum_squares: Tensor | None
    mean_logit: Tensor | None


@dataclass(frozen=True)
class WantedScores:
    """The requested scores beside log-probability and log-sum-exp, which cost nothing."""

    with_argmax: bool = False
    with_entropy: bool = False
    with_log_sum_squares: bool = False
    with_mean_logit: bool = False


class ScoreResults(NamedTuple):
    """The results of the forward operator, [N] float32 each except for ``argmax``, int32; a result that is not
    requested is [0].

    With K target ids of each position, ``logprob`` is [N, K].

    Attributes:
        logprob, lse, argmax, entropy, log_sum_squares, mean_logit: see :class:`LinearTokenScores`.
        maximum: the largest logit; the lowest float32 if all are -inf.
        log_sum: the log of the sum of exp(logit - maximum), in nats.
    """

    logprob: Tensor
    lse: Tensor
    maximum: Tensor
    log_sum: Tensor
    argmax: Tensor
    entropy: Tensor
    log_sum_squares: Tensor
    mean_logit: Tensor


class ShardScores(NamedTuple):
    """The scores that one shard of the vocabulary has for each position, [N] float32 each; a score that is not
    requested is [0].

    With K target ids of each position, ``target_logit`` is [N, K].

    Attributes:
        maximum, log_sum, target_logit, argmax, entropy: see ``ShardStatistics``.
        log_sum_squares: log of the sum of p^2, for the softmax p over the shard's classes alone.
        mean_logit: the mean of z over the shard's classes that no bias of -inf masks.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    argmax: Tensor
    entropy: Tensor
    log_sum_squares: Tensor
    mean_logit: Tensor
