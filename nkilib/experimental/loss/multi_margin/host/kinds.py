"""The row of the registry of losses for the margin between a target and the other classes."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind
from nkilib.core.host.modelled_launches import launched
from nkilib.experimental.loss.multi_margin import multi_margin_loss_backward, multi_margin_loss_forward

_ROWS, _CLASSES = 4096, 32128
_SCORES: Final = {"input": (_ROWS, _CLASSES)}
_TARGETS: Final = {"int32": {"targets": (_ROWS,)}}
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
        tests=("tests/experimental/loss/multi_margin", "tests/torch/functions"),
        edges="a hinge of 0 has no gradient; a mean divides by N, whatever the weights are",
        differences="weights and targets of any floating and any integer type; a NaN in a row is one in its loss, "
        "where PyTorch leaves its hinge out; no infinite margin",
        launches=(
            launched("forward, mean", True, (1.2, 1.05), _SCORES, _TARGETS),
            launched("forward, mean, p = 2", True, (1.75, 1.05), _SCORES, _TARGETS, p=2),
            launched("backward, mean", False, (1.05, 1.05), _SCORES, {**_TARGETS, "float32": {"grad_loss": (1,)}}),
        ),
    ),
)
