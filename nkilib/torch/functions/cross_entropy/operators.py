# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators ``torch.ops.nkilib.cross_entropy_*``, their options and results, and their derivative.

- :data:`FORWARD`, ``cross_entropy_forward``: the loss and the scores of each position, :class:`ForwardResults`;
- :data:`SHARD_STATISTICS`, ``cross_entropy_shard_statistics``: the statistics of one shard of the vocabulary,
  :class:`ShardStatistics`;
- :data:`BACKWARD`, ``cross_entropy_backward``: the gradient of the logits, of all classes or of a shard's;
- :data:`DERIVATIVE`, with :func:`probability_gradients` for gradients that no kernel computes;
- :class:`Wanted`, :class:`Columns`, :class:`Sums`: options beside those of the loss.

Rows are positions: logits [N, V], targets [N] of any integer type or class probabilities [N, V]. :mod:`.functional`
implements PyTorch's shapes and reductions. The kernels compute the gradient of the logits; PyTorch's operators compute
the gradients of class probabilities and of their class weights, and only if one of the two requires grad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.experimental import loss as kernels
from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_MAX, TEMPERATURE_MIN, LossOptions
from nkilib.torch.dispatch.autograd import OnceDifferentiable, differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import TILE_DTYPES, Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.checks import LossKeywords
from nkilib.torch.losses.indexed import check_range, is_ignored, kernel_target
from nkilib.torch.losses.temperatures import TEMPERATURES, check_temperatures

CROSS_ENTROPY: Final = Caller("cross_entropy", "input", "logits", "torch.nn.functional.cross_entropy")
VOCAB_PARALLEL: Final = Caller("vocab_parallel_cross_entropy", "logits_shard", "logits", CROSS_ENTROPY.instead)


@dataclass(frozen=True)
class Wanted:
    """The options by which a call requests results beside the loss.

    Only the forward operator has ``with_logprob``, and only the operator for a shard of the vocabulary has
    ``with_distance_sum``.
    """

    with_logprob: bool = False
    with_distance_sum: bool = False
    with_argmax: bool = False
    with_entropy: bool = False


@dataclass(frozen=True)
class Columns:
    """The classes of the columns of the logits; the fields have the names of the kernels' arguments.

    The maximum, log_sum and other reductions that the backward takes as inputs are over all classes, even if the
    columns are a shard.

    Attributes:
        first_class: the class of the first column.
        num_classes: V, the number of classes in all shards of the vocabulary; None if the columns are all classes.
    """

    first_class: int = 0
    num_classes: int | None = None


@dataclass(frozen=True)
class Sums:
    """A sum over all classes, as an option of the backward of a shard, whose kernel sees only the shard's classes.

    Attributes:
        weight_sum: the sum of all class weights, for label smoothing; None if the kernel computes it.
    """

    weight_sum: float | None = None


class ForwardResults(NamedTuple):
    """The results of the forward operator, [N] each; a result that is not requested is empty, [0].

    Attributes:
        loss: float32, 0 at ignored positions.
        lse: float32, log-sum-exp of the (capped) logits.
        logprob: float32, log-probability of the target, 0 at ignored positions; always [0] for class probabilities.
        position_weight: float32, the position's summand in the divisor of a mean: the class weight of the target, 0 at
            ignored positions. With class probabilities, the sum of the weighted and smoothed probabilities.
        maximum: float32, the largest (capped) logit; the lowest float32 if all are -inf.
        log_sum: float32, log of the sum of exp(logit - maximum), in nats.
        argmax: int32, the first class with the largest logit.
        entropy: float32, the entropy of the softmax of the (capped) logits, in nats.
    """

    loss: Tensor
    lse: Tensor
    logprob: Tensor
    position_weight: Tensor
    maximum: Tensor
    log_sum: Tensor
    argmax: Tensor
    entropy: Tensor


