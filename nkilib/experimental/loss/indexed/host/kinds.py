"""The row of the registry of losses for negative log-likelihood."""

from __future__ import annotations

from typing import Any, Final

from nkilib.experimental.loss.indexed import nll_loss_backward, nll_loss_forward
from nkilib.loss_kind import LossKind, ModelledLaunch

_POSITIONS, _CLASSES = 4096, 32128


def _forward(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    return {"input_hbm": spec((_POSITIONS, _CLASSES), dtype), "targets_hbm": spec((_POSITIONS,), "int32")}


def _backward(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    one = spec((1,), "float32")
    return {**_forward(dtype), "grad_loss_hbm": one, "total_weight_hbm": one}


KINDS: Final = (
    LossKind(
        name="nll_loss",
        module="NLLLoss",
        forward=nll_loss_forward,
        backward=nll_loss_backward,
        formula="-w_t x_t",
        derivative="-w_t at the target, 0 elsewhere",
        differentiated=("input",),
        options=("weight", "ignore_index"),
        tests=("tests/experimental/loss/indexed", "tests/torch/functions/nll_loss"),
        edges="no class that counts: a mean is NaN, and its gradient 0",
        differences="weights and targets of any floating and any integer type",
        launches=(ModelledLaunch("backward, mean", False, _backward, {"bfloat16": 1.1, "float32": 1.1}),),
    ),
)
