"""The operators ``torch.ops.nkilib.linear_token_scores_*``: those of the linear cross-entropy, without a loss.

Rows are positions: input [N, D], linear_weight [V, D], targets [N] of any integer type. Derivatives are in
:mod:`.autograd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.operator import Call, Input, Output
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.operators import Columns, statistics_outputs
from nkilib.torch.functions.cross_entropy.target_indices import check_range
from nkilib.torch.functions.linear_cross_entropy import operators as of_loss
from nkilib.torch.functions.linear_cross_entropy.operators import (
    LINEAR,
    Product,
    WantedGradients,
    shared_arguments,
    vocabulary,
)
from nkilib.torch.functions.linear_token_scores.results import WantedScores

LINEAR_TOKEN_SCORES: Final = Caller("linear_token_scores", "input", "input", LINEAR.instead)

_WITHOUT: Final = (*of_loss.BACKWARD.without, "label_smoothing", "lse_square_scale")
_ON_REQUEST: Final = {
    **of_loss.FORWARD.on_request,
    "log_sum_squares": "with_log_sum_squares",
    "mean_logit": "with_mean_logit",
}
_RESULTS: Final = (*of_loss.FORWARD.results, "log_sum_squares", "mean_logit")
_FURTHER: Final = (Output("log_sum_squares"), Output("mean_logit"))


def _check_classes(call: Call) -> None:
    """Refuse class indices out of range."""
    check_range(str(LINEAR_TOKEN_SCORES), call.tensor("target"), call.options["ignore_index"], vocabulary(call))


def _forward_arguments(call: Call) -> dict[str, Any]:
    return {**shared_arguments(call), "with_log_sum": True}


def _log_probability(call: Call, found: Mapping[str, Tensor]) -> Tensor:
    return 0.0 - found["loss"]  # a difference, for the negative of 0 has a sign


def _without(inputs: tuple[Input, ...], *names: str) -> tuple[Input, ...]:
    return tuple(each for each in inputs if each.name not in names)


# Results: ScoreResults.
FORWARD: Final = register(
    replace(
        of_loss.FORWARD,
        name="linear_token_scores_forward",
        inputs=_without(tuple(of_loss.FORWARD.inputs), "class_weight"),
        options=(LossOptions, Product, WantedScores),
        without=_WITHOUT,
        outputs=(
            Output("logprob", depends_on=of_loss.OF_LOGITS, computed=_log_probability),
            Output("lse", depends_on=of_loss.OF_LOGITS),
            Output("maximum"),
            Output("log_sum"),
            Output("argmax", torch.int32),
            Output("entropy", depends_on=of_loss.OF_LOGITS),
            *_FURTHER,
        ),
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
    )
)


def _backward_arguments(call: Call) -> dict[str, Any]:
    """The gradient of a log-probability is that of the loss, negated; the kernel skips it where it is ignored."""
    of_logprob = call.tensors["grad_logprob"]
    of_loss_hbm = None if of_logprob is None else (-of_logprob.detach()).contiguous()
    return {**of_loss.backward_arguments(call), "grad_loss_hbm": of_loss_hbm}


def _of_scores(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """The inputs of a backward of the loss, for scores: the gradient of log-probabilities takes the place of its."""
    return tuple(
        Input("grad_logprob", keyword="grad_loss_hbm", is_optional=True) if each.name == "grad_loss" else each
        for each in _without(inputs, "grad_logprob", "class_weight")
    )


BACKWARD: Final = register(
    replace(
        of_loss.BACKWARD,
        name="linear_token_scores_backward",
        inputs=_of_scores(tuple(of_loss.BACKWARD.inputs)),
        options=(LossOptions, Product, WantedGradients),
        without=_WITHOUT,
        arguments=_backward_arguments,
        check_values=_check_classes,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
BACKWARD_ADDING: Final = register(
    replace(
        of_loss.BACKWARD_ADDING,
        name="linear_token_scores_backward_adding",
        inputs=_of_scores(tuple(of_loss.BACKWARD_ADDING.inputs)),
        without=(*_WITHOUT, "grad_weight_wanted"),
        arguments=_backward_arguments,
        check_values=_check_classes,
    )
)

# Of a part of the classes. Results: ShardScores.
SHARD_STATISTICS: Final = register(
    replace(
        of_loss.FORWARD,
        name="linear_token_scores_shard_statistics",
        inputs=_without(tuple(of_loss.FORWARD.inputs), "class_weight", "grad_weight_sum"),
        options=(LossOptions, Product, Columns, WantedScores),
        without=_WITHOUT,
        outputs=(
            *(each for each in statistics_outputs(vocabulary) if each.name not in ("position_weight", "distance_sum")),
            *_FURTHER,
        ),
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=lambda call: {**_forward_arguments(call), "with_target": True},
        check_values=_check_classes,
    )
)
