"""The row of the registry of losses for connectionist temporal classification."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind
from nkilib.experimental.loss.ctc import ctc_loss_backward, ctc_loss_forward

KINDS: Final = (
    LossKind(
        name="ctc_loss",
        module="CTCLoss",
        forward=ctc_loss_forward,
        backward=ctc_loss_backward,
        formula="-log sum of prod_t p_t(a_t) over alignments a of the target",
        derivative="exp(x) - occupancy, as PyTorch's, whose x come from log_softmax",
        differentiated=("log_probs",),
        options=("blank", "zero_infinity"),
        tests=("tests/experimental/loss/ctc", "tests/torch/functions"),
        edges="no alignment: inf and NaN gradients, 0 and 0 with zero_infinity; a class of probability 0 that no label "
        "is has gradient 0, where PyTorch has NaN",
        differences="bfloat16 and float16; a label that is no class has probability 0; gradients are those of "
        "the loss also where the blank is among the labels; limits of classes and of labels, below",
    ),
)
