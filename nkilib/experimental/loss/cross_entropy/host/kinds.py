"""The row of the registry of losses for cross-entropy of logits."""

from __future__ import annotations

from typing import Any, Final

from nkilib.core.host.loss import Loss, ModelledLaunch
from nkilib.experimental.loss.cross_entropy import extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.host.tiling import choose_tiling

_POSITIONS, _CLASSES = 4096, 32128


def _arguments(direction: str, dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec
    from nkilib.simulator.terms.dtypes import as_dtype

    tiling = choose_tiling(_POSITIONS, _CLASSES, as_dtype(dtype), direction, extended=True)
    given = {"logits_hbm": spec((_POSITIONS, _CLASSES), dtype), "targets_hbm": spec((_POSITIONS,), "int32")}
    return {**given, "dtype": as_dtype(dtype), **tiling._asdict()}


def _forward(dtype: str) -> dict[str, Any]:
    return _arguments("forward", dtype)


def _backward(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    of_positions = spec((_POSITIONS,), "float32")
    return {**_arguments("backward", dtype), "lse_hbm": of_positions, "grad_loss_hbm": of_positions}


_HELD: Final = {"bfloat16": 1.25, "float32": 1.15}
KINDS: Final = (
    Loss(
        name="cross_entropy",
        module="CrossEntropyLoss",
        forward=extended_cross_entropy_forward,
        backward=extended_cross_entropy_backward,
        formula="log sum_j exp(x_j) - x_t",
        derivative="exp(x) / sum_j exp(x_j) - [j = t]",
        differentiated=("input",),
        options=("weight", "ignore_index", "label_smoothing"),
        tests=("tests/experimental/loss/cross_entropy", "tests/torch/functions/cross_entropy"),
        edges="no class that counts: a mean is NaN",
        differences="no gradient of probabilities as targets; a mean is NaN where weights sum to 0; "
        "further options and results, on the page of PyTorch",
        launches=(
            ModelledLaunch("forward, each", True, _forward, _HELD, held_to=None),
            ModelledLaunch("backward", False, _backward, _HELD),
        ),
    ),
)