class ShardStatistics(NamedTuple):
    """The statistics of each position over one shard of the vocabulary, [N] float32 unless stated otherwise.

    Attributes:
        maximum: the largest (capped) logit of the shard; the lowest float32 if all are -inf.
        log_sum: log of the sum of exp(logit - maximum), in nats.
        target_logit: the (capped) logit of the target if the shard holds it, else 0, as at ignored positions.
        position_weight: the class weight of the target if the shard holds it, else 0; with class probabilities, the sum
            of the weighted and smoothed probabilities of the shard's classes.
        distance_sum: the sum over the shard's classes of f * (maximum - (capped) logit), where f is the class weight,
            or with class probabilities the weighted and smoothed probability; [0] if not requested.
        argmax: int32, the first class of the shard with the largest logit; [0] if not requested.
        entropy: the entropy of the softmax over the shard alone, in nats; [0] if not requested.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    position_weight: Tensor
    distance_sum: Tensor
    argmax: Tensor
    entropy: Tensor


def _vocabulary(call: Call) -> int:
    known: int | None = call.options.get("num_classes")
    return call.first.shape[1] if known is None else known


def _arguments(call: Call, direction: str) -> dict[str, Any]:
    """Return keyword arguments of the kernel beside inputs and options, or in their place, such as int32 targets.

    Args:
        call: the call of the operator.
        direction: ``"forward"`` or ``"backward"``.
    """
    logits, vocabulary = call.first, _vocabulary(call)
    classes, ignore_index = kernel_target(call.tensor("target"), call.options["ignore_index"], vocabulary)
    positions, columns = logits.shape
    tiling = kernels.choose_tiling(positions, columns, logits.dtype, direction, extended=True)
    return {
        "targets_hbm": classes.detach(),
        "ignore_index": ignore_index,
        "dtype": TILE_DTYPES[logits.dtype],
        **tiling._asdict(),
    }


def _log_probability(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    ignored = is_ignored(call.tensor("target"), call.options["ignore_index"])
    return torch.where(ignored, 0.0, (results["target_logit"] - results["maximum"]) - results["log_sum"])


def _has_classes(call: Call) -> bool:
    return not call.tensor("target").is_floating_point()


def _check_classes(call: Call) -> None:
    caller = CROSS_ENTROPY if call.options.get("num_classes") is None else VOCAB_PARALLEL
    vocabulary = _vocabulary(call)
    check_range(str(caller), call.tensor("target"), call.options["ignore_index"], vocabulary)
    check_temperatures(caller, call.tensors.get(TEMPERATURES.name), TEMPERATURE_MIN, TEMPERATURE_MAX)


_LOGITS: Final = Input("logits", dimensions=2, dtypes=tuple(TILE_DTYPES))
_TARGET: Final = Input("target", keyword="targets_hbm")
_CLASS_WEIGHT: Final = Input("class_weight", is_optional=True)
_ON_REQUEST: Final = {name: f"with_{name}" for name in ("argmax", "entropy", "distance_sum")}
_RESULTS: Final = ("loss", "lse", "target_logit", "position_weight", *_ON_REQUEST, "maximum", "log_sum")


def _forward_arguments(call: Call) -> dict[str, Any]:
    return {**_arguments(call, "forward"), "with_log_sum": True}


# Results: ForwardResults.
FORWARD: Final = register(
    Operator(
        "cross_entropy_forward",
        inputs=(_LOGITS, _TARGET, _CLASS_WEIGHT, TEMPERATURES),
        options=(LossOptions, Wanted),
        without=("with_distance_sum",),
        outputs=(
            Output("loss"),
            Output("lse", depends_on=("logits",)),
            Output("logprob", depends_on=("logits",), exists=_has_classes, computed=_log_probability),
            Output("position_weight"),
            Output("maximum"),
            Output("log_sum"),
            Output("argmax", torch.int32),
            Output("entropy", depends_on=("logits",)),
        ),
        kernel=lambda: kernels.extended_cross_entropy_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
        instead=CROSS_ENTROPY.instead,
    )
)


def statistics_outputs(vocabulary: Callable[[Call], int]) -> tuple[Output, ...]:
    """Return the outputs that make up :class:`ShardStatistics`, filled with the values for a shard without classes.

    Args:
        vocabulary: a function that returns V for a call.
    """
    return (
        Output("maximum", fill=torch.finfo(torch.float32).min),
        Output("log_sum", fill=-torch.inf),
        Output("target_logit"),
        Output("position_weight"),
        Output("distance_sum"),
        Output("argmax", torch.int32, fill=vocabulary),
        Output("entropy"),
    )


# Results: ShardStatistics.
SHARD_STATISTICS: Final = register(
    Operator(
        "cross_entropy_shard_statistics",
        inputs=(_LOGITS, _TARGET, _CLASS_WEIGHT, TEMPERATURES),
        options=(LossOptions, Columns, Wanted),
        without=("with_logprob", "lse_square_scale"),  # which take the target and the lse of all shards
        outputs=statistics_outputs(_vocabulary),
        kernel=lambda: kernels.extended_cross_entropy_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
        instead=CROSS_ENTROPY.instead,
    )
)


def _weight_of_probabilities(call: Call, results: Mapping[str, Tensor]) -> Tensor | None:
    """Return the forward's ``position_weight`` if the targets are class probabilities, for the backward; None for class
    indices.

    With ``position_weight`` the backward need not read the probabilities twice.
    """
    return None if _has_classes(call) else results["position_weight"]


def entropy_if_given(call: Call, results: Mapping[str, Tensor]) -> Tensor | None:
    """Return the forward's entropy, which is an input of the backward; None if the call did not request the entropy."""
    return results["entropy"] if call.options["with_entropy"] else None


