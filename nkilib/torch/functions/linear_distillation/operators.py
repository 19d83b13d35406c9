# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators ``torch.ops.nkilib.linear_distillation_*``, their options and results, and their derivative.

- :data:`LINEAR_DISTILLATION`: the function that error messages name; :class:`DistillationOperands`: its tensors;
- for all classes: :data:`FORWARD` returns :class:`DistillationResults`, and :data:`BACKWARD` the gradients.
  :data:`BACKWARD_ADDING` adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
  :data:`DERIVATIVE` joins the three;
- for a shard of the classes: :data:`SHARD_STATISTICS` returns :class:`ShardResults`, and :data:`SHARD_MIXTURE`
  :class:`MixtureSums`. :data:`SHARD_BACKWARD` and :data:`SHARD_BACKWARD_ADDING` are the backwards;
- :class:`Recipe`, :class:`Labels`, :class:`Wanted`, :class:`WantedTarget`, :class:`Memory`: the options.

Rows are positions: input [N, Ds], linear_weight [V, Ds], teacher_input [N, Dt], teacher_weight [V, Dt], labels [N] of
any integer type, for N positions, V classes, and Ds and Dt features. z denotes the logits after scale, cap and
temperature; P is the teacher's softmax, Q the student's, and M their mixture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.experimental import loss as kernels
from nkilib.experimental.loss.distillation.launch import LEAST_TEMPERATURE, MOST_TEMPERATURE
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output
from nkilib.torch.dispatch.register import register
from nkilib.torch.functions.cross_entropy.operators import Columns
from nkilib.torch.functions.linear_cross_entropy.operators import (
    DTYPES,
    GRAD_INPUT,
    GRAD_LINEAR_BIAS,
    GRAD_WEIGHT_SUM,
    GRADIENTS,
    GRADIENTS_ON_REQUEST,
    SUM_FOR_BACKWARD,
    WantedGradients,
    bias_if_given,
    compute_dtype_argument,
    unrounded,
    vocabulary,
)
from nkilib.torch.losses.indexed import check_range, kernel_target
from nkilib.torch.losses.temperatures import TEMPERATURES, check_temperatures

LINEAR_DISTILLATION: Final = Caller("linear_distillation_loss", "input", "input", "torch.nn.functional.kl_div")


@dataclass(frozen=True)
class Recipe:
    """The options that define both models' logits and the loss, as all kernels take them.

    Attributes:
        beta: 0: KL(teacher || student); 1: KL(student || teacher); between them the generalized Jensen-Shannon
            divergence.
        temperature: T, which divides the logits of both models.
        student_logit_scale, teacher_logit_scale: the factor that multiplies the logits of a model, before the cap.
        student_logit_softcap, teacher_logit_softcap: c of c * tanh(logits / c); None for no cap.
        compute_dtype: the name of the dtype that operands of another dtype are rounded to; None if operands stay as
            they are.
    """

    beta: float = 0.0
    temperature: float = 1.0
    student_logit_scale: float = 1.0
    teacher_logit_scale: float = 1.0
    student_logit_softcap: float | None = None
    teacher_logit_softcap: float | None = None
    compute_dtype: str | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether ``beta`` is strictly between 0 and 1, so that the divergence needs the mixture of both
        distributions.
        """
        return 0.0 < self.beta < 1.0

    @property
    def student_unit(self) -> float:
        """The factor that turns the numbers that kernels keep on chip into the student's logits before the temperature:
        the cap, or the scale if there is no cap.
        """
        return self.student_logit_scale if self.student_logit_softcap is None else self.student_logit_softcap

    @property
    def teacher_unit(self) -> float:
        """The factor that turns the numbers that kernels keep on chip into the teacher's logits before the temperature:
        the cap, or the scale if there is no cap.
        """
        return self.teacher_logit_scale if self.teacher_logit_softcap is None else self.teacher_logit_softcap


@dataclass(frozen=True)
class Labels:
    """The option ``ignore_index``.

    Attributes:
        ignore_index: the label of ignored positions, an int32.
    """

    ignore_index: int = -100


@dataclass(frozen=True)
class Wanted:
    """The option ``with_logprob``: whether the call requests the student's log-probability of the label."""

    with_logprob: bool = False


