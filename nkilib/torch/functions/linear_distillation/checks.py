# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensor arguments of ``linear_distillation_loss`` (:class:`DistillationArguments`, with two :class:`Model`), and
the checks of all arguments.

- :func:`checked_outputs`, :func:`checked_recipe`, :func:`checked_compute_dtype`: options;
- :func:`check_tensor_arguments`, before DTensors are replaced by plain tensors, and :func:`check_arguments` afterwards;
- :func:`check_features_fit`, :func:`most_hidden_bytes`: how many features of both models fit on chip together.

Only shapes, dtypes and devices are checked: values of tensors are never read. ``caller`` is the function that error
messages name. A *product* multiplies hidden states by a weight, its two *operands*; a bias is added in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nkilib.core.host.options import as_float
from nkilib.experimental.loss.cross_entropy.launch import OPTION_MAX, SOFTCAP_MIN
from nkilib.experimental.loss.linear.launch import (
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    LOGIT_SCALE_MAX,
    LOGIT_SCALE_MIN,
    POSITIONS_MAX,
)
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller, autocast_dtype
from nkilib.torch.functions.distillation_loss import check_labels
from nkilib.torch.functions.linear_cross_entropy.checks import check_compute_dtype, check_sum
from nkilib.torch.functions.linear_cross_entropy.operators import DTYPE_NAMES
from nkilib.torch.functions.linear_distillation.operators import Recipe


class ModelNames(NamedTuple):
    """The names that ``linear_distillation_loss`` gives its arguments for one model, student or teacher."""

    input: str
    weight: str
    bias: str


@dataclass(frozen=True)
class Model:
    """The hidden states and the output layer of one model.

    Attributes:
        names: the names of the arguments.
        input: the hidden states [..., D].
        weight: the weight [V, D].
        bias: the bias [V], or None.
    """

    names: ModelNames
    input: Tensor
    weight: Tensor
    bias: Tensor | None

    def tensors(self) -> dict[str, Tensor | None]:
        """Return hidden states, weight and bias by the name of the public function's argument."""
        return dict(zip(self.names, (self.input, self.weight, self.bias), strict=True))

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of the positions: the input's without the features."""
        return tuple(self.input.shape[:-1])

    @property
    def kernel_bias(self) -> Tensor | None:
        """The bias in float32, as kernels take it."""
        return None if self.bias is None else self.bias.to(torch.float32)


STUDENT = ModelNames("input", "linear_weight", "linear_bias")
TEACHER = ModelNames("teacher_input", "teacher_weight", "teacher_bias")


@dataclass(frozen=True)
class DistillationArguments:
    """The tensor arguments of a call of ``linear_distillation_loss``: all of them, or this rank's parts.

    Attributes:
        student, teacher: the two models, over the same positions and classes.
        labels: integers [...], or None.
        row_weight: floating weights [...], or None.
        grad_weight_sum: the tensor to which the gradient of the student's weight is added, or None.
        temperature: the temperatures, if they are a tensor.
    """

    student: Model
    teacher: Model
    labels: Tensor | None
    row_weight: Tensor | None
    grad_weight_sum: Tensor | None
    temperature: Tensor | None = None

    def tensors(self) -> dict[str, Tensor | None]:
        """Return all tensors of the call by the name of the public function's argument."""
        return {
            **self.student.tensors(),
            **self.teacher.tensors(),
            "labels": self.labels,
            "row_weight": self.row_weight,
            "grad_weight_sum": self.grad_weight_sum,
        }

    def rounding_dtype(self, compute_dtype: torch.dtype | None) -> torch.dtype | None:
        """Return the dtype to which kernels round the operands of the products; None if no operand has to be rounded.

        Without ``compute_dtype`` and autocast, each model is multiplied in its own dtype; if hidden states and weight
        of a model have different dtypes, all operands are rounded to the dtype of the student's hidden states.

        Args:
            compute_dtype: the caller's argument; None means autocast's dtype if autocast is on.
        """
        models = (self.student, self.teacher)
        dtype = compute_dtype or autocast_dtype(self.student.input.device)
        if dtype is None:
            is_alike = all(model.input.dtype == model.weight.dtype for model in models)
            return None if is_alike else self.student.input.dtype
        operands = [tensor for model in models for tensor in (model.input, model.weight, model.bias)]
        return None if all(tensor is None or tensor.dtype == dtype for tensor in operands) else dtype


