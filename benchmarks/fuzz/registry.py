# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The public names of nkilib.torch that are drawn, by family, and those that are not, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks.fuzz.call import Call
from benchmarks.fuzz.draw import Draw
from benchmarks.fuzz.families import (
    cross_entropy,
    ctc_loss,
    distillation,
    elementwise,
    linear_cross_entropy,
    linear_distillation,
    linear_token_scores,
    margins,
    nll_loss,
    rowwise,
    softmax,
)


class Fuzzed(NamedTuple):
    """A function that is drawn.

    Attributes:
        drawn: makes a call of it.
        share: how often it is drawn, beside the shares of the others: plans of many branches more often.
        modules: public names of modules that some calls go through.
    """

    drawn: Callable[[Draw, str], Call]
    share: float = 1.0
    modules: tuple[str, ...] = ()


FUZZED: Final[dict[str, Fuzzed]] = {
    "linear_cross_entropy": Fuzzed(linear_cross_entropy.drawn, 8.0, ("LinearCrossEntropyLoss",)),
    "vocab_parallel_linear_cross_entropy": Fuzzed(linear_cross_entropy.drawn, 2.0),
    "linear_token_scores": Fuzzed(linear_token_scores.drawn, 4.0),
    "linear_distillation_loss": Fuzzed(linear_distillation.drawn, 4.0, ("LinearDistillationLoss",)),
    "cross_entropy": Fuzzed(cross_entropy.drawn, 5.0, ("CrossEntropyLoss",)),
    "vocab_parallel_cross_entropy": Fuzzed(cross_entropy.drawn, 2.0),
    "token_scores": Fuzzed(cross_entropy.drawn, 2.0),
    "softmax": Fuzzed(softmax.drawn, 4.0, ("Softmax", "Softmax2d")),
    "log_softmax": Fuzzed(softmax.drawn, 4.0, ("LogSoftmax",)),
    "distillation_loss": Fuzzed(distillation.drawn, 3.0, ("DistillationLoss",)),
    "nll_loss": Fuzzed(nll_loss.drawn, 2.0, ("NLLLoss",)),
    "ctc_loss": Fuzzed(ctc_loss.drawn, 2.0, ("CTCLoss",)),
    "multi_margin_loss": Fuzzed(margins.drawn, 2.0, ("MultiMarginLoss",)),
    "multilabel_margin_loss": Fuzzed(margins.drawn, 1.0, ("MultiLabelMarginLoss",)),
    **{name: Fuzzed(elementwise.drawn, 1.0, (module,)) for name, module in elementwise.MODULES.items()},
    **{name: Fuzzed(rowwise.drawn, 2.0, (module,)) for name, module in rowwise.MODULES.items()},
}

EXCLUDED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("FusedCalls", "LogitsComputedWarning", "Undo", "fused_calls"), "no tensors: the record of a model"
    ),
    **dict.fromkeys(
        ("LazyLogits", "fuse_linear_loss"), "a model's output layer: tests/torch/lazy_logits, by class of model"
    ),
    "CrossEntropyOutputs": "a type of results, which calls with return_outputs give",
    "LinearDistillationOutputs": "a type of results, which linear_distillation_loss with outputs gives",
    "LinearTokenScores": "a type of results, which linear_token_scores gives",
    "TokenScores": "a type of results, which token_scores gives",
    "int32_targets": "a check and a cast on the host: no kernel runs",
}


def function_of(draw: Draw) -> str:
    """A function, drawn by the shares."""
    names = list(FUZZED)
    shares = [FUZZED[name].share for name in names]
    total = sum(shares)
    return names[int(draw.rng.choice(len(names), p=[share / total for share in shares]))]