@dataclass(frozen=True)
class WantedTarget:
    """The option ``with_target``: whether the call requests the student's logit of the label."""

    with_target: bool = False


@dataclass(frozen=True)
class Memory:
    """The option ``memory_limit``: the HBM bytes for float32 logits that the kernel keeps from its first pass over the
    classes to the second; None means the kernel's default.
    """

    memory_limit: int | None = None


class DistillationOperands(NamedTuple):
    """The inputs of the forward operators, for all classes or for this rank's.

    Attributes:
        input: the student's hidden states [N, Ds], the same on all ranks.
        linear_weight: the student's weight [V, Ds].
        teacher_input: the teacher's hidden states [N, Dt], the same on all ranks.
        teacher_weight: the teacher's weight [V, Dt].
        labels: integers [N], counted over all classes; or None.
        linear_bias, teacher_bias: the biases [V] float32, or None.
        row_weight: the weights of positions [N] float32, or None.
        grad_weight_sum: the accumulator of the weight's gradient [V, Ds] float32, or None.
        temperatures: the temperatures of the positions, [N] or [1] float32, or None.
    """

    input: Tensor
    linear_weight: Tensor
    teacher_input: Tensor
    teacher_weight: Tensor
    labels: Tensor | None
    linear_bias: Tensor | None
    teacher_bias: Tensor | None
    row_weight: Tensor | None
    grad_weight_sum: Tensor | None
    temperatures: Tensor | None

    @property
    def models(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The student's hidden states and weight, followed by the teacher's."""
        return self.input, self.linear_weight, self.teacher_input, self.teacher_weight

    @property
    def biases(self) -> tuple[Tensor | None, Tensor | None]:
        """The student's bias and the teacher's; None for a missing one."""
        return self.linear_bias, self.teacher_bias

    def constants(self) -> DistillationOperands:
        """Return the same operands, detached from autograd's graph."""
        return DistillationOperands(*(None if tensor is None else tensor.detach() for tensor in self))  # type: ignore[arg-type]


class DistillationResults(NamedTuple):
    """The results of the forward operator, [N] float32 each.

    Attributes:
        divergence: the divergence times the weight of the position, in nats; 0 at ignored positions.
        entropy: the entropy of Q, in nats.
        moment: KL(Q || M) for ``beta`` between 0 and 1, KL(Q || P) for 1, and 0 for 0; the backward needs it.
        student_maximum, teacher_maximum: the largest z of a model.
        student_log_sum, teacher_log_sum: the log of the sum of exp(z - maximum), in nats.
        logprob: see :class:`~nkilib.torch.LinearDistillationOutputs`; [0] if it is not requested.
    """

    divergence: Tensor
    entropy: Tensor
    moment: Tensor
    student_maximum: Tensor
    student_log_sum: Tensor
    teacher_maximum: Tensor
    teacher_log_sum: Tensor
    logprob: Tensor


class ShardResults(NamedTuple):
    """The results for each position over one shard of the vocabulary, [N] float32 each.

    Attributes:
        divergence: the divergence between the softmaxes over the shard alone, not weighted; 0 at ignored positions, and
            for ``beta`` between 0 and 1.
        entropy: the entropy of the student's softmax over the shard alone.
        student_maximum, student_log_sum, teacher_maximum, teacher_log_sum: the maximum and log_sum of each model over
            the shard; the lowest float32 and -inf for a shard without classes.
        target_logit: the student's z at the label, 0 if the label is in another shard; [0] if it is not requested.
    """

    divergence: Tensor
    entropy: Tensor
    student_maximum: Tensor
    student_log_sum: Tensor
    teacher_maximum: Tensor
    teacher_log_sum: Tensor
    target_logit: Tensor


class MixtureSums(NamedTuple):
    """A shard's sums over its classes, [N] float32 each.

    p and q are the teacher's and the student's probabilities over all classes, and m is their mixture.

    Attributes:
        student_terms: the sum of q log(q / m), in nats.
        teacher_terms: the sum of p log(p / m), in nats.
        student_mass: the sum of q.
        teacher_mass: the sum of p.
    """

    student_terms: Tensor
    teacher_terms: Tensor
    student_mass: Tensor
    teacher_mass: Tensor


_INPUT: Final = Input("input", keyword="student_input_hbm", dimensions=2, dtypes=DTYPES)
_LINEAR_WEIGHT: Final = Input("linear_weight", keyword="student_weight_hbm", dimensions=2, dtypes=DTYPES)
_TEACHER_INPUT: Final = Input("teacher_input", dimensions=2, dtypes=DTYPES)
_TEACHER_WEIGHT: Final = Input("teacher_weight", dimensions=2, dtypes=DTYPES)
_MODELS: Final = (_INPUT, _LINEAR_WEIGHT, _TEACHER_INPUT, _TEACHER_WEIGHT)
_LABELS: Final = Input("labels", is_optional=True, dimensions=1)
_LINEAR_BIAS: Final = Input(
    "linear_bias", keyword="student_bias_hbm", is_optional=True, dimensions=1, dtypes=(torch.float32,)
)
_TEACHER_BIAS: Final = Input("teacher_bias", is_optional=True, dimensions=1, dtypes=(torch.float32,))
_BIASES: Final = (_LINEAR_BIAS, _TEACHER_BIAS)
_ROW_WEIGHT: Final = Input("row_weight", is_optional=True, dimensions=1, dtypes=(torch.float32,))

# The inputs with respect to which differentiable results have a derivative.
_OF_STUDENT: Final = ("input", "linear_weight", "linear_bias")
# The statistics of both softmaxes that the forward returns.
_STATISTICS: Final = ("student_maximum", "student_log_sum", "teacher_maximum", "teacher_log_sum")
_RESULTS: Final = ("divergence", "entropy", "moment", *_STATISTICS, "logprob", "target_logit")
_ON_REQUEST: Final = {"logprob": "with_logprob", "target_logit": "with_target"}


def _check_labels(call: Call) -> None:
    check_temperatures(LINEAR_DISTILLATION, call.tensors["temperatures"], LEAST_TEMPERATURE, MOST_TEMPERATURE)
    if call.options.get("with_logprob", False) or call.options.get("with_target", False):
        name, labels = str(LINEAR_DISTILLATION), call.tensor("labels")
        check_range(name, labels, call.options["ignore_index"], vocabulary(call))


def _arguments(call: Call) -> dict[str, Any]:
    labels = call.tensors["labels"]
    if labels is None:
        return compute_dtype_argument(call)
    classes, ignore_index = kernel_target(labels, call.options["ignore_index"], vocabulary(call))
    return {**compute_dtype_argument(call), "labels_hbm": classes.detach(), "ignore_index": ignore_index}


def _log_probability(call: Call, results: Mapping[str, Tensor]) -> Tensor:
    return results["logprob"] + 0.0  # the negative of 0 has a sign


# Results: DistillationResults.
FORWARD: Final = register(
    Operator(
        "linear_distillation_forward",
        inputs=(*_MODELS, _LABELS, *_BIASES, _ROW_WEIGHT, SUM_FOR_BACKWARD, TEMPERATURES),
        options=(Recipe, Labels, Memory, Wanted),
        outputs=(
            Output("divergence", depends_on=_OF_STUDENT),
            Output("entropy"),
            Output("moment"),
            *(Output(name) for name in _STATISTICS),
            Output("logprob", depends_on=_OF_STUDENT, computed=_log_probability),
        ),
        kernel=lambda: kernels.linear_distillation_forward,
        results=_RESULTS,
        on_request=_ON_REQUEST,
        arguments=_arguments,
        check_values=_check_labels,
        instead=LINEAR_DISTILLATION.instead,
    )
)


def _backward_arguments(call: Call) -> dict[str, Any]:
    return {**_arguments(call), **bias_if_given(call)}


_SAVED: Final = (Input("moment"), *(Input(name) for name in _STATISTICS))
_BACKWARD_INPUTS: Final = (
    *_MODELS,
    *_SAVED,
    Input("grad_divergence"),
    _LABELS,
    *_BIASES,
    _ROW_WEIGHT,
    Input("grad_logprob", is_optional=True),
)

BACKWARD: Final = register(
    Operator(
        "linear_distillation_backward",
        inputs=(*_BACKWARD_INPUTS, TEMPERATURES),
        options=(Recipe, Labels, WantedGradients),
        outputs=GRADIENTS,
        kernel=lambda: kernels.linear_distillation_backward,
        on_request=GRADIENTS_ON_REQUEST,
        arguments=_backward_arguments,
        instead=LINEAR_DISTILLATION.instead,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
BACKWARD_ADDING: Final = register(
    replace(
        BACKWARD,
        name="linear_distillation_backward_adding",
        inputs=(*_BACKWARD_INPUTS, GRAD_WEIGHT_SUM, TEMPERATURES),
        without=("grad_weight_wanted",),
        outputs=(GRAD_INPUT, GRAD_LINEAR_BIAS),
        results=tuple(output.name for output in GRADIENTS),
        on_request={output.name: output.request for output in (GRAD_INPUT, GRAD_LINEAR_BIAS)},
        writes={"grad_weight_sum": "grad_linear_weight"},
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, adding=BACKWARD_ADDING)

# The statistics of each softmax in a shard without classes.
_OF_NO_CLASSES: Final = {"maximum": torch.finfo(torch.float32).min, "log_sum": -torch.inf}

# For a part of the classes, like all operators below. Results: ShardResults.
SHARD_STATISTICS: Final = register(
    replace(
        FORWARD,
        name="linear_distillation_shard_statistics",
        inputs=(*_MODELS, _LABELS, *_BIASES, TEMPERATURES),
        options=(Recipe, Labels, Columns, WantedTarget),
        outputs=(
            Output("divergence"),
            Output("entropy"),
            *(Output(name, fill=_OF_NO_CLASSES[name.partition("_")[2]]) for name in _STATISTICS),
            Output("target_logit", requested_by="with_target"),
        ),
    )
)

# Results: MixtureSums.
SHARD_MIXTURE: Final = register(
    Operator(
        "linear_distillation_shard_mixture",
        inputs=(*_MODELS, *(Input(name) for name in _STATISTICS), *_BIASES, TEMPERATURES),
        options=(Recipe,),
        outputs=tuple(Output(name) for name in ("student_terms", "teacher_terms", "student_mass", "teacher_mass")),
        kernel=lambda: kernels.linear_distillation_mixture,
        arguments=compute_dtype_argument,
        instead=LINEAR_DISTILLATION.instead,
    )
)


def _shard_backward_arguments(call: Call) -> dict[str, Any]:
    return {**_backward_arguments(call), "grad_input_float32": True}


SHARD_BACKWARD: Final = register(
    replace(
        BACKWARD,
        name="linear_distillation_shard_backward",
        options=(Recipe, Labels, Columns, WantedGradients),
        outputs=tuple(unrounded(output) for output in BACKWARD.outputs),
        arguments=_shard_backward_arguments,
    )
)

# Adds the gradient of the weight to ``grad_weight_sum`` instead of returning it.
SHARD_BACKWARD_ADDING: Final = register(
    replace(
        BACKWARD_ADDING,
        name="linear_distillation_shard_backward_adding",
        options=(Recipe, Labels, Columns, WantedGradients),
        outputs=tuple(unrounded(output) for output in BACKWARD_ADDING.outputs),
        arguments=_shard_backward_arguments,
    )
)
