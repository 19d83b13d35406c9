"""The row of the registry of losses for the margin between a target and the other classes."""

from __future__ import annotations

from typing import Any, Final

from nkilib.experimental.loss.multi_margin import multi_margin_loss_backward, multi_margin_loss_forward
from nkilib.loss_kind import LossKind, ModelledLaunch

_ROWS, _CLASSES = 4096, 32128


def _forward(dtype: str, **options: Any) -> dict[str, Any]:
    from nkilib.simulator import spec

    return {"input_hbm": spec((_ROWS, _CLASSES), dtype), "targets_hbm": spec((_ROWS,), "int32"), **options}


def _backward(dtype: str) -> dict[str, Any]:
    from nkilib.simulator import spec

    return {**_forward(dtype), "grad_loss_hbm": spec((1,), "float32")}


KINDS: Final = (
    LossKind(
        name="multi_margin_loss",
        module="MultiMarginLoss",
        forward=multi_margin_loss_forward,
        backward=multi_margin_loss_backward,
        formula="w_t sum over j != t of relu(x_j - x_t + m)^p / C",
        derivative="w_t p relu(x_j - x_t + m)^(p - 1) / C where positive; minus their sum at the target",
        differentiated=("input",),
        options=("p", "margin", "weight"),
        tests=("tests/experimental/loss/multi_margin", "tests/torch/functions/margins"),
        edges="a hinge of 0 has no gradient; a mean divides by N, whatever the weights are",
        differences="weights and targets of any floating and any integer type; a NaN in a row is one in its loss, and "
        "0 in PyTorch's; no infinite margin",
        launches=(
            ModelledLaunch("forward, mean", True, _forward, {"bfloat16": 1.2, "float32": 1.05}),
            ModelledLaunch(
                "forward, mean, p = 2", True, lambda dtype: _forward(dtype, p=2), {"bfloat16": 1.75, "float32": 1.05}
            ),
            ModelledLaunch("backward, mean", False, _backward, {"bfloat16": 1.05, "float32": 1.05}),
        ),
    ),
)
