"""The kernels of linear cross-entropy, to be launched on their own.

loss, lse = linear_cross_entropy_forward[2](input, weight, targets, ...)
grad_input, grad_weight = linear_cross_entropy_backward[2](input, weight, targets, lse, grad_loss, ...)
logprob, lse = linear_token_scores_forward[2](input, weight, ids, ...)

:mod:`nkilib.experimental.loss.inline` has the functions, to be called from NKI code.
"""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.linear_cross_entropy import kernels, token_scores_kernels
from nkilib.experimental.loss.linear_cross_entropy.host.guarantees import (
    LINEAR_CROSS_ENTROPY_BACKWARD,
    LINEAR_CROSS_ENTROPY_FORWARD,
    LINEAR_CROSS_ENTROPY_FORWARD_BACKWARD,
    LINEAR_TOKEN_SCORES_BACKWARD,
    LINEAR_TOKEN_SCORES_FORWARD,
)
from nkilib.experimental.loss.linear_cross_entropy.host.work import (
    linear_backward_work,
    linear_forward_backward_work,
    linear_forward_work,
    linear_scores_backward_work,
    linear_scores_forward_work,
)

__all__ = [
    "linear_cross_entropy_backward",
    "linear_cross_entropy_forward",
    "linear_cross_entropy_forward_backward",
    "linear_token_scores_backward",
    "linear_token_scores_forward",
]

linear_cross_entropy_forward = launchable(
    kernels.linear_cross_entropy_forward, LINEAR_CROSS_ENTROPY_FORWARD, linear_forward_work
)
linear_cross_entropy_backward = launchable(
    kernels.linear_cross_entropy_backward, LINEAR_CROSS_ENTROPY_BACKWARD, linear_backward_work
)
linear_cross_entropy_forward_backward = launchable(
    kernels.linear_cross_entropy_forward_backward, LINEAR_CROSS_ENTROPY_FORWARD_BACKWARD, linear_forward_backward_work
)
linear_token_scores_forward = launchable(
    token_scores_kernels.linear_token_scores_forward, LINEAR_TOKEN_SCORES_FORWARD, linear_scores_forward_work
)
linear_token_scores_backward = launchable(
    token_scores_kernels.linear_token_scores_backward, LINEAR_TOKEN_SCORES_BACKWARD, linear_scores_backward_work
)
