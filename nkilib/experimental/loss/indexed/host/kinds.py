"""The row of the registry of losses for negative log-likelihood."""

from __future__ import annotations

from typing import Final

from nkilib.base.loss_kind import LossKind
from nkilib.core.host.modelled_launches import launched
from nkilib.experimental.loss.indexed import nll_loss_backward, nll_loss_forward

_POSITIONS, _CLASSES = 4096, 32128


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
        tests=("tests/experimental/loss/indexed", "tests/torch/functions"),
        edges="no class that counts: a mean is NaN, and its gradient 0",
        differences="weights and targets of any floating and any integer type",
        launches=(
            launched(
                "backward, mean",
                False,
                (1.1, 1.1),
                {"input": (_POSITIONS, _CLASSES)},
                {"int32": {"targets": (_POSITIONS,)}, "float32": {"grad_loss": (1,), "total_weight": (1,)}},
            ),
        ),
    ),
)