OUTPUTS: Final = ("entropy", "logprob")
_OPTIONAL: Final = ("linear_bias", "teacher_bias", "labels", "row_weight", "grad_weight_sum")
# The most bytes of the hidden states of one position, both models together, in the dtypes of their products, that fit
# on chip with all options; and the most where operands are rounded, which takes room too.
_BYTES_MOST: Final = 64 * 1024
_ROUNDED_BYTES_MOST: Final = 56 * 1024
# The greatest ratio between the softcaps (or the logit scales without a cap) of both models.
_UNITS_APART_MOST: Final = 1e12
_INSTEAD: Final = "pass the logits of torch.nn.functional.linear to nkilib.torch.distillation_loss"


def checked_outputs(caller: Caller, outputs: Any, labels: Any) -> tuple[str, ...]:
    """Return the names of the requested scores.

    Raises:
        TypeError: ``outputs`` is not an iterable, or is a string.
        ValueError: an unknown name; ``"logprob"`` without labels.
    """
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        remedy = f"; pass ({outputs!r},)" if isinstance(outputs, str) else ""
        raise TypeError(f"{caller}: argument 'outputs' must be an iterable of names, not {outputs!r}{remedy}")
    names = tuple(outputs)
    for name in names:
        if name not in OUTPUTS:
            raise ValueError(
                f"{caller}: outputs must be among {', '.join(OUTPUTS)}, got {name!r}; leave it out, the loss is always "
                f"there"
            )
    if "logprob" in names and labels is None:
        raise ValueError(
            f"{caller}: labels must be given for the output 'logprob', their log-probability, got None; pass the tokens"
        )
    return names


def _check_units(caller: Caller, recipe: Recipe) -> None:
    """Check that the caps (or scales, without a cap) of the two models do not differ too much.

    The kernels keep each model's logits in units of its cap or scale; a masked class's logit must be finite in both.
    """
    student, teacher = recipe.student_unit, recipe.teacher_unit
    if not 1.0 / _UNITS_APART_MOST <= student / teacher <= _UNITS_APART_MOST:
        names = [
            f"{model}logit_{'scale' if cap is None else 'softcap'}"
            for model, cap in (("", recipe.student_logit_softcap), ("teacher_", recipe.teacher_logit_softcap))
        ]
        raise ValueError(
            f"{caller}: {names[0]} {student}, and {names[1]} {teacher}, may be {_UNITS_APART_MOST:g} times apart at "
            f"most; pass softcaps of the size of the logits"
        )


def _checked_scale(caller: Caller, name: str, value: Any) -> float:
    scale = as_float(caller, name, value)
    if not LOGIT_SCALE_MIN <= scale <= LOGIT_SCALE_MAX:
        raise ValueError(
            f"{caller}: {name} must be a number from {LOGIT_SCALE_MIN} to {LOGIT_SCALE_MAX}, got {scale}; pass 1.0 for "
            f"none"
        )
    return scale


def _checked_softcap(caller: Caller, name: str, value: Any) -> float | None:
    if value is None:
        return None
    cap = as_float(caller, name, value)
    if not SOFTCAP_MIN <= cap <= OPTION_MAX:
        raise ValueError(
            f"{caller}: {name} must be a number from {SOFTCAP_MIN} to {OPTION_MAX} or None, got {cap}; pass None for "
            f"no cap"
        )
    return cap


