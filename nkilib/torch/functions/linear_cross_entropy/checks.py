# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments of ``linear_cross_entropy``, :class:`LinearArguments`, and their checks. Other functions of hidden
states use them too.

- :func:`checked_recipe`, :func:`checked_product`: the options of the loss and of the matrix product;
- :func:`check_arguments`: arguments that PyTorch rejects too, with an error of the same type;
- :func:`reason_for_reference`, :func:`check_kernel_arguments`: arguments that no kernel takes;
- :func:`check_compute_dtype`, :func:`check_sum`, :func:`check_memory_limit`: single arguments.

Only shapes, dtypes and devices are checked: values of tensors are never read. ``caller`` is the function that error
messages name. A *product* is that of hidden states and weight, which gives the logits. These two tensors are its
*operands*; kernels round them to the ``compute_dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from nkilib.core.host.options import as_float, check_reduction
from nkilib.experimental.loss.linear.launch import (
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    POSITIONS_MAX,
    check_logit_scale,
)
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller, autocast_dtype
from nkilib.torch.dispatch.memory import overlapping
from nkilib.torch.functions.cross_entropy.checks import (
    LossKeywords,
    check_floating,
    check_indices,
    check_normalizer,
    checked_options,
)
from nkilib.torch.functions.linear_cross_entropy.operators import DTYPE_NAMES, DTYPES, Product
from nkilib.torch.losses.temperatures import temperatures_of_rows


@dataclass(frozen=True)
class LinearArguments:
    """The arguments of a call of ``linear_cross_entropy``, as the caller passed them.

    Attributes:
        input: the hidden states [..., D].
        linear_weight: the weight [V, D], or [V, d1, ..., D] for a loss of several dimensions.
        target: class indices, or class probabilities of the shape of the logits.
        linear_bias: the bias, of the shape of ``linear_weight`` without D.
        weight: the class weights [V].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalizer: the divisor of the mean.
        grad_weight_sum: the tensor to which the gradient of ``linear_weight`` is added.
        temperature: the temperatures, if they are a tensor.
    """

    input: Tensor
    linear_weight: Tensor
    target: Tensor
    linear_bias: Tensor | None
    weight: Tensor | None
    reduction: str
    normalizer: Tensor | None
    grad_weight_sum: Tensor | None
    temperature: Tensor | None = None

    def tensors(self) -> dict[str, Tensor | None]:
        """Return all tensor arguments except the temperatures, by name; None for a missing one."""
        return {
            "input": self.input,
            "linear_weight": self.linear_weight,
            "target": self.target,
            "linear_bias": self.linear_bias,
            "weight": self.weight,
            "normalizer": self.normalizer,
            "grad_weight_sum": self.grad_weight_sum,
        }

    def check_tensors(self, caller: Caller) -> None:
        """Check that the arguments are tensors. An optional argument may be None.

        Raises:
            TypeError, NotImplementedError: see :func:`nkilib.torch.dispatch.checks.check_tensors`.
        """
        optional = ("linear_bias", "weight", "normalizer", "grad_weight_sum", "temperature")
        checks.check_tensors(caller, self.tensors(), optional)

    def temperatures(self, caller: Caller) -> Tensor | None:
        """Return the temperatures of the rows as kernels take them, checked by :func:`temperatures_of_rows`; None if
        the temperature is not a tensor.
        """
        return temperatures_of_rows(caller, self.temperature, self.input.shape[:-1], self.input.device)

    @property
    def logits_shape(self) -> tuple[int, ...]:
        """The shape of the logits that ``torch.nn.functional.cross_entropy`` would get."""
        return (*self.input.shape[:-1], *self.linear_weight.shape[:-1])

    @property
    def has_probabilities(self) -> bool:
        """Whether the targets are class probabilities, which have the shape of the logits, as in PyTorch."""
        return tuple(self.target.shape) == self.logits_shape

    def rounding_dtype(self, compute_dtype: torch.dtype | None) -> torch.dtype | None:
        """Return the dtype to which kernels round the operands of the products; None if no operand has to be rounded.

        Args:
            compute_dtype: the caller's argument; None means autocast's dtype if autocast is on.
        """
        dtype = compute_dtype or autocast_dtype(self.input.device)
        operands = (self.input, self.linear_weight, self.linear_bias)
        return None if all(tensor is None or tensor.dtype == dtype for tensor in operands) else dtype


def check_compute_dtype(caller: Caller, compute_dtype: Any) -> None:
    """Check that the kernels have matrix products in ``compute_dtype``, unless it is None.

    Raises:
        TypeError: it is not a dtype.
        ValueError: the kernels have no products in this dtype.
    """
    if compute_dtype is not None and not isinstance(compute_dtype, torch.dtype):
        raise TypeError(f"{caller}: argument 'compute_dtype' must be torch.dtype, not {type(compute_dtype).__name__}")
    if compute_dtype is not None and compute_dtype not in DTYPES:
        raise ValueError(
            f"{caller}: compute_dtype must be torch.bfloat16, torch.float16, torch.float32 or None, got {compute_dtype}"
        )


