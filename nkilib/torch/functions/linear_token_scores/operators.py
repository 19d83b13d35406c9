# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators ``torch.ops.nkilib.linear_token_scores_*``, their options and results, and their derivative.

- for all classes: :data:`FORWARD` returns :class:`ScoreResults`, and :data:`BACKWARD` the gradients.
  :data:`BACKWARD_ADDING` adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
  :data:`DERIVATIVE` joins the three;
- for a shard of the classes: :data:`SHARD_STATISTICS` returns :class:`ShardScores`. :data:`SHARD_BACKWARD` and
  :data:`SHARD_BACKWARD_ADDING` are the backwards;
- :class:`WantedScores`: the options that request scores.

The operators are derived from those of the linear cross-entropy; they have no loss and no class weights. Rows are
positions: input [N, D], linear_weight [V, D], targets of any integer type, [N], or [N, K] for K ids of each position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.experimental import loss as kernels
from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_MAX, TEMPERATURE_MIN, LossOptions
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import Call, Input, Output, Shape
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.operators import Columns, statistics_outputs
from nkilib.torch.functions.linear_cross_entropy import operators as of_loss
from nkilib.torch.functions.linear_cross_entropy.operators import (
    LINEAR,
    Product,
    WantedGradients,
    unrounded,
    vocabulary,
)
from nkilib.torch.losses.indexed import check_range
from nkilib.torch.losses.temperatures import TEMPERATURES, check_temperatures


@dataclass(frozen=True)
class WantedScores:
    """The options by which a call requests scores. Log-probability and log-sum-exp have no option: they cost nothing
    extra.
    """

    with_argmax: bool = False
    with_entropy: bool = False
    with_log_sum_squares: bool = False
    with_mean_logit: bool = False


class ScoreResults(NamedTuple):
    """The results of the forward operator, [N] float32 each except for ``argmax``, int32. A result that is not
    requested is [0].

    With K target ids of each position, ``logprob`` is [N, K].

    Attributes:
        logprob, lse, argmax, entropy, log_sum_squares, mean_logit: see :class:`~nkilib.torch.LinearTokenScores`.
        maximum: the largest logit; the lowest float32 if all are -inf.
        log_sum: the log of the sum of exp(logit - maximum), in nats.
    """

    logprob: Tensor
    lse: Tensor
    maximum: Tensor
    log_sum: Tensor
    argmax: Tensor
    entropy: Tensor
    log_sum_squares: Tensor
    mean_logit: Tensor


