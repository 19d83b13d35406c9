"""The row of the registry of losses for cross-entropy of hidden states and output weights."""

from __future__ import annotations

from typing import Any, Final

from nkilib.core.host.loss import Loss, ModelledLaunch
from nkilib.experimental.loss.linear_cross_entropy import linear_cross_entropy_backward, linear_cross_entropy_forward

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


KINDS: Final = (
    Loss(
        name="linear_cross_entropy",
        module="LinearCrossEntropyLoss",
        forward=linear_cross_entropy_forward,
        backward=linear_cross_entropy_backward,
        formula="cross_entropy(h W^T + b, t)",
        derivative="(softmax - onehot) W",
        differentiated=("input", "weight", "bias"),
        options=("ignore_index", "label_smoothing", "logit_softcap"),
        tests=("tests/experimental/loss/linear_cross_entropy", "tests/torch/functions/linear_cross_entropy"),
        differences="logits are never in memory; options on a page of its own",
        launches=(
            ModelledLaunch("forward, each, 4,096 features", True, _forward, {"bfloat16": 1.1}, held_to=None),
            ModelledLaunch("backward, 4,096 features", False, _backward, {"bfloat16": 1.1}, held_to=None),
        ),
    ),
)
