"""The row of the registry of losses for the margins between several targets and the other classes."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind
from nkilib.experimental.loss.multilabel_margin import multilabel_margin_loss_backward, multilabel_margin_loss_forward

KINDS: Final = (
    LossKind(
        name="multilabel_margin_loss",
        module="MultiLabelMarginLoss",
        forward=multilabel_margin_loss_forward,
        backward=multilabel_margin_loss_backward,
        formula="sum over targets t and other classes j of relu(1 - x_t + x_j) / C",
        derivative="number of targets with x_t - x_j < 1, over C; minus the number of such classes at a target",
        differentiated=("input",),
        options=(),
        tests=("tests/experimental/loss/multilabel_margin", "tests/torch/functions"),
        edges="targets end at the first -1; one that is there twice counts twice",
        differences="at most 4,096 classes; targets of any integer type; infinite scores count as the largest finite "
        "number",
    ),
)