def checked_recipe(
    caller: Caller,
    beta: float,
    temperature: float,
    logit_scale: Any,
    logit_softcap: Any,
    teacher_logit_scale: Any,
    teacher_logit_softcap: Any,
) -> Recipe:
    """Return the numbers that define the loss, after a check of scales and caps.

    Raises:
        TypeError: a value is not a number.
        ValueError: a value is out of range.
    """
    recipe = Recipe(
        beta,
        temperature,
        _checked_scale(caller, "logit_scale", logit_scale),
        _checked_scale(caller, "teacher_logit_scale", teacher_logit_scale),
        _checked_softcap(caller, "logit_softcap", logit_softcap),
        _checked_softcap(caller, "teacher_logit_softcap", teacher_logit_softcap),
    )
    _check_units(caller, recipe)
    return recipe


def checked_compute_dtype(caller: Caller, arguments: DistillationArguments, compute_dtype: Any) -> str | None:
    """Return the name of the dtype that operands are rounded to; None if none has to be rounded.

    Raises:
        TypeError: ``compute_dtype`` is not a dtype.
        ValueError: the kernels have no products in this dtype.
    """
    check_compute_dtype(caller, compute_dtype)
    rounded: torch.dtype | None = arguments.rounding_dtype(compute_dtype)
    return None if rounded is None else DTYPE_NAMES[rounded]


def check_tensor_arguments(caller: Caller, arguments: DistillationArguments) -> None:
    """Check that arguments are tensors, and that the teacher and ``row_weight``, which are constants, do not require
    grad.

    Raises:
        TypeError: an argument is not a tensor.
        RuntimeError: the teacher or ``row_weight`` requires grad.
    """
    checks.check_tensors(caller, arguments.tensors(), optional=_OPTIONAL)
    for name, tensor in {**arguments.teacher.tensors(), "row_weight": arguments.row_weight}.items():
        checks.check_constant(caller, name, tensor)


def _check_model(caller: Caller, model: Model) -> None:
    input, weight, bias = model.tensors()
    for name, tensor in model.tensors().items():
        if tensor is not None:
            checks.check_float_dtype(caller, name, tensor)
    if model.input.dim() < 1:
        raise ValueError(f"{caller}: {input} must have the features as its last dimension, got no dimension")
    if model.weight.dim() != 2:
        raise ValueError(
            f"{caller}: {weight} must be [classes, features], as the weight of torch.nn.Linear, got shape "
            f"{tuple(model.weight.shape)}"
        )
    if model.input.shape[-1] != model.weight.shape[1]:
        raise ValueError(
            f"{caller}: {input} and {weight} must have equal last dimensions, the features, got "
            f"{model.input.shape[-1]} and {model.weight.shape[1]}; {weight} is [classes, features], as the weight of "
            f"torch.nn.Linear"
        )
    if model.bias is not None and model.bias.shape != model.weight.shape[:1]:
        raise ValueError(
            f"{caller}: {bias} must be one number for each of the {model.weight.shape[0]} classes of {weight}, got "
            f"shape {tuple(model.bias.shape)}"
        )


def _check_alike(caller: Caller, arguments: DistillationArguments) -> None:
    student, teacher = arguments.student, arguments.teacher
    if student.positions != teacher.positions:
        raise ValueError(
            f"{caller}: {TEACHER.input} must have the positions of input, {student.positions}, got "
            f"{teacher.positions}; features may differ, in the last dimension"
        )
    if student.weight.shape[0] != teacher.weight.shape[0]:
        raise ValueError(
            f"{caller}: {TEACHER.weight} must have the classes of linear_weight, {student.weight.shape[0]} here, got "
            f"{teacher.weight.shape[0]}; slice both to those that the models share, and give every rank the same of "
            f"both"
        )


