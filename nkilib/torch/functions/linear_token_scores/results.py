# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What ``linear_token_scores`` returns, and what its operators return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class LinearTokenScores(NamedTuple):
    """Scores of each position, of the shape of the targets, float32 but for ``argmax``; None for what is not asked for.

    Logits z are those after scale, cap and temperature, p is their softmax. Ignored positions have all scores but the
    log-probability.

    Attributes:
        logprob: log-probability of the target in nats, at most 0; 0 where it is ignored. Differentiable.
        entropy: of the softmax, in nats. Differentiable.
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
    """Which scores are asked for beside log-probability and log-sum-exp, which cost nothing."""

    with_argmax: bool = False
    with_entropy: bool = False
    with_log_sum_squares: bool = False
    with_mean_logit: bool = False


class ScoreResults(NamedTuple):
    """What the forward operator returns, [N] float32 each but for ``argmax``, int32; what is not asked for is [0].

    Of K target ids of each position ``logprob`` is [N, K].

    Attributes:
        logprob, lse, argmax, entropy, log_sum_squares, mean_logit: as in :class:`LinearTokenScores`.
        maximum: the largest logit; the lowest float32 if all are -inf.
        log_sum: log of the sum of exp(logit - maximum), in nats.
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
    """What one shard of the vocabulary knows of each position, [N] float32 each; what is not asked for is [0].

    Of K target ids of each position ``target_logit`` is [N, K].

    Attributes:
        maximum, log_sum, target_logit, argmax, entropy: as those of ``ShardStatistics``.
        log_sum_squares, mean_logit: of the softmax over the shard alone, and of its classes.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    argmax: Tensor
    entropy: Tensor
    log_sum_squares: Tensor
    mean_logit: Tensor