class ShardScores(NamedTuple):
    """The scores for each position over one shard of the vocabulary, [N] float32 each. A score that is not requested is
    [0].

    With K target ids of each position, ``target_logit`` is [N, K].

    Attributes:
        maximum, log_sum, target_logit, argmax, entropy: see ``ShardStatistics``.
        log_sum_squares: log of the sum of p^2, for the softmax p over the shard's classes alone.
        mean_logit: the mean of z over the shard's classes that no bias of -inf masks.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    argmax: Tensor
    entropy: Tensor
    log_sum_squares: Tensor
    mean_logit: Tensor


LINEAR_TOKEN_SCORES: Final = Caller("linear_token_scores", "input", "input", LINEAR.instead)

_WITHOUT: Final = (*of_loss.BACKWARD.without, "label_smoothing", "lse_square_scale")
_ON_REQUEST: Final = {
    "target_logit": "with_target",
    "argmax": "with_argmax",
    "entropy": "with_entropy",
    "log_sum_squares": "with_log_sum_squares",
    "mean_logit": "with_mean_logit",
}
_RESULTS: Final = (
    *("logprob", "lse", "target_logit", "argmax", "entropy", "maximum", "log_sum"),
    *("log_sum_squares", "mean_logit"),
)
_FURTHER: Final = (Output("log_sum_squares"), Output("mean_logit"))
# The statistics of a shard that the loss needs, and no score.
_OF_LOSS_ALONE: Final = ("position_weight", "distance_sum")


def _check_classes(call: Call) -> None:
    target = call.tensor("target").reshape(-1)
    check_range(str(LINEAR_TOKEN_SCORES), target, call.options["ignore_index"], vocabulary(call))
    check_temperatures(LINEAR_TOKEN_SCORES, call.tensors.get(TEMPERATURES.name), TEMPERATURE_MIN, TEMPERATURE_MAX)


def _with_ids(call: Call, shared: dict[str, Any]) -> dict[str, Any]:
    targets: Tensor = shared["targets_hbm"]
    return {**shared, "targets_hbm": targets.reshape(call.first.shape[0], -1)}


def _forward_arguments(call: Call) -> dict[str, Any]:
    return {**_with_ids(call, of_loss.shared_arguments(call)), "with_log_sum": True}


def _as_target(call: Call) -> Shape:
    return tuple(call.tensor("target").shape)


def _of_each_id(output: Output) -> Output:
    """Return a copy of the output description ``target_logit`` with one logit for each id, in the shape of the targets;
    return any other description unchanged.
    """
    if output.name != "target_logit":
        return output
    return replace(
        output, shape=_as_target, computed=lambda call, results: results["target_logit"].reshape(_as_target(call))
    )


def _log_probability(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    return results["logprob"].reshape(_as_target(call)) + 0.0  # the negative of 0 has a sign


def _without(inputs: tuple[Input, ...], *names: str) -> tuple[Input, ...]:
    return tuple(operand for operand in inputs if operand.name not in names)


def _with_any_ids(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    return tuple(replace(operand, dimensions=None) if operand.name == "target" else operand for operand in inputs)


# Results: ScoreResults.
FORWARD: Final = register(
    replace(
        of_loss.FORWARD,
        name="linear_token_scores_forward",
        inputs=_with_any_ids(_without(tuple(of_loss.FORWARD.inputs), "class_weight")),
        options=(LossOptions, Product, WantedScores),
        without=_WITHOUT,
        outputs=(
            Output("logprob", shape=_as_target, depends_on=of_loss.OF_LOGITS, computed=_log_probability),
            Output("lse", depends_on=of_loss.OF_LOGITS),
            Output("maximum"),
            Output("log_sum"),
            Output("argmax", torch.int32),
            Output("entropy", depends_on=of_loss.OF_LOGITS),
            *_FURTHER,
        ),
        kernel=lambda: kernels.linear_token_scores_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
    )
)


def _backward_arguments(call: Call) -> dict[str, Any]:
    of_logprob, arguments = call.tensors["grad_logprob"], _with_ids(call, of_loss.backward_arguments(call))
    if of_logprob is not None:
        of_logprob = of_logprob.detach().reshape(call.first.shape[0], -1).contiguous()
    return {**arguments, "grad_logprob_hbm": of_logprob}


def _of_scores(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """Return the inputs of the backward of the scores: those of the loss's backward (``inputs``), with ``grad_logprob``
    in place of ``grad_loss``.
    """
    return _with_any_ids(
        tuple(
            Input("grad_logprob", is_optional=True) if operand.name == "grad_loss" else operand
            for operand in _without(inputs, "grad_logprob", "class_weight")
        )
    )


BACKWARD: Final = register(
    replace(
        of_loss.BACKWARD,
        name="linear_token_scores_backward",
        inputs=_of_scores(tuple(of_loss.BACKWARD.inputs)),
        options=(LossOptions, Product, WantedGradients),
        without=_WITHOUT,
        kernel=lambda: kernels.linear_token_scores_backward,
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
        kernel=lambda: kernels.linear_token_scores_backward,
        arguments=_backward_arguments,
        check_values=_check_classes,
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, adding=BACKWARD_ADDING)

# For a part of the classes, like all operators below. Results: ShardScores.
SHARD_STATISTICS: Final = register(
    replace(
        FORWARD,
        name="linear_token_scores_shard_statistics",
        inputs=_without(tuple(FORWARD.inputs), "grad_weight_sum"),
        options=(LossOptions, Product, Columns, WantedScores),
        outputs=(
            *(_of_each_id(result) for result in statistics_outputs(vocabulary) if result.name not in _OF_LOSS_ALONE),
            *_FURTHER,
        ),
        arguments=lambda call: {**_forward_arguments(call), "with_target": True},
    )
)


def _shard_backward_arguments(call: Call) -> dict[str, Any]:
    return {**_backward_arguments(call), "grad_input_float32": True}


SHARD_BACKWARD: Final = register(
    replace(
        BACKWARD,
        name="linear_token_scores_shard_backward",
        options=(LossOptions, Product, Columns, WantedGradients),
        outputs=tuple(unrounded(result) for result in BACKWARD.outputs),
        arguments=_shard_backward_arguments,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
SHARD_BACKWARD_ADDING: Final = register(
    replace(
        BACKWARD_ADDING,
        name="linear_token_scores_shard_backward_adding",
        options=(LossOptions, Product, Columns, WantedGradients),
        outputs=tuple(unrounded(result) for result in BACKWARD_ADDING.outputs),
        arguments=_shard_backward_arguments,
    )
)
