# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses with class indices: their operators, made from one description, and the checks of rows of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from nkilib.core.host.options import check_flags
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, check_float_dtype, kernel_gradient, loss_output
from nkilib.torch.dispatch.operator import Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.options import Defaults, options_of_loss
from nkilib.torch.losses.target_indices import INDEX_DTYPES, class_indices

# Rows of classes, and a factor for each class.
SCORES: Final = Input("input", dtypes=FLOAT_DTYPES, dimensions=2)
CLASS_WEIGHT: Final = Input("class_weight", is_optional=True, dimensions=1)


def indexed_loss(
    caller: Caller,
    kernels: tuple[Any, Any],
    inputs: Sequence[Input],
    options: Defaults,
    losses: Callable[[Call], Shape],
    backward: Sequence[str],
    arguments: Callable[[Call], dict[str, Any]],
    check_values: Callable[[Call], None],
    saved: Sequence[Output] = (),
    may_overwrite: bool = True,
) -> Derivative:
    """Register the operators of a loss, ``nkilib::<name>_forward`` and ``nkilib::<name>_backward``.

    Args:
        caller: the names of the loss and of its first tensor, for messages.
        kernels: the forward and the backward kernel, whose arguments have the names of tensors and options.
        inputs: the inputs of the forward; only the first one has a gradient.
        options: the defaults of the kernels' options by name, including the reduction.
        losses: a function that returns the shape of losses that are not reduced.
        backward: the names of the backward's inputs, in order: inputs of the forward, tensors that it saved, and
            ``"grad_loss"``.
        arguments: a function that returns the keyword arguments that both kernels get beside inputs and options, or in
            place of them, such as class indices in int32.
        check_values: a function that raises if indices are out of range, called on the CPU only.
        saved: the outputs of the forward that only the backward needs.
        may_overwrite: whether the backward can write the gradient over the first input.
    """
    first, known, own = inputs[0].name, {operand.name: operand for operand in inputs}, options_of_loss(options)
    of_forward = Operator(
        f"{caller}_forward",
        inputs=inputs,
        options=(own,),
        outputs=(loss_output(losses, (first,)), *saved),
        kernel=kernels[0],
        arguments=arguments,
        check_values=check_values,
        instead=caller.instead,
    )
    of_backward = Operator(
        f"{caller}_backward",
        inputs=[known.get(name, Input(name)) for name in backward],
        options=(own,),
        outputs=(Output(f"grad_{first}", None, as_first),),
        kernel=kernels[1],
        arguments=lambda call: {**arguments(call), **kernel_gradient(call)},
        may_overwrite=may_overwrite,
        check_values=check_values,
        instead=caller.instead,
    )
    return differentiate(register(of_forward), register(of_backward))


def class_targets(call: Call) -> dict[str, Any]:
    """Return the kernel argument for int32 targets, for a loss without ``ignore_index``."""
    return {"targets_hbm": class_indices(call.tensor("target").detach(), int(call.first.shape[1]))}


def check_float_input(caller: Caller, input: Tensor) -> None:
    """Reject a first input that is not bfloat16, float16 or float32, with PyTorch's error types.

    Raises:
        NotImplementedError: it is an integer tensor.
        TypeError: it is float64.
    """
    if not input.is_floating_point():
        raise NotImplementedError(f"{caller}: not implemented for {caller.noun} of {input.dtype}; pass input.float()")
    check_float_dtype(caller, caller.input, input)


def rows_and_classes(input: Tensor) -> tuple[int, int]:
    """Return N and C of an input [N, C], [C] or without dimensions, which is one class."""
    if input.dim() == 2:
        return int(input.shape[0]), int(input.shape[1])
    return 1, int(input.shape[0]) if input.dim() else 1


def check_classes(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Reject wrong shapes and dtypes of input and target, with PyTorch's error types.

    Raises:
        RuntimeError: no classes, or more than two dimensions; a target that is not an integer tensor.
        NotImplementedError: an integer input.
        TypeError: a float64 input.
    """
    if input.dim() > 2 or (input.dim() and rows_and_classes(input)[1] == 0):
        raise RuntimeError(
            f"{caller}: Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}; flatten what is beside the classes"
        )
    if target.dtype not in INDEX_DTYPES:
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; pass target.long()"
        )
    check_float_input(caller, input)


def check_inplace(
    caller: Caller, input: Tensor, computed: Tensor, inplace: Any, others: Mapping[str, Tensor | None]
) -> None:
    """Reject ``inplace`` where the gradient cannot be written over the input.

    Raises:
        TypeError: it is not a bool.
        ValueError: the kernel would work on a copy.
        RuntimeError: a leaf that requires grad, or a view of one; one of ``others`` shares memory with it;
            torch.compile is tracing.
    """
    check_flags(caller, inplace=inplace)
    if not inplace:
        return
    checks.check_inplace(caller, input, others)
    if computed.dtype != input.dtype or not input.is_contiguous():
        raise ValueError(
            f"{caller}: inplace=True needs a contiguous input in the type in which the loss is computed, got "
            f"{input.dtype} of {tuple(input.shape)}, strides {input.stride()}; leave inplace off"
        )
