# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators ``torch.ops.nkilib.linear_cross_entropy_*``, their options and their derivative.

- :data:`FORWARD`: the loss and the scores of each position; :data:`BACKWARD`: the gradients; :data:`BACKWARD_ADDING`:
  the gradients, with that of the weight added to ``grad_weight_sum``; :data:`DERIVATIVE` joins the three;
- :data:`WITH_GRADIENTS`: loss and gradients in a single launch;
- :data:`SHARD_STATISTICS`, :data:`SHARD_BACKWARD`, :data:`SHARD_BACKWARD_ADDING`: forward and backward for a part of
  the classes. Their results that are summed over the parts are float32: the statistics of positions, and the gradient
  of the input (:func:`unrounded`);
- :class:`Product`, :class:`WantedGradients` (:func:`wanted_gradients`), :class:`Scratch`: further options.

Rows are positions: input [N, D], linear_weight [V, D], targets [N] of any integer type, for N positions, D features
and V classes. Other functions of hidden states describe their operators with the same outputs (:data:`GRADIENTS`,
:data:`GRADIENTS_ON_REQUEST`, :data:`GRAD_INPUT`, :data:`GRAD_LINEAR_BIAS`), inputs (:data:`GRAD_WEIGHT_SUM`,
:data:`SUM_FOR_BACKWARD`), kernel arguments (:func:`shared_arguments`, :func:`backward_arguments`,
:func:`compute_dtype_argument`, :func:`bias_if_given`), :data:`DTYPES`, :data:`DTYPE_NAMES` and :func:`vocabulary`.
:data:`LINEAR` and :data:`VOCAB_PARALLEL_LINEAR` are the functions that error messages name. :data:`OF_LOGITS` are the
inputs with respect to which results have derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.core.host.options import options_of
from nkilib.experimental import loss as kernels
from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_MAX, TEMPERATURE_MIN, LossOptions
from nkilib.experimental.loss.linear.launch import SCRATCH_BYTES
from nkilib.torch.dispatch.autograd import differentiate, differentiate_by_results
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import TILE_DTYPES, Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.operators import Columns, Sums, Wanted, entropy_if_given, statistics_outputs
from nkilib.torch.losses.indexed import check_range, is_ignored, kernel_target
from nkilib.torch.losses.temperatures import TEMPERATURES, check_temperatures

LINEAR: Final = Caller("linear_cross_entropy", "input", "input", "torch.nn.functional.linear_cross_entropy")
VOCAB_PARALLEL_LINEAR: Final = Caller("vocab_parallel_linear_cross_entropy", "input", "input", LINEAR.instead)
# The dtypes of input, weight and products, and their names.
DTYPE_NAMES: Final = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float16: "float16"}
DTYPES: Final = tuple(DTYPE_NAMES)


@dataclass(frozen=True)
class WantedGradients:
    """The options by which a call requests gradients. A gradient that is not requested is not computed."""

    grad_input_wanted: bool = True
    grad_weight_wanted: bool = True
    grad_bias_wanted: bool = True