def check_sum(caller: Caller, weight: Tensor, tensors: Mapping[str, Tensor | None]) -> None:
    """Check that the gradient of the weight can be added to ``grad_weight_sum`` in place, unless it is None.

    Args:
        caller: the function that error messages name.
        weight: the weight.
        tensors: the tensors of the call by name, among them ``grad_weight_sum``.

    Raises:
        NotImplementedError: the tensors are XLA tensors.
        ValueError: ``grad_weight_sum`` is not float32, is not contiguous, has another shape or device than the weight,
            requires grad, or shares memory with another tensor of the call.
    """
    others = dict(tensors)
    grad_weight_sum = others.pop("grad_weight_sum")
    if grad_weight_sum is None:
        return
    if weight.device.type == "xla":
        raise NotImplementedError(
            f"{caller}: grad_weight_sum is not supported for XLA tensors, which have no memory to add to; add the "
            f"gradient of linear_weight yourself"
        )
    if grad_weight_sum.dtype != torch.float32 or grad_weight_sum.shape != weight.shape:
        raise ValueError(
            f"{caller}: grad_weight_sum must be float32 of the shape of linear_weight, {tuple(weight.shape)}, got "
            f"{grad_weight_sum.dtype} of shape {tuple(grad_weight_sum.shape)}; make it by "
            f"torch.zeros_like(linear_weight, dtype=torch.float32)"
        )
    if grad_weight_sum.device != weight.device or not grad_weight_sum.is_contiguous():
        raise ValueError(
            f"{caller}: grad_weight_sum must be contiguous on the device of linear_weight, {weight.device}, got "
            f"strides {grad_weight_sum.stride()} on {grad_weight_sum.device}"
        )
    if grad_weight_sum.requires_grad:
        raise ValueError(f"{caller}: grad_weight_sum must not require grad, it is a sum; pass it detached")
    shared = None if torch.compiler.is_compiling() else overlapping(grad_weight_sum, others)
    if shared is not None:
        raise ValueError(
            f"{caller}: grad_weight_sum must have memory of its own, but shares it with {shared}, which the backward "
            f"reads while it adds; pass another tensor"
        )


def check_memory_limit(caller: Caller, memory_limit: int | None) -> None:
    """Check that a memory limit is a number of bytes, or None.

    Raises:
        TypeError: the limit is not an integer.
        ValueError: the limit is negative.
    """
    if memory_limit is None:
        return
    if not isinstance(memory_limit, int) or isinstance(memory_limit, bool):
        raise TypeError(f"{caller}: argument 'memory_limit' must be int, not {type(memory_limit).__name__}; pass bytes")
    if memory_limit < 0:
        raise ValueError(f"{caller}: memory_limit must be a number of bytes or None, got {memory_limit}")


def checked_recipe(
    caller: Caller, function: Callable[..., Any], temperature: float, logit_scale: float, **further: Any
) -> tuple[LossKeywords, Product]:
    """Check the options of the loss and of the matrix product, and return both as Python numbers.

    Args:
        caller: the function that error messages name.
        function: the function whose keyword arguments the options are.
        temperature, logit_scale: numbers, constants of the compiled kernel.
        further: further options of the loss by name; missing options get their default.

    Raises:
        TypeError, ValueError, RuntimeError: see :func:`checked_options`.
    """
    divisor, factor = (
        as_float(caller, name, value) for name, value in (("temperature", temperature), ("logit_scale", logit_scale))
    )
    options = checked_options(caller, function, temperature=divisor, **further)
    try:
        check_logit_scale(str(caller), factor)
    except AssertionError as error:
        raise ValueError(str(error)) from None
    return options, Product(factor)


def checked_product(
    caller: Caller, arguments: LinearArguments, product: Product, compute_dtype: torch.dtype | None
) -> Product:
    """Return the options of the matrix product, with the dtype to which its operands are rounded.

    Args:
        caller: the function that error messages name.
        arguments: the arguments of the call.
        product: the options of the product; its ``compute_dtype`` is replaced.
        compute_dtype: the caller's argument.

    Raises:
        TypeError: ``compute_dtype`` is not a dtype.
        ValueError: the kernels have no products in this dtype.
    """
    check_compute_dtype(caller, compute_dtype)
    rounded = arguments.rounding_dtype(compute_dtype)
    return replace(product, compute_dtype=None if rounded is None else DTYPE_NAMES[rounded])


def _check_shapes(caller: Caller, arguments: LinearArguments) -> None:
    input, weight, bias = arguments.input, arguments.linear_weight, arguments.linear_bias
    if input.dim() < 1:
        raise RuntimeError(f"{caller}: input must have the features as its last dimension, got no dimension")
    if weight.dim() < 2:
        raise RuntimeError(
            f"{caller}: expected linear_weight with dimensionality at least 2, [classes, features], got {weight.dim()}"
        )
    if input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"{caller}: expected equal input and linear_weight last dimensions, the features, got {input.shape[-1]} "
            f"and {weight.shape[-1]}; linear_weight is [classes, features], as the weight of torch.nn.Linear"
        )
    if bias is not None and bias.shape != weight.shape[:-1]:
        raise RuntimeError(
            f"{caller}: expected linear_bias shape {tuple(weight.shape[:-1])}, got {tuple(bias.shape)}; it is that of "
            f"linear_weight without the features"
        )
    if weight.dim() > 2 and input.dim() != 2:
        raise RuntimeError(
            f"{caller}: with linear_weight of shape {tuple(weight.shape)} expected input of dimensionality 2, "
            f"[positions, features], got {input.dim()}; flatten it"
        )


