# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The return value of ``linear_token_scores``."""

from __future__ import annotations

from typing import NamedTuple

import jax


class LinearTokenScores(NamedTuple):
    """Scores in the shape of the positions, float32 except ``argmax``; None for scores that were not requested.

    Logits z are those after scale, cap and temperature, p is their softmax. Ignored positions have all scores but the
    log-probability.

    Attributes:
        logprob: log-probability of the target in nats, at most 0; 0 where it is ignored. With K target ids per position
            its last axis has K entries. Differentiable.
        entropy: entropy of the softmax, in nats. Differentiable.
        lse: log-sum-exp of the logits, in nats. Differentiable.
        argmax: int32, the first class with the largest logit; V, which is not a class, in a row that holds a NaN.
        log_sum_squares: log of the sum of p^2, at most 0.
        mean_logit: the mean of z over the classes that no bias of -inf masks.
    """

    logprob: jax.Array
    entropy: jax.Array | None
    lse: jax.Array | None
    argmax: jax.Array | None
    log_sum_squares: jax.Array | None
    mean_logit: jax.Array | None