def _check_row_weight(caller: Caller, row_weight: Tensor | None, positions: tuple[int, ...]) -> None:
    if row_weight is None:
        return
    if not row_weight.is_floating_point():
        raise TypeError(f"{caller}: row_weight must be floating, got {row_weight.dtype}; pass row_weight.float()")
    if row_weight.shape != positions:
        raise ValueError(
            f"{caller}: row_weight must have the shape of the positions, {positions}, got {tuple(row_weight.shape)}; "
            f"expand it"
        )


def _check_kernels_take(caller: Caller, arguments: DistillationArguments, classes: int) -> None:
    for model in (arguments.student, arguments.teacher):
        features = model.weight.shape[1]
        if not FEATURES_MIN <= features <= FEATURES_MAX:
            raise NotImplementedError(
                f"{caller}: {model.names.weight} must have {FEATURES_MIN} to {FEATURES_MAX} features, got {features}; "
                f"{_INSTEAD}"
            )
    if not 0 < classes <= CLASSES_MAX:
        raise NotImplementedError(f"{caller}: there must be 1 to {CLASSES_MAX} classes, got {classes}; {_INSTEAD}")
    positions = prod(arguments.student.positions)
    if positions > POSITIONS_MAX:
        raise ValueError(
            f"{caller}: there may be at most {POSITIONS_MAX} positions, got {positions}; call it for parts of them"
        )


def check_arguments(caller: Caller, arguments: DistillationArguments, classes: int | None) -> None:
    """Check that plain tensors match each other and the kernels.

    Args:
        caller: the function that error messages name.
        arguments: this rank's arguments.
        classes: the number of classes of all ranks; None means those of the weight.

    Raises:
        TypeError: a dtype that the hardware does not have; labels that are not integers.
        ValueError: shapes do not match; more positions than a launch takes; ``grad_weight_sum`` cannot be used.
        RuntimeError: devices differ.
        NotImplementedError: an unsupported device, number of features or number of classes; forward-mode
            differentiation.
    """
    tensors = arguments.tensors()
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, arguments.student.input, {name: tensors[name] for name in tensors if name != "input"})
    for model in (arguments.student, arguments.teacher):
        _check_model(caller, model)
    _check_alike(caller, arguments)
    check_labels(caller, arguments.labels, arguments.student.positions)
    _check_row_weight(caller, arguments.row_weight, arguments.student.positions)
    own_classes = arguments.student.weight.shape[0]
    _check_kernels_take(caller, arguments, own_classes if classes is None else classes)
    check_sum(caller, arguments.student.weight, arguments.tensors())


def most_hidden_bytes(is_rounded: bool) -> int:
    """Return the largest number of bytes that fits on chip for the hidden states of one position, of both models.

    The bytes are counted in the dtypes of the products.

    Args:
        is_rounded: whether the kernel rounds operands to these dtypes.
    """
    return _ROUNDED_BYTES_MOST if is_rounded else _BYTES_MOST


def check_features_fit(caller: Caller, arguments: DistillationArguments, compute_dtype: str | None) -> None:
    """Check that the features of both models fit on chip together.

    Args:
        caller: the function that error messages name.
        arguments: the arguments of the call.
        compute_dtype: the name of the dtype that operands are rounded to; None if they are not rounded.

    Raises:
        NotImplementedError: the features do not fit.
    """
    models = (arguments.student, arguments.teacher)
    types = [model.input.dtype if compute_dtype is None else getattr(torch, compute_dtype) for model in models]
    sizes = [model.weight.shape[1] * dtype.itemsize for model, dtype in zip(models, types, strict=True)]
    most = most_hidden_bytes(compute_dtype is not None)
    if sum(sizes) > most:
        raise NotImplementedError(
            f"{caller}: hidden states of a position may take at most {most} bytes of both models together in the types "
            f"of the products, got {sizes[0]} of input and {sizes[1]} of teacher_input; pass both models in bfloat16, "
            f"or compute_dtype=torch.bfloat16, or {_INSTEAD.removeprefix('pass ')}"
        )
