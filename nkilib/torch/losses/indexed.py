# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses with class indices: their operators, made from one description, and what rows of classes take and refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor

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
        caller: its name, and how messages speak of its first tensor.
        kernels: forward and backward, whose arguments have the names of tensors and options.
        inputs: of the forward; the first one alone has a gradient.
        options: defaults of the kernels' options by name, with the reduction.
        losses: the shape of losses that are not reduced.
        backward: names of what the backward takes, in order: inputs of the forward, what it saved, and ``"grad_loss"``.
        arguments: of both kernels: the indices as they take them.
        check_values: raises where indices are out of range, on the CPU alone.
        saved: what the forward returns for the backward.
        may_overwrite: the backward can write the gradient over the first input.
    """
    first, known, own = inputs[0].name, {each.name: each for each in inputs}, options_of_loss(options)
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
    """The targets as kernels take them that ignore no class."""
    return {"targets_hbm": class_indices(call.tensor("target").detach(), int(call.first.shape[1]))}


def check_float_input(caller: Caller, input: Tensor) -> None:
    """Refuse a type of the first input, with PyTorch's types of errors.

    Raises:
        NotImplementedError: integers.
        TypeError: float64.
    """
    if not input.is_floating_point():
        raise NotImplementedError(f"{caller}: not implemented for {caller.noun} of {input.dtype}; pass input.float()")
    check_float_dtype(caller, caller.input, input)


def rows_and_classes(input: Tensor) -> tuple[int, int]:
    """N and C of [N, C], [C] or a number, which is one class."""
    if input.dim() == 2:
        return int(input.shape[0]), int(input.shape[1])
    return 1, int(input.shape[0]) if input.dim() else 1


def check_classes(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Refuse shapes and types of input and target, with PyTorch's types of errors.

    Raises:
        RuntimeError: no classes, or more than two dimensions; a target of no integers.
        NotImplementedError: an input of integers.
        TypeError: float64.
    """
    if input.dim() > 2 or (input.dim() and rows_and_classes(input)[1] == 0):
        raise RuntimeError(
            f"{caller}: Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}; flatten what is beside the classes"
        )
    if target.dtype not in INDEX_DTYPES:
        raise RuntimeError(f"{caller}: expected target dtype to be an integer type, but got {target.dtype}")
    check_float_input(caller, input)


def check_inplace(caller: Caller, input: Tensor, computed: Tensor, inplace: Any) -> None:
    """Refuse ``inplace`` where the gradient cannot be written over the input.

    Raises:
        TypeError: it is no bool.
        ValueError: the kernel would work on a copy.
        RuntimeError: a leaf that requires grad, or a view of one; torch.compile is at work.
    """
    checks.check_flag(caller, "inplace", inplace)
    if not inplace:
        return
    checks.check_inplace(caller, input)
    if computed.dtype != input.dtype or not input.is_contiguous():
        raise ValueError(
            f"{caller}: inplace=True needs a contiguous input in the type in which the loss is computed, got "
            f"{input.dtype} of {tuple(input.shape)}, strides {input.stride()}; leave inplace off"
        )