def _backward_arguments(call: Call) -> dict[str, Any]:
    lse = call.tensor("maximum") + call.tensor("log_sum")
    arguments = {**_arguments(call, "backward"), "lse_hbm": lse.detach().contiguous()}
    if call.tensors.get("grad_entropy") is None:  # the kernel takes both or neither
        arguments["entropy_hbm"] = None
    return arguments


BACKWARD: Final = register(
    Operator(
        "cross_entropy_backward",
        inputs=(
            _LOGITS,
            _TARGET,
            Input("maximum"),
            Input("log_sum"),
            Input("grad_loss"),
            Input("grad_lse", is_optional=True),
            Input("grad_logprob", is_optional=True),
            _CLASS_WEIGHT,
            Input("target_weight", is_optional=True, saved=_weight_of_probabilities),
            Input("entropy", is_optional=True, saved=entropy_if_given),
            Input("grad_entropy", is_optional=True),
            TEMPERATURES,
        ),
        options=(LossOptions, Columns, Sums),
        without=("exact_maximum",),  # the backward takes no maximum
        outputs=(Output("grad_logits", None, as_first),),
        kernel=lambda: kernels.extended_cross_entropy_backward,
        arguments=_backward_arguments,
        may_overwrite=True,
        check_values=_check_classes,
        instead=CROSS_ENTROPY.instead,
    )
)


def _gradients_of_probabilities(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    maximum: Tensor,
    log_sum: Tensor,
    grad_loss: Tensor,
    temperatures: Tensor | None,
    options: LossKeywords,
    num_classes: int,
    needs_target: bool,
    needs_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the losses with respect to ``target`` and ``class_weight``.

    The loss of a position is ``sum_k w[k] * y'[k] * (lse - z[k])``, with class weights w and y' = (1 - e) * y + e /
    num_classes for label smoothing e. The computation takes several times the memory of the logits, in float32.

    Args:
        logits: [N, V], before cap and temperature.
        target: [N, V], class probabilities y.
        class_weight: [V] float32; None means 1.
        maximum, log_sum: [N] float32; their sum is the lse of z, the logits after cap and temperature.
        grad_loss: [N] float32, the upstream gradient of every position's loss.
        temperatures: [N] or [1] float32, or None.
        options: the options of the forward.
        num_classes: the number of classes that smoothing spreads over; more than V if the logits are a shard.
        needs_target, needs_weight: whether each gradient is requested.

    Returns:
        The gradients of ``target``, in its dtype, and of ``class_weight``, [V] float32; None for a gradient that is not
        requested.
    """
    z = logits.to(torch.float32)
    if options["logit_softcap"] is not None:
        capped = options["logit_softcap"] * torch.tanh(z / options["logit_softcap"])
        z = torch.where(z.isneginf(), z, capped)
    z = z / options["temperature"] if temperatures is None else z / temperatures[:, None]
    log_sum = log_sum + 0.0 * log_sum  # NaN where it is infinite: the row has no softmax
    scaled_nll = ((maximum[:, None] - z) + log_sum[:, None]) * grad_loss[:, None]  # large logits cancel exactly
    kept = 1.0 - options["label_smoothing"]
    grad_target = grad_weight = None
    if needs_target:
        grad_target = (kept * (scaled_nll if class_weight is None else scaled_nll * class_weight)).to(target.dtype)
    if needs_weight:
        smoothed = kept * target.to(torch.float32) + options["label_smoothing"] / max(num_classes, 1)
        grad_weight = (smoothed * scaled_nll).sum(0)
    return grad_target, grad_weight


def probability_gradients(call: Call, needed: Mapping[str, bool]) -> dict[str, Tensor | None]:
    """Return the gradients of class probabilities and of class weights, by the name of the input.

    A gradient that is not needed is None or missing.

    Args:
        call: the call of the backward.
        needed: for each input, whether it needs a gradient.
    """
    needs_target, needs_weight = needed["target"], needed["class_weight"]
    grad_loss = call.tensors.get("grad_loss")
    if grad_loss is None or not (needs_target or needs_weight):
        return {}
    apply: Callable[..., Tensor] = OnceDifferentiable.apply
    logits = apply(BACKWARD, call.first)
    target, weight = _gradients_of_probabilities(
        logits,
        call.tensor("target"),
        call.tensors["class_weight"],
        call.tensor("maximum"),
        call.tensor("log_sum"),
        grad_loss,
        call.tensors.get(TEMPERATURES.name),
        call.options,
        _vocabulary(call),
        needs_target,
        needs_weight,
    )
    return {"target": target, "class_weight": weight}


DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, probability_gradients)
