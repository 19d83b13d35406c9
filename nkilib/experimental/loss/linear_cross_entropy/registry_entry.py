# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The row of the loss registry for cross-entropy of hidden states and output weights."""

from __future__ import annotations

from typing import Any, Final

from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Loss, ModelledLaunch
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

_POSITIONS, _FEATURES, _CLASSES = 4096, 4096, 32128


def _forward(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    return {
        "input_hbm": spec((_POSITIONS, _FEATURES), dtype),
        "weight_hbm": spec((_CLASSES, _FEATURES), dtype),
        "targets_hbm": spec((_POSITIONS,), "int32"),
    }


def _backward(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    of_positions = spec((_POSITIONS,), "float32")
    return {**_forward(dtype), "lse_hbm": of_positions, "grad_loss_hbm": of_positions}


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

LINEAR_CROSS_ENTROPY: Final = Loss(
    name="linear_cross_entropy",
    module="LinearCrossEntropyLoss",
    forward=linear_cross_entropy_forward,
    backward=linear_cross_entropy_backward,
    formula="cross_entropy(h W^T + b, t)",
    derivative="(softmax - onehot) W",
    differentiated=("input", "weight", "bias"),
    options=("ignore_index", "label_smoothing", "logit_softcap"),
    tests=("tests/experimental/loss/linear_cross_entropy", "tests/torch/functions/linear_cross_entropy"),
    differences="the logits are never in memory; the options have a page of their own",
    launches=(
        ModelledLaunch("forward, none, 4,096 features", True, _forward, {"bfloat16": 1.1}, bounded_by=None),
        ModelledLaunch("backward, 4,096 features", False, _backward, {"bfloat16": 1.1}, bounded_by=None),
    ),
)