def check_arguments(caller: Caller, arguments: LinearArguments, ignore_index: int | None) -> None:
    """Check the arguments in PyTorch's order, so that of several faults both report the same.

    :func:`check_weight` of cross-entropy is separate, because a rank with a part of the classes does not know their
    total number.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: unknown ``reduction``; batch sizes differ.
        RuntimeError: other shapes, dtypes or devices do not match.
        NotImplementedError: an unsupported device, a sharded tensor, integers to multiply, or forward-mode
            differentiation.
    """
    tensors = arguments.tensors()
    arguments.check_tensors(caller)
    check_reduction(caller, arguments.reduction)
    checks.check_plain(caller, tensors)
    checks.check_devices(
        caller, arguments.input, {name: tensors[name] for name in ("linear_weight", "target", "linear_bias", "weight")}
    )
    _check_shapes(caller, arguments)
    if arguments.has_probabilities:
        check_floating(caller, arguments.target)
        if ignore_index is not None:
            raise RuntimeError(
                f"{caller}: ignore_index is not supported for floating point target, got {ignore_index}; leave it out, "
                f"and give ignored positions a row of zeros"
            )
    else:
        positions = tuple(arguments.input.shape[:-1])
        _, *inner = arguments.linear_weight.shape[:-1]
        check_indices(caller, arguments.logits_shape, (*positions, *inner), arguments.target)


def reason_for_reference(arguments: LinearArguments, vocabulary: int | None = None) -> str | None:
    """Return the reason why no kernel computes the loss, as a clause; None if a kernel computes it.

    Args:
        arguments: the arguments of the call.
        vocabulary: the number of classes of all ranks, if ``linear_weight`` has the classes of one rank only.
    """
    own_classes, *inner, features = arguments.linear_weight.shape
    classes = own_classes if vocabulary is None else vocabulary
    if inner:
        return f"linear_weight has {arguments.linear_weight.dim()} dimensions"
    if arguments.has_probabilities:
        return "target has class probabilities"
    if not FEATURES_MIN <= features <= FEATURES_MAX:
        return f"there are {features} features, and the kernels take {FEATURES_MIN} to {FEATURES_MAX}"
    if not 0 < classes <= CLASSES_MAX:
        return f"there are {classes} classes, and the kernels take 1 to {CLASSES_MAX}"
    return None


def _check_dtypes(caller: Caller, arguments: LinearArguments, are_rounded: bool) -> None:
    input, weight, bias = arguments.input, arguments.linear_weight, arguments.linear_bias
    for name, tensor in (("input", input), ("linear_weight", weight)):
        if not tensor.is_floating_point():
            raise NotImplementedError(
                f"{caller}: not implemented for {name} of {tensor.dtype}; pass bfloat16, float16 or float32"
            )
    if weight.dtype != input.dtype and not are_rounded:
        raise RuntimeError(
            f"{caller}: input and linear_weight must have the same dtype, got {input.dtype} and {weight.dtype}; cast "
            f"one, pass compute_dtype, or use torch.autocast"
        )
    biases = DTYPES if are_rounded else (input.dtype, torch.float32)
    if bias is not None and bias.dtype not in biases:
        raise RuntimeError(
            f"{caller}: linear_bias must have the dtype of input, {input.dtype}, or float32, got {bias.dtype}; cast it"
        )
    if not {input.dtype, weight.dtype} <= set(DTYPES):
        raise TypeError(
            f"{caller}: the kernels take bfloat16, float16 or float32, got {input.dtype} and {weight.dtype}; pass "
            f"input.float() and linear_weight.float()"
        )


def check_kernel_arguments(caller: Caller, arguments: LinearArguments, product: Product) -> None:
    """Check that the kernels take the arguments.

    Raises:
        TypeError: input and weight have a dtype other than bfloat16, float16 and float32.
        RuntimeError: input and weight have different dtypes, and ``product`` has no ``compute_dtype``; the kernels do
            not take the bias's dtype with those.
        NotImplementedError: dtypes that are not floating; ``grad_weight_sum`` of XLA tensors.
        ValueError: ``normalizer`` or ``grad_weight_sum`` cannot be used; more positions than a launch takes.
    """
    _check_dtypes(caller, arguments, product.compute_dtype is not None)
    positions = prod(arguments.input.shape[:-1])
    if positions > POSITIONS_MAX:
        raise ValueError(
            f"{caller}: there may be at most {POSITIONS_MAX} positions, got {positions}; call it for parts of them, "
            f"with normalizer= for a mean"
        )
    check_normalizer(caller, arguments.normalizer, arguments.reduction, arguments.input.device)
    check_sum(caller, arguments.linear_weight, arguments.tensors())