def wanted_gradients(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> WantedGradients | None:
    """Return requests for the gradients of the tensors that require grad; None if no tensor does, or gradients are
    disabled.
    """
    if not torch.is_grad_enabled():
        return None
    of_bias = linear_bias is not None and linear_bias.requires_grad
    wanted = WantedGradients(input.requires_grad, linear_weight.requires_grad, of_bias)
    return wanted if wanted != WantedGradients(False, False, False) else None


@dataclass(frozen=True)
class Scratch:
    """The option ``scratch_bytes``: the HBM bytes that the logits of one block of positions may use."""

    scratch_bytes: int = SCRATCH_BYTES


@dataclass(frozen=True)
class Product:
    """The options of the product of hidden states and weight, whose result is the logits.

    Attributes:
        logit_scale: the factor of the product with its bias, applied before cap and temperature.
        compute_dtype: the name of the dtype that operands of another dtype are rounded to; None if all operands have
            the same dtype.
    """

    logit_scale: float = 1.0
    compute_dtype: str | None = None


def _as_weight(call: Call) -> Shape:
    return tuple(call.tensor("linear_weight").shape)


def _dtype_of_weight(call: Call) -> torch.dtype:
    return call.tensor("linear_weight").dtype


def _classes(call: Call) -> Shape:
    return _as_weight(call)[:1]


def _has_bias(call: Call) -> bool:
    return call.tensors["linear_bias"] is not None


def vocabulary(call: Call) -> int:
    """Return V, the number of classes of all ranks, also if the call's weight has only one rank's part of the
    classes.
    """
    known: int | None = call.options.get("num_classes")
    return _as_weight(call)[0] if known is None else known


def _check_classes(call: Call) -> None:
    caller = LINEAR if call.options.get("num_classes") is None else VOCAB_PARALLEL_LINEAR
    check_range(str(caller), call.tensor("target"), call.options["ignore_index"], vocabulary(call))
    check_temperatures(caller, call.tensors.get(TEMPERATURES.name), TEMPERATURE_MIN, TEMPERATURE_MAX)


def compute_dtype_argument(call: Call) -> dict[str, Any]:
    """Return the kernel's argument ``compute_dtype``, an NKI type. The operator's option is the name of a dtype."""
    name = call.options["compute_dtype"]
    return {"compute_dtype": None if name is None else TILE_DTYPES[getattr(torch, name)]}


def shared_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments of every kernel that differ from the operator's input or option: the int32 classes
    ``targets_hbm``, their ``ignore_index``, and ``compute_dtype``, an NKI type.
    """
    classes, ignore_index = kernel_target(call.tensor("target"), call.options["ignore_index"], vocabulary(call))
    return {"targets_hbm": classes.detach(), "ignore_index": ignore_index, **compute_dtype_argument(call)}


_INPUT: Final = Input("input", dimensions=2, dtypes=DTYPES)
_LINEAR_WEIGHT: Final = Input("linear_weight", keyword="weight_hbm", dimensions=2, dtypes=DTYPES)
_TARGET: Final = Input("target", keyword="targets_hbm", dimensions=1)
_LINEAR_BIAS: Final = Input("linear_bias", keyword="bias_hbm", is_optional=True, dimensions=1, dtypes=(torch.float32,))
_CLASS_WEIGHT: Final = Input("class_weight", is_optional=True, dimensions=1, dtypes=(torch.float32,))
GRAD_WEIGHT_SUM: Final = Input("grad_weight_sum", dimensions=2, dtypes=(torch.float32,))
SUM_FOR_BACKWARD: Final = Input("grad_weight_sum", is_optional=True, is_for_backward=True)

GRAD_INPUT: Final = Output("grad_input", None, as_first, requested_by="grad_input_wanted")
_GRAD_LINEAR_WEIGHT: Final = Output(
    "grad_linear_weight", _dtype_of_weight, _as_weight, requested_by="grad_weight_wanted"
)
GRAD_LINEAR_BIAS: Final = Output("grad_linear_bias", shape=_classes, exists=_has_bias, requested_by="grad_bias_wanted")
GRADIENTS: Final = (GRAD_INPUT, _GRAD_LINEAR_WEIGHT, GRAD_LINEAR_BIAS)
GRADIENTS_ON_REQUEST: Final = {output.name: output.request for output in GRADIENTS}

# The options of the loss that these kernels have.
_OPTIONS: Final = ("ignore_index", "label_smoothing", "logit_softcap", "lse_square_scale", "temperature")
_WITHOUT: Final = tuple(option.name for option in options_of(LossOptions) if option.name not in _OPTIONS)
_ON_REQUEST: Final = {
    "target_logit": "with_target",
    "position_weight": "with_target",
    "argmax": "with_argmax",
    "entropy": "with_entropy",
    "distance_sum": "with_distance_sum",
}
_RESULTS: Final = ("loss", "lse", *_ON_REQUEST, "maximum", "log_sum")


def _forward_arguments(call: Call) -> dict[str, Any]:
    with_target = call.options["with_logprob"] or call.tensors["class_weight"] is not None
    return {**shared_arguments(call), "with_target": with_target, "with_log_sum": True}


def _counts(call: Call) -> Tensor:
    return ~is_ignored(call.tensor("target"), call.options["ignore_index"])


def _log_probability(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    return torch.where(_counts(call), (results["target_logit"] - results["maximum"]) - results["log_sum"], 0.0)


def _position_weight(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    if call.tensors["class_weight"] is None:  # no kernel is needed for it
        return _counts(call).to(torch.float32)
    return results["position_weight"]


# The inputs that differentiable results depend on.
OF_LOGITS: Final = ("input", "linear_weight", "linear_bias")

# Results: :class:`~nkilib.torch.functions.cross_entropy.operators.ForwardResults`.
FORWARD: Final = register(
    Operator(
        "linear_cross_entropy_forward",
        inputs=(_INPUT, _LINEAR_WEIGHT, _TARGET, _LINEAR_BIAS, _CLASS_WEIGHT, SUM_FOR_BACKWARD, TEMPERATURES),
        options=(LossOptions, Product, Wanted),
        without=(*_WITHOUT, "with_distance_sum"),
        outputs=(
            Output("loss", depends_on=OF_LOGITS),
            Output("lse", depends_on=OF_LOGITS),
            Output("logprob", depends_on=OF_LOGITS, computed=_log_probability),
            Output("position_weight", computed=_position_weight),
            Output("maximum"),
            Output("log_sum"),
            Output("argmax", torch.int32),
            Output("entropy", depends_on=OF_LOGITS),
        ),
        kernel=lambda: kernels.linear_cross_entropy_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_forward_arguments,
        check_values=_check_classes,
        instead=LINEAR.instead,
    )
)


def bias_if_given(call: Call) -> dict[str, Any]:
    """Return the argument of a backward kernel that switches the bias's gradient off if the call has no bias; else an
    empty mapping.
    """
    return {} if _has_bias(call) else {"grad_bias_wanted": False}


def backward_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments of a backward kernel that are not an input or option of the operator itself, such as
    ``lse_hbm``, from ``maximum`` + ``log_sum``.
    """
    lse = call.tensor("maximum") + call.tensor("log_sum")
    arguments = {**shared_arguments(call), "lse_hbm": lse.detach().contiguous(), **bias_if_given(call)}
    if call.tensors.get("grad_entropy") is None:  # the kernel takes both or neither
        arguments["entropy_hbm"] = None
    return arguments


_BACKWARD_INPUTS: Final = (
    _INPUT,
    _LINEAR_WEIGHT,
    _TARGET,
    Input("maximum"),
    Input("log_sum"),
    Input("grad_loss"),
    Input("grad_lse", is_optional=True),
    Input("grad_logprob", is_optional=True),
    _LINEAR_BIAS,
    _CLASS_WEIGHT,
)
# At the end, so that graphs that were saved without them stay valid.
OF_ENTROPY: Final = (
    Input("entropy", is_optional=True, saved=entropy_if_given),
    Input("grad_entropy", is_optional=True),
)
_AT_END: Final = (*OF_ENTROPY, TEMPERATURES)

BACKWARD: Final = register(
    Operator(
        "linear_cross_entropy_backward",
        inputs=(*_BACKWARD_INPUTS, *_AT_END),
        options=(LossOptions, Product, WantedGradients),
        without=_WITHOUT,
        outputs=GRADIENTS,
        kernel=lambda: kernels.linear_cross_entropy_backward,
        on_request=GRADIENTS_ON_REQUEST,
        arguments=backward_arguments,
        check_values=_check_classes,
        instead=LINEAR.instead,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
BACKWARD_ADDING: Final = register(
    Operator(
        "linear_cross_entropy_backward_adding",
        inputs=(*_BACKWARD_INPUTS, GRAD_WEIGHT_SUM, *_AT_END),
        options=(LossOptions, Product, WantedGradients),
        without=(*_WITHOUT, "grad_weight_wanted"),
        outputs=(GRAD_INPUT, GRAD_LINEAR_BIAS),
        kernel=lambda: kernels.linear_cross_entropy_backward,
        results=tuple(output.name for output in GRADIENTS),
        on_request={output.name: output.request for output in (GRAD_INPUT, GRAD_LINEAR_BIAS)},
        arguments=backward_arguments,
        writes={"grad_weight_sum": "grad_linear_weight"},
        check_values=_check_classes,
        instead=LINEAR.instead,
    )
)


def _total(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    return results["loss"].sum() * call.tensor("grad_scale")


# Loss and gradients in a single launch, for ``grad_scale`` times the sum of the losses.
WITH_GRADIENTS: Final = register(
    Operator(
        "linear_cross_entropy_with_gradients",
        inputs=(
            _INPUT,
            _LINEAR_WEIGHT,
            _TARGET,
            Input("grad_scale", dimensions=0),
            _LINEAR_BIAS,
            _CLASS_WEIGHT,
            TEMPERATURES,
        ),
        options=(Scratch, LossOptions, Product, WantedGradients),
        without=_WITHOUT,
        outputs=(Output("total", shape=lambda call: (), computed=_total, depends_on=OF_LOGITS), *GRADIENTS),
        kernel=lambda: kernels.linear_cross_entropy_forward_backward,
        results=("loss", "lse", *GRADIENTS_ON_REQUEST),
        on_request=GRADIENTS_ON_REQUEST,
        arguments=lambda call: {
            **shared_arguments(call),
            **bias_if_given(call),
            "grad_scale_hbm": call.tensor("grad_scale").detach().reshape(1),
        },
        check_values=_check_classes,
        instead=LINEAR.instead,
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, adding=BACKWARD_ADDING)
differentiate_by_results(WITH_GRADIENTS)


def _shard_statistics_arguments(call: Call) -> dict[str, Any]:
    return {**shared_arguments(call), "with_target": True, "with_log_sum": True}


# Results: :class:`~nkilib.torch.functions.cross_entropy.operators.ShardStatistics`.
SHARD_STATISTICS: Final = register(
    replace(
        FORWARD,
        name="linear_cross_entropy_shard_statistics",
        # The backward of a shard writes to no input of this operator.
        inputs=tuple(operand for operand in FORWARD.inputs if operand is not SUM_FOR_BACKWARD),
        options=(LossOptions, Product, Columns, Wanted),
        without=(*BACKWARD.without, "with_logprob", "lse_square_scale"),  # which take all shards
        outputs=statistics_outputs(vocabulary),
        arguments=_shard_statistics_arguments,
    )
)


def _shard_backward_arguments(call: Call) -> dict[str, Any]:
    return {**backward_arguments(call), "grad_input_float32": True}


def unrounded(output: Output) -> Output:
    """Return a float32 copy of the output description ``grad_input``, because the ranks' parts are summed; return any
    other description unchanged.
    """
    return replace(output, dtype=torch.float32) if output.name == "grad_input" else output


_TARGET_WEIGHT: Final = Input("target_weight", is_optional=True)


def _with_target_weight(operator: Operator) -> tuple[Input, ...]:
    """Return the inputs of the backward for one rank's part of the classes.

    They are the inputs of ``operator``, the backward for the whole weight, with ``target_weight`` inserted before the
    inputs for the entropy.
    """
    first = operator.inputs[: -len(_AT_END)]
    return (*first, _TARGET_WEIGHT, *_AT_END)


_SHARD_BACKWARD_OPTIONS: Final = (LossOptions, Product, Columns, Sums, WantedGradients)

SHARD_BACKWARD: Final = register(
    replace(
        BACKWARD,
        name="linear_cross_entropy_shard_backward",
        inputs=_with_target_weight(BACKWARD),
        options=_SHARD_BACKWARD_OPTIONS,
        outputs=tuple(unrounded(result) for result in BACKWARD.outputs),
        arguments=_shard_backward_arguments,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
SHARD_BACKWARD_ADDING: Final = register(
    replace(
        BACKWARD_ADDING,
        name="linear_cross_entropy_shard_backward_adding",
        inputs=_with_target_weight(BACKWARD_ADDING),
        options=_SHARD_BACKWARD_OPTIONS,
        outputs=tuple(unrounded(result) for result in BACKWARD_ADDING.outputs),
        arguments=_shard_backward_arguments,
    )
)
